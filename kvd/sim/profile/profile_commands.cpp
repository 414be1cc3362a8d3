#include "kvd/sim/profile/profile_commands.hpp"

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "ipc/vocabulary/bounded_input.hpp"
#include "kvd/sim/profile/calibrate.hpp"
#include "kvd/sim/run/exit_status.hpp"

namespace kvd::sim {
namespace {

using OrderedJson = nlohmann::ordered_json;

int fail(std::ostream& err, const Error& error) {
  err << "kvd-sim: " << error.message << "\n";
  const bool usage =
      error.code == ErrorCode::kNotFound || error.code == ErrorCode::kInvalidArgument;
  return usage ? kUsage : kFailed;
}

const ProfileKey& key_named(const std::string& name) {
  for (const ProfileKey& key : profile_keys()) {
    if (key.name == name) return key;
  }
  KVD_CHECK(false, "a profile that was read has only known keys");
}

OrderedJson parameter_json(const TomlEntry& entry) {
  const ProfileKey& key = key_named(entry.key);
  OrderedJson json = {{"key", entry.key}};
  std::visit([&](const auto& value) { json["value"] = value; }, entry.value);
  if (*key.unit != '\0') json["unit"] = key.unit;
  if (!entry.comment.empty()) {
    json["published"] = !entry.comment.starts_with(kOurs);
    json["source"] = entry.comment;
  }
  return json;
}

OrderedJson document_json(const ProfileDocument& document) {
  OrderedJson parameters = OrderedJson::array();
  for (const TomlEntry& entry : document.entries) parameters.push_back(parameter_json(entry));
  return {{"profile", document.profile.name},
          {"description", document.profile.description},
          {"source", document.profile.source},
          {"parameters", std::move(parameters)}};
}

int list_profiles(const ProfilesOptions& options, std::ostream& out) {
  OrderedJson list = OrderedJson::array();
  std::string text;
  for (const Preset& preset : presets()) {
    const auto document = read_profile(preset.toml, preset.name);
    KVD_CHECK(document.ok(), "a preset does not read");
    list.push_back(document_json(*document));
    text += std::string(preset.name) + std::string(24 - std::string_view(preset.name).size(), ' ') +
            document->profile.description + "\n";
  }
  if (options.json) {
    out << OrderedJson{{"profiles", std::move(list)}}.dump(2) << "\n";
  } else {
    out << text
        << "`kvd-sim profiles NAME` shows one with the source of each figure, as a file that "
           "--profile takes.\n";
  }
  return kDone;
}

Result<std::string> read_whole(const std::string& file) {
  constexpr Bytes kMost = 128 * kMiB;
  if (file == "-") return read_bounded(std::cin, "standard input", kMost);
  if (file.starts_with("http://") || file.starts_with("https://")) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "kvd-sim reads a file; write one with `kvdctl --url " + file + " status --json > FILE`");
  }
  return read_bounded(file, kMost);
}

Result<std::string> calibrated_toml(const CalibrateOptions& options) {
  KVD_ASSIGN_OR_RETURN(const ProfileDocument base, load_document(options.base));
  KVD_ASSIGN_OR_RETURN(const std::string status, read_whole(options.from));
  KVD_ASSIGN_OR_RETURN(const ProfileDocument document, calibrated(base, status, options.name));
  return profile_toml(document.entries);
}

}  // namespace

int profiles_command(const ProfilesOptions& options, std::ostream& out, std::ostream& err) {
  if (options.name.empty()) return list_profiles(options, out);
  const auto document = load_document(options.name);
  if (!document.ok()) return fail(err, document.error());
  if (options.json) {
    out << document_json(*document).dump(2) << "\n";
  } else {
    out << profile_toml(document->entries);
  }
  return kDone;
}

int calibrate_command(const CalibrateOptions& options, std::ostream& out, std::ostream& err) {
  const auto toml = calibrated_toml(options);
  if (!toml.ok()) return fail(err, toml.error());
  if (options.to.empty()) {
    out << *toml;
    return kDone;
  }
  std::ofstream file(options.to);
  file << *toml;
  file.close();
  if (!file) {
    err << "kvd-sim: cannot write \"" << options.to << "\"\n";
    return kFailed;
  }
  return kDone;
}

}  // namespace kvd::sim
