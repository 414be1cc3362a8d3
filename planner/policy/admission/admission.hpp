#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "planner/policy/admission/prefill_costs.hpp"

namespace kvd::planner {

struct DecodingRequest {
  Seconds tpot_slo{0};
  std::int64_t n_past = 0;
  Seconds t_past{0};
  /// Tokens still to come, at least 1: a lower bound for the allowance, a median for the forecast.
  std::int64_t n_future = 1;
  /// Time per token now.
  Seconds tpot{0};

  // Beyond LayerKV's Algorithm 1. Each of these counts only where the snapshot has the part that
  // uses it.
  Tokens prompt{0};
  /// Tokens made but not yet due: they hide a long step.
  std::int64_t deposit = 0;
  /// Layers in HBM; nothing = all.
  std::optional<std::int32_t> retained_layers{};
  /// S_B; nothing: that of the guard.
  std::optional<Seconds> tbt_slo{};
  /// Tokens still to come that may be counted on where n_future is 1 because nothing is known;
  /// nothing: n_future.
  std::optional<std::int64_t> n_sure{};

  /// Eq. 1 and 2: how long this request can do without a decode step and still meet its SLO.
  [[nodiscard]] Seconds allowance() const { return allowance(n_future); }
  /// The same if `to_come` tokens are to come.
  [[nodiscard]] Seconds allowance(std::int64_t to_come) const;
};

struct QueuedPrompt {
  Tokens tokens;
  /// Tokens already prefilled.
  Tokens done{0};
  /// Expected length of the answer.
  std::int64_t output = 1;
  /// The request was let in earlier: it holds memory, perhaps without a token yet, and is always
  /// admitted further.
  bool begun = false;
  /// Time until its first token is late; nothing: it is never late, or late in any case.
  std::optional<Seconds> left{};
  /// For how long it can wait and still be in time; nothing: it cannot wait.
  std::optional<Seconds> spare{};
};

/// HBM in layer-blocks (blocks of one layer group).
struct AdmissionMemory {
  Blocks total;
  Blocks free;
  Tokens block_tokens{16};
  /// How many stages to forecast; a stage is the time in which a sequence fills a block.
  std::int32_t stages = 4;
  /// Share of `total` below which retained layers are offloaded.
  double threshold = 0.05;
};

/// What a step may take. Source: kvd; MODEL.md "Who may prefill" (guard).
struct StepGuard {
  /// The time of a decode step of the present batch, and what one more request adds.
  Seconds step{0};
  Seconds per_request{0};
  /// S_B, the smallest in the batch.
  Seconds tbt_slo{0.1};
  /// Engines with requests that take turns on the device, including this one.
  std::int64_t turns = 1;
};

struct AdmissionSnapshot {
  PrefillCosts costs;
  /// In order of processing, the latest last.
  std::vector<DecodingRequest> decoding;
  /// In order of arrival, those already begun first.
  std::vector<QueuedPrompt> queue;
  std::optional<AdmissionMemory> memory;
  std::optional<StepGuard> guard;
};

/// Says which prompts may prefill now: the first `admitted` of the queue. Vectors over the queue
/// cover all of it.
struct AdmissionDecision {
  std::size_t admitted = 0;
  /// Nothing where no SLO bounds prefill.
  std::optional<Seconds> allow_prefill;
  std::vector<Seconds> prefill;
  std::vector<std::int32_t> retained_layers;
  std::vector<Seconds> offload;
  /// The most prompt tokens that the next step may have, summed over requests; nothing: no bound.
  std::optional<Tokens> chunk;
  /// Free blocks expected now and after each stage, and what to offload so that they suffice: so
  /// many further layers of each decoding request. Only with `memory` and for layerkv.
  std::vector<Blocks> forecast;
  std::vector<std::int32_t> offload_layers;
};

/// What the mechanism around an admission policy does for it.
struct AdmissionTraits {
  /// Admitted prompts may prefill layer by layer into DRAM where HBM has no room for all of them.
  bool prefills_layerwise = false;
  /// It asks for room for a whole request: memory that a rotation policy can evict counts as free.
  bool counts_evictable = false;
};

/// Decides who may prefill: a pure function of the snapshot.
class AdmissionPolicy {
 public:
  virtual ~AdmissionPolicy() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual AdmissionTraits traits() const { return {}; }
  /// Errors: InvalidArgument for rates, sizes or times that are not finite and in range, for a
  /// snapshot that lacks what the policy needs, and for a prompt that can never fit.
  [[nodiscard]] virtual Result<AdmissionDecision> decide(
      const AdmissionSnapshot& snapshot) const = 0;
};

/// Errors: InvalidArgument with the reason.
[[nodiscard]] Status check(const AdmissionSnapshot& snapshot);

/// A decision with every figure of the queue filled in for these retained layers.
[[nodiscard]] AdmissionDecision begin_admission(const AdmissionSnapshot& snapshot,
                                                std::vector<std::int32_t> retained);

/// Every layer, for each prompt of the queue.
[[nodiscard]] std::vector<std::int32_t> all_layers(const AdmissionSnapshot& snapshot);

}  // namespace kvd::planner
