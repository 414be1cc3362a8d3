#include "kvd/store/index/labels.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

namespace kvd::store {
namespace {

Digest digest(std::uint32_t number) {
  Digest made;
  for (std::size_t i = 0; i < 4; ++i) made.bytes[i] = static_cast<std::uint8_t>(number >> (8 * i));
  made.bytes[31] = 1;
  return made;
}

KeySpace space_of(std::uint32_t domain, std::uint8_t model = 1) {
  KeySpace space;
  space.domain = DomainId(domain);
  space.fingerprint.digest.bytes[0] = model;
  space.devices = KeySpace::kPlacedByEngines;
  return space;
}

const KeySpace kSpace = space_of(1);
constexpr std::size_t kAll = 1 << 20;
constexpr TierSet kDram = bit(CacheTier::kDram);

Label label(std::uint32_t number, std::size_t tokens = 4) {
  return {digest(number), digest(number + 1000), "", std::vector<std::uint32_t>(tokens, number)};
}

/// A follower that reads a few changes at a time.
struct Follower {
  Labels::Cursor seen;
  std::map<Digest, TierSet> view;
  std::size_t starts = 0;

  /// False: there is no more.
  bool hear(const Labels& labels, std::size_t most_blocks = kAll) {
    const Labels::Changes changes = labels.since(kSpace, seen, most_blocks, kAll);
    EXPECT_LE(changes.all.size(), most_blocks);
    if (changes.over) view.clear(), ++starts;
    for (const Labels::Change& each : changes.all) {
      view[each.label.digest] = each.tiers;
      if (each.tiers == 0) view.erase(each.label.digest);
    }
    seen = changes.next;
    return changes.more;
  }
};

TEST(Labels, AreToldOnceABlockIsThereAndWhenItHasGone) {
  Labels labels({1});
  ASSERT_TRUE(labels.add(kSpace, label(1), 0));
  Follower follower;
  EXPECT_FALSE(follower.hear(labels));
  EXPECT_EQ(follower.starts, 1u);
  EXPECT_TRUE(labels.since(kSpace, follower.seen, kAll, kAll).all.empty());
  labels.moved(kSpace, digest(1), CacheTier::kDram, true);
  const Labels::Changes came = labels.since(kSpace, follower.seen, kAll, kAll);
  ASSERT_EQ(came.all.size(), 1u);
  EXPECT_FALSE(came.over);
  EXPECT_EQ(came.all[0].label, label(1));
  EXPECT_EQ(came.all[0].tiers, bit(CacheTier::kDram));
  labels.moved(kSpace, digest(1), CacheTier::kDram, false);
  const Labels::Changes went = labels.since(kSpace, came.next, kAll, kAll);
  ASSERT_EQ(went.all.size(), 1u);
  EXPECT_EQ(went.all[0].tiers, 0u);
  EXPECT_TRUE(went.all[0].label.tokens.empty());
  EXPECT_TRUE(labels.since(kSpace, {}, kAll, kAll).all.empty()) << "who begins hears of no loss";
}

TEST(Labels, OfABlockThatComesBackSoonAreKept) {
  Labels labels({1});
  ASSERT_TRUE(labels.add(kSpace, label(1), kDram));
  labels.moved(kSpace, digest(1), CacheTier::kDram, false);
  labels.name(kSpace, digest(1), digest(77), false);
  labels.moved_on_disk(digest(77), true);
  const Labels::Changes changes = labels.since(kSpace, {}, kAll, kAll);
  ASSERT_EQ(changes.all.size(), 1u);
  EXPECT_EQ(changes.all[0].tiers, bit(CacheTier::kDisk));
}

TEST(Labels, OtherSpacesAndRequestsBlocksAreNotTold) {
  Labels labels({1});
  ASSERT_TRUE(labels.add(kSpace, label(1), kDram));
  EXPECT_TRUE(labels.since(space_of(2), {}, kAll, kAll).all.empty());
  EXPECT_TRUE(labels.since(space_of(1, 2), {}, kAll, kAll).all.empty());
  labels.moved(space_of(2), digest(1), CacheTier::kDram, false);
  EXPECT_EQ(labels.since(kSpace, {}, kAll, kAll).all.size(), 1u);
}

TEST(Labels, OfAnotherLifeStartOver) {
  Labels before({1}), after({2});
  ASSERT_TRUE(before.add(kSpace, label(1), kDram));
  ASSERT_TRUE(after.add(kSpace, label(2), kDram));
  Follower follower;
  (void)follower.hear(before);
  (void)follower.hear(after);
  EXPECT_EQ(follower.starts, 2u);
  ASSERT_EQ(follower.view.size(), 1u);
  EXPECT_TRUE(follower.view.contains(digest(2)));
}

TEST(Labels, StartOverForWhoHasMissedALossThatIsForgotten) {
  Labels labels({1});
  ASSERT_TRUE(labels.add(kSpace, label(1), kDram));
  Follower late, prompt;
  (void)late.hear(labels);
  (void)prompt.hear(labels);
  labels.moved(kSpace, digest(1), CacheTier::kDram, false);
  (void)prompt.hear(labels);
  for (std::uint32_t i = 2; i < Labels::kMostGone + 4; ++i) {
    ASSERT_TRUE(labels.add(kSpace, label(i), 0));
  }
  EXPECT_LE(labels.size(), Labels::kMostGone + 1);
  (void)late.hear(labels);
  (void)prompt.hear(labels);
  EXPECT_EQ(late.starts, 2u);
  EXPECT_EQ(prompt.starts, 1u);
  EXPECT_TRUE(late.view.empty());
  EXPECT_EQ(labels.validate(), "");
}

TEST(Labels, TakeBoundedMemoryAndLeaveOutNewOnes) {
  Labels labels({1});
  std::uint32_t count = 0;
  while (labels.add(kSpace, label(count, 4096), kDram)) ASSERT_LT(++count, 100000u);
  EXPECT_LE(labels.bytes(kSpace.domain), Labels::kMostBytes);
  EXPECT_GT(labels.bytes(kSpace.domain), Labels::kMostBytes - 20000);
  EXPECT_TRUE(labels.add(space_of(2), label(1, 4096), kDram)) << "other domains have their own";
  labels.moved(kSpace, digest(0), CacheTier::kDram, false);
  EXPECT_TRUE(labels.add(kSpace, label(count, 4096), kDram)) << "one without a block makes way";
  EXPECT_EQ(labels.validate(), "");
}

TEST(Labels, OfUnusedSpacesMakeWayForOthers) {
  Labels labels({1});
  for (std::uint8_t model = 1; model <= Labels::kMostSpaces; ++model) {
    ASSERT_TRUE(labels.add(space_of(1, model), label(1), kDram));
  }
  EXPECT_FALSE(labels.add(space_of(1, 99), label(1), kDram)) << "all are in use";
  EXPECT_TRUE(labels.add(space_of(2), label(1), kDram));
  labels.moved(space_of(1, 3), digest(1), CacheTier::kDram, false);
  EXPECT_TRUE(labels.add(space_of(1, 99), label(1), kDram));
  EXPECT_EQ(labels.validate(), "");
}

TEST(Labels, OfManyBlocksComePartByPart) {
  Labels labels({1});
  for (std::uint32_t i = 0; i < 100; ++i) ASSERT_TRUE(labels.add(kSpace, label(i, 50), kDram));
  const Labels::Changes few = labels.since(kSpace, {}, kAll, 120);
  EXPECT_EQ(few.all.size(), 2u) << "120 tokens at most";
  EXPECT_TRUE(few.more);
  EXPECT_EQ(labels.since(kSpace, {}, kAll, 10).all.size(), 1u) << "one at least";
  Follower follower;
  std::size_t parts = 1;
  while (follower.hear(labels, 7)) ++parts;
  EXPECT_EQ(parts, 15u);
  EXPECT_EQ(follower.starts, 1u);
  EXPECT_EQ(follower.view.size(), 100u);
}

// Blocks come and go at random. Followers read the changes now and then, in small parts. A follower
// that has read all of them knows where each block is.
TEST(Labels, FollowersKnowWhereEachBlockIs) {
  const char* given = std::getenv("KVD_TEST_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 20261129;
  SCOPED_TRACE("KVD_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t most) {
    return static_cast<std::uint32_t>(random() % most);
  };
  Labels labels({7});
  std::array<Follower, 3> followers;
  std::map<std::uint32_t, TierSet> model;
  for (int step = 0; step < 60000; ++step) {
    const std::uint32_t number = below(300);
    const CacheTier tier = below(2) == 0 ? CacheTier::kDram : CacheTier::kDisk;
    const bool there = below(2) == 0;
    if (below(3) == 0) {
      ASSERT_TRUE(labels.add(kSpace, label(number), model[number] & kDram));
      const bool on_disk = (model[number] & bit(CacheTier::kDisk)) != 0;
      labels.name(kSpace, digest(number), digest(number + 5000), on_disk);
    } else {
      model[number] = there ? model[number] | bit(tier) : model[number] & ~bit(tier);
      if (tier == CacheTier::kDram) labels.moved(kSpace, digest(number), tier, there);
      if (tier == CacheTier::kDisk) labels.moved_on_disk(digest(number + 5000), there);
    }
    Follower& follower = followers[below(3)];
    if (below(5) != 0 || follower.hear(labels, 1 + below(20))) continue;
    std::map<Digest, TierSet> expected;
    for (const auto& [each, tiers] : model) {
      if (tiers != 0) expected[digest(each)] = tiers;
    }
    // By then all 300 have been labelled.
    if (step > 20000) {
      ASSERT_EQ(follower.view, expected) << "at step " << step;
    }
  }
  EXPECT_EQ(labels.validate(), "");
  for (const Follower& follower : followers) EXPECT_EQ(follower.starts, 1u);
}

}  // namespace
}  // namespace kvd::store
