#include "kvd/sim/profile/document.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "ipc/vocabulary/bounded_input.hpp"
#include "kvd/sim/run/inputs.hpp"

namespace kvd::sim {
namespace {

using Set = std::function<Status(Profile&, const TomlEntry&)>;

Error invalid(const std::string& message) {
  return make_error(ErrorCode::kInvalidArgument, message);
}

Result<double> figure(const TomlEntry& entry) {
  const double* value = std::get_if<double>(&entry.value);
  if (value == nullptr || *value < 0 || *value > 1e18) {
    return invalid(entry.key + " must be a number from 0 to 1e18");
  }
  return *value;
}

Result<std::int64_t> whole(const TomlEntry& entry) {
  KVD_ASSIGN_OR_RETURN(const double value, figure(entry));
  if (value != std::floor(value) || value > 9e15)
    return invalid(entry.key + " must be a whole number");
  return static_cast<std::int64_t>(value);
}

/// A key whose value goes to `where(profile)`.
template <class Where>
Set real(Where where) {
  return [where](Profile& profile, const TomlEntry& entry) -> Status {
    KVD_ASSIGN_OR_RETURN(where(profile), figure(entry));
    return {};
  };
}
template <class Where>
Set seconds(Where where) {
  return [where](Profile& profile, const TomlEntry& entry) -> Status {
    KVD_ASSIGN_OR_RETURN(const double value, figure(entry));
    where(profile) = Seconds(value);
    return {};
  };
}
template <class Where>
Set count(Where where) {
  return [where](Profile& profile, const TomlEntry& entry) -> Status {
    KVD_ASSIGN_OR_RETURN(const std::int64_t value, whole(entry));
    auto& target = where(profile);
    using Target = std::remove_reference_t<decltype(target)>;
    if constexpr (std::is_same_v<Target, Bytes>) {
      target = Bytes(value);
    } else {
      if (value > std::int64_t{1} << 31) return invalid(entry.key + " is too large");
      target = static_cast<Target>(value);
    }
    return {};
  };
}
template <class Where>
Set text(Where where) {
  return [where](Profile& profile, const TomlEntry& entry) -> Status {
    const auto* value = std::get_if<std::string>(&entry.value);
    if (value == nullptr) return invalid(entry.key + " must be a \"string\"");
    where(profile) = *value;
    return {};
  };
}
template <class Where>
Set flag(Where where) {
  return [where](Profile& profile, const TomlEntry& entry) -> Status {
    const bool* value = std::get_if<bool>(&entry.value);
    if (value == nullptr) return invalid(entry.key + " must be true or false");
    where(profile) = *value;
    return {};
  };
}

#define KVD_FIELD(path) \
  [](Profile & p) -> auto& { return p.path; }

std::vector<ProfileKey> make_keys() {
  return {
      {"name", "", "what --profile calls it", true, text(KVD_FIELD(name))},
      {"description", "", "machine and model", true, text(KVD_FIELD(description))},
      {"source", "", "where the figures are from", false, text(KVD_FIELD(source))},
      {"pipelined", "", "the next step is asked for while one runs", false,
       flag(KVD_FIELD(pipelined))},
      {"model.layers", "", "", true, count(KVD_FIELD(shape.layers))},
      {"model.layers_per_block", "", "layers that move together", true,
       count(KVD_FIELD(shape.layers_per_block))},
      {"model.block_tokens", "", "tokens of a block", true, count(KVD_FIELD(shape.block_tokens))},
      {"model.token_layer_bytes", "B", "KV of one token in one layer, all ranks", true,
       count(KVD_FIELD(shape.bytes_per_token_per_layer))},
      {"memory.hbm_bytes", "B", "HBM for KV", true, count(KVD_FIELD(hbm))},
      {"memory.dram_bytes", "B", "DRAM for KV", true, count(KVD_FIELD(dram))},
      {"iteration.fitted", "", "decode time is a fit over tokens, not a roofline", false,
       flag(KVD_FIELD(iteration.fitted))},
      {"iteration.fixed_s", "s", "cost of an iteration", true, seconds(KVD_FIELD(iteration.fixed))},
      {"iteration.least_s", "s", "what an iteration takes at least", false,
       seconds(KVD_FIELD(iteration.least))},
      {"iteration.context_token_s", "s", "per KV token read (fitted)", false,
       seconds(KVD_FIELD(iteration.context_token))},
      {"iteration.sequence_s", "s", "per decoding request", false,
       seconds(KVD_FIELD(iteration.sequence))},
      {"iteration.prefill_fixed_s", "s", "cost of an iteration with prompts (fitted)", false,
       seconds(KVD_FIELD(iteration.prefill_fixed))},
      {"iteration.weight_bytes", "B", "read in each iteration (roofline)", false,
       real(KVD_FIELD(iteration.weight_bytes))},
      {"iteration.hbm_bytes_s", "B/s", "bandwidth of HBM (roofline)", false,
       real(KVD_FIELD(iteration.hbm_bytes_s))},
      {"iteration.hbm_efficiency", "", "share of it that is reached", false,
       real(KVD_FIELD(iteration.hbm_efficiency))},
      {"iteration.flops_per_token", "FLOP", "", true, real(KVD_FIELD(iteration.flops_per_token))},
      {"iteration.flops", "FLOP/s", "of the device", true, real(KVD_FIELD(iteration.flops))},
      {"iteration.flops_efficiency", "", "share of them that is reached", false,
       real(KVD_FIELD(iteration.flops_efficiency))},
      {"iteration.attention_flops_per_pair", "FLOP", "per (query, context) pair of a prompt", false,
       real(KVD_FIELD(iteration.attention_flops_per_pair))},
      {"link.h2d_bytes_s", "B/s", "", true, real(KVD_FIELD(link.h2d_bytes_s))},
      {"link.d2h_bytes_s", "B/s", "", true, real(KVD_FIELD(link.d2h_bytes_s))},
      {"link.shared_bytes_s", "B/s", "both directions together; 0: no such limit", false,
       real(KVD_FIELD(link.shared_bytes_s))},
      {"link.per_copy_s", "s", "launch of a copy", false, seconds(KVD_FIELD(link.per_copy))},
      {"link.per_slot_s", "s", "each slot's own cost", false, seconds(KVD_FIELD(link.per_slot))},
      {"engine.max_num_seqs", "", "requests inside at once", true,
       count(KVD_FIELD(limits.max_num_seqs))},
      {"engine.max_batched_tokens", "", "prompt tokens of an iteration; 0: any", false,
       count(KVD_FIELD(limits.max_batched_tokens))},
      {"engine.max_total_tokens", "", "final lengths of those inside; 0: any", false,
       count(KVD_FIELD(limits.max_total_tokens))},
      {"engine.max_model_len", "", "prompt and answer of one request; 0: what HBM holds", false,
       count(KVD_FIELD(limits.max_model_len))},
      {"solver.node_s", "s", "per node of the placement solver", false,
       seconds(KVD_FIELD(solver_node))},
      {"solver.call_s", "s", "per call of it", false, seconds(KVD_FIELD(solver_call))},
  };
}

#undef KVD_FIELD

Status apply(const TomlEntry& entry, Profile& profile) {
  for (const ProfileKey& key : profile_keys()) {
    if (entry.key == key.name) return key.set(profile, entry);
  }
  return invalid("there is no key " + entry.key + " in a profile; `kvd-sim profiles` shows them");
}

std::string missing_keys(const std::vector<TomlEntry>& entries) {
  std::string missing;
  for (const ProfileKey& key : profile_keys()) {
    const auto is_it = [&](const TomlEntry& entry) { return entry.key == key.name; };
    if (key.required && std::none_of(entries.begin(), entries.end(), is_it)) {
      missing += (missing.empty() ? "" : ", ") + std::string(key.name);
    }
  }
  return missing;
}

/// The figures that nobody published, by name.
std::string ours_of(const std::vector<TomlEntry>& entries) {
  std::string ours;
  for (const TomlEntry& entry : entries) {
    if (entry.comment.starts_with(kOurs)) ours += (ours.empty() ? "" : ", ") + entry.key;
  }
  return ours;
}

std::string value_text(const TomlEntry& entry) {
  if (const auto* value = std::get_if<std::string>(&entry.value)) return toml_string(*value);
  if (const auto* value = std::get_if<bool>(&entry.value)) return *value ? "true" : "false";
  char digits[64];
  const double value = std::get<double>(entry.value);
  // The shortest form that reads back as the same number; whole numbers have no exponent.
  const auto form = value == std::floor(value) && value < 1e15 ? std::chars_format::fixed
                                                               : std::chars_format::general;
  const auto end = std::to_chars(digits, digits + sizeof digits, value, form);
  return {digits, end.ptr};
}

}  // namespace

const std::vector<ProfileKey>& profile_keys() {
  static const std::vector<ProfileKey> kKeys = make_keys();
  return kKeys;
}

Result<ProfileDocument> read_profile(std::string_view text, const std::string& name) {
  ProfileDocument document;
  KVD_ASSIGN_OR_RETURN(document.entries, read_toml(text, name));
  for (const TomlEntry& entry : document.entries) {
    if (const Status status = apply(entry, document.profile); !status.ok()) {
      return invalid(name + ":" + std::to_string(entry.line) + ": " + status.error().message);
    }
  }
  if (const auto missing = missing_keys(document.entries); !missing.empty()) {
    return invalid(name + ": a profile also needs " + missing);
  }
  document.profile.ours = ours_of(document.entries);
  if (const Status status = check(document.profile); !status.ok()) {
    return make_error(status.code(), name + ": " + status.error().message);
  }
  return document;
}

std::string profile_toml(const std::vector<TomlEntry>& entries) {
  std::string out;
  std::string table;
  for (const TomlEntry& entry : entries) {
    const auto dot = entry.key.find('.');
    const std::string in = dot == std::string::npos ? "" : entry.key.substr(0, dot);
    if (in != table) out += "\n[" + in + "]\n";
    table = in;
    out += (dot == std::string::npos ? entry.key : entry.key.substr(dot + 1)) + " = " +
           value_text(entry) + (entry.comment.empty() ? "" : "  # " + entry.comment) + "\n";
  }
  return out;
}

Result<ProfileDocument> load_document(std::string_view name_or_file) {
  std::string names;
  for (const Preset& preset : presets()) {
    if (name_or_file == preset.name) return read_profile(preset.toml, preset.name);
    names += (names.empty() ? "" : ", ") + std::string(preset.name);
  }
  const std::string file(name_or_file);
  const auto text = read_bounded(file, kMiB);
  if (text.ok()) return read_profile(*text, file);
  if (text.error().code != ErrorCode::kNotFound) return text.error();
  return make_error(ErrorCode::kNotFound,
                    "there is no profile \"" + file + "\", neither as a file nor among " + names);
}

Result<Profile> load_profile(std::string_view name_or_file) {
  KVD_ASSIGN_OR_RETURN(ProfileDocument document, load_document(name_or_file));
  return std::move(document.profile);
}

std::vector<NamedText> profile_names() {
  std::vector<NamedText> names;
  for (const Preset& preset : presets()) {
    const auto document = read_profile(preset.toml, preset.name);
    KVD_CHECK(document.ok(), "a preset does not read");
    names.push_back({preset.name, document->profile.description});
  }
  return names;
}

}  // namespace kvd::sim
