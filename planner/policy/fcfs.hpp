#pragma once

#include "planner/policy/ranking.hpp"

namespace kvd::planner {

/// First come, first served: waiting and rotary requests enter in order while they fit free HBM.
/// The first that does not fit stops the rest, and none is preempted.
/// Source: the baseline of SuperInfer sec. 6 (vLLM's scheduler); no DRAM gates, no ageing.
/// Cost:   O(n log n).
class FcfsPolicy final : public RotationPolicy {
 public:
  [[nodiscard]] std::string_view name() const override { return "fcfs"; }
  [[nodiscard]] RotationTraits traits() const override {
    return {.evicts = false, .asks_lengths = false};
  }
  [[nodiscard]] const RotationDecision& decide(const RotationSnapshot& snapshot, Seconds now,
                                               const RotationConfig& config) override;

 private:
  std::vector<Ranked> queue_;
  RotationDecision decision_;
};

}  // namespace kvd::planner
