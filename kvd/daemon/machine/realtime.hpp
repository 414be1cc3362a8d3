#pragma once

#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::daemon {

/// Whether a thread may be realtime: always, unless it hardly sleeps any more. Such a thread would
/// keep a core from all others, so it is an ordinary thread for kRest.
/// Source: kvd design. Owner: one thread.
class RealtimeRule {
 public:
  /// The length of the window that the rule looks back over.
  static constexpr Nanoseconds kWindow = std::chrono::milliseconds(200);
  static constexpr Nanoseconds kRest = std::chrono::seconds(2);
  /// Share of the window that it may work.
  static constexpr double kBusy = 0.9;

  /// The thread worked for `worked` of the `passed` since the last call. Returns whether it is to
  /// be realtime now.
  [[nodiscard]] bool after(Nanoseconds passed, Nanoseconds worked);

 private:
  Nanoseconds passed_{0};
  Nanoseconds worked_{0};
  Nanoseconds rest_{0};  ///< zero: none
};

/// Lets the calling thread be woken before the threads of all programs that are not realtime
/// (SCHED_RR, least priority), as far as the rule and the kernel let it. Otherwise an answer waits
/// for engines that use every core: on two cores with compilers on both, the slowest of a hundred
/// round trips took 1 to 3 ms in place of 0.3 to 0.8. Threads and programs that it starts are as
/// before.
/// Source: sched(7). Owner: the thread that made it.
class RealtimeThread {
 public:
  /// Where `wanted` is false nothing ever happens. The log says what came of it.
  RealtimeThread(bool wanted, const Clock& clock);
  /// Call it some times a second.
  void tick();
  [[nodiscard]] bool now() const { return now_; }

 private:
  [[nodiscard]] static Nanoseconds worked();

  const Clock& clock_;
  bool allowed_ = false;
  bool now_ = false;
  RealtimeRule rule_;
  TimePoint last_{0};
  Nanoseconds last_worked_{0};
};

}  // namespace kvd::daemon
