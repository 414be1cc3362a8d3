#include "planner/model/latency.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "tests/unit/planner/model/batches.hpp"
#include "tests/unit/planner/model/event_simulation.hpp"
#include "tests/unit/planner/seed.hpp"

namespace kvd::planner::testing {
namespace {

class RandomBatches : public ::testing::Test {
 protected:
  template <class Check>
  void each(int rounds, Check check) {
    SCOPED_TRACE(::testing::Message() << "seed " << test_seed());
    std::mt19937_64 random(test_seed());
    for (int round = 0; round < rounds && !HasFailure(); ++round) {
      const auto model = random_model(random);
      check(model, random_requests(random, model.layers()), random);
    }
  }
};

TEST_F(RandomBatches, ClosedFormEqualsEventSimulation) {
  each(10'000, [](const auto& model, const auto& requests, auto&) {
    const auto closed = edf_latency(model, requests);
    EventSimulation simulation(model, requests);
    ASSERT_NEAR(closed.total.count(), simulation.run(), 1e-9);
    for (std::size_t l = 0; l < model.layers(); ++l) {
      ASSERT_NEAR(closed.stalls[l].count(), simulation.stalls[l], 1e-9) << "layer " << l + 1;
    }
  });
}

TEST_F(RandomBatches, EarliestDeadlineIsNeverSlowerThanEvenSharing) {
  each(3'000, [](const auto& model, const auto& requests, auto&) {
    ASSERT_LE(edf_latency(model, requests).total.count(),
              even_sharing_latency(model, requests).total.count() + 1e-9);
  });
}

TEST_F(RandomBatches, MonotoneInBlocksLinkAndCompute) {
  each(2'000, [](auto model, auto requests, auto& random) {
    const double before = edf_latency(model, requests).total.count();
    auto more = requests;
    more[random() % more.size()].blocks += Blocks(1);
    ASSERT_GE(edf_latency(model, more).total.count(), before - 1e-9);
    auto slower = model;
    slower.per_block *= 1.1;
    ASSERT_GE(edf_latency(slower, requests).total.count(), before - 1e-9);
    auto heavier = model;
    heavier.compute[random() % heavier.layers()] *= 1.2;
    ASSERT_GE(edf_latency(heavier, requests).total.count(), before - 1e-9);
  });
}

TEST_F(RandomBatches, StagingInUseStaysWithinTheStrictReserve) {
  each(2'000, [](const auto& model, const auto& requests, auto&) {
    EventSimulation simulation(model, requests);
    simulation.run();
    const auto memory = placement_memory(model.layers(), requests);
    ASSERT_LE(simulation.peak_staging, static_cast<double>(memory.staging_strict.value) + 1e-6);
  });
}

// Loads drawn at random over candidate patterns.
std::vector<double> random_loads(std::mt19937_64& random, std::size_t patterns) {
  std::vector<double> load(patterns, 0.0);
  for (int i = 0; i < 6; ++i) load[random() % patterns] += static_cast<double>(random() % 20);
  return load;
}

TEST_F(RandomBatches, PatternLoadsGiveTheSameLatencyAndValidCuts) {
  each(2'000, [](const auto& model, const auto&, auto& random) {
    std::vector<std::vector<std::int32_t>> patterns;
    for (auto& candidate : candidates(static_cast<std::int32_t>(model.layers()),
                                      CandidateSet::kDistancesAndEven, BufferRule::kEq1)) {
      patterns.push_back(std::move(candidate.offloaded));
    }
    PatternLatency sut(model, patterns);
    const auto load = random_loads(random, patterns.size());
    std::vector<StreamedRequest> requests;
    for (std::size_t k = 0; k < patterns.size(); ++k) {
      requests.push_back({Blocks(static_cast<std::int64_t>(load[k])), patterns[k]});
    }
    PathCut cut;
    const double latency = sut.evaluate(load, 120, cut);
    ASSERT_EQ(latency, sut.evaluate(load));
    ASSERT_NEAR(latency, edf_latency(model, requests).total.count(), 1e-9);
    const auto bound = [&cut](const std::vector<double>& at) {
      return std::inner_product(at.begin(), at.end(), cut.slope.begin(), cut.constant);
    };
    if (model.per_transfer.count() == 0) {
      ASSERT_NEAR(bound(load), latency, 1e-9);
    }
    for (int i = 0; i < 5; ++i) {
      const auto other = random_loads(random, patterns.size());
      ASSERT_LE(bound(other), sut.evaluate(other) + 1e-9);
    }
  });
}

TEST(StepModelCheck, RefusesWhatIsNoTime) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double bad : {0.0, -1.0, nan, std::numeric_limits<double>::infinity()}) {
    auto model = uniform_model(3, 1, 1);
    model.compute[1] = Seconds(bad);
    EXPECT_EQ(check(model).code(), ErrorCode::kInvalidArgument);
    model = uniform_model(3, 1, 1);
    model.per_block = Seconds(bad);
    EXPECT_EQ(check(model).code(), ErrorCode::kInvalidArgument);
  }
  auto model = uniform_model(3, 1, 1);
  model.per_transfer = Seconds(nan);
  EXPECT_FALSE(check(model).ok());
}

TEST(StepModelCheck, BoundsTheLayers) {
  EXPECT_FALSE(check(uniform_model(0, 1, 1)).ok());
  EXPECT_TRUE(check(uniform_model(1024, 1, 1)).ok());
  EXPECT_FALSE(check(uniform_model(1025, 1, 1)).ok());
}

TEST(StreamedRequestCheck, RefusesLayersOutOfRangeOrderOrTwice) {
  const auto model = uniform_model(3, 1, 1);
  EXPECT_TRUE(check(model, {Blocks(1), {1, 3}}).ok());
  EXPECT_FALSE(check(model, {Blocks(1), {0}}).ok());
  EXPECT_FALSE(check(model, {Blocks(1), {4}}).ok());
  EXPECT_FALSE(check(model, {Blocks(1), {2, 2}}).ok());
  EXPECT_FALSE(check(model, {Blocks(1), {3, 1}}).ok());
  EXPECT_FALSE(check(model, {Blocks(-1), {}}).ok());
}

}  // namespace
}  // namespace kvd::planner::testing
