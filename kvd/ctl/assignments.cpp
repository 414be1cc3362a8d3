#include "kvd/ctl/assignments.hpp"

#include <nlohmann/json.hpp>
#include <sstream>

namespace kvd::ctl {
namespace {

using Json = nlohmann::ordered_json;

Json value_of(const std::string& text) {
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? Json(text) : value;
}

Error malformed(const std::string& assignment) {
  return make_error(ErrorCode::kInvalidArgument,
                    "\"" + assignment + "\" is not KEY=VALUE, such as rotation.alpha=2");
}

/// The place of a dotted key, made where it is missing; null when a value stands in its way.
Json* descend(Json& document, const std::string& dotted) {
  Json* at = &document;
  std::istringstream parts(dotted);
  for (std::string part; std::getline(parts, part, '.');) {
    if (part.empty() || !(at->is_null() || at->is_object())) return nullptr;
    at = &(*at)[part];
  }
  return at;
}

}  // namespace

Result<std::string> merge_patch(const std::vector<std::string>& assignments,
                                const std::string& root) {
  Json patch = Json::object();
  Json& inner = root.empty() ? patch : patch[root] = Json::object();
  for (const std::string& assignment : assignments) {
    const auto equals = assignment.find('=');
    if (equals == std::string::npos || equals == 0) return malformed(assignment);
    Json* place = descend(inner, assignment.substr(0, equals));
    if (place == nullptr || !place->is_null()) return malformed(assignment);
    *place = value_of(assignment.substr(equals + 1));
  }
  return patch.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace kvd::ctl
