#pragma once

#include <algorithm>

#include "ipc/vocabulary/units.hpp"

namespace kvd::kernels {

/// Paces one direction of the simulated link. It is a token bucket that is told the time, so that
/// it neither sleeps nor reads a clock. The bucket is as deep as kBurst of the rate, which makes up
/// for waits that end late; an unset rate lets everything pass.
/// Owner: one thread, or guarded by the caller.
class LinkThrottle {
 public:
  static constexpr Nanoseconds kBurst = std::chrono::microseconds(200);

  /// Zero means no throttle. Forgets what is still crossing.
  void set_rate(BytesPerSecond rate) {
    rate_ = rate;
    free_at_ = TimePoint{0};
  }

  /// The time at which `length` bytes that enter the link at `now` have left it.
  [[nodiscard]] TimePoint crossed_at(TimePoint now, Bytes length) {
    if (rate_.value <= 0) return now;
    // Capped at about thirty years, which 64 bits of nanoseconds can hold.
    const double seconds = std::min(static_cast<double>(length.value) / rate_.value, 1e9);
    free_at_ =
        std::max(free_at_, now - kBurst) + Nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
    return free_at_;
  }

 private:
  BytesPerSecond rate_;
  TimePoint free_at_{0};
};

}  // namespace kvd::kernels
