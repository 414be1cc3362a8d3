#include "planner/model/candidates.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace kvd::planner {
namespace {

using Numbers = std::vector<std::int32_t>;

TEST(RepresentativeDistances, Goldens) {
  EXPECT_EQ(representative_distances(9), (Numbers{2, 3, 4, 9}));
  EXPECT_EQ(representative_distances(32), (Numbers{2, 3, 4, 5, 6, 8, 10, 16, 32}));
  EXPECT_EQ(representative_distances(40).size(), 10u);
  EXPECT_EQ(representative_distances(48), (Numbers{2, 3, 4, 5, 6, 8, 9, 12, 16, 24, 48}));
  EXPECT_EQ(representative_distances(64),
            (Numbers{2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 21, 32, 64}));
  EXPECT_EQ(representative_distances(80),
            (Numbers{2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 16, 20, 26, 40, 80}));
  EXPECT_TRUE(representative_distances(1).empty());
}

TEST(Candidates, StrictLeavesOutTheSingleLayerThatSavesNothing) {
  EXPECT_EQ(candidates(32, CandidateSet::kDistances, BufferRule::kEq1).size(), 11u);
  EXPECT_EQ(candidates(32, CandidateSet::kDistances, BufferRule::kStrict).size(), 10u);
  EXPECT_EQ(candidates(1, CandidateSet::kDistances, BufferRule::kStrict).size(), 2u);
}

TEST(Candidates, TheEvenSetHasEveryNumberOfLayersOnce) {
  const auto all = candidates(32, CandidateSet::kDistancesAndEven, BufferRule::kEq1);
  ASSERT_EQ(all.size(), 33u);
  for (std::size_t n = 0; n < all.size(); ++n) EXPECT_EQ(all[n].offloaded.size(), n);
  EXPECT_EQ(all[0].distance, 0);
  EXPECT_EQ(all[16].distance, 2);
  EXPECT_FALSE(all[7].distance);
  EXPECT_EQ(all[7].offloaded, (Numbers{4, 9, 13, 18, 22, 27, 32}));
}

TEST(Candidates, EveryOneIsDistinctAscendingAndInRange) {
  for (const std::int32_t layers : {1, 2, 3, 9, 33, 80}) {
    for (const auto& candidate :
         candidates(layers, CandidateSet::kDistancesAndEven, BufferRule::kStrict)) {
      const std::set<std::int32_t> unique(candidate.offloaded.begin(), candidate.offloaded.end());
      EXPECT_EQ(unique.size(), candidate.offloaded.size());
      EXPECT_TRUE(std::is_sorted(candidate.offloaded.begin(), candidate.offloaded.end()));
      EXPECT_TRUE(unique.empty() || (*unique.begin() >= 1 && *unique.rbegin() <= layers));
    }
  }
}

}  // namespace
}  // namespace kvd::planner
