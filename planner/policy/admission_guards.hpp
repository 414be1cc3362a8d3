#pragma once

#include "planner/policy/admission.hpp"

namespace kvd::planner {

/// Share of S_B that a step may be predicted to take.
inline constexpr double kStepShare = 0.9;
/// Prompts enter while those inside have less to prefill than so many steps have time for: one
/// passes before who enters has its memory.
inline constexpr double kStepsAhead = 2;
/// The pace of those with the tightest S_B is given up where the others' lets this many times as
/// many prompts in time.
inline constexpr double kGivesUpFor = 3;
/// A prefill once begun gets this much a step at least, so that it ends.
inline constexpr Tokens kLeastChunk{16};

/// How long the prefill of one step may take: the step ends before anybody who decodes runs dry,
/// or before all but a few do, see kGivesUpFor.
/// Nothing without a guard, and where no bound would save anybody: nobody decodes, or the step
/// outlasts everybody's S_B however few are in it. Longer where that alone saves prompts: see
/// rescue_budget().
[[nodiscard]] std::optional<Seconds> prefill_budget(const AdmissionSnapshot& snapshot);

/// Prefill of one step that saves prompts from being late, which prefill at the guard's pace would
/// not: as much as they and those before them take. Only where it saves all that are not late yet,
/// everybody who decodes can pause so long and still meet the goal of its mean (eq. 1 of LayerKV),
/// and steps with all of them are not too long. 0: there is nobody to save so.
/// Source: kvd (MODEL.md "Who may prefill").
[[nodiscard]] Seconds rescue_budget(const AdmissionSnapshot& snapshot);

/// Says of prompts, in order, which may enter: as many as the next steps can prefill, while the
/// step is not too long for one more to decode. Who waits in line holds no memory, and who is still
/// in time can be put ahead of it.
/// Source: kvd (MODEL.md "Who may prefill").
/// Owner:  one decision.
class StepGuardCount {
 public:
  explicit StepGuardCount(const AdmissionSnapshot& snapshot);
  /// Takes the prompt in where it may enter. With nobody inside anybody may.
  [[nodiscard]] bool admit(const QueuedPrompt& prompt);

 private:
  const AdmissionSnapshot& snapshot_;
  std::optional<Seconds> budget_;
  Seconds backlog_{0};             // prefill of those inside
  bool prefills_ = false;          // somebody does
  std::optional<Seconds> strict_;  // answers of those with the tightest S_B take so long
  bool too_long_ = false;          // a step with one more, for everybody
  bool too_long_for_strict_ = false;
};

/// The guard beside a policy that knows of none: fewer are admitted where a step would outlast S_B,
/// and prefill comes in chunks. Without a guard in the snapshot nothing changes.
void keep_guard(const AdmissionSnapshot& snapshot, AdmissionDecision& decision);

/// Prompt tokens for one step: as many as prefill_budget() has time for, taking the admitted
/// prompts in order; nothing where there is no bound.
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
