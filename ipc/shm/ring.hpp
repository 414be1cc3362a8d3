#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "ipc/shm/layout.hpp"
#include "ipc/shm/sealed_memfd.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::shm {

constexpr std::uint32_t kRingMagic = 0x4752564bu;  // "KVRG"
/// The size of the ring of each direction, with room for two of the largest frames.
constexpr std::size_t kRingBytes = std::size_t{512} * 1024;

/// One direction of a ring pair: a queue of frames with one writer and one reader. Positions count
/// bytes since the start and never wrap; a frame is its length in 8 bytes, then its bytes, padded
/// to 8.
struct RingLane {
  alignas(kCacheLine) std::atomic<std::uint64_t> written;  ///< by the writer
  alignas(kCacheLine) std::atomic<std::uint64_t> read;     ///< by the reader
  /// Non-zero: the reader sleeps and wants its bell rung. Set by the reader, taken by the writer.
  alignas(kCacheLine) std::atomic<std::uint32_t> asleep;
};

/// Starts a ring memfd; `commands` then `replies` follow it, kRingBytes each.
struct RingPair {
  std::uint32_t magic = kRingMagic;
  std::uint32_t layout_version = kLayoutVersion;
  RingLane commands;  ///< engine to daemon
  RingLane replies;   ///< daemon to engine
};
static_assert(sizeof(RingPair) == 7 * kCacheLine);
constexpr std::size_t kRingMemfdBytes = sizeof(RingPair) + 2 * kRingBytes;

/// The writing end of a lane. What the peer can write is read once and never trusted: a position
/// out of bounds means a full lane.
/// Owner: one thread.
class RingWriter {
 public:
  RingWriter(RingLane& lane, std::span<std::byte> data) : lane_(&lane), data_(data) {}

  /// False, and nothing written, while the lane has no room.
  [[nodiscard]] bool write(std::span<const std::byte> frame);
  /// Whether the reader sleeps; true once for each sleep, then the bell is the caller's to ring.
  [[nodiscard]] bool take_sleeper();

 private:
  void put(std::uint64_t position, std::span<const std::byte> bytes);

  RingLane* lane_;
  std::span<std::byte> data_;
  std::uint64_t written_ = 0;  ///< private: the shared word is only told
};

/// The reading end of a lane. Frames are copied into private memory before anything looks at them
/// (safety rule 7).
/// Owner: one thread.
class RingReader {
 public:
  RingReader(RingLane& lane, std::span<const std::byte> data, std::size_t largest)
      : lane_(&lane), data_(data), largest_(largest) {}

  [[nodiscard]] bool empty() const;
  /// The next frame, valid until the next call; none while the lane is empty.
  /// Errors: InvalidArgument for positions or a length no honest writer leaves. The lane is then
  /// lost for good.
  [[nodiscard]] Result<std::optional<std::span<const std::byte>>> read();
  /// Announces that the reader goes to sleep. False: something came meanwhile, do not sleep.
  [[nodiscard]] bool fall_asleep();
  void wake_up() { lane_->asleep.store(0, std::memory_order_relaxed); }

 private:
  void get(std::uint64_t position, std::span<std::byte> bytes) const;

  RingLane* lane_;
  std::span<const std::byte> data_;
  std::size_t largest_;
  std::uint64_t read_ = 0;
  std::unique_ptr<std::byte[]> frame_;
};

/// A ring memfd in this process.
class RingMapping {
 public:
  /// The daemon's: a new sealed memfd. Errors: OutOfMemory, Unavailable when out of fds.
  static Result<std::pair<RingMapping, UniqueFd>> create();
  /// The engine's: checks and maps what came with Welcome. Errors: InvalidArgument.
  static Result<RingMapping> map(int fd);

  [[nodiscard]] RingPair& pair() const {
    return *reinterpret_cast<RingPair*>(mapping_.bytes().data());
  }
  [[nodiscard]] std::span<std::byte> commands() const {
    return mapping_.bytes().subspan(sizeof(RingPair), kRingBytes);
  }
  [[nodiscard]] std::span<std::byte> replies() const {
    return mapping_.bytes().subspan(sizeof(RingPair) + kRingBytes, kRingBytes);
  }

 private:
  explicit RingMapping(SharedMapping mapping) : mapping_(std::move(mapping)) {}
  SharedMapping mapping_;
};

}  // namespace kvd::shm
