#pragma once

#include "ipc/vocabulary/units.hpp"
#include "kvd/core/context.hpp"
#include "kvd/core/knowledge.hpp"

namespace kvd::core {

/// B_xfer: how much rotation may move. A bucket that the link fills at its measured rate and that
/// holds as much as one step may move.
///
/// Source: SuperInfer sec. 4.2 (the bound); kvd design (its automatic value, the bucket).
///
/// Owner: control thread. Cost: O(1).
class Budget {
 public:
  Budget(Context& context, const Knowledge& knowledge) : context_(context), knowledge_(knowledge) {}

  /// What one step may move: rotation.b_xfer, or what the link carries in a mean step.
  [[nodiscard]] Bytes per_step() const;
  void refill();
  /// Drops what the time since the last refill would have added.
  void restart() { filled_ = context_.now; }
  /// May go below zero: whole requests move.
  void take(Bytes bytes) { left_ -= static_cast<double>(bytes.value); }
  [[nodiscard]] Bytes left() const { return Bytes(static_cast<std::int64_t>(left_)); }

 private:
  Context& context_;
  const Knowledge& knowledge_;
  TimePoint filled_{0};
  double left_ = 0;
};

}  // namespace kvd::core
