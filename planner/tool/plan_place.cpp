#include <numeric>

#include "planner/baselines/all_policies.hpp"
#include "planner/solver/placement_solver.hpp"
#include "planner/tool/decisions.hpp"
#include "planner/tool/step_fields.hpp"

namespace kvd::planner {
namespace {

struct PlaceQuestion {
  PlacementSnapshot snapshot;
  PlacementConfig config;
  std::vector<std::string> ids;
  std::unique_ptr<PlacementPolicy> policy;
};

// A distance as place prints it: k, "none", "all" or {"layers": […]}.
std::vector<std::int32_t> read_current(Fields& fields, std::size_t layers) {
  const auto& value = fields.raw("current");
  std::vector<std::int32_t> all(layers);
  std::iota(all.begin(), all.end(), 1);
  if (value == "none") return {};
  if (value == "all") return all;
  if (value.is_object()) {
    Fields inner(value, fields.path("current"));
    auto offloaded = read_layers(inner, "layers", layers);
    fields.merge(inner.status());
    return offloaded;
  }
  const auto distance = as_whole(value);
  if (distance && *distance >= 1 && *distance <= static_cast<std::int64_t>(layers)) {
    return distance_layers(static_cast<std::int32_t>(layers), static_cast<std::int32_t>(*distance));
  }
  fields.fail(fields.path("current") +
              R"( must be a distance within 1..layers, "none", "all" or {"layers": [...]})");
  return {};
}

PlacementRequest read_request(Fields& fields, std::size_t layers) {
  PlacementRequest request;
  request.blocks = Blocks(fields.whole("blocks"));
  if (fields.has("tokens")) request.tokens = Tokens(fields.whole("tokens"));
  if (fields.has("slo_s")) request.slo = Seconds(fields.positive("slo_s"));
  request.deposit = fields.whole("deposit", 0);
  if (fields.has("current")) request.current = read_current(fields, layers);
  return request;
}

void read_requests(Fields& fields, PlaceQuestion& question) {
  std::set<std::string> seen;
  const auto& requests = fields.array("requests", true);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Fields one(requests[i], "requests[" + std::to_string(i) + "]");
    question.ids.push_back(read_id(one, seen));
    question.snapshot.requests.push_back(read_request(one, question.snapshot.model.layers()));
    fields.merge(one.status());
  }
}

void read_budget(Fields& fields, PlaceQuestion& question) {
  if (fields.has("budget_nodes")) question.config.budget_nodes = fields.whole("budget_nodes");
  double milliseconds = question.snapshot.requests.size() <= 16 ? 10 : 50;
  const bool given = fields.has("budget_ms");
  if (given) milliseconds = fields.not_negative("budget_ms");
  if (milliseconds > 1e9) fields.fail("budget_ms must be at most 1e9");
  if (given || !question.config.budget_nodes) {
    question.config.budget_time = Nanoseconds(static_cast<std::int64_t>(milliseconds * 1e6));
  }
}

void read_window(Fields& fields, PlacementConfig& config) {
  if (!fields.has("window")) return;
  Fields window(fields.raw("window"), "window");
  config.window_min = window.whole("min", config.window_min);
  config.window_max = window.whole("max", config.window_max);
  fields.merge(window.status());
}

void read_config(Fields& fields, PlacementConfig& config) {
  config.tolerance = fields.not_negative("tolerance", config.tolerance);
  config.alpha = fields.not_negative("alpha", config.alpha);
  config.violation_model = fields.choice("violation_model", {"late_tokens", "interval"}) == 0
                               ? ViolationModel::kLateTokens
                               : ViolationModel::kInterval;
  config.mean_tokens = Tokens(fields.whole("mean_tokens", 0));
  read_window(fields, config);
}

Result<PlaceQuestion> read_place(const Json& json) {
  Fields fields(json, "");
  PlaceQuestion question;
  auto& snapshot = question.snapshot;
  snapshot.model = read_step_model(fields);
  snapshot.capacity = Blocks(fields.whole("capacity_blocks"));
  snapshot.buffer =
      fields.choice("buffer", {"strict", "eq1"}) == 0 ? BufferRule::kStrict : BufferRule::kEq1;
  snapshot.candidates = fields.choice("candidates", {"dl", "dl_even"}) == 0
                            ? CandidateSet::kDistances
                            : CandidateSet::kDistancesAndEven;
  snapshot.open_blocks = fields.flag("open_blocks", false);
  snapshot.block_tokens = Tokens(fields.whole("block_tokens", 16));
  read_requests(fields, question);
  read_budget(fields, question);
  read_config(fields, question.config);
  const auto policy = fields.text("policy", "orbitflow");
  KVD_TRY(fields.status());
  KVD_TRY(check(snapshot, question.config));
  KVD_ASSIGN_OR_RETURN(question.policy, all_policies().placement(policy));
  return question;
}

OrderedJson distance_json(const Candidate& candidate, std::size_t layers) {
  if (candidate.offloaded.empty()) return "none";
  if (candidate.offloaded.size() == layers) return "all";
  if (candidate.distance) return *candidate.distance;
  return {{"layers", candidate.offloaded}};
}

OrderedJson infeasible_json(const PlaceQuestion& question, const PlacementDecision& decision) {
  OrderedJson json = {{"feasible", false},
                      {"reason", decision.reason == InfeasibleReason::kMemory ? "memory" : "slo"},
                      {"proved", decision.proved},
                      {"victim", nullptr}};
  if (decision.victim) json["victim"] = question.ids[*decision.victim];
  return json;
}

OrderedJson feasible_json(const PlaceQuestion& question, const PlacementDecision& decision,
                          double solve_ms) {
  OrderedJson distances = OrderedJson::object();
  for (std::size_t r = 0; r < question.ids.size(); ++r) {
    distances[question.ids[r]] =
        distance_json(decision.placement[r], question.snapshot.model.layers());
  }
  return {{"feasible", true},
          {"distances", std::move(distances)},
          {"latency_s", decision.latency.count()},
          {"lower_bound_s", decision.lower_bound.count()},
          {"gap", decision.latency / decision.lower_bound - 1},
          {"stalls_s", in_seconds(decision.stalls)},
          {"resident_blocks", decision.memory.resident.value},
          {"buffer_blocks", decision.memory.staging(question.snapshot.buffer).value},
          {"fetched_blocks", decision.memory.fetched.value},
          {"expires_in", decision.expires_in},
          {"violations_per_step", decision.violations_per_step},
          {"solve_ms", solve_ms},
          {"nodes", decision.nodes}};
}

}  // namespace

Result<OrderedJson> plan_place(const Json& snapshot) {
  KVD_ASSIGN_OR_RETURN(const auto question, read_place(snapshot));
  const ThreadCpuClock clock;
  const TimePoint begin = clock.now();
  KVD_ASSIGN_OR_RETURN(const auto decision,
                       question.policy->decide(question.snapshot, question.config, clock));
  const double solve_ms = to_seconds(clock.now() - begin) * 1e3;
  return decision.feasible ? feasible_json(question, decision, solve_ms)
                           : infeasible_json(question, decision);
}

}  // namespace kvd::planner
