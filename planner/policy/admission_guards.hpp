#pragma once

#include "planner/policy/admission.hpp"

namespace kvd::planner {

/// Share of S_B that a step may be predicted to take.
inline constexpr double kStepShare = 0.9;
/// A prefill once begun gets this much a step at least, so that it ends.
inline constexpr Tokens kLeastChunk{16};

/// What a prompt's prefill costs a decode step, spread over the steps of its answer.
[[nodiscard]] Seconds mean_prefill(const PrefillCosts& costs, Tokens prompt, std::int64_t output);

/// Counts the predicted step (decode, and the mean prefill of all that is inside) as prompts enter,
/// and says whether one more keeps it within kStepShare of S_B.
/// Source: kvd. Where compute binds, this and the bound on chunks do as much for `unified` as
///         rotation does (MODEL.md "What each part is worth").
/// Owner:  one decision.
class StepGuardCount {
 public:
  explicit StepGuardCount(const AdmissionSnapshot& snapshot);
  /// Takes the prompt in where it may enter. With nobody inside anybody may.
  [[nodiscard]] bool admit(const QueuedPrompt& prompt);

 private:
  const AdmissionSnapshot& snapshot_;
  Seconds step_{0};
  bool empty_;
};

/// The guard beside a policy that knows of none: fewer are admitted where a step would outlast S_B,
/// and prefill comes in chunks. Without a guard in the snapshot nothing changes.
void keep_guard(const AdmissionSnapshot& snapshot, AdmissionDecision& decision);

/// Prompt tokens for one step: as many as let it end before the smallest deposit is dry, taking the
/// admitted prompts in order. Nothing without a guard, or where nobody decodes.
[[nodiscard]] std::optional<Tokens> prefill_chunk(const AdmissionSnapshot& snapshot,
                                                  std::size_t admitted);

/// Free blocks now and after each stage: Avail + Released - Allocated.
/// Released: what a decoding request holds, once its expected length is reached. Allocated: a block
/// in every resident layer of every other one, a stage being the time in which it fills.
/// Source: LayerKV eq. 5. Precondition: memory.
[[nodiscard]] std::vector<Blocks> forecast_blocks(const AdmissionSnapshot& snapshot);

/// Further layers of each decoding request to offload so that `shortage` blocks come free: half of
/// the retained ones, the most recently processed request first; where that does not suffice, all.
/// Source: LayerKV sec. 3.1.1, second stage. Precondition: memory.
[[nodiscard]] std::vector<std::int32_t> second_stage(const AdmissionSnapshot& snapshot,
                                                     Blocks shortage);

/// Blocks a decoding request holds in one layer.
[[nodiscard]] Blocks blocks_per_layer(const DecodingRequest& request, Tokens block_tokens);

}  // namespace kvd::planner
