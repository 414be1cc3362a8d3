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
/// Source: SuperInfer sec. 5 (merged runs); kvd design (architecture section 4, bounded bursts).
class RunCursor {
 public:
  RunCursor() = default;
  explicit RunCursor(std::vector<kernels::CopyExtent> runs) : runs_(std::move(runs)) {}

  [[nodiscard]] bool done() const { return next_ == runs_.size(); }

  /// The next burst, of at most `limit` bytes. Precondition: limit > 0.
  [[nodiscard]] std::vector<kernels::CopyExtent> take(Bytes limit) {
    std::vector<kernels::CopyExtent> burst;
    Bytes room = limit;
    while (!done()) {
      const kernels::CopyExtent rest = rest_of_run();
      if (rest.length > room && !burst.empty()) break;
      burst.push_back(rest);
      burst.back().length = std::min(rest.length, room);
      room -= burst.back().length;
      advance(burst.back().length);
    }
    return burst;
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
