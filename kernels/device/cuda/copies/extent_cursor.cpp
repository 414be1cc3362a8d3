#include "kernels/device/cuda/copies/extent_cursor.hpp"

#include <algorithm>

namespace kvd::kernels::cuda {
namespace {

// The bytes from `address` to the next multiple of `span`.
Bytes to_boundary(std::uintptr_t address, Bytes span) {
  return Bytes(span.value - static_cast<std::int64_t>(address % span.size()));
}

// With fewer rows, one copy of rows costs no less than single copies in a batch.
constexpr std::size_t kLeastRows = 4;
// CU_DEVICE_ATTRIBUTE_MAX_PITCH, the same on every device.
constexpr CUdeviceptr kMostPitch = (CUdeviceptr{1} << 31) - 1;

bool is_pitch(CUdeviceptr distance, std::size_t length) {
  return distance >= length && distance <= kMostPitch;
}

bool in_one_span(CUdeviceptr a, CUdeviceptr b) {
  return a / kRegistrationSpan.size() == b / kRegistrationSpan.size();
}

}  // namespace

void CopyList::add(CUdeviceptr destination, CUdeviceptr source, std::size_t length,
                   std::uint32_t both_slabs) {
  to.push_back(destination);
  from.push_back(source);
  lengths.push_back(length);
  slabs.push_back(both_slabs);
  bytes += Bytes(static_cast<std::int64_t>(length));
}

std::size_t CopyList::rows_from(std::size_t first) const {
  if (first + kLeastRows > slabs.size()) return 1;
  const CUdeviceptr to_pitch = to[first + 1] - to[first],
                    from_pitch = from[first + 1] - from[first];
  if (!is_pitch(to_pitch, lengths[first]) || !is_pitch(from_pitch, lengths[first])) return 1;
  std::size_t next = first + 1;
  while (next < lengths.size() && lengths[next] == lengths[first] && slabs[next] == slabs[first] &&
         to[next] - to[next - 1] == to_pitch && from[next] - from[next - 1] == from_pitch &&
         in_one_span(to[first], to[next]) && in_one_span(from[first], from[next])) {
    ++next;
  }
  return next - first >= kLeastRows ? next - first : 1;
}

CopyList ExtentCursor::take(Bytes room, Bytes burst) {
  CopyList list;
  const Bytes small = std::min(kSmallPiece, Bytes(burst.value / 8));
  const bool started = room < burst;
  while (!done() && list.lengths.size() < kMostCopies) {
    const Bytes length = piece(room - list.bytes, small, started || !list.empty());
    if (length <= Bytes(0)) break;
    const CopyExtent& extent = extents_[next_];
    // Each extent that belongs to no slab gets a number of its own.
    const auto slabs = slabs_.empty() ? static_cast<std::uint32_t>(next_) : slabs_[next_];
    list.add(extent.destination + taken_.size(), extent.source + taken_.size(), length.size(),
             slabs);
    taken_ += length;
    if (taken_ < extent.length) continue;
    ++next_;
    taken_ = Bytes(0);
  }
  return list;
}

// How much of the current extent comes next when `room` bytes may still go; zero: nothing.
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
