#include "planner/policy/unified.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/unit/planner/policy/requests.hpp"
#include "tests/unit/planner/seed.hpp"

namespace kvd::planner::testing {
namespace {

using Indices = std::vector<std::uint32_t>;
constexpr Seconds kNow{10};

RotationRequest with_deposit(RotationRequest request, std::int64_t deposit) {
  request.deposit = deposit;
  return request;
}

TEST(Unified, NobodyLeavesForARequestThatIsNotLate) {
  UnifiedPolicy sut;
  auto of = snapshot(0, 9, {waiting(2, 8), with_deposit(running(2, 1), 20)});
  EXPECT_TRUE(sut.decide(of, kNow, {}).preempted.empty()) << "2 s waited of 2.5 allowed";
  of.requests[0].t_arr = Seconds(7);
  EXPECT_EQ(sut.decide(of, kNow, {}).preempted, (Indices{1}));
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{0}));
}

TEST(Unified, OnlyACoveredRequestLeaves) {
  UnifiedPolicy sut;
  const auto of = snapshot(
      0, 9, {waiting(2, 1), with_deposit(running(2, 1), 7), with_deposit(running(2, 5), 8)});
  const auto& decision = sut.decide(of, kNow, {});
  EXPECT_EQ(decision.preempted, (Indices{2}));
  EXPECT_EQ(decision.prioritized, (Indices{0}));
}

TEST(Unified, OfTheCoveredTheLongestOnTheGpuLeaves) {
  UnifiedPolicy sut;
  const auto of = snapshot(
      0, 9, {waiting(2, 1), with_deposit(running(2, 5), 90), with_deposit(running(2, 2), 10)});
  EXPECT_EQ(sut.decide(of, kNow, {}).preempted, (Indices{2}));
}

TEST(Unified, OneThatMadeNoTokenYetStays) {
  UnifiedPolicy sut;
  auto of = snapshot(0, 9, {waiting(2, 1), with_deposit(running(2, 5), 90)});
  of.requests[1].made_token = false;
  EXPECT_TRUE(sut.decide(of, kNow, {}).preempted.empty());
}

TEST(Unified, ARotaryRequestEvictsOnlyWhileItCanStillBeHelped) {
  UnifiedPolicy sut;
  auto of = snapshot(0, 9, {with_deposit(rotary(2, 1), 2), with_deposit(running(2, 5), 90)});
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{0}));
  for (const std::int64_t deposit : {0, 3}) {
    of.requests[0].deposit = deposit;
    EXPECT_TRUE(sut.decide(of, kNow, {}).prioritized.empty()) << deposit;
  }
}

TEST(Unified, FreeRoomGoesByArrivalWithoutOvertaking) {
  UnifiedPolicy sut;
  auto parked = rotary(2, 9);
  parked.t_arr = Seconds(1);
  const auto of = snapshot(3, 9, {waiting(2, 9), parked, waiting(1, 9.5)});
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{1}));
}

TEST(Unified, OnePassedOverTooOftenHasRoomKeptForIt) {
  UnifiedPolicy sut;
  auto of = snapshot(3, 9, {waiting(4, 9), waiting(2, 1), running(4, 1)});
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{1}));
  of.requests[0].skips = kSkipLimit;
  EXPECT_TRUE(sut.decide(of, kNow, {}).prioritized.empty());
  of.b_hbm = Bytes(5);
  EXPECT_EQ(sut.decide(of, kNow, {}).prioritized, (Indices{0}));
}

TEST(Unified, GrowthBeyondTheRoomTakesTheLongestRunning) {
  UnifiedPolicy sut;
  auto of = snapshot(0, 9, {running(2, 1), running(2, 5)});
  of.growth = Bytes(1);
  EXPECT_EQ(sut.decide(of, kNow, {}).preempted, (Indices{0}));
}

// What is played: engines that make a token every so many ticks, and how requests arrive.
struct Load {
  std::vector<int> periods;
  int most_tokens;
  double arrivals_per_tick;
  /// One in so many requests is as large as HBM, the rest are small; 0 = any size.
  unsigned large_one_in;
  /// Ticks from one due token to the next; a long one lets slow engines build deposits.
  int tbt = 2;
};

class Play {
 public:
  static constexpr std::int64_t kHbm = 40;

  Play(std::uint64_t seed, Load load) : random_(seed), load_(std::move(load)) {}

  void run(int ticks) {
    std::poisson_distribution<int> arrivals(load_.arrivals_per_tick);
    while (!::testing::Test::HasFatalFailure() && (now_ < ticks || !jobs_.empty())) {
      ++now_;
      for (int n = now_ <= ticks ? arrivals(random_) : 0; n > 0; --n) arrive();
      decide();
      make_tokens();
    }
  }

 private:
  struct Job {
    RotationRequest request;
    int left = 0;
    int period = 1;
    int arrived = 0;
    std::size_t ahead = 0;
    int next_due = 0;
  };

  std::int64_t draw_size() {
    if (load_.large_one_in == 0) return 1 + static_cast<std::int64_t>(random_() % 20);
    return random_() % load_.large_one_in == 0 ? kHbm
                                               : 1 + static_cast<std::int64_t>(random_() % 4);
  }

  void arrive() {
    Job job;
    job.request = waiting(draw_size(), now_);
    job.request.ttft_slo = Seconds(20);
    job.request.tbt_slo = Seconds(load_.tbt);
    job.left = 1 + static_cast<int>(random_() % static_cast<unsigned>(load_.most_tokens));
    job.period = load_.periods[random_() % load_.periods.size()];
    job.arrived = now_;
    job.ahead = jobs_.size();
    jobs_.push_back(job);
  }

  // Every request waiting too long is a failure, not only one that gets in late.
  void check_wait(const Job& job) const {
    if (job.request.state != RequestState::kWaiting) return;
    const int slowest = *std::max_element(load_.periods.begin(), load_.periods.end());
    const auto bound =
        (job.ahead + kSkipLimit) * static_cast<std::size_t>(load_.most_tokens * slowest);
    ASSERT_LE(static_cast<std::size_t>(now_ - job.arrived), bound);
  }

  void decide() {
    auto of = snapshot(kHbm, 25, {});
    for (auto& job : jobs_) {
      check_wait(job);
      if (job.request.state == RequestState::kRunning) of.b_hbm -= job.request.bytes;
      of.requests.push_back(job.request);
    }
    ASSERT_GE(of.b_hbm, Bytes(0));
    const RotationDecision& decision = sut_.decide(of, Seconds(now_), {});
    for (auto& job : jobs_) job.request.skips += decision.contention ? 1 : 0;
    for (const auto index : decision.preempted) leave(jobs_[index]);
    for (const auto index : decision.prioritized) enter(jobs_[index]);
  }

  void leave(Job& job) {
    ASSERT_TRUE(job.request.made_token) << "moved in and out without a token";
    job.request.state = RequestState::kRotary;
    job.request.t_last = Seconds(now_);
  }

  void enter(Job& job) {
    if (job.request.state == RequestState::kWaiting) job.next_due = now_;
    job.request.state = RequestState::kRunning;
    job.request.t_run = Seconds(now_);
    job.request.made_token = false;
    job.request.skips = 0;
  }

  void make_tokens() {
    for (auto& job : jobs_) {
      if (job.request.deposit > 0 && now_ >= job.next_due) {
        --job.request.deposit;
        job.next_due = now_ + load_.tbt;
      }
      if (job.request.state != RequestState::kRunning || now_ % job.period != 0) continue;
      job.request.made_token = true;
      ++job.request.deposit;
      --job.left;
    }
    std::erase_if(jobs_, [](const Job& job) { return job.left == 0; });
  }

  std::mt19937_64 random_;
  Load load_;
  UnifiedPolicy sut_;
  std::vector<Job> jobs_;
  int now_ = 0;
};

TEST(UnifiedPlayed, WithEnginesOfVeryDifferentPeriodsEverySwapInMakesAToken) {
  for (std::uint64_t seed = test_seed(); seed < test_seed() + 3; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    for (const double rate : {0.02, 0.05}) Play(seed, {{1, 7, 40}, 30, rate, 0, 150}).run(2000);
  }
}

TEST(UnifiedPlayed, ALargeRequestRunsThoughSmallOnesKeepComing) {
  for (std::uint64_t seed = test_seed(); seed < test_seed() + 3; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Play(seed, {{1}, 30, 0.9, 300}).run(6000);
  }
}

TEST(UnifiedPlayed, InOverloadNobodyStarves) {
  for (std::uint64_t seed = test_seed(); seed < test_seed() + 3; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Play(seed, {{1, 2}, 12, 1, 0}).run(400);
  }
}

}  // namespace
}  // namespace kvd::planner::testing
