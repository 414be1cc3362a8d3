#pragma once

#include "planner/policy/ranking.hpp"

namespace kvd::planner {

/// Rotation by need: somebody leaves only for a request about to miss a deadline, or for one of a
/// tighter class, and only one whose deposit covers its absence. Everybody else enters free room,
/// in the order in which their first tokens are due.
/// Source: kvd. The rule and the reason for each part: MODEL.md "Who runs"; what each part is
/// worth:
///         MODEL.md "What each part is worth".
/// Cost:   O(n log n). Owner: one thread.
class UnifiedPolicy final : public RotationPolicy {
 public:
  /// Tokens a victim's deposit must hold at least.
  static constexpr std::int64_t kCovered = 8;
  /// A rotary request with so few left is about to be late; with none it already is.
  static constexpr std::int64_t kAboutToBeDry = 2;

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
  void rank_entering(const RotationRequest& request, const Ranked& ranked, Seconds now,
                     const RotationConfig& config);
  void sort_entering(const RotationSnapshot& snapshot);
  [[nodiscard]] bool covered(const RotationSnapshot& snapshot,
                             const RotationRequest& request) const;
  void list_covered(const RotationSnapshot& snapshot);
  [[nodiscard]] Bytes can_leave(const RotationSnapshot& snapshot, const RotationRequest& request,
                                bool presses) const;
  void serve(const RotationSnapshot& snapshot, Seconds now, const RotationConfig& config,
             Bytes room);
  [[nodiscard]] bool take(const RotationSnapshot& snapshot, std::uint32_t index, Bytes limit);
  [[nodiscard]] bool paced(const RotationSnapshot& snapshot, const RotationRequest& request) const;
  void prefill_layerwise(const RotationSnapshot& snapshot);
  void make_room(const RotationSnapshot& snapshot, Bytes needed);

  std::vector<Ranked> urgent_;   // least first = nearest deadline
  std::vector<Ranked> parked_;   // by class and place; before new prompts
  std::vector<Ranked> waiting_;  // by place; goodput has late ones behind those of their class
  std::vector<Ranked> leaving_;  // running requests that may leave; make_room sorts them
  std::vector<Ranked> covered_;  // the running requests that can do without HBM for a while
  const Ranked* aged_ = nullptr;
  bool dry_ = false;    // somebody parked has no token left
  Seconds loosest_{0};  // goal for the first token, of those that may leave
  /// Streams begun, and what they ask for.
  struct Pace {
    std::int64_t running = 0, parked = 0;
    double asked = 0;  // tokens a second
  } pace_;
  std::vector<Ranked> entering_;
  std::vector<std::uint32_t> unserved_;  // urgent waiting requests that found no room
  Bytes dram_left_;
  Bytes wanted_;
  Bytes taken_;  // what those chosen need
  RotationDecision decision_;
};

}  // namespace kvd::planner
