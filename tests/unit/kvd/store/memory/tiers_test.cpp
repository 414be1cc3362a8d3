// The memory of a node by ids: who maps what, what is zeroed, what is leased.
#include "kvd/store/memory/tiers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/kvd/store/store_fixture.hpp"

namespace kvd::store {
namespace {

using pool::SlotState;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr EngineId kStranger{12};

template <class T>
ErrorCode code_of(const Result<T>& result) {
  return result.ok() ? ErrorCode::kOk : result.error().code;
}

class TiersTest : public StoreTest {
 protected:
  ~TiersTest() override { EXPECT_EQ(tiers.validate(), ""); }
};

TEST_F(TiersTest, SendsASlabOnceAndGrantsInItOnceItIsMapped) {
  pool::SlotGrant grant = tiers.take(Tier::kHbm, taker(), 2);
  ASSERT_EQ(grant.code, ErrorCode::kWouldBlock);
  EXPECT_TRUE(tiers.mappings().awaited_by(kEngine));
  const auto sent = ordered<SendSlab>();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].engine, kEngine);
  EXPECT_FALSE(sent[0].region);
  EXPECT_EQ(tiers.take(Tier::kHbm, taker(), 2).code, ErrorCode::kWouldBlock);
  EXPECT_THAT(ordered<SendSlab>(), IsEmpty()) << "it is on its way";
  EXPECT_TRUE(tiers.mappings().mapped(kEngine, sent[0].slab));
  grant = tiers.take(Tier::kHbm, taker(), 2);
  EXPECT_EQ(grant.code, ErrorCode::kOk);
  EXPECT_FALSE(tiers.mappings().awaited_by(kEngine));
}

TEST_F(TiersTest, BelievesNobodyWhoMapsWhatHeWasNotGiven) {
  EXPECT_FALSE(tiers.mappings().mapped(kEngine, SlabIndex(0)));
  EXPECT_FALSE(tiers.mappings().mapped(kEngine, SlabIndex(kSlabs)));
  EXPECT_FALSE(tiers.mappings().mapped(kStranger, SlabIndex(0)));
  EXPECT_FALSE(tiers.mappings().unmapped(kEngine, SlabIndex(0)));
}

TEST_F(TiersTest, AnUnmapThatNobodyAskedForChangesNothing) {
  const std::vector<SlotId> slots = taken(1);
  EXPECT_FALSE(tiers.mappings().unmapped(kEngine, slots[0].slab()));
  EXPECT_EQ(tiers.take(Tier::kHbm, taker(), 1).code, ErrorCode::kOk) << "still granted there";
}

TEST_F(TiersTest, ASlabThatCouldNotBeSentIsSentAnew) {
  ASSERT_EQ(tiers.take(Tier::kHbm, taker(), 1).code, ErrorCode::kWouldBlock);
  const auto sent = ordered<SendSlab>();
  ASSERT_THAT(sent, SizeIs(1));
  tiers.mappings().unsent(kEngine, sent[0].slab, false);
  EXPECT_EQ(tiers.take(Tier::kHbm, taker(), 1).code, ErrorCode::kWouldBlock);
  EXPECT_THAT(ordered<SendSlab>(), SizeIs(1));
}

TEST_F(TiersTest, AnEngineIsAskedToUnmapWhatIsZeroed) {
  const std::vector<SlotId> slots = taken(1);
  tiers.hbm().with(slots[0].slab()).retire(slots[0].slab());
  tiers.free(Tier::kHbm, slots);
  (void)ordered<Scrub>();
  tiers.scrub_slabs();
  std::vector<AskUnmap> asked;
  std::vector<Scrub> scrubs;
  orders.drain([&](auto order) {
    if constexpr (std::is_same_v<decltype(order), AskUnmap>) asked.push_back(order);
    if constexpr (std::is_same_v<decltype(order), Scrub>) scrubs.push_back(order);
  });
  ASSERT_THAT(asked, SizeIs(1));
  EXPECT_EQ(asked[0].slab, slots[0].slab());
  ASSERT_THAT(scrubs, SizeIs(1));
  EXPECT_THAT(scrubs[0].slabs, ElementsAre(slots[0].slab()));
  EXPECT_TRUE(tiers.zeroes_for(kA)) << "anybody may get a slab";
  EXPECT_TRUE(tiers.mappings().unmapped(kEngine, slots[0].slab()));
  EXPECT_TRUE(tiers.scrub_ended(scrubs[0].ticket, true));
  EXPECT_FALSE(tiers.scrub_ended(scrubs[0].ticket, true)) << "reported twice";
}

TEST_F(TiersTest, SlotsOfTheDeadAreZeroedUntilThatSucceeds) {
  const std::vector<SlotId> slots = taken(2);
  tiers.engine_dying(kEngine);
  tiers.hold({.engine = kEngine, .domain = kA, .slot_bytes = kSlot, .hbm = slots});
  EXPECT_EQ(in(Tier::kHbm, SlotState::kQuarantined), 2u);
  (void)ordered<Scrub>();
  tiers.mappings().forget(kEngine);
  tiers.engine_gone(kEngine);
  auto scrubs = ordered<Scrub>();
  ASSERT_THAT(scrubs, SizeIs(1));
  EXPECT_EQ(scrubs[0].slots, slots);
  const auto everybody = [](EngineId) { return true; };
  EXPECT_EQ(tiers.held(kA, kDevice, everybody), kSlot * 2);
  EXPECT_EQ(tiers.slots(Tier::kHbm), 2u);
  EXPECT_FALSE(tiers.zeroes_for(kB)) << "slots stay in their domain";
  EXPECT_TRUE(tiers.scrub_ended(scrubs[0].ticket, false));
  scrubs = ordered<Scrub>();
  ASSERT_THAT(scrubs, SizeIs(1)) << "nobody gets what may hold bytes of another";
  EXPECT_EQ(scrubs[0].slots, slots);
  EXPECT_TRUE(tiers.scrub_ended(scrubs[0].ticket, true));
  EXPECT_EQ(tiers.slots(Tier::kHbm), 0u);
  EXPECT_EQ(tiers.held(kA, kDevice, everybody), Bytes(0));
}

TEST_F(TiersTest, WhatComesBackLeavesOutSilentEngines) {
  tiers.hold({.copies = {Ticket(9)},
              .engine = kEngine,
              .domain = kA,
              .slot_bytes = kSlot,
              .hbm = taken(3)});
  EXPECT_EQ(tiers.held(kA, kDevice, [](EngineId) { return true; }), kSlot * 3);
  EXPECT_EQ(tiers.held(kA, kDevice, [](EngineId engine) { return engine != kEngine; }), Bytes(0));
  EXPECT_EQ(tiers.held(kB, kDevice, [](EngineId) { return true; }), Bytes(0));
  tiers.copy_ended(Ticket(9));
  EXPECT_EQ(tiers.held(kA, kDevice, [](EngineId) { return true; }), Bytes(0));
}

TEST_F(TiersTest, ARegionIsSentWholeAndZeroedAfterwards) {
  const auto slabs = tiers.lease(RegionId(1), taker(), Bytes(2048));
  ASSERT_TRUE(slabs.ok());
  const auto sent = ordered<SendSlab>();
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[1].region, RegionId(1));
  EXPECT_EQ(sent[1].position, 1u);
  EXPECT_EQ(sent[1].count, 2u);
  tiers.end_lease(RegionId(1), kEngine, *slabs);
  const auto scrubs = ordered<Scrub>();
  ASSERT_THAT(scrubs, SizeIs(1));
  EXPECT_EQ(scrubs[0].slabs, *slabs);
}

TEST_F(TiersTest, ARegionTakesSlabsThatNoBlockUsesAnyMore) {
  tiers.free(Tier::kHbm, taken(8 * kSlabs));
  (void)ordered<Scrub>();
  EXPECT_EQ(code_of(tiers.lease(RegionId(1), taker(), Bytes(1024))), ErrorCode::kWouldBlock);
  tiers.scrub_slabs();
  const auto scrubs = ordered<Scrub>();
  ASSERT_THAT(scrubs, SizeIs(1));
  for (const SlabIndex slab : scrubs[0].slabs)
    EXPECT_TRUE(tiers.mappings().unmapped(kEngine, slab));
  EXPECT_TRUE(tiers.scrub_ended(scrubs[0].ticket, true));
  for (const Scrub& again : ordered<Scrub>()) EXPECT_TRUE(tiers.scrub_ended(again.ticket, true));
  EXPECT_TRUE(tiers.lease(RegionId(2), taker(), Bytes(1024)).ok());
}

TEST_F(TiersTest, AClassGoesOnceNoSlabHasIt) {
  const std::vector<SlotId> slots = taken(1);
  EXPECT_FALSE(tiers.remove_class(kClass));
  EXPECT_TRUE(tiers.remove_class(kOtherClass));
  tiers.free(Tier::kHbm, slots);
}

TEST_F(TiersTest, SlabsAreNumberedThroughTheDevices) {
  Taker there = taker();
  there.device = kOtherDevice;
  for (const SlotId slot : taken(8 * kSlabs)) {
    EXPECT_LT(slot.slab().value, kSlabs);
    tiers.free(Tier::kHbm, {slot});
  }
  const std::vector<SlotId> slots = taken(8 * kSlabs, there);
  for (const SlotId slot : slots) EXPECT_GE(slot.slab().value, kSlabs);
  EXPECT_EQ(tiers.hbm().device_of(slots[0]), kOtherDevice);
  EXPECT_EQ(tiers.take(Tier::kHbm, there, 1).code, ErrorCode::kOutOfMemory) << "the first is empty";
  tiers.free(Tier::kHbm, slots);
  EXPECT_EQ(tiers.validate(), "");
}

TEST_F(TiersTest, OfSeveralDevicesAllIsTakenOrNothing) {
  Taker there = taker();
  there.device = kOtherDevice;
  const std::vector<SlotId> here = taken(8 * kSlabs), most = taken(8 * kSlabs - 3, there);
  tiers.free(Tier::kHbm, here);
  const DeviceSlots wanted[] = {{kDevice, 4}, {kOtherDevice, 4}};
  EXPECT_EQ(tiers.take(taker(), wanted).code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(in(Tier::kHbm, pool::SlotState::kFilling), 0u) << "of the first";
  const DeviceSlots less[] = {{kDevice, 4}, {kOtherDevice, 3}};
  const pool::SlotGrant grant = tiers.take(taker(), less);
  ASSERT_EQ(grant.code, ErrorCode::kOk);
  ASSERT_THAT(grant.slots, SizeIs(7));
  EXPECT_EQ(tiers.hbm().device_of(grant.slots[3]), kDevice);
  EXPECT_EQ(tiers.hbm().device_of(grant.slots[4]), kOtherDevice);
  tiers.free(Tier::kHbm, grant.slots);
  tiers.free(Tier::kHbm, most);
}

TEST_F(TiersTest, OfSeveralDevicesNoneHasASlabJoinWhileAnotherIsWaitedFor) {
  Taker there = taker();
  there.device = kOtherDevice;
  const std::vector<SlotId> most = taken(8 * kSlabs - 3, there);
  const auto joined = [&] {
    const auto slabs = tiers.hbm().of(kDevice).slabs();
    return std::count_if(slabs.begin(), slabs.end(), [](const pool::SlabView& slab) {
      return slab.use == pool::SlabUse::kClass;
    });
  };
  const DeviceSlots wanted[] = {{kDevice, 4}, {kOtherDevice, 4}};
  EXPECT_EQ(tiers.take(taker(), wanted).code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(joined(), 0) << "it would be empty, and free for a region, and again for this";
  const DeviceSlots less[] = {{kDevice, 4}, {kOtherDevice, 3}};
  const pool::SlotGrant grant = tiers.take(taker(), less);
  EXPECT_EQ(grant.code, ErrorCode::kWouldBlock) << "one has to be mapped first";
  EXPECT_THAT(grant.to_map, SizeIs(1));
  EXPECT_EQ(tiers.hbm().device_of(grant.to_map[0]), kDevice);
  EXPECT_EQ(joined(), 1);
  tiers.free(Tier::kHbm, most);
}

TEST_F(TiersTest, ADevicesSlabsAreZeroedAndLeasedApart) {
  Taker there = taker();
  there.device = kOtherDevice;
  const auto first = tiers.lease(RegionId(1), taker(), Bytes(1024));
  const auto second = tiers.lease(RegionId(2), there, Bytes(1024));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(tiers.hbm().device_of(second->front()), kOtherDevice);
  (void)ordered<SendSlab>();
  tiers.end_lease(RegionId(1), kEngine, *first);
  tiers.end_lease(RegionId(2), kEngine, *second);
  const auto scrubs = ordered<Scrub>();
  ASSERT_THAT(scrubs, SizeIs(2));
  EXPECT_EQ(scrubs[1].slabs, *second);
  for (const Scrub& scrub : scrubs) EXPECT_TRUE(tiers.scrub_ended(scrub.ticket, true));
  EXPECT_EQ(tiers.pool(Tier::kHbm, kOtherDevice).stats().slabs_unassigned, kSlabs);
}

}  // namespace
}  // namespace kvd::store
