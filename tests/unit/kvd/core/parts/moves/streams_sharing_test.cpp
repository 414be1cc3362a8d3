// Layers that leave while others have the same blocks, and staging where there is none to be had.
#include <gmock/gmock.h>

#include "kvd/core/moves/dram_copies.hpp"
#include "kvd/core/moves/streams.hpp"
#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

using pool::SlotState;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::uint32_t kFourGroups = 4;

class StreamsSharingTest : public PartsTest {
 protected:
  explicit StreamsSharingTest(Config config = small_config(8, 16)) : PartsTest(std::move(config)) {}

  /// Makes a request whose full blocks all have a copy in DRAM.
  Request& copied(Session& session, std::int64_t tokens) {
    Request& request = running(session, tokens);
    while (request.synced < request.sealed) {
      copies.make_ahead(session);
      const auto transfer = ground.store.transfers.ended(request.moves.sync);
      if (!transfer) break;
      for (const std::uint32_t i : transfer->places) {
        ground.store.blocks.settle(request.table, i, Tier::kDram, true);
      }
      ground.store.tiers.copy_ended(std::exchange(request.moves.sync, Ticket()));
      session.ahead.under_way = Bytes(0);
    }
    EXPECT_EQ(request.synced, request.sealed);
    return request;
  }
  /// Another request that names the first block of the request.
  Request& sharing(Session& session, Request& request) {
    Request& other = submit(session, 4, 8);
    const store::RowId named = blocks.block(request.table[0]).row;
    blocks.share(other.table, named ? named : blocks.name(request.table, 0, store::EntryId(1)));
    other.place = Location::kIn;
    other.progress.tokens = other.progress.planned = Tokens(4);
    other.sealed = other.synced = 1;
    ground.requests.requeue(other);
    return other;
  }
  static void park(Request& request) {
    request.place = Location::kParked;
    request.table.set_parked(true);
  }
  SlotState state(SlotId slot) { return ground.store.hbm.state(slot); }

  store::Blocks& blocks = ground.store.blocks;
  DramCopies copies{ground};
  Streams sut{ground};
};

TEST_F(StreamsSharingTest, ABlockThatParkedRequestsAloneShareBecomesStaging) {
  Session& session = attach(kA, kFourGroups);
  Request& request = copied(session, 8);
  Request& other = sharing(session, request);
  park(other);
  request.layers.away = {false, true, false, true};
  const SlotId slot = blocks.slot(request.table, 1, Tier::kHbm);
  sut.install(session);
  EXPECT_EQ(request.layers.staging.slot(0), slot);
  EXPECT_EQ(request.layers.staging.count(), 2);
  EXPECT_FALSE(blocks.has(other.table, 1, Tier::kHbm)) << "it has it in DRAM, as all its blocks";
  EXPECT_TRUE(blocks.has(other.table, 1, Tier::kDram));
}

TEST_F(StreamsSharingTest, ItStaysWhileOneOfThemRuns) {
  Session& session = attach(kA, kFourGroups);
  Request& request = copied(session, 8);
  Request& parked = sharing(session, request);
  Request& runs = sharing(session, request);
  park(parked);
  request.layers.away = {false, true, false, true};
  sut.install(session);
  EXPECT_TRUE(blocks.has(runs.table, 1, Tier::kHbm));
  EXPECT_EQ(request.layers.staging.count(), 1) << "of its own block";
}

TEST_F(StreamsSharingTest, ABlockThatIsWantedLeavesOnceNobodyElseWantsIt) {
  Session& session = attach(kA, kFourGroups);
  Request& request = copied(session, 8);
  Request& other = sharing(session, request);
  request.layers.away = {false, true, false, true};
  sut.install(session);
  EXPECT_TRUE(blocks.has(request.table, 1, Tier::kHbm));
  park(other);
  sut.install(session);
  EXPECT_FALSE(blocks.has(request.table, 1, Tier::kHbm));
  EXPECT_EQ(request.layers.staging.count(), 2);
}

TEST_F(StreamsSharingTest, WhatNeitherHasInDramStays) {
  Session& session = attach(kA, kFourGroups);
  Request& request = running(session, 8);
  Request& other = sharing(session, request);
  park(other);
  other.synced = 0;
  session.ahead.wanting.insert(&other);
  request.layers.away.assign(kFourGroups, true);
  sut.install(session);
  EXPECT_EQ(request.table.in(Tier::kHbm), 8);
  EXPECT_TRUE(request.layers.staging.empty());
}

TEST_F(StreamsSharingTest, OneSlotOfABlockStagesAndTheOthersAreFree) {
  Session& session = attach(kA, kFourGroups);
  Request& request = copied(session, 8);
  const Bytes before = free_hbm();
  request.layers.away.assign(kFourGroups, true);
  sut.install(session);
  EXPECT_EQ(request.table.in(Tier::kHbm), 0);
  EXPECT_EQ(request.layers.staging.count(), 2) << "one of each block";
  EXPECT_EQ(free_hbm(), before + kSlot * 6);
}

TEST_F(StreamsSharingTest, WhatTheRunningIterationReadsIsHeld) {
  Session& session = attach(kA, kFourGroups);
  Request& request = copied(session, 8);
  request.progress.last_iteration = session.iterations.granted = 3;
  ground.store.tiers.iteration_finished(session.id, 2);
  const SlotId slot = blocks.slot(request.table, 3, Tier::kHbm);
  request.layers.away = {false, true, false, true};
  sut.install(session);
  EXPECT_EQ(state(slot), SlotState::kDraining);
  EXPECT_EQ(request.layers.streamed_in, 3u) << "and its staging is not written before that ends";
  ground.store.tiers.iteration_finished(session.id, 3);
  EXPECT_EQ(state(slot), SlotState::kFree);
}

TEST_F(StreamsSharingTest, APromptOnItsWayToDramKeepsItsBlocksUntilSomebodyIsShort) {
  Session& session = attach(kA, kFourGroups);
  Request& request = copied(session, 8);
  request.phase = Phase::kPrompt;
  request.layerwise = true;
  request.layers.away.assign(kFourGroups, true);
  sut.install(session);
  EXPECT_TRUE(request.complete());
  session.ahead.crowded = true;
  sut.install(session);
  EXPECT_EQ(request.table.in(Tier::kHbm), 0);
  EXPECT_FALSE(session.ahead.crowded) << "it has been made room for";
}

TEST_F(StreamsSharingTest, OneThatLeavesIsLeftAlone) {
  Session& session = attach(kA, kFourGroups);
  Request& request = copied(session, 8);
  request.leaving = true;
  request.layers.away.assign(kFourGroups, true);
  sut.install(session);
  EXPECT_EQ(request.table.in(Tier::kHbm), 8);
}

TEST_F(StreamsSharingTest, LayersThatFindNoRoomComeBackAtALaterStep) {
  Session& session = attach(kA, kFourGroups);
  Request& request = copied(session, 8);
  request.layers.away.assign(kFourGroups, true);
  sut.install(session);
  Request& large = running(session, 60);
  running(attach(kA, 1), 8);
  ASSERT_EQ(free_hbm(), Bytes(0));
  request.layers.away.clear();
  sut.install(session);
  EXPECT_FALSE(request.moves.fetch);
  EXPECT_EQ(request.table.in(Tier::kHbm), 0);
  ground.memory.end(large);
  sut.install(session);
  EXPECT_TRUE(request.moves.fetch);
  EXPECT_EQ(request.table.arriving(), 8);
  EXPECT_EQ(ground.store.transfers.at(request.moves.fetch).purpose, store::Purpose::kFetch);
}

TEST_F(StreamsSharingTest, WithoutASlotToStageItCannotRun) {
  Session& session = attach(kA, kFourGroups);
  Request& request = copied(session, 8);
  for (const std::uint32_t i : {1u, 5u}) {
    ground.store.tiers.free(Tier::kHbm, {blocks.vacate(request.table, i, Tier::kHbm)});
  }
  Request& large = running(session, 56);
  ASSERT_EQ(free_hbm(), kSlot * 2);
  Request& last = running(attach(kA, 1), 8);
  EXPECT_FALSE(sut.stage(session, request));
  EXPECT_TRUE(request.layers.staging.empty()) << "all or nothing";
  ground.memory.end(last);
  EXPECT_TRUE(sut.stage(session, request));
  EXPECT_EQ(request.layers.staging.count(), 2);
  ground.memory.end(large);
}

TEST_F(StreamsSharingTest, AnIterationThatIsOverIsNotWaitedFor) {
  Session& session = attach(kA, kFourGroups);
  Request& request = copied(session, 8);
  request.layers.away = {false, true, false, true};
  sut.install(session);
  ASSERT_TRUE(sut.stage(session, request));
  request.layers.streamed_in = 4;
  request.layers.staging_free = 99;
  std::vector<StreamLayers> streams(1);
  session.iterations.finished = 3;
  EXPECT_EQ(sut.add_fetches(request, 5, streams), 4u);
  ASSERT_THAT(streams[0].fetches, SizeIs(2));
  EXPECT_EQ(streams[0].fetches[0].after, 99u) << "iteration 4 reads the slots still";
  session.iterations.finished = 4;
  streams[0].fetches.clear();
  EXPECT_EQ(sut.add_fetches(request, 5, streams), 4u);
  EXPECT_EQ(streams[0].fetches[0].after, 0u);
}

class StreamsOfAGroup : public StreamsSharingTest {
 protected:
  StreamsOfAGroup() : StreamsSharingTest(small_config(8, 16, 2)) {}
};

TEST_F(StreamsOfAGroup, EachRankIsStagedOnItsDevice) {
  Session& group = attach(kA, 4, true, Devices(std::vector{kFirst, kSecond}), 2);
  Request& request = copied(group, 8);
  request.layers.away = {false, true, false, true, false, true, false, true};
  sut.install(group);
  ASSERT_TRUE(sut.stage(group, request));
  for (std::uint32_t block = 0; block < 2; ++block) {
    const store::Staging& staging = request.layers.staging;
    EXPECT_EQ(ground.store.hbm.device_of(staging.slot(block * 2)), kFirst);
    EXPECT_EQ(ground.store.hbm.device_of(staging.slot(block * 2 + 1)), kSecond);
  }
}

TEST_F(StreamsOfAGroup, WhatRanksThatWaitForNoLayersLackIsFetchedFirst) {
  Session& group = attach(kA, 2, true, Devices(std::vector{kFirst, kSecond}), 2);
  Request& request = copied(group, 4);
  group.info.streams_layers = false;
  EXPECT_TRUE(sut.stage(group, request)) << "it lacks nothing";
  ground.store.tiers.free(Tier::kHbm, {blocks.vacate(request.table, 3, Tier::kHbm)});
  EXPECT_FALSE(sut.stage(group, request)) << "its engine would not wait for it";
  sut.install(group);
  ASSERT_TRUE(request.moves.fetch);
  EXPECT_EQ(ground.store.hbm.device_of(blocks.slot(request.table, 3, Tier::kHbm)), kSecond);
}

}  // namespace
}  // namespace kvd::core
