#include "planner/tool/decisions.hpp"

#include <string>

namespace kvd::planner {

Decide decision_named(std::string_view name) {
  struct Entry {
    std::string_view name;
    Decide decide;
  };
  constexpr Entry kAll[] = {{"latency", plan_latency}, {"place", plan_place},
                            {"rotate", plan_rotate},   {"admit", plan_admit},
                            {"deposit", plan_deposit}, {"load", plan_load}};
  for (const auto& entry : kAll) {
    if (entry.name == name) return entry.decide;
  }
  return nullptr;
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
