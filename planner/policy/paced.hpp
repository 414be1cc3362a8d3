#pragma once

#include "planner/policy/ranking.hpp"

namespace kvd::planner {

/// `unified` for an engine that places its blocks itself and is asked once a step: what rotates is
/// parked at once and room is there at once, layers do not stream.
///  - Whoever runs grows first; where that takes more than is free, those leave that can do longest
///    without a token.
///  - Then parked requests about to be dry come in, nearest due time first; then prompts, nearest
///    deadline first; then parked ones that have time. Nobody passes the first that does not fit.
///  - Somebody leaves only for one that would be late: a prompt past beta_f of its goal that can
///    still meet it, or a parked one about to be dry. And only who has so many tokens saved up that
///    it can be away kCover steps, and as long as requests came back late recently. By lateness and
///    not by absence: who is covered stays away for long, so the mean absence would grow until
///    nobody counted as covered.
///  - Where clients show a token when it comes (RotationRequest::gap), nobody stays out longer than
///    its longest gap: it is due back before that, whatever it has saved up, and for it anybody
///    leaves who is not due back itself. Of what is saved up only the mean counts then: the rest of
///    the answer, made a token a step, makes up for a wait.
///  - Where S_B is near a step nobody saves anything up: nobody leaves for others.
///  - Never more started than the engine makes tokens for at their pace, with some to spare, or all
///    run dry together.
///  - Prompts that cannot end their prefill in time go last (Overload::kGoodput). Every
///    kSkipLimit-th prompt that comes in is the one that arrived first: so nobody waits for ever.
/// Source: kvd; measured on vLLM 0.32.0 (MODEL.md "Engines that place their blocks").
/// Cost:   O(n log n). Owner: one thread.
class PacedPolicy final : public RotationPolicy {
 public:
  /// Steps that a victim's tokens must last at least.
  static constexpr double kCover = 8;
  /// A parked request whose next token is due within so many steps is about to be late: the
  /// victim's blocks go out in one, its own come in in the next or the one after, then it makes a
  /// token.
  static constexpr double kNear = 4;
  /// A goal between tokens of less than so many steps lets nobody save any up.
  static constexpr double kSaves = 2;
  /// The share of a longest gap that the way back may take: the room may be another's, and steps
  /// with prompts are long.
  static constexpr double kReturn = 0.25;
  /// Steps that each is in between two absences, at least, or no prompt comes in.
  static constexpr double kStay = 16;

  [[nodiscard]] std::string_view name() const override { return "paced"; }
  [[nodiscard]] RotationTraits traits() const override {
    return {.guards_steps = true, .serves_the_late = true, .paces = true};
  }
  [[nodiscard]] const RotationDecision& decide(const RotationSnapshot& snapshot, Seconds now,
                                               const RotationConfig& config) override;

 private:
  void sort(const RotationSnapshot& snapshot, Seconds now, const RotationConfig& config);
  void sort_entering(const RotationRequest& request, std::uint32_t index,
                     const RotationSnapshot& snapshot, Seconds now, const RotationConfig& config);
  void put_aged_first(const RotationSnapshot& snapshot);
  /// Requests whose tokens last longest leave, until the others can grow. Returns the room then.
  [[nodiscard]] Bytes let_grow(const RotationSnapshot& snapshot, Bytes room);
  void serve(const RotationSnapshot& snapshot, Bytes room, Seconds now,
             const RotationConfig& config);
  [[nodiscard]] bool too_many(const RotationSnapshot& snapshot, const RotationRequest& request,
                              Bytes room) const;
  [[nodiscard]] bool turns_too_short(const RotationSnapshot& snapshot,
                                     const RotationRequest& request, Bytes room) const;
  /// Names victims for the request, for so many bytes, all of them or none. Returns the bytes that
  /// they give.
  [[nodiscard]] Bytes make_room(const RotationSnapshot& snapshot, const RotationRequest& request,
                                Bytes needed, Seconds now);

  std::vector<Ranked> dry_;      // parked, by due time
  std::vector<Ranked> prompts_;  // by deadline; those that cannot meet it behind all others
  std::vector<Ranked> patient_;  // parked, by due time
  std::vector<Ranked> leaving_;  // may leave, those whose tokens last longest first
  std::size_t left_ = 0;         // of these, how many leave
  std::size_t running_ = 0;      // and how many run at all
  double rate_ = 0;              // tokens a second that those who have started are to get
  bool parked_ = false;          // somebody who has started is out
  Bytes wanted_;
  Bytes here_, out_;  // what requests that have started hold, in HBM and out of it
  Bytes moved_;       // what victims give to others
  RotationDecision decision_;
};

}  // namespace kvd::planner
