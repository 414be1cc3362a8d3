#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kvd/admin/documents.hpp"
#include "kvd/admin/json.hpp"
#include "kvd/core/door/tuning_keys.hpp"

namespace kvd::admin {
namespace {

using core::TuningKey;
using link::Assignment;
using link::DrainKey;
using link::QuotaKey;
using link::SloKey;
using MaybeRefusal = std::optional<Refusal>;

Refusal refuse(std::string path, std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(path), std::move(message)};
}

/// The JSON pointer (RFC 6901) to a key of what `parent` points to.
std::string pointer(const std::string& parent, std::string_view key) {
  return (Json::json_pointer(parent) / std::string(key)).to_string();
}

/// A whole number a 64-bit integer holds; 32.0 counts as whole.
std::optional<std::int64_t> whole(const Json& value) {
  constexpr double kLimit = 9e18;
  if (!value.is_number()) return std::nullopt;
  const double as_double = value.get<double>();
  if (!(std::abs(as_double) < kLimit) || as_double != std::floor(as_double)) return std::nullopt;
  return value.get<std::int64_t>();
}

/// Whether the link carries it whole.
bool is_plain(std::string_view text) {
  return text.size() < sizeof(link::Text) &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c != '\x7f'; });
}

/// Each of these says what the value must be if it is wrong, and fills in the assignment if it is
/// right.
const char* fill(Assignment& out, const core::TuningField<std::string>&, const Json& value) {
  if (!value.is_string()) return "must be a string";
  if (!is_plain(value.get<std::string>())) {
    return "must be a name of at most 63 printable characters";
  }
  out.text = link::to_text<sizeof(link::Text)>(value.get<std::string>());
  return nullptr;
}

const char* fill(Assignment& out, const core::TuningField<double>&, const Json& value) {
  if (!value.is_number()) return "must be a number";
  out.number = value.get<double>();
  return nullptr;
}

const char* fill(Assignment& out, const core::TuningField<bool>&, const Json& value) {
  if (!value.is_boolean()) return "must be true or false";
  out.whole = value.get<bool>() ? 1 : 0;
  return nullptr;
}

const char* fill(Assignment& out, const core::TuningField<std::optional<Bytes>>&,
                 const Json& value) {
  const auto number = whole(value);
  if (value != "auto" && !number) return "must be \"auto\" or a whole number of bytes";
  out.whole = number.value_or(link::kAutomatic);
  return nullptr;
}

bool is_class_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  };
  return !name.empty() && name.size() <= 32 && std::all_of(name.begin(), name.end(), allowed);
}

/// Follows only existing keys, so the depth is bounded by that of the document, however deep the
/// text nests.
class PatchReader {
 public:
  /// `prefix` is "" or the dotted path of the object with a dot behind it.
  MaybeRefusal read_policy(const std::string& path, const std::string& prefix, const Json& patch) {
    if (!patch.is_object()) return refuse(path, "must be an object with keys " + names(prefix));
    for (const auto& [name, value] : patch.items()) {
      if (auto refusal = read_key(pointer(path, name), prefix, name, value)) return refusal;
    }
    return std::nullopt;
  }

  MaybeRefusal read_slo(const Json& patch) {
    if (!patch.is_object()) return refuse("", "must be an object with keys classes");
    for (const auto& [name, value] : patch.items()) {
      if (name != "classes") return refuse(pointer("", name), "no such key; known are classes");
      if (value.is_null()) return refuse("/classes", kStays);
      if (!value.is_object()) return refuse("/classes", "must be an object of classes");
      for (const auto& [slo_class, goals] : value.items()) {
        if (auto refusal = read_class(slo_class, goals)) return refusal;
      }
    }
    return std::nullopt;
  }

  MaybeRefusal read_quotas(const Json& patch) {
    if (!patch.is_object()) return refuse("", "must be an object with keys domains");
    for (const auto& [name, value] : patch.items()) {
      if (name != "domains") return refuse(pointer("", name), "no such key; known are domains");
      if (!value.is_object()) return refuse("/domains", "must be an object of domains");
      for (const auto& [domain, tiers] : value.items()) {
        if (auto refusal = read_domain(domain, tiers)) return refusal;
      }
    }
    return std::nullopt;
  }

  MaybeRefusal read_drain(const Json& patch) {
    if (!patch.is_object()) return refuse("", "must be an object with keys node, engines");
    for (const auto& [name, value] : patch.items()) {
      if (name == "node") {
        if (auto refusal = read_who("/node", 0, value)) return refusal;
      } else if (name != "engines") {
        return refuse(pointer("", name), "no such key; known are node, engines");
      } else if (!value.is_object()) {
        return refuse("/engines", "must be an object of engines, by their number");
      } else if (auto refusal = read_engines(value)) {
        return refusal;
      }
    }
    return std::nullopt;
  }

  std::vector<Assignment> assignments;

 private:
  static constexpr const char* kStays = "null would remove the key, which must stay; give a value";
  static constexpr const char* kGoals = "ttft_s, tbt_s, tpot_s, gap_s";

  /// Lists the names of the keys right under the prefix.
  static std::string names(const std::string& prefix) {
    std::string all;
    std::string last;
    for (const TuningKey& key : core::tuning_keys()) {
      if (!key.path.starts_with(prefix)) continue;
      const auto rest = key.path.substr(prefix.size());
      const std::string name(rest.substr(0, rest.find('.')));
      if (name != last) all += (all.empty() ? "" : ", ") + name;
      last = name;
    }
    return all;
  }

  MaybeRefusal read_key(const std::string& path, const std::string& prefix, const std::string& name,
                        const Json& value) {
    const auto keys = core::tuning_keys();
    const std::string full = prefix + name;
    const bool plain = name.find('.') == std::string::npos;
    const auto exact = std::find_if(keys.begin(), keys.end(),
                                    [&](const TuningKey& key) { return key.path == full; });
    const bool object = std::any_of(keys.begin(), keys.end(), [&](const TuningKey& key) {
      return key.path.starts_with(full + ".");
    });
    if (!plain || (exact == keys.end() && !object)) {
      return refuse(path, "no such key; known are " + names(prefix));
    }
    if (value.is_null()) return refuse(path, kStays);
    if (object) return read_policy(path, full + ".", value);
    Assignment assignment;
    assignment.key = static_cast<std::uint32_t>(exact - keys.begin());
    const char* wrong =
        std::visit([&](const auto& field) { return fill(assignment, field, value); }, exact->field);
    if (wrong != nullptr) return refuse(path, wrong);
    assignments.push_back(assignment);
    return std::nullopt;
  }

  MaybeRefusal read_class(const std::string& name, const Json& goals) {
    const std::string path = pointer("/classes", name);
    if (!is_class_name(name)) {
      return refuse("/classes", "a class name has 1 to 32 letters, digits, '_' or '-'");
    }
    assign(name, goals.is_null() ? SloKey::kRemove : SloKey::kAdd, 0);
    if (goals.is_null()) return std::nullopt;
    if (!goals.is_object()) {
      return refuse(path, std::string("must be an object with keys ") + kGoals);
    }
    for (const auto& [goal, value] : goals.items()) {
      if (auto refusal = read_goal(pointer(path, goal), name, goal, value)) return refusal;
    }
    return std::nullopt;
  }

  MaybeRefusal read_goal(const std::string& path, const std::string& name, const std::string& goal,
                         const Json& value) {
    constexpr double kLimit = 9e9;  // seconds that 64-bit nanoseconds hold
    constexpr std::array<std::pair<const char*, SloKey>, 4> kKeys = {{{"ttft_s", SloKey::kTtft},
                                                                      {"tbt_s", SloKey::kTbt},
                                                                      {"tpot_s", SloKey::kTpot},
                                                                      {"gap_s", SloKey::kGap}}};
    const auto* const found = std::find_if(kKeys.begin(), kKeys.end(),
                                           [&](const auto& each) { return goal == each.first; });
    if (found == kKeys.end()) {
      return refuse(path, std::string("no such key; known are ") + kGoals);
    }
    const SloKey key = found->second;
    if (value.is_null()) return refuse(path, kStays);
    if (key == SloKey::kGap && value == "auto") {
      assign(name, key, link::kAutomatic);
      return std::nullopt;
    }
    if (!value.is_number()) return refuse(path, "must be a number of seconds");
    const double seconds = value.get<double>();
    if (!(std::abs(seconds) < kLimit)) return refuse(path, "too many seconds");
    assign(name, key, std::llround(seconds * 1e9));
    return std::nullopt;
  }

  MaybeRefusal read_domain(const std::string& name, const Json& tiers) {
    const std::string path = pointer("/domains", name);
    if (!is_class_name(
            name)) {  // the domains' names, too, because the link would cut off longer ones
      return Refusal{ErrorCode::kNotFound, "/domains", "no [[domain]] has such a name"};
    }
    if (!tiers.is_object()) return refuse(path, "must be an object with keys hbm, dram");
    for (const auto& [tier, quota] : tiers.items()) {
      const std::string place = pointer(path, tier);
      if (tier != "hbm" && tier != "dram") {
        return refuse(place, "no such key that can be set; known are hbm, dram");
      }
      if (!quota.is_object()) {
        return refuse(place, "must be an object with keys guarantee_bytes, maximum_bytes");
      }
      for (const auto& [key, value] : quota.items()) {
        std::string which = tier;
        which.append(".").append(key);
        if (auto refusal = read_quota(pointer(place, key), name, which, value)) {
          return refusal;
        }
      }
    }
    return std::nullopt;
  }

  MaybeRefusal read_quota(const std::string& path, const std::string& domain,
                          const std::string& key, const Json& value) {
    static const std::map<std::string, QuotaKey> kKeys = {
        {"hbm.guarantee_bytes", QuotaKey::kHbmGuarantee},
        {"hbm.maximum_bytes", QuotaKey::kHbmMaximum},
        {"dram.guarantee_bytes", QuotaKey::kDramGuarantee},
        {"dram.maximum_bytes", QuotaKey::kDramMaximum}};
    const auto found = kKeys.find(key);
    if (found == kKeys.end()) {
      return refuse(path, "no such key; known are guarantee_bytes, maximum_bytes");
    }
    const bool may_be_null = key.ends_with("maximum_bytes");
    const auto number = whole(value);
    if (!(may_be_null && value.is_null()) && (!number || *number < 0)) {
      return refuse(path, may_be_null ? "must be a whole number of bytes, or null: no maximum"
                                      : "must be a whole number of bytes");
    }
    Assignment assignment;
    assignment.key = static_cast<std::uint32_t>(found->second);
    assignment.slo_class = link::to_text<sizeof(link::Text)>(domain);
    assignment.whole = number.value_or(link::kAutomatic);
    assignments.push_back(assignment);
    return std::nullopt;
  }

  MaybeRefusal read_engines(const Json& engines) {
    for (const auto& [name, value] : engines.items()) {
      std::uint32_t number = 0;
      const char* const end = name.data() + name.size();
      const auto read = std::from_chars(name.data(), end, number);
      if (read.ec != std::errc() || read.ptr != end || number == 0) {
        return Refusal{ErrorCode::kNotFound, "/engines", "no engine is attached that is so named"};
      }
      if (auto refusal = read_who(pointer("/engines", name), number, value)) return refusal;
    }
    return std::nullopt;
  }

  /// Null puts it back into service; an object takes it out.
  MaybeRefusal read_who(const std::string& path, std::uint32_t engine, const Json& value) {
    constexpr double kLongest = 31'536'000;  // a year
    Assignment assignment;
    assignment.key =
        static_cast<std::uint32_t>(value.is_null() ? DrainKey::kCancel : DrainKey::kDrain);
    assignment.number = engine;
    assignment.whole = link::kAutomatic;
    if (!value.is_null() && !value.is_object()) {
      return refuse(path, "must be an object, or null to put it back into service");
    }
    if (value.is_null()) {
      assignments.push_back(assignment);
      return std::nullopt;
    }
    for (const auto& [key, deadline] : value.items()) {
      const std::string place = pointer(path, key);
      if (key == "to_remote" && engine == 0) {
        if (!deadline.is_boolean()) return refuse(place, "must be true or false");
        if (!deadline) continue;
        assignment.key = static_cast<std::uint32_t>(DrainKey::kDrainToRemote);
        continue;
      }
      if (key != "deadline_s") {
        return refuse(place, engine == 0 ? "no such key; known are deadline_s, to_remote"
                                         : "no such key; known is deadline_s");
      }
      if (deadline.is_null()) continue;
      const double seconds = deadline.is_number() ? deadline.get<double>() : -1;
      if (!(seconds >= 0 && seconds <= kLongest)) {
        return refuse(place, "must be seconds, 0 to 31536000, or null: no deadline");
      }
      assignment.whole = std::llround(seconds * 1e9);
    }
    assignments.push_back(assignment);
    return std::nullopt;
  }

  void assign(const std::string& name, SloKey key, std::int64_t value) {
    Assignment assignment;
    assignment.key = static_cast<std::uint32_t>(key);
    assignment.slo_class = link::to_text<sizeof(link::Text)>(name);
    assignment.whole = value;
    assignments.push_back(assignment);
  }
};

}  // namespace

std::variant<std::vector<Assignment>, Refusal> read_patch(link::Part part, std::string_view text) {
  const Json patch = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (patch.is_discarded()) {
    return refuse("", "the body is not JSON (NaN and numbers beyond a double are not, either)");
  }
  PatchReader reader;
  auto refusal = part == link::Part::kPolicy  ? reader.read_policy("", "", patch)
                 : part == link::Part::kSlo   ? reader.read_slo(patch)
                 : part == link::Part::kDrain ? reader.read_drain(patch)
                                              : reader.read_quotas(patch);
  if (refusal) return *std::move(refusal);
  if (reader.assignments.size() > link::kMostAssignments) {
    return refuse("", "too many values at once: send them in several changes");
  }
  return std::move(reader.assignments);
}

bool contradicts(const Refusal& refusal) {
  return refusal.path == "/classes";  // names are looked at as they are read
}

Refusal refusal_of(const Error& fault) {
  const auto colon = fault.message.find(": ");
  const bool of_a_key = fault.code == ErrorCode::kInvalidArgument ||
                        fault.message.starts_with("domains") ||
                        fault.message.starts_with("engines: ");
  if (!of_a_key || colon == std::string::npos) return {fault.code, "", fault.message};
  std::string path = "/" + fault.message.substr(0, colon);
  for (char& c : path) c = c == '.' ? '/' : c;
  if (path == "/slo" || path.starts_with("/slo/")) path.replace(0, 4, "/classes");
  return {fault.code, std::move(path), fault.message.substr(colon + 2)};
}

}  // namespace kvd::admin
