#include "ipc/shm/ring.hpp"

#include <algorithm>
#include <cstring>
#include <new>

namespace kvd::shm {
namespace {

constexpr std::size_t kPrefix = sizeof(std::uint64_t);

constexpr std::uint64_t room_of(std::size_t frame) {
  return kPrefix + ((frame + kPrefix - 1) & ~(kPrefix - 1));
}

constexpr Bytes kMemfdSize{static_cast<std::int64_t>(kRingMemfdBytes)};

}  // namespace

bool RingWriter::write(std::span<const std::byte> frame) {
  const std::uint64_t used = written_ - lane_->read.load(std::memory_order_acquire);
  const std::uint64_t room = room_of(frame.size());
  // A reader that claims to be ahead of us makes `used` huge, which is full too.
  if (used > data_.size() || room > data_.size() - used) return false;
  const std::uint64_t length = frame.size();
  put(written_, std::as_bytes(std::span(&length, 1)));
  put(written_ + kPrefix, frame);
  written_ += room;
  // Sequentially consistent together with fall_asleep(): one of the two sees the other's store.
  lane_->written.store(written_, std::memory_order_seq_cst);
  return true;
}

bool RingWriter::take_sleeper() {
  return lane_->asleep.load(std::memory_order_seq_cst) != 0 &&
         lane_->asleep.exchange(0, std::memory_order_relaxed) != 0;
}

void RingWriter::put(std::uint64_t position, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;  // an empty frame's data may be null, and memcpy must not get null
  const std::size_t at = position % data_.size();
  const std::size_t first = std::min(bytes.size(), data_.size() - at);
  std::memcpy(data_.data() + at, bytes.data(), first);
  std::memcpy(data_.data(), bytes.data() + first, bytes.size() - first);
}

bool RingReader::empty() const { return lane_->written.load(std::memory_order_acquire) == read_; }

Result<std::optional<std::span<const std::byte>>> RingReader::read() {
  const std::uint64_t unread = lane_->written.load(std::memory_order_acquire) - read_;
  if (unread == 0) return std::optional<std::span<const std::byte>>();
  if (unread > data_.size() || unread < kPrefix) {
    return make_error(ErrorCode::kInvalidArgument, "the ring's write position is out of bounds");
  }
  std::uint64_t length = 0;
  get(read_, std::as_writable_bytes(std::span(&length, 1)));
  if (length > largest_ || room_of(length) > unread) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a frame of " + std::to_string(length) + " bytes stands in the ring");
  }
  if (!frame_) frame_ = std::make_unique_for_overwrite<std::byte[]>(largest_);
  const std::span<std::byte> frame(frame_.get(), length);
  get(read_ + kPrefix, frame);
  read_ += room_of(length);
  lane_->read.store(read_, std::memory_order_release);
  return std::optional<std::span<const std::byte>>(frame);
}

bool RingReader::fall_asleep() {
  lane_->asleep.store(1, std::memory_order_seq_cst);
  if (lane_->written.load(std::memory_order_seq_cst) == read_) return true;
  wake_up();
  return false;
}

void RingReader::get(std::uint64_t position, std::span<std::byte> bytes) const {
  if (bytes.empty()) return;
  const std::size_t at = position % data_.size();
  const std::size_t first = std::min(bytes.size(), data_.size() - at);
  std::memcpy(bytes.data(), data_.data() + at, first);
  std::memcpy(bytes.data() + first, data_.data(), bytes.size() - first);
}

Result<std::pair<RingMapping, UniqueFd>> RingMapping::create() {
  KVD_ASSIGN_OR_RETURN(UniqueFd fd, create_memfd("kvd-ring", kMemfdSize));
  KVD_ASSIGN_OR_RETURN(SharedMapping mapping,
                       SharedMapping::map(fd.get(), kMemfdSize, Access::kReadWrite));
  KVD_TRY(close_seals(fd.get(), Writers::kAnyone));
  new (mapping.bytes().data()) RingPair();
  return std::pair(RingMapping(std::move(mapping)), std::move(fd));
}

Result<RingMapping> RingMapping::map(int fd) {
  KVD_TRY(expect_fixed_size(fd, kMemfdSize));
  KVD_ASSIGN_OR_RETURN(SharedMapping mapping,
                       SharedMapping::map(fd, kMemfdSize, Access::kReadWrite));
  RingMapping ring(std::move(mapping));
  if (ring.pair().magic != kRingMagic || ring.pair().layout_version != kLayoutVersion) {
    return make_error(ErrorCode::kInvalidArgument, "this is no ring of a known layout");
  }
  return ring;
}

}  // namespace kvd::shm
