#include "planner/policy/placement/pause.hpp"

#include <gtest/gtest.h>

namespace kvd::planner {
namespace {

TEST(EvictPaused, TheLastLayersGoFirstAndTheNeedIsSpread) {
  const std::vector<PausedLayers> paused = {{Blocks(4), {1, 2, 3}}, {Blocks(2), {1, 2, 3, 4}}};
  const auto order = evict_paused(paused, Blocks(9));
  const std::vector<Eviction> expected = {{0, 3}, {1, 4}, {1, 3}, {0, 2}};
  EXPECT_EQ(order, expected) << "4 + 2 + 2, then the first of equals";
}

TEST(EvictPaused, WhereItDoesNotSufficeAllGo) {
  const std::vector<PausedLayers> paused = {{Blocks(4), {2}}, {Blocks(0), {1}}, {Blocks(1), {}}};
  EXPECT_EQ(evict_paused(paused, Blocks(100)), (std::vector<Eviction>{{0, 2}}));
  EXPECT_TRUE(evict_paused(paused, Blocks(0)).empty());
  EXPECT_TRUE(evict_paused({}, Blocks(5)).empty());
}

}  // namespace
}  // namespace kvd::planner
