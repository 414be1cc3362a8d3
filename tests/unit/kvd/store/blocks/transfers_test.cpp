// What is under way: every copy is ordered once and ends once.
#include "kvd/store/blocks/transfers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/kvd/store/store_fixture.hpp"

namespace kvd::store {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class TransfersTest : public StoreTest {
 protected:
  TransfersTest() {
    const auto hbm = taken(2), dram = taken_in_dram(2);
    blocks.extend(table, taker(), 2);
    for (std::uint32_t i = 0; i < 2; ++i) {
      blocks.place(table, i, Tier::kHbm, hbm[i]);
      blocks.place(table, i, Tier::kDram, dram[i]);
    }
    (void)ordered<SendSlab>();
  }
  Transfer moving(Purpose purpose, std::vector<std::uint32_t> places) const {
    return {.purpose = purpose,
            .request = {kEngine, RequestId(5)},
            .domain = kA,
            .slot_bytes = kSlot,
            .places = std::move(places),
            .devices = {kDevice}};
  }
  static StreamLayers layers(std::uint64_t iteration) {
    StreamLayers stream;
    stream.engine = kEngine;
    stream.iteration = iteration;
    stream.fetches = {{2, 0, {}}, {0, 0, {}}, {2, 9, {}}};
    return stream;
  }

  Blocks blocks{tiers};
  BlockTable table{1};
  Transfers sut{orders};
};

TEST_F(TransfersTest, OrdersTheCopyOfTheBlocksItNames) {
  const Ticket ticket = sut.start(blocks, table, moving(Purpose::kRotateOut, {1}));
  const auto copies = ordered<CopySlots>();
  ASSERT_THAT(copies, SizeIs(1));
  EXPECT_EQ(copies[0].ticket, ticket);
  EXPECT_EQ(copies[0].engine, kEngine);
  EXPECT_FALSE(copies[0].to_hbm);
  EXPECT_FALSE(copies[0].background);
  EXPECT_EQ(copies[0].slot_bytes, kSlot);
  ASSERT_THAT(copies[0].pairs, SizeIs(1));
  EXPECT_EQ(copies[0].pairs[0].hbm, blocks.slot(table, 1, Tier::kHbm));
  EXPECT_EQ(copies[0].pairs[0].dram, blocks.slot(table, 1, Tier::kDram));
}

TEST_F(TransfersTest, KnowsWhereABlockGoesAndWhetherSomebodyWaits) {
  struct Case {
    Purpose purpose;
    Tier to;
    bool background;
  };
  for (const Case& expected :
       {Case{Purpose::kRotateOut, Tier::kDram, false}, Case{Purpose::kRotateIn, Tier::kHbm, false},
        Case{Purpose::kSync, Tier::kDram, true}, Case{Purpose::kFetch, Tier::kHbm, true}}) {
    (void)sut.start(blocks, table, moving(expected.purpose, {0}));
    const auto copies = ordered<CopySlots>();
    ASSERT_THAT(copies, SizeIs(1));
    EXPECT_EQ(copies[0].to_hbm, expected.to == Tier::kHbm);
    EXPECT_EQ(copies[0].background, expected.background);
    EXPECT_EQ(moving(expected.purpose, {}).to(), expected.to);
  }
}

TEST_F(TransfersTest, EndsOnce) {
  const Ticket ticket = sut.start(blocks, table, moving(Purpose::kSync, {0, 1}));
  EXPECT_TRUE(sut.open(ticket));
  EXPECT_TRUE(sut.under_way(kA, kDevice));
  EXPECT_FALSE(sut.under_way(kB, kDevice));
  EXPECT_FALSE(sut.under_way(kA, kOtherDevice));
  const auto ended = sut.ended(ticket);
  ASSERT_TRUE(ended.has_value());
  EXPECT_THAT(ended->places, ElementsAre(0, 1));
  EXPECT_FALSE(sut.ended(ticket).has_value()) << "a device may report twice";
  EXPECT_FALSE(sut.under_way(kA, kDevice));
}

TEST_F(TransfersTest, DropsWhatWasAbandonedOfAnEngineThatHasEnded) {
  const Ticket lost = sut.start(blocks, table, moving(Purpose::kRotateIn, {0}));
  (void)sut.start(blocks, table, moving(Purpose::kRotateOut, {1}));
  Transfer others = moving(Purpose::kSync, {1});
  others.request.engine = EngineId(kEngine.value + 1);
  (void)sut.abandon(sut.start(blocks, table, others));
  (void)sut.abandon(lost);
  (void)ordered<CopySlots>();
  sut.drop(kEngine);
  const auto drops = ordered<DropCopy>();
  ASSERT_THAT(drops, SizeIs(1)) << "its engine lives, or its request does";
  EXPECT_EQ(drops[0].ticket, lost);
  EXPECT_TRUE(sut.open(lost)) << "until the device has done with it";
}

TEST_F(TransfersTest, AnAbandonedOneStaysOpenWithoutItsPlaces) {
  const Ticket ticket = sut.start(blocks, table, moving(Purpose::kRotateIn, {0, 1}));
  EXPECT_THAT(sut.abandon(ticket), ElementsAre(0, 1));
  EXPECT_TRUE(sut.open(ticket)) << "the copy goes on";
  const auto ended = sut.ended(ticket);
  ASSERT_TRUE(ended.has_value());
  EXPECT_TRUE(ended->abandoned);
  EXPECT_THAT(ended->places, IsEmpty());
}

TEST_F(TransfersTest, StreamsFetchTheEarliestGroupFirst) {
  const Ticket ticket = sut.start(layers(4), kA, kDevice);
  const auto streams = ordered<StreamLayers>();
  ASSERT_THAT(streams, SizeIs(1));
  EXPECT_EQ(streams[0].ticket, ticket);
  ASSERT_THAT(streams[0].fetches, SizeIs(3));
  EXPECT_EQ(streams[0].fetches[0].group, 0u);
  EXPECT_EQ(streams[0].fetches[1].after, 0u) << "of one group in the order given";
  EXPECT_EQ(streams[0].fetches[2].after, 9u);
  EXPECT_TRUE(sut.under_way(kA, kDevice));
}

TEST_F(TransfersTest, AStreamIsToldToEndOnceItsIterationIsOver) {
  const Ticket first = sut.start(layers(4), kA, kDevice);
  const Ticket second = sut.start(layers(5), kA, kDevice);
  (void)ordered<EndStream>();
  sut.end_streams(EngineId(99), UINT64_MAX);
  EXPECT_THAT(ordered<EndStream>(), IsEmpty()) << "another engine's";
  sut.end_streams(kEngine, 4);
  sut.end_streams(kEngine, 4);
  const auto ends = ordered<EndStream>();
  ASSERT_THAT(ends, SizeIs(1)) << "told once";
  EXPECT_EQ(ends[0].ticket, first);
  EXPECT_TRUE(sut.streams(first)) << "until the shell says that nothing of it is in flight";
  const auto ended = sut.stream_ended(first);
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->engine, kEngine);
  EXPECT_EQ(ended->iteration, 4u);
  EXPECT_FALSE(sut.stream_ended(first).has_value());
  EXPECT_TRUE(sut.streams(second));
}

}  // namespace
}  // namespace kvd::store
