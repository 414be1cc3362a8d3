#include "kvd/admin/console/description.hpp"

#include <variant>
#include <vector>

#include "kvd/admin/json.hpp"
#include "kvd/core/door/tuning_keys.hpp"

namespace kvd::admin {
namespace {

Json schema(const core::TuningKey& key, const core::TuningField<std::string>&) {
  const auto names = core::choices_of(key, planner::stock_policies());
  return {{"type", "string"}, {"enum", std::vector<std::string>(names.begin(), names.end())}};
}

Json schema(const core::TuningKey& key, const core::TuningField<double>&) {
  return {{"type", "number"}, {"minimum", key.least}, {"maximum", key.most}};
}

Json schema(const core::TuningKey&, const core::TuningField<bool>&) {
  return {{"type", "boolean"}};
}

Json schema(const core::TuningKey& key, const core::TuningField<std::optional<Bytes>>&) {
  const Json automatic = {{"type", "string"}, {"enum", Json::array({"auto"})}};
  const Json bytes = {{"type", "integer"},
                      {"minimum", static_cast<std::int64_t>(key.least)},
                      {"maximum", static_cast<std::int64_t>(key.most)}};
  return {{"oneOf", Json::array({automatic, bytes})}};
}

/// The document's tables. A patch may leave out what a document has.
Json tables(bool whole) {
  Json all = Json::object();
  for (const core::TuningKey& key : core::tuning_keys()) {
    Json& table = all[std::string(key.table())];
    table["type"] = "object";
    if (whole) table["required"].push_back(key.name());
    if (!whole) table["additionalProperties"] = false;
    Json& one = table["properties"][std::string(key.name())];
    one = std::visit([&](const auto& field) { return schema(key, field); }, key.field);
    one["description"] = std::string(key.help) + "; set it: " + std::string(key.when);
  }
  return all;
}

}  // namespace

std::string description_of(std::string_view written) {
  Json all = Json::parse(written);
  Json& schemas = all["components"]["schemas"];
  schemas["Policy"]["properties"] = tables(true);
  for (const auto& [name, table] : schemas["Policy"]["properties"].items()) {
    schemas["Policy"]["required"].push_back(name);
  }
  schemas["PolicyPatch"]["properties"] = tables(false);
  return to_text(all);
}

}  // namespace kvd::admin
