// What is written down for the next daemon, and what this one takes over: DRAM and HBM.
#include "kvd/core/cache/keeping.hpp"

#include <gmock/gmock.h>

#include <vector>

#include "tests/unit/kvd/core/parts/cache/prefixes_fixture.hpp"

namespace kvd::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAreArray;

constexpr std::size_t kHbm = 0, kDram = 1;
constexpr std::uint32_t kGroups = 2;
constexpr std::uint32_t kSlotsOfSlab = 8;

Config kept_config(Config::Keep keep, std::uint32_t devices = 1) {
  Config config = small_config(4, 8, devices);
  config.keep = keep;
  config.tuning.rotation.eager = false;
  return config;
}

ModelClass shape_of_all() { return {kGroups, 1, kBlockTokens, Bytes(kSlot.value / kBlockTokens)}; }

class KeepingTest : public PrefixesFixture {
 protected:
  explicit KeepingTest(Config config = kept_config({true, true}))
      : PrefixesFixture(std::move(config)) {
    EXPECT_EQ(*ground.classes.of(shape_of_all()), kClass);
  }

  /// The orders at the end of an event.
  std::vector<KeepRows> told() {
    effects.clear();
    keeping.tell();
    return emitted<KeepRows>();
  }
  std::vector<SlotId> forgotten(std::size_t tier) {
    std::vector<SlotId> slots;
    for (const ForgetKept& order : emitted<ForgetKept>()) {
      slots.insert(slots.end(), order.slots[tier].begin(), order.slots[tier].end());
    }
    return slots;
  }
  /// Records as an earlier daemon has written them. Slots are neighbours from `first` on.
  KeptBlocks left(std::uint32_t number, Tier tier, SlabIndex slab, std::uint32_t first,
                  DomainId domain = kA) {
    KeptBlocks blocks{shape_of_all(), {}};
    blocks.row.space = {kModel, domain, ClassId(), 0};
    blocks.row.digest = digest(7, number);
    if (number > 0) blocks.row.parent = digest(7, number - 1);
    blocks.row.number = number;
    blocks.row.saved = {1e-6};
    blocks.row.slot_bytes = kSlot;
    blocks.row.tier = tier;
    for (std::uint32_t i = 0; i < kGroups; ++i) blocks.row.slots.emplace_back(slab, first + i);
    return blocks;
  }
  [[nodiscard]] const Counters::Prefixes::Kept& counted() {
    return ground.context.counters.prefixes.kept;
  }
  [[nodiscard]] std::vector<SlabIndex> zeroed(Tier tier) {
    std::vector<SlabIndex> slabs;
    for (const Scrub& scrub : emitted<Scrub>()) {
      if (scrub.tier == tier) slabs.insert(slabs.end(), scrub.slabs.begin(), scrub.slabs.end());
    }
    return slabs;
  }

  Keeping& keeping = ground.keeping;
};

TEST_F(KeepingTest, WhatHbmAloneHasIsWrittenDownAndDoesNotMakeWayMeanwhile) {
  Session& session = attach();
  Request& request = computed(session, 8, 7);
  const std::vector<SlotId> slots = in_hbm(request);
  const auto orders = told();
  ASSERT_THAT(orders, SizeIs(1));
  ASSERT_THAT(orders[0].rows, SizeIs(2)) << "while its request runs";
  for (const KeptBlocks& blocks : orders[0].rows) EXPECT_EQ(blocks.row.tier, Tier::kHbm);
  ground.memory.end(request);
  EXPECT_EQ(ground.store.cache.make_room(kA, Tier::kHbm, kSlab), Bytes(0));
  EXPECT_THAT(told(), IsEmpty()) << "it is being written";
  EXPECT_TRUE(keeping.on_kept({orders[0].ticket})) << "it may make way from now on";
  EXPECT_EQ(ground.store.cache.make_room(kA, Tier::kHbm, kSlab), kSlot * 4);
  effects.emplace_back(Note{});
  ground.context.effects = &effects;
  keeping.tell();
  ASSERT_TRUE(std::holds_alternative<ForgetKept>(effects.front())) << "before all else";
  EXPECT_THAT(forgotten(kHbm), UnorderedElementsAreArray(slots));
  EXPECT_THAT(forgotten(kDram), IsEmpty());
}

TEST_F(KeepingTest, WithEagerCopiesHbmIsReadOnlyWhereDramDoesNotGetItWithinASecond) {
  ground.context.tuning.rotation.eager = true;
  Session& session = attach();
  (void)computed(session, 8, 7);
  EXPECT_THAT(told(), IsEmpty());
  pass(std::chrono::milliseconds(999));
  EXPECT_THAT(told(), IsEmpty());
  pass(std::chrono::milliseconds(1));
  const auto orders = told();
  ASSERT_THAT(orders, SizeIs(1));
  ASSERT_THAT(orders[0].rows, SizeIs(2));
  for (const KeptBlocks& blocks : orders[0].rows) EXPECT_EQ(blocks.row.tier, Tier::kHbm);
  (void)keeping.on_kept({orders[0].ticket});
  Request& other = computed(session, 8, 9);
  park(other);
  const auto next = told();
  ASSERT_THAT(next, SizeIs(1)) << "DRAM is read at once";
  for (const KeptBlocks& blocks : next[0].rows) EXPECT_EQ(blocks.row.tier, Tier::kDram);
  (void)keeping.on_kept({next[0].ticket});
}

TEST_F(KeepingTest, SlotsThatLeaveHbmWhileTheyAreReadAreNotFreeBefore) {
  Session& session = attach();
  Request& request = computed(session, 8, 7);
  const auto orders = told();
  ASSERT_THAT(orders, SizeIs(1));
  const Bytes free = free_hbm();
  park(request);
  EXPECT_EQ(request.place, Location::kParked);
  EXPECT_EQ(free_hbm(), free);
  EXPECT_TRUE(keeping.on_kept({orders[0].ticket}));
  EXPECT_EQ(free_hbm(), free + kSlot * 4);
  const auto next = told();
  ASSERT_THAT(next, SizeIs(1)) << "DRAM has it now";
  for (const KeptBlocks& blocks : next[0].rows) EXPECT_EQ(blocks.row.tier, Tier::kDram);
}

TEST_F(KeepingTest, OfAnEngineThatDiesNothingInHbmStaysWrittenDown) {
  Session& session = attach();
  Request& request = computed(session, 8, 7);
  const std::vector<SlotId> slots = in_hbm(request);
  const auto orders = told();
  ASSERT_THAT(orders, SizeIs(1));
  ground.store.tiers.engine_dying(session.id);
  session.life.dying = true;
  ground.memory.end(request);
  EXPECT_THAT(told(), IsEmpty());
  EXPECT_THAT(forgotten(kHbm), UnorderedElementsAreArray(slots));
  (void)keeping.on_kept({orders[0].ticket});
}

TEST_F(KeepingTest, AChainOverBothTiersIsTakenOverAndFound) {
  AdoptRows before;
  before.rows = {left(2, Tier::kHbm, SlabIndex(3), 4), left(0, Tier::kDram, SlabIndex(5), 0),
                 left(1, Tier::kHbm, SlabIndex(1), 2), left(3, Tier::kDram, SlabIndex(5), 4)};
  before.slabs = {std::vector{SlabIndex(1), SlabIndex(3)}, {SlabIndex(5)}};
  keeping.adopt(before);
  EXPECT_THAT(counted().blocks, ElementsAre(2, 2));
  EXPECT_THAT(counted().bytes, ElementsAre(512, 512));
  EXPECT_EQ(counted().dropped.all(), 0u);
  EXPECT_THAT(emitted<ForgetKept>(), IsEmpty());
  EXPECT_EQ(ground.store.cache.evictable(kA, Tier::kHbm), kSlot * 4);
  EXPECT_EQ(free_hbm(), kSlab * 4 - kSlot * 4) << "the rest of their slabs is free";
  EXPECT_THAT(told(), IsEmpty()) << "they are written down as they are";

  Session& session = attach();
  Request& request = asked(session, 17, 7);
  EXPECT_EQ(sut.find(request), Found::kInDram) << "the head has to be loaded";
  EXPECT_EQ(request.content.named, 4u);
  EXPECT_THAT(in_hbm(request), ElementsAre(SlotId(SlabIndex(1), 2), SlotId(SlabIndex(1), 3),
                                           SlotId(SlabIndex(3), 4), SlotId(SlabIndex(3), 5)));
  sut.give_back(request);
}

TEST_F(KeepingTest, WhatIsInHbmIsSharedAtOnce) {
  AdoptRows before;
  before.rows = {left(0, Tier::kHbm, SlabIndex(0), 0), left(1, Tier::kHbm, SlabIndex(0), 2)};
  before.slabs[kHbm] = {SlabIndex(0)};
  keeping.adopt(before);
  Session& session = attach();
  Request& request = asked(session, 9, 7);
  EXPECT_EQ(sut.find(request), Found::kInHbm);
  EXPECT_EQ(request.progress.tokens, Tokens(8));
  sut.give_back(request);
}

TEST_F(KeepingTest, ASlabThatTwoDomainsSayTheyAreInIsNobodysAndZeroed) {
  AdoptRows before;
  before.rows = {left(0, Tier::kHbm, SlabIndex(2), 0), left(1, Tier::kHbm, SlabIndex(2), 2, kB),
                 left(1, Tier::kHbm, SlabIndex(0), 0)};
  before.slabs[kHbm] = {SlabIndex(0), SlabIndex(2)};
  keeping.adopt(before);
  EXPECT_EQ(counted().dropped.nobodys, 2u);
  EXPECT_EQ(counted().dropped.headless, 1u) << "its head was in the other slab";
  EXPECT_THAT(counted().blocks, ElementsAre(0, 0));
  EXPECT_THAT(zeroed(Tier::kHbm), ElementsAre(SlabIndex(2)));
  EXPECT_THAT(forgotten(kHbm), SizeIs(6));
  Session& session = attach(kB);
  Request& request = asked(session, 9, 7);
  EXPECT_EQ(sut.find(request), Found::kNothing);
}

TEST_F(KeepingTest, ASlabOfWhichNoRowIsLeftIsZeroed) {
  AdoptRows before;
  before.slabs = {std::vector{SlabIndex(1)}, {SlabIndex(4)}};
  KeptBlocks misfit = left(0, Tier::kHbm, SlabIndex(1), 0);
  misfit.shape.layers = 3;
  before.rows = {misfit};
  keeping.adopt(before);
  EXPECT_EQ(counted().dropped.misfit, 1u);
  EXPECT_THAT(zeroed(Tier::kHbm), ElementsAre(SlabIndex(1)));
  EXPECT_THAT(zeroed(Tier::kDram), ElementsAre(SlabIndex(4)));
}

// The product of a shape that nobody can have is no number of bytes.
TEST_F(KeepingTest, AShapeLargerThanItsSlotsIsAMisfit) {
  AdoptRows before;
  before.slabs = {std::vector<SlabIndex>{}, {SlabIndex(4)}};
  for (const std::int64_t token : {INT64_MAX, INT64_MIN, std::int64_t{1} << 60}) {
    KeptBlocks huge = left(0, Tier::kDram, SlabIndex(4), 0);
    huge.shape.bytes_per_token_per_layer = Bytes(token);
    before.rows.push_back(huge);
  }
  KeptBlocks wraps = left(0, Tier::kDram, SlabIndex(4), 0);
  wraps.shape.layers = UINT32_MAX;
  wraps.shape.layers_per_block = 2;
  before.rows.push_back(wraps);
  keeping.adopt(before);
  EXPECT_EQ(counted().dropped.misfit, before.rows.size());
}

TEST_F(KeepingTest, SlotsThatTwoRowsSayTheyHaveAreOneRowsAlone) {
  AdoptRows before;
  before.rows = {left(0, Tier::kHbm, SlabIndex(0), 0), left(1, Tier::kHbm, SlabIndex(0), 1)};
  before.slabs[kHbm] = {SlabIndex(0)};
  keeping.adopt(before);
  EXPECT_THAT(counted().blocks, ElementsAre(1, 0));
  EXPECT_EQ(counted().dropped.nobodys, 1u);
}

class KeepingWithQuota : public KeepingTest {
 protected:
  KeepingWithQuota() : KeepingTest(config()) {}
  static Config config() {
    Config config = kept_config({true, true});
    config.hbm_quotas[kA].maximum = kSlab;
    return config;
  }
};

TEST_F(KeepingWithQuota, WhatADomainMayNotHaveInHbmIsZeroed) {
  AdoptRows before;
  before.rows = {left(0, Tier::kHbm, SlabIndex(0), 0), left(1, Tier::kHbm, SlabIndex(1), 0)};
  before.slabs[kHbm] = {SlabIndex(0), SlabIndex(1)};
  keeping.adopt(before);
  EXPECT_THAT(counted().blocks, ElementsAre(1, 0));
  EXPECT_EQ(counted().dropped.nobodys, 1u);
  EXPECT_THAT(zeroed(Tier::kHbm), ElementsAre(SlabIndex(1)));
}

class KeepingOnTwoDevices : public KeepingTest {
 protected:
  KeepingOnTwoDevices() : KeepingTest(kept_config({true, true}, 2)) {}
};

TEST_F(KeepingOnTwoDevices, ARowOnAnotherDeviceThanItsSpaceIsNoRow) {
  AdoptRows before;
  KeptBlocks astray = left(0, Tier::kHbm, SlabIndex(4), 0);  // of the second device
  KeptBlocks torn = left(0, Tier::kHbm, SlabIndex(3), kSlotsOfSlab - 1);
  torn.row.slots[1] = SlotId(SlabIndex(4), 2);
  KeptBlocks right = left(0, Tier::kHbm, SlabIndex(5), 0);
  right.row.space.devices = 1;
  before.rows = {astray, torn, right};
  before.slabs[kHbm] = {SlabIndex(3), SlabIndex(4), SlabIndex(5)};
  keeping.adopt(before);
  EXPECT_EQ(counted().dropped.misfit, 2u);
  EXPECT_THAT(counted().blocks, ElementsAre(1, 0));
  EXPECT_EQ(ground.store.cache.evictable(kA, Tier::kHbm, kSecond), kSlot * 2);
  EXPECT_EQ(ground.store.cache.evictable(kA, Tier::kHbm, kFirst), Bytes(0));
}

class KeepingOfDram : public KeepingTest {
 protected:
  KeepingOfDram() : KeepingTest(kept_config({true, false})) {}
};

TEST_F(KeepingOfDram, HbmIsNotWrittenDownWhereItIsNotKept) {
  Session& session = attach();
  Request& request = computed(session, 8, 7);
  EXPECT_THAT(told(), IsEmpty());
  park(request);
  EXPECT_THAT(told(), SizeIs(1));
}

}  // namespace
}  // namespace kvd::core
