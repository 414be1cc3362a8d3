// Layers that leave and come back while their request runs.
#include "kvd/core/moves/streams.hpp"

#include <gmock/gmock.h>

#include "ipc/vocabulary/layer_mark.hpp"
#include "kvd/core/moves/dram_copies.hpp"
#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::uint32_t kGroups = 4;

class StreamsTest : public PartsTest {
 protected:
  StreamsTest() : PartsTest(small_config(8, 16)) {}

  /// A request of two full blocks. DRAM has all of it, and layer groups 1 and 3 are to stay in HBM.
  Request& streaming(Session& session) {
    Request& request = running(session, 8);
    copies.make_ahead(session);
    const auto transfer = ground.store.transfers.ended(request.moves.sync);
    for (const std::uint32_t i : transfer->places) {
      ground.store.blocks.settle(request.table, i, Tier::kDram, true);
    }
    ground.store.tiers.copy_ended(request.moves.sync);
    request.moves.sync = Ticket();
    session.ahead.under_way = Bytes(0);
    request.layers.away = {false, true, false, true};
    return request;
  }
  StreamLayers fetches(Request& request, std::uint64_t iteration) {
    return fetches_by_rank(request, iteration, 1)[0];
  }
  std::vector<StreamLayers> fetches_by_rank(Request& request, std::uint64_t iteration,
                                            std::uint32_t ranks) {
    std::vector<StreamLayers> by_rank(ranks);
    for (StreamLayers& stream : by_rank) stream.iteration = iteration;
    through = sut.add_fetches(request, iteration, by_rank);
    return by_rank;
  }

  DramCopies copies{ground};
  Streams sut{ground};
  std::uint32_t through = 0;  ///< as the last fetches() had it
};

TEST_F(StreamsTest, LayersLeaveOnceDramHasThem) {
  Session& session = attach(kA, kGroups);
  Request& request = running(session, 8);
  request.layers.away = {false, true, false, true};
  sut.install(session);
  EXPECT_TRUE(request.complete()) << "DRAM has none of them yet";
  ground.memory.end(request);
  Request& copied = streaming(session);
  sut.install(session);
  EXPECT_EQ(copied.table.in(Tier::kHbm), 4);
  EXPECT_EQ(copied.layers.staging.count(), 2) << "the first slots that leave stage the others";
}

TEST_F(StreamsTest, ABlockThatAnotherRequestHasDoesNotBecomeStaging) {
  Session& session = attach(kA, kGroups);
  Request& request = streaming(session);
  Request& other = submit(session, 4, 8);
  store::Blocks& blocks = ground.store.blocks;
  blocks.share(other.table, blocks.name(request.table, 0, store::EntryId(1)));
  const SlotId slot = blocks.slot(other.table, 1, Tier::kHbm);
  sut.install(session);
  EXPECT_EQ(blocks.slot(other.table, 1, Tier::kHbm), slot);
  EXPECT_EQ(request.layers.staging.count(), 1) << "of the block that is its own";
  EXPECT_TRUE(blocks.truncate(other.table, 0)[0].empty());
  sut.install(session);
  EXPECT_EQ(request.layers.staging.count(), 2) << "nobody else has it any more";
}

TEST_F(StreamsTest, AnIterationFetchesWhatIsAwayGroupByGroup) {
  Session& session = attach(kA, kGroups);
  Request& request = streaming(session);
  sut.install(session);
  ASSERT_TRUE(sut.stage(session, request));
  const StreamLayers stream = fetches(request, 1);
  ASSERT_THAT(stream.fetches, SizeIs(2));
  EXPECT_EQ(stream.fetches[0].group, 1u);
  EXPECT_EQ(stream.fetches[1].group, 3u);
  EXPECT_EQ(stream.fetches[0].after, 0u) << "nobody reads the slots yet";
  EXPECT_EQ(stream.fetches[1].after, layer_mark(1, 2)) << "group 1 of this iteration does";
  for (const auto& fetch : stream.fetches) {
    ASSERT_THAT(fetch.pairs, SizeIs(2));
    for (std::uint32_t block = 0; block < 2; ++block) {
      EXPECT_EQ(fetch.pairs[block].hbm, request.layers.staging.slot(block));
      EXPECT_EQ(
          fetch.pairs[block].dram,
          ground.store.blocks.slot(request.table, block * kGroups + fetch.group, Tier::kDram));
    }
  }
}

// Two ranks of four layers each: what the plan has away is away of both.
TEST_F(StreamsTest, EachRankStreamsItsOwnLayersThroughItsOwnSlots) {
  Session& session = attach(kA, kGroups, true, {}, 2);
  Request& request = streaming(session);
  request.layers.away = {false, true, false, true, false, true, false, true};
  sut.install(session);
  EXPECT_EQ(request.layers.staging.count(), 4) << "two blocks, two ranks";
  ASSERT_TRUE(sut.stage(session, request));
  const auto by_rank = fetches_by_rank(request, 1, 2);
  EXPECT_EQ(through, 4u);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const auto& own = by_rank[rank].fetches;
    ASSERT_THAT(own, SizeIs(2));
    EXPECT_EQ(own[0].group, 1u) << "as the rank counts its layers";
    EXPECT_EQ(own[1].group, 3u);
    EXPECT_EQ(own[0].after, 0u);
    EXPECT_EQ(own[1].after, layer_mark(1, 2));
    for (const auto& fetch : own) {
      for (std::uint32_t block = 0; block < 2; ++block) {
        const std::uint32_t i = block * 2 * kGroups + rank * kGroups + fetch.group;
        EXPECT_EQ(fetch.pairs[block].hbm, request.layers.staging.slot(block * 2 + rank));
        EXPECT_EQ(fetch.pairs[block].dram, ground.store.blocks.slot(request.table, i, Tier::kDram));
      }
    }
  }
  EXPECT_NE(by_rank[0].fetches[0].pairs[0].hbm, by_rank[1].fetches[0].pairs[0].hbm);
}

// A rank that misses nothing waits for its layers just as the other one does.
TEST_F(StreamsTest, EveryRankGetsAStream) {
  Session& session = attach(kA, kGroups, true, {}, 2);
  Request& request = streaming(session);
  request.layers.away = {false, false, false, false, false, true, false, true};
  sut.install(session);
  ASSERT_TRUE(sut.stage(session, request));
  auto by_rank = fetches_by_rank(request, 1, 2);
  EXPECT_THAT(by_rank[0].fetches, IsEmpty());
  EXPECT_THAT(by_rank[1].fetches, SizeIs(2));
  sut.start(session, std::move(by_rank), {&request});
  std::vector<std::uint32_t> ranks;
  for (const StreamLayers& order : emitted<StreamLayers>()) {
    EXPECT_EQ(order.groups, kGroups);
    ranks.push_back(order.rank);
  }
  EXPECT_THAT(ranks, testing::ElementsAre(0u, 1u));
  EXPECT_THAT(request.layers.streams, SizeIs(2));
}

TEST_F(StreamsTest, OneThatIsCompleteFetchesNothing) {
  Session& session = attach(kA, kGroups);
  Request& request = running(session, 8);
  EXPECT_TRUE(sut.stage(session, request));
  EXPECT_THAT(fetches(request, 1).fetches, IsEmpty());
}

TEST_F(StreamsTest, APausedRequestNeedsNoStaging) {
  Session& session = attach(kA, kGroups);
  Request& request = streaming(session);
  request.verdict = Verdict::kPaused;
  sut.install(session);
  EXPECT_EQ(request.layers.staging.count(), 0);
  EXPECT_EQ(ground.memory.hbm_bytes(request), kSlot * 4);
}

TEST_F(StreamsTest, LayersThatShallStayComeBack) {
  Session& session = attach(kA, kGroups);
  Request& request = streaming(session);
  sut.install(session);
  request.layers.away.clear();
  sut.install(session);
  ASSERT_TRUE(request.moves.fetch);
  EXPECT_EQ(request.table.in(Tier::kHbm), 8);
  EXPECT_FALSE(request.complete()) << "their bytes are on their way";
  const auto transfer = ground.store.transfers.ended(request.moves.fetch);
  for (const std::uint32_t i : transfer->places) {
    ground.store.blocks.settle(request.table, i, Tier::kHbm, true);
  }
  ground.store.tiers.copy_ended(request.moves.fetch);
  request.moves.fetch = Ticket();
  ASSERT_TRUE(sut.stage(session, request));
  EXPECT_TRUE(request.complete()) << "and its staging is given up";
}

TEST_F(StreamsTest, AStreamHoldsStagingUntilItHasEnded) {
  Session& session = attach(kA, kGroups);
  Request& request = streaming(session);
  sut.install(session);
  sut.start(session, fetches_by_rank(request, 1, 1), {&request});
  ASSERT_THAT(request.layers.streams, SizeIs(1));
  const Ticket ticket = request.layers.streams[0];
  ground.memory.end(request);
  EXPECT_EQ(free_hbm(), kSlab * 8 - kSlot * 2) << "the fetches may still write there";
  const auto stream = ground.store.transfers.stream_ended(ticket);
  ASSERT_TRUE(stream);
  sut.ended(ticket, *stream);
  ground.store.tiers.copy_ended(ticket);
  EXPECT_EQ(free_hbm(), kSlab * 8);
}

TEST_F(StreamsTest, TheEndOfAnIterationEndsItsStream) {
  Session& session = attach(kA, kGroups);
  Request& request = streaming(session);
  sut.install(session);
  sut.start(session, fetches_by_rank(request, 1, 1), {&request});
  const Ticket ticket = request.layers.streams[0];
  sut.end(session);
  EXPECT_THAT(emitted<EndStream>(), IsEmpty()) << "the iteration has not finished";
  session.iterations.finished = 1;
  sut.end(session);
  ASSERT_THAT(emitted<EndStream>(), SizeIs(1));
  EXPECT_EQ(emitted<EndStream>()[0].ticket, ticket);
  sut.ended(ticket, *ground.store.transfers.stream_ended(ticket));
  ground.store.tiers.copy_ended(ticket);
  EXPECT_THAT(request.layers.streams, IsEmpty());
}

}  // namespace
}  // namespace kvd::core
