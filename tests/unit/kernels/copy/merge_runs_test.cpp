#include "kernels/copy/merge_runs.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace kvd::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

CopyExtent extent(std::uintptr_t destination, std::uintptr_t source, std::int64_t length) {
  return {destination, source, Bytes(length)};
}

TEST(MergeRunsTest, NothingStaysNothing) { EXPECT_THAT(merge_runs({}), IsEmpty()); }

TEST(MergeRunsTest, JoinsNeighboursGivenInAnyOrder) {
  const auto runs =
      merge_runs({extent(300, 1300, 100), extent(100, 1100, 100), extent(200, 1200, 100)});
  EXPECT_THAT(runs, ElementsAre(extent(100, 1100, 300)));
}

TEST(MergeRunsTest, KeepsApartWhatOnlyOneSideContinues) {
  const auto runs =
      merge_runs({extent(100, 1100, 100), extent(200, 5000, 100), extent(400, 5100, 100)});
  EXPECT_THAT(runs,
              ElementsAre(extent(100, 1100, 100), extent(200, 5000, 100), extent(400, 5100, 100)));
}

TEST(MergeRunsTest, JoinsZeroFillsOnlyWithZeroFills) {
  const auto runs = merge_runs({extent(100, 0, 100), extent(200, 0, 100), extent(300, 100, 100)});
  EXPECT_THAT(runs, ElementsAre(extent(100, 0, 200), extent(300, 100, 100)));
}

// Byte by byte, where every destination gets its byte from.
std::map<std::uintptr_t, std::uintptr_t> byte_map(const std::vector<CopyExtent>& extents) {
  std::map<std::uintptr_t, std::uintptr_t> from;
  for (const CopyExtent& e : extents) {
    for (std::size_t i = 0; i < e.length.size(); ++i) {
      from[e.destination + i] = e.source == 0 ? 0 : e.source + i;
    }
  }
  return from;
}

TEST(MergeRunsTest, MovesTheSameBytesAndLeavesNothingToJoin) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    std::vector<CopyExtent> extents;
    for (std::uintptr_t slot = 0; slot < 24; ++slot) {
      if (random() % 3 == 0) continue;
      const std::uintptr_t source = random() % 4 == 0 ? 0 : 10000 + 8 * (slot + random() % 2);
      extents.push_back(extent(8 * slot + 800, source, 8));
    }
    std::shuffle(extents.begin(), extents.end(), random);

    const auto runs = merge_runs(extents);

    EXPECT_EQ(byte_map(runs), byte_map(extents));
    EXPECT_EQ(merge_runs(runs), runs);
    EXPECT_LE(runs.size(), extents.size());
  }
}

}  // namespace
}  // namespace kvd::kernels
