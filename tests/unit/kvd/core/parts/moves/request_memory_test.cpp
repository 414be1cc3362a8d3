// What one request holds, and what becomes of it when it is given up.
#include "kvd/core/moves/request_memory.hpp"

#include <gmock/gmock.h>

#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

using pool::SlotState;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RequestMemoryTest : public PartsTest {
 protected:
  std::uint64_t in(const pool::TierPool& pool, SlotState state) const {
    return pool.stats().slots_by_state[static_cast<std::size_t>(state)];
  }
  SlotState state(const Request& request, std::uint32_t i) {
    return ground.store.hbm.state(ground.store.blocks.slot(request.table, i, Tier::kHbm));
  }
  /// A copy of all its blocks to DRAM that is under way.
  Ticket copy_out(Session& session, Request& request) {
    std::vector<std::uint32_t> places;
    const pool::SlotGrant grant =
        ground.store.tiers.take(Tier::kDram, session.taker(), request.table.size());
    for (std::uint32_t i = 0; i < request.table.size(); ++i) {
      ground.store.blocks.place(request.table, i, Tier::kDram, grant.slots[i]);
      places.push_back(i);
    }
    return request.moves.rotation =
               sut.start(session, request, store::Purpose::kRotateOut, std::move(places));
  }

  RequestMemory& sut = ground.memory;
};

TEST_F(RequestMemoryTest, GrowsByWholeBlocksOfEveryGroup) {
  Request& request = submit(attach(), 5, 4);
  EXPECT_EQ(sut.grow(request, Tokens(5)), ErrorCode::kOk);
  EXPECT_EQ(request.table.blocks(), 2u);
  EXPECT_EQ(sut.hbm_bytes(request), kSlot * 4);
  EXPECT_EQ(sut.grow(request, Tokens(8)), ErrorCode::kOk);
  EXPECT_EQ(sut.hbm_bytes(request), kSlot * 4) << "they have room";
  sut.end(request);
}

TEST_F(RequestMemoryTest, GrowthIsAllOrNothing) {
  Session& session = attach();
  Request& large = running(session, 60);
  Request& request = submit(session, 4, 4);
  EXPECT_EQ(sut.grow(request, Tokens(8)), ErrorCode::kOutOfMemory);
  EXPECT_TRUE(request.table.empty());
  EXPECT_EQ(sut.grow(request, Tokens(4)), ErrorCode::kOk);
  sut.end(request);
  sut.end(large);
  EXPECT_EQ(free_hbm(), kSlab * 4);
}

TEST_F(RequestMemoryTest, SealsWhatTheReportedTokensFill) {
  Request& request = running(attach(), 6);
  EXPECT_EQ(sut.full_blocks(request), 1u);
  EXPECT_EQ(state(request, 0), SlotState::kSealed);
  EXPECT_EQ(state(request, 1), SlotState::kSealed);
  EXPECT_EQ(state(request, 2), SlotState::kOpen);
  EXPECT_EQ(request.sealed, 1u);
  request.progress.tokens = Tokens(8);
  sut.seal_full_blocks(request);
  EXPECT_EQ(state(request, 2), SlotState::kSealed);
}

TEST_F(RequestMemoryTest, WhatAnotherOwnerFetchesIsNotThereBeforeItHasCome) {
  Session& session = attach();
  Request& first = running(session, 4);
  Request& second = submit(session, 8, 4);
  store::Blocks& blocks = ground.store.blocks;
  blocks.share(second.table, blocks.name(first.table, 0, store::EntryId(1)));
  for (std::uint32_t i = 0; i < 2; ++i) {
    const auto in_dram = ground.store.tiers.take(Tier::kDram, session.taker(), 1);
    blocks.place(first.table, i, Tier::kDram, in_dram.slots[0]);
    blocks.settle(first.table, i, Tier::kDram, true);
    ground.store.tiers.free(Tier::kHbm, {blocks.vacate(first.table, i, Tier::kHbm)});
    const auto in_hbm = ground.store.tiers.take(Tier::kHbm, session.taker(), 1);
    blocks.place(first.table, i, Tier::kHbm, in_hbm.slots[0]);
  }
  second.place = Location::kIn;
  second.progress.tokens = Tokens(4);
  ground.requests.requeue(second);
  sut.seal_full_blocks(second);
  EXPECT_EQ(state(second, 0), SlotState::kFilling);
  EXPECT_TRUE(blocks.missing(second.table, 0));
  blocks.settle(first.table, 0, Tier::kHbm, true);
  EXPECT_EQ(state(second, 0), SlotState::kSealed);
}

TEST_F(RequestMemoryTest, GivesUpBlocksThatNoIterationWasGranted) {
  Session& session = attach();
  Request& request = running(session, 4);
  ASSERT_EQ(sut.grow(request, Tokens(12)), ErrorCode::kOk);
  sut.release_unwritten(session, request);
  EXPECT_EQ(request.table.blocks(), 1u);
  EXPECT_TRUE(request.runs());
}

TEST_F(RequestMemoryTest, APromptWithoutAWrittenBlockHasNotBegun) {
  Session& session = attach();
  Request& request = submit(session, 8, 4);
  ASSERT_EQ(sut.grow(request, Tokens(8)), ErrorCode::kOk);
  request.place = Location::kIn;
  ground.requests.requeue(request);
  sut.release_unwritten(session, request);
  EXPECT_TRUE(request.waits());
  EXPECT_TRUE(request.table.empty());
  EXPECT_EQ(free_hbm(), kSlab * 4);
}

TEST_F(RequestMemoryTest, AnEndHoldsWhatTheRunningIterationMayTouch) {
  Session& session = attach();
  Request& request = running(session, 8);
  request.progress.last_iteration = 3;
  ground.store.tiers.iteration_finished(session.id, 2);
  sut.end(request);
  EXPECT_EQ(in(ground.store.hbm.of(kFirst), SlotState::kDraining), 4u);
  ground.store.tiers.iteration_finished(session.id, 3);
  EXPECT_EQ(in(ground.store.hbm.of(kFirst), SlotState::kDraining), 0u);
  EXPECT_EQ(free_hbm(), kSlab * 4);
}

TEST_F(RequestMemoryTest, AnEndDuringACopyKeepsBothItsSides) {
  Session& session = attach();
  Request& request = running(session, 8);
  const Ticket copy = copy_out(session, request);
  sut.end(request);
  EXPECT_LT(free_dram(), kSlab * 8);
  EXPECT_EQ(in(ground.store.hbm.of(kFirst), SlotState::kFree) + 4, 32u);
  ASSERT_TRUE(ground.store.transfers.ended(copy));
  ground.store.tiers.copy_ended(copy);
  EXPECT_EQ(free_dram(), kSlab * 8);
  EXPECT_EQ(free_hbm(), kSlab * 4);
}

TEST_F(RequestMemoryTest, OrdersTheCopyThatItWasAskedFor) {
  Session& session = attach();
  Request& request = running(session, 8);
  const Ticket copy = copy_out(session, request);
  const auto orders = emitted<CopySlots>();
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].ticket, copy);
  EXPECT_FALSE(orders[0].to_hbm);
  EXPECT_THAT(orders[0].pairs, SizeIs(4));
}

TEST_F(RequestMemoryTest, EndingTheLastRequestLeavesNothing) {
  Session& session = attach();
  sut.end(running(session, 8));
  sut.end(submit(session, 4, 4));
  EXPECT_THAT(ground.requests.all(), IsEmpty());
  EXPECT_EQ(ground.store.blocks.slots(Tier::kHbm), 0u);
}

class TwoDeviceMemoryTest : public PartsTest {
 protected:
  TwoDeviceMemoryTest() : PartsTest(small_config(4, 8, 2)) {}

  DeviceId device_of(const Request& request, std::uint32_t i) {
    return ground.store.hbm.device_of(ground.store.blocks.slot(request.table, i, Tier::kHbm));
  }

  Session& group = attach(kA, 2, true, Devices(std::vector{kSecond, kFirst}), 2);
};

TEST_F(TwoDeviceMemoryTest, EveryBlockIsOnTheDeviceOfItsRank) {
  Request& request = running(group, 8);
  ASSERT_EQ(request.table.size(), 8u);
  for (std::uint32_t i = 0; i < 8; ++i) {
    EXPECT_EQ(device_of(request, i), i % 4 < 2 ? kSecond : kFirst) << i;
  }
  EXPECT_EQ(ground.memory.hbm_bytes(request), kSlot * 8);
  EXPECT_EQ(ground.memory.hbm_bytes(request, kFirst), kSlot * 4);
  ground.memory.end(request);
  ground.store.tiers.iteration_finished(group.id, 0);
  EXPECT_EQ(free_hbm({kA, kFirst}), kSlab * 4);
  EXPECT_EQ(free_hbm({kA, kSecond}), kSlab * 4);
}

TEST_F(TwoDeviceMemoryTest, WhereOneDeviceIsFullNothingIsTakenOfTheOther) {
  Session& alone = attach(kA, 2, true, Devices(kFirst));
  running(alone, 60);
  Request& request = submit(group, 16, 8);
  EXPECT_EQ(ground.memory.grow(request, Tokens(16)), ErrorCode::kOutOfMemory);
  EXPECT_TRUE(request.table.empty());
  EXPECT_EQ(free_hbm({kA, kSecond}), kSlab * 4) << "taken and given back";
  EXPECT_EQ(ground.memory.grow(request, Tokens(4)), ErrorCode::kOk);
  request.place = Location::kIn;
  ground.requests.requeue(request);
}

}  // namespace
}  // namespace kvd::core
