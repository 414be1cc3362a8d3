#include "kvd/ctl/assignments.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

namespace kvd::ctl {
namespace {

using Json = nlohmann::ordered_json;

/// "50ms" in seconds, "1GiB" in bytes, as the configuration's file has them; none for other texts.
std::optional<Json> measure_of(const std::string& text) {
  static const std::map<std::string, double> kSeconds = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3},
                                                         {"s", 1},     {"m", 60},    {"h", 3600}};
  static const std::map<std::string, double> kBytes = {{"B", 1},        {"KiB", 1024.0},
                                                       {"MiB", 0x1p20}, {"GiB", 0x1p30},
                                                       {"TiB", 0x1p40}, {"PiB", 0x1p50}};
  const std::size_t end = text.find_first_not_of("0123456789.");
  if (end == 0 || end == std::string::npos) return std::nullopt;
  double number = 0;
  const auto read = std::from_chars(text.data(), text.data() + end, number);
  if (read.ec != std::errc() || read.ptr != text.data() + end) return std::nullopt;
  const std::string unit = text.substr(end);
  if (const auto found = kSeconds.find(unit); found != kSeconds.end()) {
    return Json(number * found->second);
  }
  if (const auto found = kBytes.find(unit); found != kBytes.end()) {
    return Json(std::llround(number * found->second));
  }
  return std::nullopt;
}

Json value_of(const std::string& text) {
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? measure_of(text).value_or(Json(text)) : value;
}

/// The file calls a goal "tbt", the document, whose times are seconds, "tbt_s".
std::string key_of(const std::string& key, const std::string& root) {
  const std::string last = key.substr(key.rfind('.') + 1);
  const bool goal =
      root == "classes" && (last == "ttft" || last == "tbt" || last == "tpot" || last == "gap");
  return goal && key != last ? key + "_s" : key;
}

Error malformed(const std::string& assignment) {
  return make_error(ErrorCode::kInvalidArgument,
                    "\"" + assignment + "\" is not KEY=VALUE, such as rotation.alpha=2");
}

Error without_unit(const std::string& typed, const std::string& key, const std::string& text) {
  return make_error(ErrorCode::kInvalidArgument, "\"" + typed + "=" + text +
                                                     "\" has no unit: write " + typed + "=" + text +
                                                     "ms, or " + key + "=" + text + " for seconds");
}

/// The place of a dotted key, made where it is missing; null when a part of the key is empty.
Json* descend(Json& document, const std::string& dotted) {
  Json* at = &document;
  std::istringstream parts(dotted);
  for (std::string part; std::getline(parts, part, '.');) {
    if (part.empty()) return nullptr;
    at = &(*at)[part];
  }
  return at;
}

/// Whether one of the keys is the other, or stands in it.
bool overlap(const std::string& one, const std::string& other) {
  return (one + ".").starts_with(other + ".") || (other + ".").starts_with(one + ".");
}

Status check_once(const std::string& assignment, const std::string& key,
                  std::vector<std::string>& set) {
  const auto is_set = [&](const std::string& other) { return overlap(key, other); };
  if (std::any_of(set.begin(), set.end(), is_set)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "\"" + assignment + "\" sets again what stands before it: leave one out");
  }
  set.push_back(key);
  return {};
}

}  // namespace

Result<std::string> merge_patch(const std::vector<std::string>& assignments,
                                const std::string& root) {
  Json patch = Json::object();
  Json& inner = root.empty() ? patch : patch[root] = Json::object();
  std::vector<std::string> set;
  for (const std::string& assignment : assignments) {
    const auto equals = assignment.find('=');
    if (equals == std::string::npos || equals == 0) return malformed(assignment);
    const std::string typed = assignment.substr(0, equals), key = key_of(typed, root);
    const std::string text = assignment.substr(equals + 1);
    const Json value = value_of(text);
    // As in the file, a bare number could mean seconds or milliseconds.
    if (key != typed && value == Json::parse(text, nullptr, false) && value.is_number()) {
      return without_unit(typed, key, text);
    }
    KVD_TRY(check_once(assignment, key, set));
    Json* place = descend(inner, key);
    if (place == nullptr) return malformed(assignment);
    *place = value;
  }
  return patch.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace kvd::ctl
