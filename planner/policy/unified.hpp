#pragma once

#include "planner/policy/ranking.hpp"

namespace kvd::planner {

/// Rotation by need: a request leaves only for one that is about to miss a deadline, or for one of
/// a tighter class, and it leaves only if its deposit covers its absence. All others enter free
/// room, in the order in which their first tokens are due.
/// Source: kvd. The rule and the reason for each part: MODEL.md "Who runs". Figures:
/// tests/lab/NOTEBOOK.md "What each part of unified is worth".
/// Cost:   O(n log n). Owner: one thread.
class UnifiedPolicy final : public RotationPolicy {
 public:
  /// The fewest tokens that a victim's deposit must hold.
  static constexpr std::int64_t kCovered = 8;
  /// A rotary request with this few tokens left is about to be late; with none it already is.
  static constexpr std::int64_t kAboutToBeDry = 2;
  /// Goals of one class differ by less than this factor.
  static constexpr double kOneClass = 2;
  /// Where clients show a token when it comes (RotationRequest::gap). kReturn: the share of a
  /// longest gap that the way back may take, since the room may be another's and steps with prompts
  /// are long. kNear: a parked request with fewer steps left than this stands still. kAway: a
  /// request leaves only if it can be away for at least this many steps.
  static constexpr double kReturn = 0.25;
  static constexpr double kNear = 4;
  static constexpr double kAway = 8;
  /// The fewest steps that each request is in between two absences; otherwise no prompt comes in.
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
  /// What a request may leave for: one of a tighter class, one in need, or a gap.
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

  std::vector<Ranked> urgent_;     // smallest first = nearest deadline
  std::vector<Ranked> parked_;     // by class and place; they come before new prompts
  std::vector<Ranked> waiting_;    // by place; under goodput late ones stand last in their class
  std::vector<Ranked> leaving_;    // running requests that may leave; make_room sorts them
  std::vector<Ranked> covered_;    // running requests that can do without HBM for a while
  std::vector<Ranked> uncovered_;  // others whose gap leaves them time to be out
  std::size_t covered_leave_ = 0;  // how many of decision_.preempted, from the first, are covered
  std::size_t runs_ = 0;           // running requests of the snapshot
  const Ranked* aged_ = nullptr;
  bool dry_ = false;    // some parked request has no token left
  bool still_ = false;  // some parked request stands still
  Seconds loosest_{0};  // the loosest goal for the first token of those that may leave
  /// The streams that have begun, and what they ask for.
  struct Pace {
    std::int64_t running = 0, parked = 0;
    double asked = 0;  // tokens a second
    Bytes here, out;   // what they hold, in HBM and out of it
  } pace_;
  std::vector<Ranked> entering_;
  std::vector<std::uint32_t> unserved_;  // urgent waiting requests that found no room
  Bytes dram_left_;
  Bytes wanted_;
  Bytes taken_;  // what the chosen requests need
  RotationDecision decision_;
};

}  // namespace kvd::planner
