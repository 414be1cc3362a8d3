#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "ipc/vocabulary/units.hpp"
#include "kvd/store/blocks/entries.hpp"

namespace kvd::store {

/// Whether a block is worth a write to disk: most are never asked for again, and a drive wears. A
/// block that was asked for twice is asked for again, as a rule. Source: vLLM's store_threshold.
/// Owner: any thread; immutable.
struct SecondTouch {
  std::uint32_t least = 2;  ///< times the block was stored or found; 1: every block is worth it

  /// `returns`: the session is paused and its user is expected back.
  [[nodiscard]] bool admits(const Entry& block, bool returns) const {
    return returns || block.touches >= least;
  }
};

/// How much may be written to a drive, so that it lives as long as it is meant to: a day's bytes,
/// spread evenly over the day. What is not used keeps for an hour, so that in any 24 hours at most
/// 25/24 of them are written. For a network the same with a second's bytes, which keep for a
/// second. Source: the daily write budget of CacheLib's flash admission; the bucket is ours. Owner:
/// one thread.
class WriteBudget {
 public:
  /// `a_day` of nothing: nothing may be written.
  WriteBudget(Bytes a_day, TimePoint now)
      : WriteBudget(static_cast<double>(a_day.value), to_seconds(kDay), 3600, now) {}
  [[nodiscard]] static WriteBudget each_second(Bytes bytes, TimePoint now) {
    return {static_cast<double>(bytes.value), 1, 1, now};
  }

  /// Takes the bytes from the budget, or leaves it as it is and returns false.
  [[nodiscard]] bool take(Bytes bytes, TimePoint now) {
    left_ = std::min(most(), left_ + a_second_ * to_seconds(std::max(now - since_, TimePoint{0})));
    since_ = std::max(since_, now);
    const auto wanted = static_cast<double>(bytes.value);
    if (wanted > left_) return false;
    left_ -= wanted;
    return true;
  }

 private:
  static constexpr Nanoseconds kDay = std::chrono::hours(24);
  WriteBudget(double bytes, double seconds, double keeps, TimePoint now)
      : a_second_(bytes / seconds), keeps_(keeps), left_(most()), since_(now) {}
  [[nodiscard]] double most() const { return a_second_ * keeps_; }

  double a_second_, keeps_;
  double left_;
  TimePoint since_;
};

}  // namespace kvd::store
