#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "ipc/vocabulary/units.hpp"
#include "kernels/copy/copy_extent.hpp"

namespace kvd::mover {

/// Cuts the runs of one copy into bursts, in order. A run is cut only where it alone is longer than
/// a burst.
/// Source: SuperInfer sec. 5 (merged runs); kvd/DESIGN.md "Bytes on their way" (bounded bursts).
class RunCursor {
 public:
  RunCursor() = default;
  explicit RunCursor(std::vector<kernels::CopyExtent> runs) : runs_(std::move(runs)) {}

  [[nodiscard]] bool done() const { return next_ == runs_.size(); }

  /// Appends to the burst what of the rest fits into `room` bytes, and returns how many they are.
  /// An empty burst takes some in any case. Precondition: room > 0.
  Bytes take(Bytes room, std::vector<kernels::CopyExtent>& burst) {
    Bytes taken;
    while (!done() && room > taken) {
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

  std::vector<kernels::CopyExtent> runs_;
  std::size_t next_ = 0;
  Bytes taken_;  ///< of runs_[next_]
};

}  // namespace kvd::mover
