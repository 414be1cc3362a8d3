#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "ipc/vocabulary/units.hpp"
#include "kernels/copy/copy_extent.hpp"
#include "kvd/mover/runs.hpp"

namespace kvd::mover {

/// Cuts the runs of one copy into bursts, in order. A run is cut only where it alone is longer than
/// a burst.
/// Source: SuperInfer sec. 5 (merged runs); kvd/DESIGN.md "Bytes on their way" (bounded bursts).
class RunCursor {
 public:
  using Runs = std::vector<kernels::CopyExtent>;

  RunCursor() = default;
  explicit RunCursor(Runs runs) : runs_(std::move(runs)) {}
  /// Takes a copy whose runs are computed when they are due.
  explicit RunCursor(std::unique_ptr<BlockRuns> more) : more_(std::move(more)) {}

  [[nodiscard]] bool done() const { return next_ == runs_.size() && (!more_ || more_->done()); }

  /// Appends runs to the burst as far as `room` bytes and kMostPieces allow, and returns their
  /// bytes. An empty burst takes some in any case. Precondition: room > 0.
  Bytes take(Bytes room, Runs& burst) {
    Bytes taken;
    while (room > taken && burst.size() < kMostPieces && ready(room)) {
      kernels::CopyExtent rest = rest_of_run();
      if (rest.length > room - taken && !burst.empty()) break;
      rest.length = std::min(rest.length, room - taken);
      burst.push_back(rest);
      advance(rest.length);
      taken += rest.length;
    }
    return taken;
  }

 private:
  /// Whether there is a run to take from.
  [[nodiscard]] bool ready(Bytes room) {
    if (next_ == runs_.size() && more_ && !more_->done()) {
      runs_ = more_->next(room);
      next_ = 0;
    }
    return next_ < runs_.size();
  }
  [[nodiscard]] kernels::CopyExtent rest_of_run() const {
    kernels::CopyExtent rest = runs_[next_];
    rest.destination += taken_.size();
    if (rest.source != 0) rest.source += taken_.size();
    rest.length -= taken_;
    return rest;
  }
  void advance(Bytes length) {
    taken_ += length;
    if (taken_ < runs_[next_].length) return;
    ++next_;
    taken_ = Bytes(0);
  }

  Runs runs_;
  std::unique_ptr<BlockRuns> more_;
  std::size_t next_ = 0;
  Bytes taken_;  ///< of runs_[next_]
};

}  // namespace kvd::mover
