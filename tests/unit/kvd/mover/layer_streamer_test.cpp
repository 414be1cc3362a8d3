#include "kvd/mover/layer_streamer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/kvd/mover/mover_world.hpp"

namespace kvd::mover {
namespace {

using kernels::FaultScript;
using testing::ElementsAre;

FaultScript held() {
  FaultScript script;
  script.hold_copies = true;
  return script;
}

constexpr std::uint64_t kIteration = 5;
constexpr std::uint32_t kGroups = 8;
std::uint64_t mark(std::uint32_t groups) { return layer_mark(kIteration, groups); }

/// Groups 2 and 5 stream through the staging slots 0 and 1; 5 once 2 is done.
core::StreamLayers two_fetches(std::uint64_t ticket = 1) {
  return MoverWorld::stream(
      ticket, kIteration, kGroups,
      {{2, 0, MoverWorld::pairs(0, 20, 2)}, {5, mark(3), MoverWorld::pairs(0, 50, 2)}});
}

TEST(LayerStreamer, TheFenceTellsHowManyGroupsAreThere) {
  MoverWorld world;
  world.fill();
  Words words;
  world.mover->stream(two_fetches(), words.layer());
  EXPECT_GE(words.fence, mark(2));  // nothing streams before group 2
  ASSERT_TRUE(world.until([&] { return words.fence == mark(5); }));
  EXPECT_TRUE(world.holds(0, 20) && world.holds(1, 21));
  words.progress = mark(3);
  ASSERT_TRUE(world.until([&] { return words.fence == mark(kGroups); }));
  EXPECT_TRUE(world.holds(0, 50) && world.holds(1, 51));
  ASSERT_TRUE(world.until_finished(1));
  EXPECT_TRUE(world.finished[0].ok);
  EXPECT_EQ(world.finished[0].bytes, MoverWorld::kSlot * 4);
  EXPECT_EQ(world.mover->counters().layer_fetches, 2u);
  EXPECT_EQ(world.mover->counters().layer_bytes, MoverWorld::kSlot * 4);
}

TEST(LayerStreamer, FetchesNothingIntoSlotsTheEngineStillReads) {
  MoverWorld world;
  world.fill();
  Words words;
  world.mover->stream(two_fetches(), words.layer());
  ASSERT_TRUE(world.until([&] { return words.fence == mark(5) && !world.mover->busy(); }));
  for (const std::uint64_t progress : {mark(0), mark(2), layer_mark(kIteration - 1, kGroups)}) {
    words.progress = progress;
    world.poll();
    EXPECT_FALSE(world.mover->busy());
    EXPECT_TRUE(world.holds(0, 20));
  }
  EXPECT_TRUE(world.mover->awaits_progress());
}

TEST(LayerStreamer, BeforeItSleepsItAsksForTheBell) {
  MoverWorld world;
  Words words;
  world.mover->stream(two_fetches(), words.layer());
  ASSERT_TRUE(world.until([&] { return words.fence == mark(5); }));
  EXPECT_TRUE(world.mover->fall_asleep());
  EXPECT_EQ(words.wanted, mark(3));
  words.progress = mark(3);
  EXPECT_FALSE(world.mover->fall_asleep());
  ASSERT_TRUE(world.until_finished(1));
  EXPECT_FALSE(world.mover->awaits_progress());
  EXPECT_TRUE(world.mover->fall_asleep());
}

TEST(LayerStreamer, TriesAFailedBurstAgain) {
  FaultScript script;
  script.fail_copies = {1, 3};
  MoverWorld world(script);
  world.fill();
  Words words;
  world.mover->stream(
      MoverWorld::stream(1, kIteration, kGroups, {{0, 0, MoverWorld::pairs(0, 20, 9)}}),
      words.layer());
  ASSERT_TRUE(world.until_finished(1));
  EXPECT_TRUE(world.finished[0].ok);
  EXPECT_EQ(world.finished[0].bytes, MoverWorld::kSlot * 9);
  EXPECT_EQ(words.fence, mark(kGroups));
  for (std::uint32_t i = 0; i < 9; ++i) EXPECT_TRUE(world.holds(i, 20 + i)) << i;
  EXPECT_EQ(world.mover->counters().layer_fetch_retries, 2u);
}

TEST(LayerStreamer, GivesUpAfterItsTriesAndReleasesNobody) {
  FaultScript script;
  for (std::uint64_t i = 1; i <= 100; ++i) script.fail_copies.insert(i);
  MoverWorld world(script);
  Words words;
  world.mover->stream(two_fetches(1), words.layer());
  // The next iteration streams nothing. Published alone, it would release every waiter at once.
  world.mover->stream(MoverWorld::stream(2, kIteration + 1, kGroups, {}), words.layer());
  ASSERT_TRUE(world.until_finished(2));
  EXPECT_THAT(world.order(), ElementsAre(1, 2));
  EXPECT_FALSE(world.finished[0].ok);
  EXPECT_FALSE(world.finished[1].ok);
  EXPECT_EQ(words.fence, mark(2));
  EXPECT_EQ(world.backend->faults().failed_copies, LayerStreamer::kTries);
}

TEST(LayerStreamer, ALaterIterationWaitsForTheOneBefore) {
  MoverWorld world(held());
  Words words;
  world.mover->stream(
      MoverWorld::stream(1, kIteration, kGroups, {{0, 0, MoverWorld::pairs(0, 20, 2)}}),
      words.layer());
  world.mover->stream(MoverWorld::stream(2, kIteration + 1, kGroups, {}), words.layer());
  world.poll();
  EXPECT_EQ(words.fence, mark(0));
  EXPECT_TRUE(world.finished.empty());
  world.let_all_go();
  EXPECT_THAT(world.order(), ElementsAre(1, 2));
  EXPECT_EQ(words.fence, layer_mark(kIteration + 1, kGroups));
}

TEST(LayerStreamer, AnEndedStreamStartsNothingMoreAndEndsWithItsLastBurst) {
  MoverWorld world(held());
  Words words;
  world.mover->stream(
      MoverWorld::stream(1, kIteration, kGroups, {{0, 0, MoverWorld::pairs(0, 20, 40)}}),
      words.layer());
  ASSERT_EQ(world.backend->faults().held, 2u);
  world.mover->end_stream(Ticket(1));
  world.poll();
  EXPECT_TRUE(world.finished.empty());  // two bursts still touch its slots
  world.let_all_go();
  EXPECT_THAT(world.order(), ElementsAre(1));
  EXPECT_TRUE(world.finished[0].ok);
  EXPECT_EQ(world.finished[0].bytes, MoverWorld::kSlot * 4);
  EXPECT_EQ(world.backend->faults().held, 2u);
  EXPECT_EQ(words.fence, mark(0));
  world.mover->end_stream(Ticket(1));  // nothing there any more
  world.poll();
  EXPECT_THAT(world.order(), ElementsAre(1));
}

TEST(LayerStreamer, AStreamThatWaitsEndsAtOnceWhenToldTo) {
  MoverWorld world;
  Words words;
  auto stream = two_fetches(1);
  stream.fetches[0].after = mark(1);
  world.mover->stream(stream, words.layer());
  EXPECT_TRUE(world.mover->fall_asleep());
  world.mover->end_stream(Ticket(1));
  EXPECT_FALSE(world.mover->fall_asleep());
  world.poll();
  EXPECT_THAT(world.order(), ElementsAre(1));
}

// Requests of one batch stream at distances of their own, so that one's staging is free before
// another's.
TEST(LayerStreamer, ALaterGroupGoesAheadWhileAnEarlierOneHasToWait) {
  MoverWorld world;
  world.fill();
  Words words;
  world.mover->stream(MoverWorld::stream(1, kIteration, kGroups,
                                         {{3, mark(2), MoverWorld::pairs(0, 20, 2)},
                                          {5, mark(1), MoverWorld::pairs(10, 50, 2)}}),
                      words.layer());
  EXPECT_TRUE(world.mover->fall_asleep());
  EXPECT_EQ(words.wanted, mark(1));
  words.progress = mark(1);
  ASSERT_TRUE(
      world.until([&] { return world.mover->counters().layer_bytes == MoverWorld::kSlot * 2; }));
  EXPECT_TRUE(world.holds(10, 50) && world.holds(11, 51));
  EXPECT_FALSE(world.holds(0, 20));
  EXPECT_EQ(words.fence, mark(3));  // whoever needs group 3 has to wait still
  EXPECT_TRUE(world.mover->fall_asleep());
  EXPECT_EQ(words.wanted, mark(2));
  words.progress = mark(2);
  ASSERT_TRUE(world.until_finished(1));
  EXPECT_EQ(words.fence, mark(kGroups));
}

TEST(LayerStreamer, FetchesThatAreDueShareABurst) {
  MoverWorld world(held(), kKiB * 64);
  Words words;
  std::vector<core::StreamLayers::Fetch> fetches;
  for (std::uint32_t request = 0; request < 8; ++request) {
    fetches.push_back({1, 0, MoverWorld::pairs(10 * request, 100 + request, 1)});
  }
  world.mover->stream(MoverWorld::stream(1, kIteration, kGroups, fetches), words.layer());
  EXPECT_EQ(world.backend->faults().held, 2u);
  world.let_all_go();
  EXPECT_EQ(world.backend->faults().held, 2u);  // eight fetches of 16 KiB, four a burst
  EXPECT_EQ(words.fence, mark(kGroups));
}

// A burst of an iteration given up may still be on its way into slots the next one fills.
TEST(LayerStreamer, WhatFollowsAnEndedStreamWaitsForItsLastBurst) {
  MoverWorld world(held());
  Words words;
  world.mover->stream(
      MoverWorld::stream(1, kIteration, kGroups, {{0, 0, MoverWorld::pairs(0, 20, 4)}}),
      words.layer());
  world.mover->stream(
      MoverWorld::stream(2, kIteration + 1, kGroups, {{0, 0, MoverWorld::pairs(0, 60, 2)}}),
      words.layer());
  ASSERT_TRUE(world.backend->step());
  world.mover->end_stream(Ticket(1));
  ASSERT_TRUE(world.until([&] { return world.backend->counters().batches_completed[0] == 1u; }));
  EXPECT_EQ(world.backend->faults().held, 2u);
  world.let_all_go();
  EXPECT_THAT(world.order(), ElementsAre(1, 2));
  EXPECT_EQ(world.backend->faults().held, 3u);
}

// Two engines whose fetches are all due get their turns burst by burst; what one of them writes
// into its progress word changes nothing for the other.
TEST(LayerStreamer, SessionsTakeTurns) {
  MoverWorld world(held());
  Words honest, liar;
  liar.progress = ~std::uint64_t{0};
  world.mover->stream(MoverWorld::stream(1, 1, kGroups,
                                         {{0, 0, MoverWorld::pairs(0, 0, 20)},
                                          {1, mark(1), MoverWorld::pairs(0, 40, 20)}},
                                         EngineId(1)),
                      liar.layer());
  world.mover->stream(
      MoverWorld::stream(2, 1, kGroups, {{0, 0, MoverWorld::pairs(100, 100, 20)}}, EngineId(2)),
      honest.layer());
  std::uint64_t bursts = 0;
  while (honest.fence != layer_mark(1, kGroups)) {
    ASSERT_TRUE(world.backend->step());
    ++bursts;
    ASSERT_TRUE(
        world.until([&] { return world.backend->counters().batches_completed[0] == bursts; }));
  }
  EXPECT_LE(bursts, 22u);  // ten of its own and ten of the other's, with two of them ahead of it
}

}  // namespace
}  // namespace kvd::mover
