#include "planner/policy/lvf.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/unit/planner/policy/requests.hpp"
#include "tests/unit/planner/seed.hpp"

namespace kvd::planner::testing {
namespace {

// S1, W1, R2, R1 of the golden: lags 3, 1.5, -1, -5.
RotationSnapshot golden(std::int64_t b_hbm, std::int64_t w1_bytes = 3) {
  return snapshot(b_hbm, 4, {rotary(2, 9), waiting(w1_bytes, 6), running(2, 9), running(4, 5)});
}

TEST(Lvf, GoldenUnderContention) {
  LvfPolicy sut;
  const auto& decision = sut.decide(golden(2), kNow, {});
  EXPECT_EQ(decision.vlt_s, (std::vector<double>{3.0, 1.5, -1.0, -5.0}));
  EXPECT_TRUE(decision.contention);
  EXPECT_EQ(decision.prioritized, (Indices{0, 1}));
  EXPECT_EQ(decision.b_left, Bytes(1));
  EXPECT_EQ(decision.b_swap, Bytes(3));
  EXPECT_EQ(decision.preempted, (Indices{3}));
}

TEST(Lvf, GoldenWhereAllFitIsFirstComeFirstServed) {
  LvfPolicy sut;
  const auto& decision = sut.decide(golden(5), kNow, {});
  EXPECT_FALSE(decision.contention);
  EXPECT_EQ(decision.prioritized, (Indices{1, 0}));
  EXPECT_TRUE(decision.preempted.empty());
  EXPECT_FALSE(decision.b_left);
}

TEST(Lvf, GoldenWhereOneIsTooLarge) {
  LvfPolicy sut;
  const auto& decision = sut.decide(golden(2, 5), kNow, {});
  EXPECT_EQ(decision.prioritized, (Indices{0}));
  EXPECT_EQ(decision.b_left, Bytes(4));
  EXPECT_EQ(decision.b_swap, Bytes(0));
  EXPECT_TRUE(decision.preempted.empty());
}

TEST(Lvf, ASmallerRequestOvertakesOneThatDoesNotFit) {
  LvfPolicy sut;
  const auto& decision =
      sut.decide(snapshot(1, 2, {waiting(9, 0), waiting(3, 1), running(2, 5)}), kNow, {});
  EXPECT_EQ(decision.prioritized, (Indices{1}));
  EXPECT_EQ(decision.preempted, (Indices{2}));
}

TEST(Lvf, OfEqualLagsTheEarlierEntersAndTheLaterLeaves) {
  LvfPolicy sut;
  const auto& decision = sut.decide(
      snapshot(0, 2, {waiting(2, 9), waiting(2, 8), running(2, 5), running(2, 5)}), kNow, {});
  EXPECT_EQ(decision.prioritized, (Indices{1}));
  EXPECT_EQ(decision.preempted, (Indices{3}));
}

TEST(Lvf, OneThatJustStartedIsNoVictim) {
  LvfPolicy sut;
  const auto& decision = sut.decide(snapshot(0, 4, {waiting(2, 1), running(4, 10)}), kNow, {});
  EXPECT_TRUE(decision.preempted.empty());
  EXPECT_TRUE(decision.prioritized.empty()) << "no victim, so the one chosen is dropped again";
}

TEST(Lvf, OneInPrefillIsNoVictimUnlessThePaperIsFollowed) {
  LvfPolicy sut;
  auto of = snapshot(0, 4, {waiting(2, 1), running(4, 5)});
  of.requests[1].prefilling = true;
  EXPECT_TRUE(sut.decide(of, kNow, {}).preempted.empty());
  EXPECT_EQ(sut.decide(of, kNow, {.paper = true}).preempted, (Indices{1}));
}

TEST(Lvf, WithTooFewVictimsTheLastChosenAreDroppedUntilTheRestFits) {
  LvfPolicy sut;
  const auto of =
      snapshot(1, 9, {waiting(4, 0), waiting(3, 1), waiting(3, 2), running(3, 5), running(1, 6)});
  const auto& decision = sut.decide(of, kNow, {});
  EXPECT_EQ(decision.b_swap, Bytes(9)) << "as computed, before anything is dropped";
  EXPECT_EQ(decision.prioritized, (Indices{0}));
  EXPECT_EQ(decision.preempted, (Indices{3})) << "one victim suffices for what is left";
  const auto& published = sut.decide(of, kNow, {.paper = true});
  EXPECT_EQ(published.prioritized, (Indices{0, 1, 2}));
  EXPECT_EQ(published.preempted, (Indices{3, 4}));
}

TEST(Lvf, GrowthAloneMakesContentionAndVictims) {
  LvfPolicy sut;
  auto of = snapshot(1, 2, {running(2, 4), running(2, 5)});
  of.growth = Bytes(2);
  const auto& decision = sut.decide(of, kNow, {});
  EXPECT_TRUE(decision.contention);
  EXPECT_EQ(decision.preempted, (Indices{0}));
}

TEST(Lvf, AboveNinetyPercentOfDramNobodyNewIsAdmitted) {
  LvfPolicy sut;
  auto of = snapshot(0, 4, {rotary(2, 1), waiting(2, 0), running(4, 5)});
  of.dram = DramUse{Bytes(100), Bytes(10)};
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{0, 1})) << "exactly 90 % is not above";
  of.dram->free = Bytes(9);
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{0}));
  of.requests[0] = waiting(2, 1);
  EXPECT_FALSE(sut.decide(of, kNow, {}).contention) << "left out of the contention check as well";
}

TEST(Lvf, FromNinetyFivePercentOfDramNobodyIsPreempted) {
  LvfPolicy sut;
  auto of = snapshot(0, 4, {rotary(2, 1), running(4, 5)});
  of.dram = DramUse{Bytes(100), Bytes(6)};
  EXPECT_EQ(sut.decide(of, kNow, {}).preempted, (Indices{1}));
  of.dram->free = Bytes(5);
  EXPECT_TRUE(sut.decide(of, kNow, {}).preempted.empty());
  EXPECT_TRUE(sut.decide(of, kNow, {}).prioritized.empty());
  EXPECT_EQ(sut.decide(of, kNow, {.paper = true}).preempted, (Indices{1}));
}

TEST(Lvf, AVictimThatDramCannotTakeIsPassedOver) {
  LvfPolicy sut;
  auto of = snapshot(0, 9, {rotary(5, 1), running(7, 1), running(3, 2), running(2, 3)});
  of.dram = DramUse{Bytes(100), Bytes(6)};
  EXPECT_EQ(sut.decide(of, kNow, {}).preempted, (Indices{2, 3}));
}

TEST(Lvf, ARotaryRequestWithoutATokenCountsAsWaiting) {
  LvfPolicy sut;
  auto parked = waiting(2, 6);
  parked.state = RequestState::kRotary;
  const auto& decision = sut.decide(snapshot(9, 9, {parked}), kNow, {});
  EXPECT_EQ(decision.vlt_s, std::vector<double>{1.5});
}

TEST(Lvf, OnePassedOverTooOftenGoesFirst) {
  LvfPolicy sut;
  auto of = snapshot(0, 4, {rotary(4, 1), waiting(4, 9), running(4, 5)});
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{0}));
  of.requests[1].skips = kSkipLimit;
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{1}));
  EXPECT_EQ(sut.decide(of, kNow, {.paper = true}).prioritized, (Indices{0}));
}

TEST(Lvf, OnePassedOverTooOftenAndTooLargeHasRoomMadeForIt) {
  LvfPolicy sut;
  auto of = snapshot(1, 2, {rotary(1, 1), waiting(8, 9), running(3, 5), running(3, 4)});
  of.requests[1].skips = kSkipLimit;
  const auto& decision = sut.decide(of, kNow, {});
  EXPECT_TRUE(decision.prioritized.empty());
  EXPECT_EQ(decision.b_left, Bytes(0));
  EXPECT_EQ(decision.b_swap, Bytes(2));
  EXPECT_EQ(decision.preempted, (Indices{3}));
}

// Small requests keep coming and overtake the large one, which must run nevertheless.
TEST(Lvf, AgeingBoundsHowOftenARequestIsPassedOver) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  LvfPolicy sut;
  auto pool = snapshot(12, 6, {waiting(10, 0)});
  int step = 0;
  for (; step < 4 * kSkipLimit; ++step) {
    const double now = 100 + step;
    for (int n = 0; n < 3; ++n) {
      pool.requests.push_back(waiting(1 + static_cast<std::int64_t>(random() % 4), now - 90));
    }
    const RotationDecision decision = sut.decide(pool, Seconds(now), {});
    for (auto& request : pool.requests) ++request.skips;
    for (const auto index : decision.prioritized) {
      pool.b_hbm -= pool.requests[index].bytes;
      pool.requests[index] = running(pool.requests[index].bytes.value, now);
    }
    for (const auto index : decision.preempted) {
      pool.b_hbm += pool.requests[index].bytes;
      pool.requests[index] = rotary(pool.requests[index].bytes.value, now);
    }
    ASSERT_GE(pool.b_hbm, Bytes(0));
    if (pool.requests[0].state == RequestState::kRunning) break;
  }
  EXPECT_LE(step, 2 * kSkipLimit);
}

}  // namespace
}  // namespace kvd::planner::testing
