#include "planner/policy/placement/placement.hpp"

#include <algorithm>
#include <cmath>

namespace kvd::planner {
namespace {

Error invalid(const char* why) { return make_error(ErrorCode::kInvalidArgument, why); }

constexpr Tokens kMaxTokens{std::int64_t{1} << 40};

Status check(const StepModel& model, const PlacementRequest& request) {
  KVD_TRY(check(model, {request.blocks, request.current.value_or(std::vector<std::int32_t>{})}));
  if (request.tokens && (*request.tokens < Tokens{0} || *request.tokens > kMaxTokens)) {
    return invalid("tokens must be within 0..2^40");
  }
  if (request.slo && (!std::isfinite(request.slo->count()) || request.slo->count() <= 0)) {
    return invalid("an SLO must be finite and above 0");
  }
  if (request.deposit < 0 || request.deposit > kMaxTokens.value) {
    return invalid("deposit must be within 0..2^40");
  }
  return {};
}

std::vector<StreamedRequest> streamed(const PlacementSnapshot& snapshot,
                                      const std::vector<Candidate>& placement, std::int64_t steps) {
  std::vector<StreamedRequest> requests;
  for (std::size_t r = 0; r < placement.size(); ++r) {
    requests.push_back(
        {blocks_after(snapshot.requests[r], steps, snapshot.block_tokens), placement[r].offloaded});
  }
  return requests;
}

// Compares sums of fractions: what is exactly allowed must not fail by rounding.
bool within(double late, double alpha) { return late <= alpha + 1e-9; }

bool fits(const PlacementSnapshot& snapshot, const PlacementMemory& memory) {
  return memory.resident + memory.staging(snapshot.buffer) <= snapshot.capacity;
}

// Whether a judged plan still holds after `steps` steps.
bool holds(const PlacementSnapshot& snapshot, const PlacementConfig& config,
           const PlacementDecision& judged, std::int64_t steps) {
  const auto requests = streamed(snapshot, judged.placement, steps);
  if (!fits(snapshot, placement_memory(snapshot.model.layers(), requests, snapshot.open_blocks))) {
    return false;
  }
  const bool grows =
      std::any_of(snapshot.requests.begin(), snapshot.requests.end(),
                  [](const PlacementRequest& request) { return request.tokens.has_value(); });
  const Seconds latency = grows ? edf_latency(snapshot.model, requests).total : judged.latency;
  return within(violations(snapshot, config.violation_model, latency, steps), config.alpha);
}

// Memory, step time and late tokens only grow with the steps, so bisection finds the last step that
// holds.
std::int64_t last_that_holds(const PlacementSnapshot& snapshot, const PlacementConfig& config,
                             const PlacementDecision& judged) {
  if (holds(snapshot, config, judged, config.window_max)) return config.window_max;
  std::int64_t holding = config.window_min;
  std::int64_t beyond = config.window_max;
  while (beyond - holding > 1) {
    const auto middle = holding + (beyond - holding) / 2;
    (holds(snapshot, config, judged, middle) ? holding : beyond) = middle;
  }
  return holding;
}

}  // namespace

Status check(const PlacementSnapshot& snapshot, const PlacementConfig& config) {
  KVD_TRY(check(snapshot.model));
  if (snapshot.requests.empty()) return invalid("requests must not be empty");
  if (snapshot.capacity < Blocks{0}) return invalid("capacity must not be negative");
  if (snapshot.block_tokens < Tokens{1} || snapshot.block_tokens > kMaxTokens) {
    return invalid("block_tokens must be at least 1");
  }
  for (const auto& request : snapshot.requests) KVD_TRY(check(snapshot.model, request));
  if (!std::isfinite(config.tolerance) || config.tolerance < 0) {
    return invalid("tolerance must be finite and not negative");
  }
  if (!std::isfinite(config.alpha) || config.alpha < 0) {
    return invalid("alpha must be finite and not negative");
  }
  if (config.window_min < 1 || config.window_max < config.window_min ||
      config.window_max > kMaxTokens.value) {
    return invalid("window must satisfy 1 <= min <= max");
  }
  if (config.budget_nodes && *config.budget_nodes < 0) {
    return invalid("budget_nodes must not be negative");
  }
  if (config.budget_time && *config.budget_time < Nanoseconds{0}) {
    return invalid("budget_ms must not be negative");
  }
  if (config.mean_tokens < Tokens{0} || config.mean_tokens > kMaxTokens) {
    return invalid("mean_tokens must be within 0..2^40");
  }
  return {};
}

Blocks blocks_after(const PlacementRequest& request, std::int64_t steps, Tokens block_tokens) {
  if (!request.tokens) return request.blocks;
  const auto more = pieces(*request.tokens + Tokens(steps), block_tokens);
  return request.blocks + Blocks(more - pieces(*request.tokens, block_tokens));
}

double violation(ViolationModel model, Seconds slo, Seconds latency, std::int64_t deposit,
                 std::int64_t steps) {
  const auto saved = static_cast<double>(deposit);
  const auto window = static_cast<double>(steps);
  if (model == ViolationModel::kInterval) {
    return std::max(0.0, 1 - slo / latency - saved / window);
  }
  if (latency.count() <= slo.count() + kTieSeconds) return 0;
  return std::max(0.0, 1 - saved / (window * (latency / slo - 1)));
}

double violations(const PlacementSnapshot& snapshot, ViolationModel model, Seconds latency,
                  std::int64_t steps) {
  double sum = 0;
  for (const auto& request : snapshot.requests) {
    if (request.slo) sum += violation(model, *request.slo, latency, request.deposit, steps);
  }
  return sum;
}

std::optional<Seconds> slowest_allowed(const PlacementSnapshot& snapshot,
                                       const PlacementConfig& config) {
  const auto allowed = [&](double latency) {
    return within(violations(snapshot, config.violation_model, Seconds(latency), config.window_min),
                  config.alpha);
  };
  double least = 0;
  for (const auto& request : snapshot.requests) {
    if (request.slo) least = std::max(least, request.slo->count());
  }
  // Beyond this the estimate is at its limit for all practical purposes.
  constexpr double kForever = 1e12;
  if (least == 0 || allowed(kForever * least)) return std::nullopt;
  double low = 0;
  double high = kForever * least;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (allowed(middle) ? low : high) = middle;
  }
  return Seconds(low);
}

std::optional<std::size_t> pause_victim(const PlacementSnapshot& snapshot) {
  if (snapshot.requests.size() < 2) return std::nullopt;
  const auto layers = static_cast<std::int64_t>(snapshot.model.layers());
  const auto weight = [layers](const PlacementRequest& request) {
    return request.blocks.value * layers + request.deposit;
  };
  const auto largest =
      std::max_element(snapshot.requests.begin(), snapshot.requests.end(),
                       [&](const auto& a, const auto& b) { return weight(a) < weight(b); });
  return static_cast<std::size_t>(largest - snapshot.requests.begin());
}

void judge(const PlacementSnapshot& snapshot, const PlacementConfig& config,
           PlacementDecision& decision) {
  const auto requests = streamed(snapshot, decision.placement, config.window_min);
  auto latency = edf_latency(snapshot.model, requests);
  decision.latency = latency.total;
  decision.stalls = std::move(latency.stalls);
  decision.memory = placement_memory(snapshot.model.layers(), requests, snapshot.open_blocks);
  decision.violations_per_step =
      violations(snapshot, config.violation_model, decision.latency, config.window_min);
  const bool in_memory = fits(snapshot, decision.memory);
  decision.feasible = in_memory && within(decision.violations_per_step, config.alpha);
  if (decision.feasible) {
    decision.expires_in = last_that_holds(snapshot, config, decision);
    return;
  }
  decision.reason = in_memory ? InfeasibleReason::kSlo : InfeasibleReason::kMemory;
  decision.victim = pause_victim(snapshot);
}

PlacementDecision place_alike(const PlacementSnapshot& snapshot, const PlacementConfig& config,
                              std::int32_t distance) {
  const auto layers = static_cast<std::int32_t>(snapshot.model.layers());
  const bool streams = distance > 0 && distance <= layers;
  const Candidate each =
      streams ? Candidate{distance, distance_layers(layers, distance)} : Candidate{0, {}};
  PlacementDecision decision;
  decision.placement.assign(snapshot.requests.size(), each);
  judge(snapshot, config, decision);
  for (const auto time : snapshot.model.compute) decision.lower_bound += time;
  // This proves only that nothing at all would fit.
  Blocks least;
  for (const auto& request : snapshot.requests) {
    least += blocks_after(request, config.window_min, snapshot.block_tokens);
  }
  decision.proved = decision.feasible
                        ? decision.latency <= decision.lower_bound
                        : decision.reason == InfeasibleReason::kMemory && least > snapshot.capacity;
  return decision;
}

}  // namespace kvd::planner
