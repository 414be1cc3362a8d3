#include <gtest/gtest.h>

#include "planner/model/memory.hpp"
#include "tests/unit/planner/model/batches.hpp"
#include "tests/unit/planner/model/event_simulation.hpp"

namespace kvd::planner::testing {
namespace {

// OrbitFlow Fig. 3: nine layers of one layer-time, three blocks a layer-time, 70 blocks of memory.
// Stalls count blocks of waiting, as the figure does.
struct Placement {
  const char* name;
  std::int64_t blocks1;
  std::vector<std::int32_t> layers1, layers2;
  std::int64_t resident, eq1, strict;
  std::vector<double> stalls;  // per layer
  double staged;               // most blocks staged at once
};

// The default prints addresses, which vary.
void PrintTo(const Placement& placement, std::ostream* out) { *out << placement.name; }

const std::vector<std::int32_t> kThirds = {3, 6, 9};
const std::vector<double> kNoStall(9, 0.0);

class Fig3 : public ::testing::TestWithParam<Placement> {
 protected:
  StepModel model = uniform_model(9, 1, 3);
  std::vector<StreamedRequest> requests{{Blocks(GetParam().blocks1), GetParam().layers1},
                                        {Blocks(6), GetParam().layers2}};
};

TEST_P(Fig3, StallsLayerByLayer) {
  const auto latency = edf_latency(model, requests);
  double sum = 0;
  for (std::size_t l = 0; l < 9; ++l) {
    EXPECT_NEAR(latency.stalls[l].count() * 3, GetParam().stalls[l], 1e-9) << "layer " << l + 1;
    sum += GetParam().stalls[l] / 3;
  }
  EXPECT_NEAR(latency.total.count(), 9 + sum, 1e-9);
}

TEST_P(Fig3, MemoryByBothRules) {
  const auto memory = placement_memory(9, requests);
  EXPECT_EQ(memory.resident, Blocks(GetParam().resident));
  EXPECT_EQ(memory.resident + memory.staging(BufferRule::kEq1), Blocks(GetParam().eq1));
  EXPECT_EQ(memory.resident + memory.staging(BufferRule::kStrict), Blocks(GetParam().strict));
}

TEST_P(Fig3, StagingReallyUsed) {
  EventSimulation simulation(model, requests);
  simulation.run();
  EXPECT_NEAR(simulation.peak_staging, GetParam().staged, 1e-9);
}

INSTANTIATE_TEST_SUITE_P(
    Placements, Fig3,
    ::testing::Values(
        Placement{"A1", 3, kThirds, kThirds, 54, 63, 63, {0, 0, 3, 0, 0, 3, 0, 0, 3}, 9},
        Placement{"A16", 4, kThirds, kThirds, 60, 70, 70, {0, 0, 4, 0, 0, 4, 0, 0, 4}, 10},
        Placement{"B1", 3, {}, kThirds, 63, 69, 69, kNoStall, 6},
        Placement{"B16", 4, {}, kThirds, 72, 78, 78, kNoStall, 6},
        Placement{"C1", 3, {4, 8}, kThirds, 57, 63, 66, kNoStall, 9},
        Placement{"C16", 4, {4, 8}, kThirds, 64, 70, 74, {0, 0, 0, 1, 0, 0, 0, 0, 1}, 10}),
    [](const auto& of) { return of.param.name; });

TEST(Fig3Alternatives, EvenSharingStallsMore) {
  const auto model = uniform_model(9, 1, 3);
  const auto stall = [&](std::int64_t b1, std::vector<std::int32_t> layers) {
    const std::vector<StreamedRequest> requests = {{Blocks(b1), std::move(layers)},
                                                   {Blocks(6), kThirds}};
    return (even_sharing_latency(model, requests).total.count() - 9) * 3;
  };
  EXPECT_NEAR(stall(3, kThirds), 9, 1e-9);
  EXPECT_NEAR(stall(4, kThirds), 12, 1e-9);
  EXPECT_NEAR(stall(3, {}), 0, 1e-9);
  EXPECT_NEAR(stall(3, {4, 8}), 6, 1e-9);
  EXPECT_NEAR(stall(4, {4, 8}), 7, 1e-9);
}

}  // namespace
}  // namespace kvd::planner::testing
