#pragma once

#include "planner/policy/admission/admission.hpp"

namespace kvd::planner {

/// Share of S_B that a step may be predicted to take.
inline constexpr double kStepShare = 0.9;
/// Prompts enter while the prefill left to those inside takes less than this many steps: one step
/// passes before a prompt that enters has its memory.
inline constexpr double kStepsAhead = 2;
/// The pace of requests with the tightest S_B is given up where the pace of the others lets this
/// many times as many prompts in time.
inline constexpr double kGivesUpFor = 3;
/// A prefill that has begun gets at least this much a step, so that it ends.
inline constexpr Tokens kLeastChunk{16};

/// Says of prompts, in order, which may enter: as many as the next steps can prefill, while the
/// step is not too long for one more to decode. A prompt that waits in line holds no memory, and
/// others that are still in time can be put ahead of it.
///
/// The prefill of one step has a budget: the step ends before any decoding request runs dry, or
/// before all but a few do (see kGivesUpFor). There is none without a guard, and where no bound
/// would save any request: none decodes, or the step outlasts every S_B however few are in it.
/// Source: kvd (MODEL.md "Who may prefill").
/// Owner:  one decision.
class StepGuardCount {
 public:
  explicit StepGuardCount(const AdmissionSnapshot& snapshot);
  /// Takes the prompt in where it may enter. While none is inside any may.
  [[nodiscard]] bool admit(const QueuedPrompt& prompt);
  /// Prefill time of one step that keeps prompts from being late where prefill at the guard's pace
  /// would not. 0: there are no prompts to save in this way.
  [[nodiscard]] Seconds rescue() const { return rescue_; }
  /// Prompt tokens for one step: as many as the budget has time for, taking the first `admitted`
  /// prompts in order; nothing where there is no budget.
  [[nodiscard]] std::optional<Tokens> chunk(std::size_t admitted) const;

 private:
  const AdmissionSnapshot& snapshot_;
  std::optional<Seconds> budget_;
  Seconds rescue_{0};
  Seconds backlog_{0};     // prefill of the prompts inside
  bool prefills_ = false;  // some request inside prefills
  Seconds strict_{0};      // how long answers of requests with the tightest S_B take
  bool too_long_ = false;  // a step with one more is too long for all
  bool too_long_for_strict_ = false;
};

/// Free blocks now and after each stage: Avail + Released - Allocated. Released: what a decoding
/// request holds, once its expected length is reached. Allocated: one block in every resident layer
/// of every other request, since a stage is the time in which a block fills.
/// Source: LayerKV eq. 5.
/// Precondition: memory.
[[nodiscard]] std::vector<Blocks> forecast_blocks(const AdmissionSnapshot& snapshot);

/// How many further layers of each decoding request to offload so that `shortage` blocks come free:
/// half of the retained layers, the most recently processed request first; where that does not
/// suffice, all.
/// Source: LayerKV sec. 3.1.1, second stage.
/// Precondition: memory.
[[nodiscard]] std::vector<std::int32_t> second_stage(const AdmissionSnapshot& snapshot,
                                                     Blocks shortage);

/// Blocks that a decoding request holds in one layer.
[[nodiscard]] Blocks blocks_per_layer(const DecodingRequest& request, Tokens block_tokens);

}  // namespace kvd::planner
