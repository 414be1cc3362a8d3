#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "planner/policy/prefill_costs.hpp"

namespace kvd::planner {

struct DecodingRequest {
  Seconds tpot_slo{0};
  std::int64_t n_past = 0;
  Seconds t_past{0};
  /// Tokens still to come, at least 1: a lower bound for the allowance, a median for the forecast.
  std::int64_t n_future = 1;
  /// Time per token now.
  Seconds tpot{0};

  // Beyond LayerKV's Algorithm 1; each is used where the snapshot has what it goes with.
  Tokens prompt{0};
  /// Tokens made and not yet due: what hides a long step.
  std::int64_t deposit = 0;
  /// Layers in HBM; nothing = all.
  std::optional<std::int32_t> retained_layers{};
  /// S_B; nothing = the guard's.
  std::optional<Seconds> tbt_slo{};
  /// Tokens still to come that may be counted on, where n_future is 1 for want of knowledge;
  /// nothing = n_future.
  std::optional<std::int64_t> n_sure{};

  /// Eq. 1 and 2: how long this request can do without a decode step and still meet its SLO.
  [[nodiscard]] Seconds allowance() const { return allowance(n_future); }
  /// The same if so many tokens are to come.
  [[nodiscard]] Seconds allowance(std::int64_t to_come) const;
};

struct QueuedPrompt {
  Tokens tokens;
  /// Prefilled already.
  Tokens done{0};
  /// Expected length of the answer.
  std::int64_t output = 1;
  /// Let in earlier: it holds memory, perhaps without a token yet, and is always admitted further.
  bool begun = false;
  /// Until its first token is late; nothing = never, or it is late whatever comes.
  std::optional<Seconds> left{};
  /// For how long it can wait and still be in time; nothing = not at all.
  std::optional<Seconds> spare{};
};

/// HBM in layer-blocks (blocks of one layer group).
struct AdmissionMemory {
  Blocks total;
  Blocks free;
  Tokens block_tokens{16};
  /// Stages to forecast; one is the time in which a sequence fills a block.
  std::int32_t stages = 4;
  /// Share of `total` below which retained layers are offloaded.
  double threshold = 0.05;
};

/// What a step may take. Source: kvd; MODEL.md "Who may prefill" (guard).
struct StepGuard {
  /// A decode step of the batch as it is, and what one more request adds.
  Seconds step{0};
  Seconds per_request{0};
  /// S_B, the least of the batch.
  Seconds tbt_slo{0.1};
  /// Engines with requests that take turns on the device, this one among them.
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

/// Which prompts may prefill now: the first `admitted` of the queue. Vectors over the queue cover
/// all of it.
struct AdmissionDecision {
  std::size_t admitted = 0;
  /// Nothing where nobody's SLO bounds prefill.
  std::optional<Seconds> allow_prefill;
  std::vector<Seconds> prefill;
  std::vector<std::int32_t> retained_layers;
  std::vector<Seconds> offload;
  /// Prompt tokens the next step may have, all together; nothing = as many as there are.
  std::optional<Tokens> chunk;
  /// Free blocks expected now and after each stage, and what to offload so that they suffice:
  /// further layers of each decoding request. Only with `memory` and for layerkv.
  std::vector<Blocks> forecast;
  std::vector<std::int32_t> offload_layers;
};

/// What the mechanism around an admission policy does for it.
struct AdmissionTraits {
  /// Admitted prompts may prefill layer by layer into DRAM where HBM has no room for all of them.
  bool prefills_layerwise = false;
  /// It asks for room for a whole request: what a rotation policy can evict counts as free.
  bool counts_evictable = false;
};

/// Decides who may prefill: a pure function of the snapshot.
class AdmissionPolicy {
 public:
  virtual ~AdmissionPolicy() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual AdmissionTraits traits() const { return {}; }
  /// Errors: InvalidArgument for rates, sizes or times that are not finite and in range, for what
  /// the policy needs and the snapshot lacks, and for a prompt that can never fit.
  [[nodiscard]] virtual Result<AdmissionDecision> decide(
      const AdmissionSnapshot& snapshot) const = 0;
};

/// The admission policies built, layerkv first.
[[nodiscard]] std::span<const std::string_view> admission_policy_names();
/// Errors: InvalidArgument naming those built.
[[nodiscard]] Result<std::unique_ptr<AdmissionPolicy>> make_admission_policy(
    std::string_view policy);

/// Errors: InvalidArgument with the reason.
[[nodiscard]] Status check(const AdmissionSnapshot& snapshot);

/// The decision with every figure of the queue filled in for these retained layers.
[[nodiscard]] AdmissionDecision begin_admission(const AdmissionSnapshot& snapshot,
                                                std::vector<std::int32_t> retained);

}  // namespace kvd::planner
