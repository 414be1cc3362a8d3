#include "planner/tool/decisions.hpp"

#include <string>

namespace kvd::planner {

namespace {

constexpr std::pair<std::string_view, Decide> kAll[] = {
    {"latency", plan_latency}, {"place", plan_place},     {"rotate", plan_rotate},
    {"admit", plan_admit},     {"deposit", plan_deposit}, {"load", plan_load}};

}  // namespace

Decide decision_named(std::string_view name) {
  for (const auto& [known, decide] : kAll) {
    if (known == name) return decide;
  }
  return nullptr;
}

std::vector<std::string> decision_names() {
  std::vector<std::string> names;
  for (const auto& [name, decide] : kAll) names.emplace_back(name);
  return names;
}

Result<OrderedJson> decide_text(Decide decide, std::string_view text) {
  try {
    return decide(Json::parse(text));
  } catch (const Json::exception& fault) {
    return make_error(ErrorCode::kInvalidArgument, std::string("not JSON: ") + fault.what());
  }
}

OrderedJson error_json(const Error& error) {
  return {{"error", name(error.code)}, {"message", error.message}};
}

}  // namespace kvd::planner
