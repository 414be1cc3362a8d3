// A table finds what was put in and nothing else, however badly digests meet.
#include "kvd/store/index/digest_table.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "tests/unit/kvd/store/index/index_fixture.hpp"

namespace kvd::store {
namespace {

struct World {
  DigestTable sut{TableSecret{7, 11, 13, 17}};
  std::map<std::uint32_t, DigestTable::Hash> inside;  // hash by id
  std::uint64_t probes = 0;

  EntryId find(DigestTable::Hash hash, std::uint32_t id) {
    return sut.find(
        hash, [&](EntryId other) { return other.value == id; }, probes);
  }
};

/// Hashes of which many are the same or next to each other, at both ends of the table too.
TEST(DigestTableTest, RandomHistoriesKeepEveryEntry) {
  const auto seed = static_cast<std::uint64_t>(::testing::UnitTest::GetInstance()->random_seed());
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  World world;
  for (std::uint32_t round = 1; round <= 20000; ++round) {
    if (random() % 2 == 0 || world.inside.empty()) {
      const auto end = static_cast<std::uint32_t>(0 - (random() % 2));
      const DigestTable::Hash hash = end - static_cast<std::uint32_t>((random() % 40) << 20);
      world.sut.insert(hash, EntryId(round));
      world.inside[round] = hash;
    } else {
      auto it = world.inside.lower_bound(static_cast<std::uint32_t>(random() % round));
      if (it == world.inside.end()) it = world.inside.begin();
      world.sut.erase(it->second, EntryId(it->first));
      EXPECT_FALSE(world.find(it->second, it->first));
      world.inside.erase(it);
    }
    ASSERT_EQ(world.sut.size(), world.inside.size());
    if (round % 100 != 0) continue;
    for (const auto& [id, hash] : world.inside) ASSERT_EQ(world.find(hash, id), EntryId(id));
  }
  std::set<std::uint32_t> walked;
  world.sut.each([&](EntryId id) { walked.insert(id.value); });
  EXPECT_EQ(walked.size(), world.inside.size());
}

TEST(DigestTableTest, DigestsSpreadOverTheTable) {
  World world;
  constexpr std::uint32_t kCount = 100'000;
  for (std::uint32_t id = 1; id <= kCount; ++id) {
    world.sut.insert(world.sut.hash(digest(id)), EntryId(id));
  }
  for (std::uint32_t id = 1; id <= kCount; ++id) {
    ASSERT_EQ(world.find(world.sut.hash(digest(id)), id), EntryId(id));
  }
  EXPECT_LT(world.probes, 3 * kCount);
}

TEST(DigestTableTest, WhereADigestGoesIsASecret) {
  const DigestTable one(TableSecret{1, 2, 3, 4}), other(TableSecret{1, 2, 3, 5});
  EXPECT_NE(one.hash(digest(9)), other.hash(digest(9)));
}

}  // namespace
}  // namespace kvd::store
