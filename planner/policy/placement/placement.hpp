#pragma once

#include <string_view>

#include "planner/solver/placement_problem.hpp"

namespace kvd::planner {

struct PlacementRequest {
  /// Blocks per layer, now.
  Blocks blocks;
  /// Length now; if given, the request grows by a token a step.
  std::optional<Tokens> tokens;
  std::optional<Seconds> slo;
  /// Tokens made but not yet due.
  std::int64_t deposit = 0;
  /// Layers that are offloaded now, where that is known.
  std::optional<std::vector<std::int32_t>> current;
};

struct PlacementSnapshot {
  StepModel model;
  /// HBM for the batch, in layer-blocks.
  Blocks capacity;
  BufferRule buffer = BufferRule::kStrict;
  CandidateSet candidates = CandidateSet::kDistances;
  bool open_blocks = false;
  Tokens block_tokens{16};
  std::vector<PlacementRequest> requests;
};

/// How late tokens are estimated for a step time above the SLO.
enum class ViolationModel {
  /// Exact: once the deposit is dry, every token of a step that is too slow is late.
  kLateTokens,
  /// As published; it understates (MODEL.md "SLOs").
  kInterval,
};

struct PlacementConfig {
  double tolerance = 0.005;
  std::optional<std::int64_t> budget_nodes;
  std::optional<Nanoseconds> budget_time;
  /// Late tokens a decode step may have, summed over the batch.
  double alpha = 1;
  /// The fewest steps that a plan should hold, and the most before it is made again.
  std::int64_t window_min = 32;
  std::int64_t window_max = 1000;
  ViolationModel violation_model = ViolationModel::kLateTokens;
  /// Mean final length, for flexgen_plus.
  Tokens mean_tokens{0};
};

enum class InfeasibleReason { kMemory, kSlo };

/// Says which layers of which request stay in HBM. All figures are those after window_min steps.
struct PlacementDecision {
  bool feasible = false;
  InfeasibleReason reason = InfeasibleReason::kMemory;
  /// Infeasible: no plan exists. Feasible: latency is within the tolerance of the optimum.
  bool proved = false;
  /// The request to pause when infeasible: the largest in blocks and deposit; none when only one is
  /// left.
  std::optional<std::size_t> victim;

  std::vector<Candidate> placement;
  Seconds latency{0};
  Seconds lower_bound{0};
  std::vector<Seconds> stalls;
  PlacementMemory memory;
  /// Steps after which the plan must be made again.
  std::int64_t expires_in = 0;
  double violations_per_step = 0;
  std::int64_t nodes = 0;
};

/// What the mechanism around a placement policy does for it.
struct PlacementTraits {
  /// Layers may leave HBM; otherwise the policy is not asked.
  bool streams = true;
  /// Its plans leave room for staging. A policy that forgets it may answer "too large" where a plan
  /// exists; kvd then asks `batch_uniform`.
  bool counts_staging = false;
  /// Where no plan meets the goals, a request pauses (PlacementDecision::victim).
  bool pauses = false;
};

/// Decides where layers live: a pure function of its arguments (and, with a time budget, of the
/// clock). Owner: one thread.
class PlacementPolicy {
 public:
  virtual ~PlacementPolicy() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual PlacementTraits traits() const = 0;
  /// Errors: InvalidArgument for a snapshot or configuration out of range.
  [[nodiscard]] virtual Result<PlacementDecision> decide(const PlacementSnapshot& snapshot,
                                                         const PlacementConfig& config,
                                                         const Clock& clock) const = 0;
};

/// Errors: InvalidArgument with the reason.
[[nodiscard]] Status check(const PlacementSnapshot& snapshot, const PlacementConfig& config);

/// The request's blocks per layer after some decode steps.
[[nodiscard]] Blocks blocks_after(const PlacementRequest& request, std::int64_t steps,
                                  Tokens block_tokens);

/// Expected share of late tokens of one request over a window of `steps` at step time `latency`.
/// Source: OrbitFlow sec. 4.2 with its deposit.
[[nodiscard]] double violation(ViolationModel model, Seconds slo, Seconds latency,
                               std::int64_t deposit, std::int64_t steps);
/// The sum of it over all requests with an SLO.
[[nodiscard]] double violations(const PlacementSnapshot& snapshot, ViolationModel model,
                                Seconds latency, std::int64_t steps);
/// The longest step at which that sum stays within alpha; nothing when every step does.
[[nodiscard]] std::optional<Seconds> slowest_allowed(const PlacementSnapshot& snapshot,
                                                     const PlacementConfig& config);

/// The request to pause: the one with the most blocks over all layers plus deposit, the first of
/// equals.
/// Source: OrbitFlow sec. 4.4.
[[nodiscard]] std::optional<std::size_t> pause_victim(const PlacementSnapshot& snapshot);

/// Fills in everything that follows from a placement: figures at window_min, the SLO check and the
/// expiry. Preconditions: one candidate a request; latency bound set by the caller.
void judge(const PlacementSnapshot& snapshot, const PlacementConfig& config,
           PlacementDecision& decision);

/// The decision that places all requests alike: each layer of this distance comes from DRAM, 0:
/// none does. The bound that it gives is the compute time alone.
[[nodiscard]] PlacementDecision place_alike(const PlacementSnapshot& snapshot,
                                            const PlacementConfig& config, std::int32_t distance);

}  // namespace kvd::planner
