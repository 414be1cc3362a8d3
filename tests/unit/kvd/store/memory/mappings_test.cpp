// Which engine maps which slab of HBM, and what an engine says of slabs that it was not given.
#include "kvd/store/memory/mappings.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/kvd/store/store_fixture.hpp"

namespace kvd::store {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr EngineId kNeighbour{12}, kNobody{99};

class MappingsTest : public StoreTest {
 protected:
  MappingsTest() { tiers.engine_came(kNeighbour); }
  ~MappingsTest() override { EXPECT_EQ(tiers.validate(), ""); }

  static Taker neighbour() {
    Taker who = taker();
    who.engine = kNeighbour;
    return who;
  }
  /// A slab that the engine was sent and has yet to map.
  SlabIndex sent(const Taker& who = taker()) {
    const pool::SlotGrant grant = tiers.take(Tier::kHbm, who, 1);
    EXPECT_EQ(grant.code, ErrorCode::kWouldBlock);
    EXPECT_THAT(grant.to_map, SizeIs(1));
    return grant.to_map.at(0);
  }
  [[nodiscard]] bool maps(EngineId engine, SlabIndex slab) const {
    const pool::SlabSet* mapped = tiers.mappings().of(engine);
    return mapped != nullptr && (*mapped)[slab.value];
  }

  Mappings& sut = tiers.mappings();
};

TEST_F(MappingsTest, AnEngineThatCameMapsNothing) {
  ASSERT_NE(sut.of(kEngine), nullptr);
  EXPECT_THAT(*sut.of(kEngine), ::testing::Each(false));
  EXPECT_EQ(sut.of(kEngine)->size(), 2 * kSlabs) << "of all devices";
  EXPECT_FALSE(sut.awaited_by(kEngine));
}

TEST_F(MappingsTest, OfAnEngineThatIsNotThereNothingIsKnown) {
  EXPECT_EQ(sut.of(kNobody), nullptr);
  EXPECT_FALSE(sut.awaited_by(kNobody));
  EXPECT_FALSE(sut.mapped(kNobody, SlabIndex(0)));
  EXPECT_FALSE(sut.unmapped(kNobody, SlabIndex(0)));
  sut.unsent(kNobody, SlabIndex(0), false);
  sut.end_awaiting_mapped(kNobody);
  EXPECT_THAT(ordered<SendSlab>(), IsEmpty());
}

TEST_F(MappingsTest, AnEngineThatIsGoneIsForgotten) {
  const SlabIndex slab = sent();
  EXPECT_TRUE(sut.mapped(kEngine, slab));
  sut.forget(kEngine);
  sut.engine_gone(kEngine);
  EXPECT_EQ(sut.of(kEngine), nullptr);
  EXPECT_FALSE(sut.mapped(kEngine, slab));
}

TEST_F(MappingsTest, SlotsAreGrantedOnceTheSlabIsMapped) {
  const SlabIndex slab = sent();
  EXPECT_FALSE(maps(kEngine, slab)) << "it is on its way";
  EXPECT_TRUE(sut.awaited_by(kEngine));
  EXPECT_TRUE(sut.mapped(kEngine, slab));
  EXPECT_TRUE(maps(kEngine, slab));
  EXPECT_TRUE(sut.mapped(kEngine, slab)) << "said twice";
  const pool::SlotGrant grant = tiers.take(Tier::kHbm, taker(), 1);
  ASSERT_EQ(grant.code, ErrorCode::kOk);
  EXPECT_EQ(grant.slots[0].slab(), slab);
}

TEST_F(MappingsTest, EachEngineIsSentTheSlabThatBothUse) {
  const SlabIndex slab = taken(1)[0].slab();
  (void)ordered<SendSlab>();
  const SlabIndex again = sent(neighbour());
  EXPECT_EQ(again, slab) << "the fullest slab of the class, whoever maps it";
  const auto again_sent = ordered<SendSlab>();
  ASSERT_THAT(again_sent, SizeIs(1));
  EXPECT_EQ(again_sent[0].engine, kNeighbour);
  EXPECT_FALSE(maps(kNeighbour, slab));
  EXPECT_TRUE(maps(kEngine, slab));
}

TEST_F(MappingsTest, AskedForTwiceASlabIsSentOnce) {
  const SlabIndex slab = sent();
  sut.send(kEngine, {slab});
  EXPECT_THAT(ordered<SendSlab>(), SizeIs(1));
  EXPECT_TRUE(sut.awaited_by(kEngine));
  sut.send(kEngine, {});
  EXPECT_FALSE(sut.awaited_by(kEngine)) << "the last grant waits for none";
}

TEST_F(MappingsTest, OnlyWhatWasAskedBackMayBeUnmapped) {
  const SlabIndex slab = taken(1)[0].slab();
  EXPECT_FALSE(sut.unmapped(kEngine, slab)) << "slots may be granted there";
  EXPECT_TRUE(maps(kEngine, slab));
  sut.ask_back({slab});
  EXPECT_FALSE(maps(kEngine, slab));
  EXPECT_TRUE(sut.unmapped(kEngine, slab));
  EXPECT_FALSE(sut.unmapped(kEngine, slab)) << "said twice";
}

TEST_F(MappingsTest, WhoeverMapsASlabIsAskedToUnmapIt) {
  const SlabIndex slab = taken(1)[0].slab();
  EXPECT_TRUE(sut.mapped(kNeighbour, sent(neighbour())));
  (void)ordered<AskUnmap>();
  sut.ask_back({slab});
  const auto asked = ordered<AskUnmap>();
  ASSERT_THAT(asked, SizeIs(2));
  EXPECT_EQ(asked[0].engine, kEngine);
  EXPECT_EQ(asked[1].engine, kNeighbour);
  EXPECT_EQ(asked[1].slab, slab);
  sut.ask_back({slab});
  EXPECT_THAT(ordered<AskUnmap>(), IsEmpty()) << "they were asked";
}

TEST_F(MappingsTest, WhatIsOnItsWayIsNotAskedBack) {
  const SlabIndex slab = sent();
  (void)ordered<SendSlab>();
  sut.ask_back({slab});
  EXPECT_THAT(ordered<AskUnmap>(), IsEmpty()) << "it does not map it yet";
  EXPECT_TRUE(sut.unmapped(kEngine, slab)) << "and need not";
}

TEST_F(MappingsTest, WhatWasAskedBackIsSentAnewForTheNextGrant) {
  const std::vector<SlotId> slots = taken(1);
  const SlabIndex slab = slots[0].slab();
  sut.ask_back({slab});
  EXPECT_TRUE(sut.unmapped(kEngine, slab));
  (void)ordered<SendSlab>();
  EXPECT_EQ(sent(), slab);
  EXPECT_THAT(ordered<SendSlab>(), SizeIs(1));
}

TEST_F(MappingsTest, OneThatWasNotSentIsNotMapped) {
  const SlabIndex slab = sent();
  sut.unsent(kEngine, slab, false);
  EXPECT_FALSE(sut.mapped(kEngine, slab));
  EXPECT_FALSE(maps(kEngine, slab));
}

TEST_F(MappingsTest, ARegionsSlabThatWasNotSentLeavesTheSlotsThere) {
  const SlabIndex slab = taken(1)[0].slab();
  sut.unsent(kEngine, slab, true);
  EXPECT_TRUE(maps(kEngine, slab)) << "it was sent for slots before";
  sut.region_unmapped(kEngine, slab);
  EXPECT_EQ(tiers.take(Tier::kHbm, taker(), 1).code, ErrorCode::kOk);
}

TEST_F(MappingsTest, WaitingEndsWhenAllAwaitedSlabsAreMapped) {
  const pool::SlotGrant grant = tiers.take(Tier::kHbm, taker(), 12);
  ASSERT_THAT(grant.to_map, SizeIs(2));
  const auto awaited = [&](SlabIndex slab) {
    return tiers.hbm().with(slab).awaited(slab, kEngine);
  };
  EXPECT_TRUE(sut.mapped(kEngine, grant.to_map[0]));
  sut.end_awaiting_mapped(kEngine);
  EXPECT_TRUE(awaited(grant.to_map[0])) << "the other one is on its way still";
  EXPECT_TRUE(sut.mapped(kEngine, grant.to_map[1]));
  sut.end_awaiting_mapped(kEngine);
  for (const SlabIndex slab : grant.to_map) EXPECT_FALSE(awaited(slab));
}

TEST_F(MappingsTest, WhatASlabIsAwaitedForNoOtherClassTakes) {
  for (std::uint32_t i = 0; i < kSlabs; ++i) {
    const pool::SlotGrant grant = tiers.take(Tier::kHbm, taker(), 8 * kSlabs);
    ASSERT_EQ(grant.code, ErrorCode::kWouldBlock);
  }
  const Taker large{kOtherClass, kA, kNeighbour, Bytes(256), kDevice};
  EXPECT_THAT(tiers.take(Tier::kHbm, large, 1).to_map, IsEmpty());
  sut.stop_awaiting(kEngine);
  EXPECT_THAT(tiers.take(Tier::kHbm, large, 1).to_map, SizeIs(1)) << "it had its chance";
}

TEST_F(MappingsTest, AnEngineThatIsForgottenMapsNothingAnyMore) {
  const std::vector<SlotId> slots = taken(1);
  const SlabIndex slab = slots[0].slab();
  tiers.free(Tier::kHbm, slots);
  sut.forget(kEngine);
  tiers.reclaim(Tier::kHbm, kB);
  const auto scrubs = ordered<Scrub>();
  ASSERT_THAT(scrubs, SizeIs(1));
  EXPECT_THAT(scrubs[0].slabs, ElementsAre(slab));
  EXPECT_TRUE(tiers.scrub_ended(scrubs[0].ticket, true));
  EXPECT_THAT(ordered<Scrub>(), IsEmpty()) << "nobody maps it: it stays clean";
  Taker foreign = neighbour();
  foreign.domain = kB;
  EXPECT_EQ(tiers.take(Tier::kHbm, foreign, 8 * kSlabs).code, ErrorCode::kWouldBlock);
  EXPECT_EQ(tiers.order_renewals(), 1u) << "its process may have the descriptor still";
  tiers.hbm().with(slab).slab_renewed(slab);
  EXPECT_THAT(tiers.take(Tier::kHbm, foreign, 8 * kSlabs).to_map, SizeIs(kSlabs));
}

}  // namespace
}  // namespace kvd::store
