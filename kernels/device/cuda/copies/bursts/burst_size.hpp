#pragma once

#include <cstdint>

#include "ipc/vocabulary/units.hpp"

namespace kvd::kernels::cuda {

/// How a burst follows the one before it.
enum class BurstOrder : std::uint8_t {
  kGated,   ///< queued behind it; the device lets it begin once the other has ended
  kSeen,    ///< queued once the CPU has seen the end of the other
  kInARow,  ///< queued behind it, with nothing in between
};

/// What bounds a burst. An engine's own copies wait until it has ended, so what counts is its time,
/// whatever the link.
struct BurstRule {
  Nanoseconds time{0};  ///< of one burst; zero: always `most`
  Bytes least;
  Bytes most;
  BurstOrder order = BurstOrder::kGated;
};

/// How large the bursts of one queue should be, by the rate of those before. The time that it takes
/// to queue one and to see its end counts as the link's time, so a burst ends that much earlier.
/// Source: kvd design
/// Owner:  the queue's thread
class BurstSize {
 public:
  explicit BurstSize(const BurstRule& rule) : rule_(rule), size_(first(rule)) {}

  [[nodiscard]] Bytes bytes() const { return size_; }
  /// What `bytes` bytes take at the measured rate; zero where nothing is measured.
  [[nodiscard]] Nanoseconds time_of(Bytes bytes) const;
  /// A burst has ended, `elapsed` after its first copy was queued.
  void on_burst(Bytes bytes, Nanoseconds elapsed);

 private:
  static Bytes first(const BurstRule& rule);
  [[nodiscard]] Bytes at_rate() const;

  BurstRule rule_;
  Bytes size_;
  Bytes measured_bytes_;  // bytes of bursts since the size was last set
  Nanoseconds measured_time_{0};
};

}  // namespace kvd::kernels::cuda
