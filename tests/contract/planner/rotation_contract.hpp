#pragma once

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "planner/baselines/all_policies.hpp"
#include "tests/unit/planner/policy/requests.hpp"
#include "tests/unit/planner/seed.hpp"

namespace kvd::planner::testing {

/// What every rotation policy promises, whatever its rule. Instantiate with policy names.
class RotationContract : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    auto made = all_policies().rotation(GetParam());
    ASSERT_TRUE(made.ok());
    sut = std::move(*made);
  }

  static Bytes total(const RotationSnapshot& of, const std::vector<std::uint32_t>& indices) {
    Bytes sum;
    for (const auto index : indices) sum += of.requests[index].bytes;
    return sum;
  }

  std::unique_ptr<RotationPolicy> sut;
  RotationConfig config;
};

inline RotationRequest random_request(std::mt19937_64& random, double now) {
  std::uniform_int_distribution<std::int64_t> size(0, 12);
  std::uniform_real_distribution<double> time(now - 20, now);
  RotationRequest request;
  switch (random() % 3) {
    case 0:
      request = waiting(size(random), time(random));
      break;
    case 1:
      request = rotary(size(random), time(random));
      break;
    default:
      request = running(size(random), time(random));
      request.prefilling = random() % 5 == 0;
      request.made_token = random() % 5 != 0;
  }
  request.deposit = static_cast<std::int64_t>(random() % 20);
  if (random() % 4) request.output_tokens = Tokens(static_cast<std::int64_t>(random() % 50));
  if (random() % 8 == 0) request.skips = kSkipLimit + static_cast<std::int32_t>(random() % 3);
  return request;
}

inline RotationSnapshot random_snapshot(std::mt19937_64& random, double now) {
  auto made = snapshot(static_cast<std::int64_t>(random() % 40),
                       static_cast<std::int64_t>(random() % 30), {});
  made.growth = Bytes(static_cast<std::int64_t>(random() % 10));
  for (auto n = random() % 24; n > 0; --n) made.requests.push_back(random_request(random, now));
  if (random() % 2) {
    made.dram = DramUse{Bytes(100), Bytes(static_cast<std::int64_t>(random() % 101))};
  }
  return made;
}

TEST_P(RotationContract, NamesItself) { EXPECT_EQ(sut->name(), GetParam()); }

TEST_P(RotationContract, NobodyIsAnEmptyDecision) {
  const auto& decision = sut->decide(snapshot(4, 4, {}), Seconds(10), config);
  EXPECT_TRUE(decision.prioritized.empty());
  EXPECT_TRUE(decision.preempted.empty());
  EXPECT_TRUE(decision.vlt_s.empty());
  EXPECT_FALSE(decision.contention);
}

TEST_P(RotationContract, WhereAllFitAllEnterInOrderOfArrivalAndNobodyLeaves) {
  const auto& decision = sut->decide(snapshot(9, 0, {waiting(4, 3), running(5, 1), rotary(5, 2)}),
                                     Seconds(10), config);
  EXPECT_EQ(decision.prioritized, (std::vector<std::uint32_t>{2, 0}));
  EXPECT_TRUE(decision.preempted.empty());
  EXPECT_FALSE(decision.contention);
}

TEST_P(RotationContract, RandomSnapshotsKeepStatesBudgetsAndDeterminism) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 3000; ++round) {
    const auto of = random_snapshot(random, 30);
    const RotationDecision decision = sut->decide(of, Seconds(30), config);
    ASSERT_EQ(decision.vlt_s.size(), of.requests.size());
    std::set<std::uint32_t> seen;
    for (const auto index : decision.prioritized) {
      ASSERT_TRUE(seen.insert(index).second);
      ASSERT_NE(of.requests[index].state, RequestState::kRunning);
    }
    for (const auto index : decision.preempted) {
      ASSERT_TRUE(seen.insert(index).second);
      ASSERT_EQ(of.requests[index].state, RequestState::kRunning);
      ASSERT_FALSE(of.requests[index].prefilling);
      ASSERT_TRUE(of.requests[index].made_token);
    }
    const Bytes room = of.b_hbm - of.growth;
    ASSERT_TRUE(decision.prioritized.empty() ||
                total(of, decision.prioritized) <= room + total(of, decision.preempted));
    ASSERT_LE(total(of, decision.prioritized), std::max(Bytes{0}, room + of.b_xfer));
    const auto& again = sut->decide(of, Seconds(30), config);
    ASSERT_EQ(again.prioritized, decision.prioritized);
    ASSERT_EQ(again.preempted, decision.preempted);
  }
}

}  // namespace kvd::planner::testing
