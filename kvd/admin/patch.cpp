#include <cmath>
#include <functional>
#include <utility>

#include "kvd/admin/documents.hpp"
#include "kvd/admin/json.hpp"

namespace kvd::admin {
namespace {

using core::Tuning;
using MaybeRefusal = std::optional<Refusal>;

Refusal refuse(std::string path, std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(path), std::move(message)};
}

/// A key of a document and how its value is taken over into the tuning.
struct Key {
  const char* name;
  std::function<MaybeRefusal(const std::string& path, const Json& value)> apply;
};
using Keys = std::vector<Key>;

std::string names_of(const Keys& keys) {
  std::string all;
  for (const Key& key : keys) all += (all.empty() ? "" : ", ") + std::string(key.name);
  return all;
}

/// '~' and '/' are escaped in a JSON pointer (RFC 6901).
std::string pointer(const std::string& parent, std::string_view key) {
  std::string out = parent + "/";
  for (const char c : key) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

/// Walks the patch along the keys that exist, so its depth is that of the document, however deep
/// the text nests.
MaybeRefusal apply_object(const std::string& path, const Json& patch, const Keys& keys) {
  if (!patch.is_object()) return refuse(path, "must be an object with keys " + names_of(keys));
  for (const auto& [key_name, value] : patch.items()) {
    const std::string key_path = pointer(path, key_name);
    const Key* known = nullptr;
    for (const Key& key : keys) known = key.name == key_name ? &key : known;
    if (known == nullptr) return refuse(key_path, "no such key; known are " + names_of(keys));
    if (value.is_null()) {
      return refuse(key_path, "null would remove the key, which must stay; give a value");
    }
    if (auto refusal = known->apply(key_path, value)) return refusal;
  }
  return std::nullopt;
}

Key object(const char* name, Keys keys) {
  return {name, [keys = std::move(keys)](const std::string& path, const Json& value) {
            return apply_object(path, value, keys);
          }};
}

Key text(const char* name, std::string& target) {
  return {name, [&target](const std::string& path, const Json& value) -> MaybeRefusal {
            if (!value.is_string()) return refuse(path, "must be a string");
            target = value.get<std::string>();
            return std::nullopt;
          }};
}

Key truth(const char* name, bool& target) {
  return {name, [&target](const std::string& path, const Json& value) -> MaybeRefusal {
            if (!value.is_boolean()) return refuse(path, "must be true or false");
            target = value.get<bool>();
            return std::nullopt;
          }};
}

Key number(const char* name, double& target) {
  return {name, [&target](const std::string& path, const Json& value) -> MaybeRefusal {
            if (!value.is_number()) return refuse(path, "must be a number");
            target = value.get<double>();
            return std::nullopt;
          }};
}

/// A whole number a 64-bit integer holds; 32.0 counts as whole.
std::optional<std::int64_t> whole(const Json& value) {
  constexpr double kLimit = 9e18;
  if (!value.is_number()) return std::nullopt;
  const double as_double = value.get<double>();
  if (!(std::abs(as_double) < kLimit) || as_double != std::floor(as_double)) return std::nullopt;
  return value.get<std::int64_t>();
}

Key tokens(const char* name, std::int64_t& target) {
  return {name, [&target](const std::string& path, const Json& value) -> MaybeRefusal {
            const auto count = whole(value);
            if (!count) return refuse(path, "must be a whole number of tokens");
            target = *count;
            return std::nullopt;
          }};
}

Key bytes_or_auto(const char* name, std::optional<Bytes>& target) {
  return {name, [&target](const std::string& path, const Json& value) -> MaybeRefusal {
            if (value == "auto") return target = std::nullopt, std::nullopt;
            const auto count = whole(value);
            if (!count) return refuse(path, "must be \"auto\" or a whole number of bytes");
            target = Bytes(*count);
            return std::nullopt;
          }};
}

Key seconds(const char* name, Nanoseconds& target) {
  return {name, [&target](const std::string& path, const Json& value) -> MaybeRefusal {
            constexpr double kLimit = 9e9;  // seconds that 64-bit nanoseconds hold
            if (!value.is_number()) return refuse(path, "must be a number of seconds");
            const double count = value.get<double>();
            if (!(std::abs(count) < kLimit)) return refuse(path, "too many seconds");
            target = Nanoseconds(std::llround(count * 1e9));
            return std::nullopt;
          }};
}

Keys policy_keys(Tuning& t) {
  auto& r = t.rotation;
  auto& p = t.placement;
  auto& a = t.admission;
  return {object("rotation",
                 {text("policy", r.policy), number("alpha", r.alpha), number("beta_b", r.beta_b),
                  number("beta_f", r.beta_f), bytes_or_auto("b_xfer", r.b_xfer),
                  truth("eager", r.eager), text("overload", r.overload)}),
          object("placement",
                 {text("policy", p.policy), number("alpha", p.alpha),
                  object("window", {tokens("min", p.window_min), tokens("max", p.window_max)}),
                  truth("pause", p.pause), truth("deposit", p.deposit)}),
          object("admission",
                 {text("policy", a.policy), number("alpha", a.alpha), number("beta", a.beta)}),
          object("load", {text("policy", t.load.policy)})};
}

Keys goal_keys(core::Slo& slo) {
  return {seconds("ttft_s", slo.ttft), seconds("tbt_s", slo.tbt), seconds("tpot_s", slo.tpot)};
}

MaybeRefusal apply_classes(const std::string& path, const Json& patch, Tuning& tuning) {
  if (!patch.is_object()) return refuse(path, "must be an object of classes");
  for (const auto& [class_name, value] : patch.items()) {
    if (value.is_null()) {
      tuning.slo.erase(class_name);
      continue;
    }
    const core::Slo initial =
        tuning.slo.contains("default") ? tuning.slo.at("default") : core::Slo{};
    core::Slo& slo = tuning.slo.try_emplace(class_name, initial).first->second;
    if (auto refusal = apply_object(pointer(path, class_name), value, goal_keys(slo))) {
      return refusal;
    }
  }
  return std::nullopt;
}

/// "rotation.alpha: must be …" of Tuning::faults() with the path it has in the document.
Refusal refusal_of(const std::string& fault) {
  const auto colon = fault.find(": ");
  std::string path = "/" + fault.substr(0, colon);
  for (char& c : path) c = c == '.' ? '/' : c;
  if (path == "/slo" || path.starts_with("/slo/")) path.replace(0, 4, "/classes");
  return refuse(std::move(path), fault.substr(colon + 2));
}

template <class Apply>
MaybeRefusal patch_tuning(std::string_view text, Tuning& tuning, Apply apply) {
  const Json patch = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (patch.is_discarded()) {
    return refuse("", "the body is not JSON (NaN and numbers beyond a double are not, either)");
  }
  Tuning changed = tuning;
  if (auto refusal = apply(patch, changed)) return refusal;
  if (const auto faults = changed.faults(); !faults.empty()) return refusal_of(faults.front());
  tuning = std::move(changed);
  return std::nullopt;
}

}  // namespace

std::optional<Refusal> patch_policy(std::string_view patch, Tuning& tuning) {
  return patch_tuning(patch, tuning, [](const Json& document, Tuning& changed) {
    return apply_object("", document, policy_keys(changed));
  });
}

std::optional<Refusal> patch_slo(std::string_view patch, Tuning& tuning) {
  return patch_tuning(patch, tuning, [](const Json& document, Tuning& changed) {
    const Keys keys = {{"classes", [&](const std::string& path, const Json& value) {
                          return apply_classes(path, value, changed);
                        }}};
    return apply_object("", document, keys);
  });
}

}  // namespace kvd::admin
