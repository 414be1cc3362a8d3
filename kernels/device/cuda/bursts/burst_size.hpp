#pragma once

#include <cstdint>

#include "ipc/vocabulary/units.hpp"

namespace kvd::kernels::cuda {

/// How a burst comes after the one before it.
enum class BurstOrder : std::uint8_t {
  kGated,   ///< queued behind it; the device lets it begin once that has ended
  kSeen,    ///< queued once the CPU has seen its end
  kInARow,  ///< queued behind it, with nothing between
};

/// What bounds a burst. An engine's own copies wait until it has ended, so what counts is its time,
/// whatever the link.
struct BurstRule {
  Nanoseconds time{0};  ///< of one; zero: always `most`
  Bytes least;
  Bytes most;
  BurstOrder order = BurstOrder::kGated;
};

/// How large the bursts of one queue are to be, by the rate of those before. What it takes to queue
/// one and to see its end counts as the link's time: a burst ends early by as much.
/// Source: kvd design
/// Owner:  the queue's thread
class BurstSize {
 public:
  explicit BurstSize(const BurstRule& rule) : rule_(rule), size_(first(rule)) {}

  [[nodiscard]] Bytes bytes() const { return size_; }
  /// What so many bytes take at the rate of before; zero where nobody measures it.
  [[nodiscard]] Nanoseconds time_of(Bytes bytes) const;
  /// A burst has ended, so long after its first copy was queued.
  void on_burst(Bytes bytes, Nanoseconds elapsed);

 private:
  static Bytes first(const BurstRule& rule);
  [[nodiscard]] Bytes at_rate() const;

  BurstRule rule_;
  Bytes size_;
  Bytes measured_bytes_;  // of bursts since the size was last set
  Nanoseconds measured_time_{0};
};

}  // namespace kvd::kernels::cuda
