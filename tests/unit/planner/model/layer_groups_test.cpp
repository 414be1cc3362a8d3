#include "planner/model/layer_groups.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/unit/planner/model/batches.hpp"
#include "tests/unit/planner/model/event_simulation.hpp"
#include "tests/unit/planner/seed.hpp"

namespace kvd::planner::testing {
namespace {

TEST(LayerGroups, ComputeAddsUpAndBlocksGrow) {
  StepModel model = uniform_model(5, 1, 2);
  model.compute[4] = Seconds(7);
  const auto groups = in_groups(model, 2);
  EXPECT_EQ(groups.compute, (std::vector<Seconds>{Seconds(2), Seconds(2), Seconds(7)}));
  EXPECT_EQ(groups.per_block, Seconds(1));
  EXPECT_EQ(in_groups(model, 1).compute, model.compute);
  EXPECT_EQ(in_groups(model, 9).layers(), 1u);
}

// The grain changes the model and nothing else: step by step it is the one the oracle plays.
TEST(LayerGroups, AGroupedStepIsTheOnePlayed) {
  SCOPED_TRACE(::testing::Message() << "seed " << test_seed());
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 2000; ++round) {
    const auto model = in_groups(random_model(random), 1 + random() % 5);
    const auto requests = random_requests(random, model.layers());
    const auto closed = edf_latency(model, requests);
    EventSimulation played(model, requests);
    ASSERT_NEAR(closed.total.count(), played.run(), 1e-9);
    for (std::size_t l = 0; l < model.layers(); ++l) {
      ASSERT_NEAR(closed.stalls[l].count(), played.stalls[l], 1e-9) << "group " << l + 1;
    }
  }
}

// Where nothing streams the grain cannot be seen; where all does it is staging that it costs.
TEST(LayerGroups, TheGrainCostsStagingNotCompute) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 200; ++round) {
    const auto model = random_model(random);
    const auto groups = in_groups(model, 1 + random() % 5);
    ASSERT_NEAR(edf_latency(model, {}).total.count(), edf_latency(groups, {}).total.count(), 1e-9);
    std::vector<std::int32_t> all(groups.layers());
    std::iota(all.begin(), all.end(), 1);
    const std::vector<StreamedRequest> requests = {{Blocks(3), all}};
    EXPECT_EQ(placement_memory(groups.layers(), requests).staging_strict, Blocks(3))
        << "in blocks of a group, each as large as its layers' together";
  }
}

}  // namespace
}  // namespace kvd::planner::testing
