#pragma once

#include "planner/policy/ranking.hpp"

namespace kvd::planner {

/// Rotation by need: somebody leaves only for a request about to miss a deadline, or for one of a
/// tighter class, and only one whose deposit covers its absence. Everybody else enters free room,
/// in the order in which their first tokens are due.
/// Source: kvd. The rule and the reason for each part: MODEL.md "Who runs". Figures:
///         tests/lab/NOTEBOOK.md "What each part of unified is worth".
/// Cost:   O(n log n). Owner: one thread.
class UnifiedPolicy final : public RotationPolicy {
 public:
  /// Tokens a victim's deposit must hold at least.
  static constexpr std::int64_t kCovered = 8;
  /// A rotary request with so few left is about to be late; with none it already is.
  static constexpr std::int64_t kAboutToBeDry = 2;
  /// Goals of one class differ by less than this factor.
  static constexpr double kOneClass = 2;
  /// Where clients show a token when it comes (RotationRequest::gap): the share of a longest gap
  /// that the way back may take, as the room may be another's and steps with prompts are long; a
  /// parked request with less than so many steps left stands still; and one that leaves can be away
  /// so many at least.
  static constexpr double kReturn = 0.25;
  static constexpr double kNear = 4;
  static constexpr double kAway = 8;
  /// Steps that each is in between two absences, at least, or no prompt comes in.
  static constexpr double kStay = 16;

  [[nodiscard]] std::string_view name() const override { return "unified"; }
  [[nodiscard]] RotationTraits traits() const override {
    return {.guards_steps = true,
            .serves_the_late = true,
            .chooses_layerwise = true,
            .streams_only_large_requests = true};
  }
  [[nodiscard]] const RotationDecision& decide(const RotationSnapshot& snapshot, Seconds now,
                                               const RotationConfig& config) override;

 private:
  void rank(const RotationSnapshot& snapshot, Seconds now, const RotationConfig& config);
  void split_entering(const RotationSnapshot& snapshot, Seconds now, const RotationConfig& config);
  void rank_entering(const RotationSnapshot& snapshot, const Ranked& ranked, Seconds now,
                     const RotationConfig& config);
  [[nodiscard]] bool covered(const RotationSnapshot& snapshot,
                             const RotationRequest& request) const;
  void list_covered(const RotationSnapshot& snapshot, Seconds now);
  void list_leaving(const RotationSnapshot& snapshot, std::vector<Ranked>& list, Bytes& sum);
  /// What somebody may leave for: one of a tighter class, one in need of it, a gap.
  enum class For : std::uint8_t { kClass, kNeed, kGap };
  [[nodiscard]] Bytes can_leave(const RotationSnapshot& snapshot, const RotationRequest& request,
                                For what) const;
  void serve(const RotationSnapshot& snapshot, Seconds now, const RotationConfig& config,
             Bytes room);
  [[nodiscard]] Bytes left_by_victims(const RotationSnapshot& snapshot, Bytes room) const;
  [[nodiscard]] bool take(const RotationSnapshot& snapshot, std::uint32_t index, Bytes limit);
  [[nodiscard]] bool paced(const RotationSnapshot& snapshot, const RotationRequest& request,
                           Bytes room) const;
  [[nodiscard]] bool turns_last(const RotationSnapshot& snapshot, const RotationRequest& request,
                                Bytes room) const;
  void prefill_layerwise(const RotationSnapshot& snapshot);
  void make_room(const RotationSnapshot& snapshot, Bytes needed);

  std::vector<Ranked> urgent_;     // least first = nearest deadline
  std::vector<Ranked> parked_;     // by class and place; before new prompts
  std::vector<Ranked> waiting_;    // by place; goodput has late ones behind those of their class
  std::vector<Ranked> leaving_;    // running requests that may leave; make_room sorts them
  std::vector<Ranked> covered_;    // the running requests that can do without HBM for a while
  std::vector<Ranked> uncovered_;  // others whose gap leaves them the time to be out
  std::size_t covered_leave_ = 0;  // of decision_.preempted, the first so many are covered
  std::size_t runs_ = 0;           // requests of the snapshot that do
  const Ranked* aged_ = nullptr;
  bool dry_ = false;    // somebody parked has no token left
  bool still_ = false;  // somebody parked stands still
  Seconds loosest_{0};  // goal for the first token, of those that may leave
  /// Streams begun, and what they ask for.
  struct Pace {
    std::int64_t running = 0, parked = 0;
    double asked = 0;  // tokens a second
    Bytes here, out;   // what they hold, in HBM and out of it
  } pace_;
  std::vector<Ranked> entering_;
  std::vector<std::uint32_t> unserved_;  // urgent waiting requests that found no room
  Bytes dram_left_;
  Bytes wanted_;
  Bytes taken_;  // what those chosen need
  RotationDecision decision_;
};

}  // namespace kvd::planner
