#include "kvd/daemon/machine/realtime.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace kvd::daemon {
namespace {

using std::chrono::milliseconds;

constexpr Nanoseconds kTick = milliseconds(50);

/// How long of `passed` a thread is realtime that works the given share of its time.
Nanoseconds realtime_in(Nanoseconds passed, double share) {
  RealtimeRule sut;
  Nanoseconds sum{0};
  for (Nanoseconds at{0}; at < passed; at += kTick) {
    const auto worked = Nanoseconds(static_cast<std::int64_t>(share * 50e6));
    if (sut.after(kTick, worked)) sum += kTick;
  }
  return sum;
}

TEST(RealtimeRule, WhoSleepsATenthOfItsTimeStays) {
  EXPECT_EQ(realtime_in(std::chrono::seconds(60), 0), std::chrono::seconds(60));
  EXPECT_EQ(realtime_in(std::chrono::seconds(60), 0.89), std::chrono::seconds(60));
}

TEST(RealtimeRule, WhoHardlySleepsIsOneAmongOthersMostOfTheTime) {
  EXPECT_LT(realtime_in(std::chrono::seconds(60), 1), std::chrono::seconds(6));
  EXPECT_GT(realtime_in(std::chrono::seconds(60), 1), std::chrono::seconds(1)) << "it comes back";
}

TEST(RealtimeRule, AShortBurstChangesNothing) {
  RealtimeRule sut;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(sut.after(kTick, kTick));
  EXPECT_TRUE(sut.after(kTick, Nanoseconds(0)));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(sut.after(kTick, kTick));
}

int policy() { return ::sched_getscheduler(0) & ~SCHED_RESET_ON_FORK; }

/// Whether this user may have realtime threads.
bool allowed() {
  bool may = false;
  std::thread([&] {
    const sched_param least{.sched_priority = ::sched_get_priority_min(SCHED_RR)};
    may = ::sched_setscheduler(0, SCHED_RR, &least) == 0;
  }).join();
  return may;
}

TEST(RealtimeThread, IsWhatTheKernelAllowsAndWhatItStartsIsNot) {
  const SteadyClock clock;
  const bool may = allowed();
  std::thread([&] {
    const RealtimeThread sut(true, clock);
    EXPECT_EQ(sut.now(), may);
    EXPECT_EQ(policy(), may ? SCHED_RR : SCHED_OTHER);
    std::thread([] { EXPECT_EQ(policy(), SCHED_OTHER); }).join();
  }).join();
}

TEST(RealtimeThread, StaysAsItWasWhereItIsNotWanted) {
  const SteadyClock clock;
  std::thread([&] {
    RealtimeThread sut(false, clock);
    sut.tick();
    EXPECT_FALSE(sut.now());
    EXPECT_EQ(policy(), SCHED_OTHER);
  }).join();
}

}  // namespace
}  // namespace kvd::daemon
