#include "kernels/device/cuda/extent_cursor.hpp"

#include <algorithm>

namespace kvd::kernels::cuda {
namespace {

// Bytes from `address` to the next multiple of `span`.
Bytes to_boundary(std::uintptr_t address, Bytes span) {
  return Bytes(span.value - static_cast<std::int64_t>(address % span.size()));
}

}  // namespace

CopyList ExtentCursor::take(Bytes room, Bytes burst) {
  CopyList list;
  const Bytes small = std::min(kSmallPiece, Bytes(burst.value / 8));
  const bool started = room < burst;
  while (!done() && list.lengths.size() < kMostCopies) {
    const Bytes length = piece(room - list.bytes, small, started || !list.empty());
    if (length <= Bytes(0)) break;
    const CopyExtent& extent = extents_[next_];
    list.to.push_back(extent.destination + taken_.size());
    list.from.push_back(extent.source + taken_.size());
    list.lengths.push_back(length.size());
    list.bytes += length;
    taken_ += length;
    if (taken_ < extent.length) continue;
    ++next_;
    taken_ = Bytes(0);
  }
  return list;
}

// How much of the extent in hand comes next when `room` bytes may still go; zero: nothing.
Bytes ExtentCursor::piece(Bytes room, Bytes small, bool started) const {
  if (room <= Bytes(0)) return Bytes(0);
  const CopyExtent& extent = extents_[next_];
  const Bytes left = extent.length - taken_;
  if (left > room && room < small && started) return Bytes(0);
  const Bytes wanted = left <= room + small ? left : room;
  return std::min({wanted, to_boundary(extent.destination + taken_.size(), span_),
                   to_boundary(extent.source + taken_.size(), span_)});
}

}  // namespace kvd::kernels::cuda
