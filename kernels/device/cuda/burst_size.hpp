#pragma once

#include "ipc/vocabulary/units.hpp"

namespace kvd::kernels::cuda {

/// What bounds a burst. An engine's own small copy waits for the bursts that are queued before it,
/// so what counts is their time, whatever the link.
struct BurstRule {
  Nanoseconds time{0};  ///< of one; zero: always `most`
  Bytes least;
  Bytes most;
};

/// How large the bursts of one queue are to be, by the rate of those before. The end of a burst is
/// seen some microseconds late, so the rate is taken over many that followed each other without a
/// gap: that error then counts once for all of them.
/// Source: kvd design. 4 MiB, which was the size before, take 80 us at 55 GB/s and 160 us at 26.
/// Owner:  the queue's thread
class BurstSize {
 public:
  explicit BurstSize(const BurstRule& rule) : rule_(rule), size_(first(rule)) {}

  [[nodiscard]] Bytes bytes() const { return size_; }
  /// The device has nothing to do: the next burst begins a run.
  void on_idle();
  /// A burst has ended, so long after the one before it, or after the run began.
  void on_burst(Bytes bytes, Nanoseconds elapsed);

 private:
  static Bytes first(const BurstRule& rule);
  [[nodiscard]] Bytes at_rate() const;

  BurstRule rule_;
  Bytes size_;
  Bytes run_bytes_;
  Nanoseconds run_time_{0};
};

}  // namespace kvd::kernels::cuda
