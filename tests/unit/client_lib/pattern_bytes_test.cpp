#include "client_lib/examples/pattern_bytes.hpp"

#include <gtest/gtest.h>

#include <array>

namespace kvd_pattern {
namespace {

TEST(PatternBytesTest, MatchesOnlyItsOwnOrigin) {
  std::array<std::byte, 256> kv{};
  const Origin origin{1, 2, 3, 4};
  fill(kv, origin);
  EXPECT_TRUE(matches(kv, origin));
  EXPECT_FALSE(matches(kv, Origin{2, 2, 3, 4}));
  EXPECT_FALSE(matches(kv, Origin{1, 3, 3, 4}));
  EXPECT_FALSE(matches(kv, Origin{1, 2, 4, 4}));
  EXPECT_FALSE(matches(kv, Origin{1, 2, 3, 5}));
}

TEST(PatternBytesTest, SeesEveryFlippedBit) {
  std::array<std::byte, 64> kv{};
  const Origin origin{1, 2, 3, 4};
  fill(kv, origin);
  for (std::size_t bit = 0; bit < kv.size() * 8; ++bit) {
    kv[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(matches(kv, origin)) << bit;
    kv[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  EXPECT_TRUE(matches(kv, origin));
}

TEST(PatternBytesTest, DoesNotTakeZeroedMemoryForAPattern) {
  const std::array<std::byte, 64> zeros{};
  EXPECT_FALSE(matches(zeros, Origin{0, 0, 0, 0})) << "a lost block must never look right";
}

}  // namespace
}  // namespace kvd_pattern
