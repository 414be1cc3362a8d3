#pragma once

#include "planner/policy/ranking.hpp"

namespace kvd::planner {

/// Baselines that serve a queue head first and stop at the first request that does not fit.
enum class QueueRule {
  /// SuperInfer's published code: the longest-running requests leave while together they stay below
  /// b_xfer, whatever the queue needs; then the queue is served by time of entry.
  kSiCode,
  /// Waiting requests come first, and the longest-running leave for them; rotary ones enter only
  /// room that is left over.
  kWaitingFirst,
  /// Rotary requests come first, then waiting ones, both only into free room. When growth leaves
  /// too little, the last to start leave.
  kSwappedFirst,
};

/// Serves the queue in the order of its rule, and lets running requests leave for its head.
/// Source: SuperInfer sec. 2 (waiting-first, swapped-first) and its published code (si_code). The
/// paper does not say who leaves under the first two; that rule is ours. Shares lvf's DRAM gates
/// and may_leave().
/// Cost:   O(n log n). Owner: one thread.
class QueuePolicy final : public RotationPolicy {
 public:
  QueuePolicy(std::string_view name, QueueRule rule) : name_(name), rule_(rule) {}
  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] const RotationDecision& decide(const RotationSnapshot& snapshot, Seconds now,
                                               const RotationConfig& config) override;

 private:
  void rank(const RotationSnapshot& snapshot, const RotationConfig& config);
  void order();
  [[nodiscard]] Bytes available(const RotationSnapshot& snapshot, const RotationConfig& config);
  [[nodiscard]] Bytes take(const RotationSnapshot& snapshot, Bytes room, Bytes available);

  std::string_view name_;
  QueueRule rule_;
  std::vector<Ranked> queue_;
  std::vector<Ranked> running_;
  Bytes wanted_;
  RotationDecision decision_;
};

}  // namespace kvd::planner
