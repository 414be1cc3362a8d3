#include "client_lib/llama/plugin/region_space.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace kvd::llama {
namespace {

constexpr std::uint64_t kPage = 4096;

TEST(RegionSpace, TakesPartsOneAfterAnotherAtAlignedOffsets) {
  RegionSpace sut(4 * kPage, kPage);
  EXPECT_EQ(sut.take(1), 0U);
  EXPECT_EQ(sut.take(kPage), kPage);
  EXPECT_EQ(sut.take(2 * kPage), 2 * kPage);
  EXPECT_EQ(sut.take(1), std::nullopt);
}

TEST(RegionSpace, TakesAllAndNotMore) {
  RegionSpace sut(kPage, kPage);
  EXPECT_EQ(sut.take(kPage + 1), std::nullopt);
  EXPECT_EQ(sut.take(kPage), 0U);
  EXPECT_FALSE(sut.empty());
  sut.give_back(0);
  EXPECT_TRUE(sut.empty());
}

TEST(RegionSpace, FillsTheGapThatWasGivenBack) {
  RegionSpace sut(4 * kPage, kPage);
  sut.take(kPage);
  sut.take(kPage);
  sut.take(kPage);
  sut.give_back(kPage);
  EXPECT_EQ(sut.take(kPage + 1), std::nullopt);  // the gap and the end are a page each
  EXPECT_EQ(sut.take(kPage), kPage);
  sut.give_back(0);
  sut.give_back(kPage);
  EXPECT_EQ(sut.take(2 * kPage), 0U);  // neighbours are one gap
}

TEST(RegionSpace, LendsNoByteTwice) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  constexpr std::uint64_t kBytes = 64 * kPage;
  RegionSpace sut(kBytes, kPage);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
  for (int i = 0; i < 10'000; ++i) {
    const std::uint64_t bytes = 1 + random() % (8 * kPage);
    const auto offset = sut.take(bytes);
    if (!offset) {
      ASSERT_FALSE(taken.empty());
      const std::size_t victim = random() % taken.size();
      sut.give_back(taken[victim].first);
      taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(victim));
      continue;
    }
    ASSERT_EQ(*offset % kPage, 0U);
    ASSERT_LE(*offset + bytes, kBytes);
    for (const auto& [begin, size] : taken) {
      ASSERT_TRUE(*offset + bytes <= begin || begin + size <= *offset) << "at " << *offset;
    }
    taken.emplace_back(*offset, bytes);
  }
}

}  // namespace
}  // namespace kvd::llama
