#pragma once

#include <atomic>
#include <chrono>

#include "ipc/vocabulary/units.hpp"

namespace kvd {

/// The only source of time in kvd, so that tests and the simulator own it.
/// Units: nanoseconds since an arbitrary origin; never runs backwards.
/// Owner: thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual TimePoint now() const = 0;
};

/// CLOCK_MONOTONIC.
class SteadyClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override {
    return std::chrono::duration_cast<Nanoseconds>(
        std::chrono::steady_clock::now().time_since_epoch());
  }
};

/// Time that passes only when told to; for tests and simulations.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(TimePoint start = TimePoint{0}) : now_(start.count()) {}
  [[nodiscard]] TimePoint now() const override { return TimePoint(now_.load()); }
  void advance(Nanoseconds by) { now_ += by.count(); }
  void set(TimePoint to) { now_ = to.count(); }

 private:
  std::atomic<std::int64_t> now_;
};

}  // namespace kvd
