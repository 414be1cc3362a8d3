#include "kvd/mover/mover.hpp"

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

TEST(Mover, MovesSlotsBothWaysBitForBit) {
  MoverWorld world;
  world.fill();
  Words words;
  world.mover->copy(MoverWorld::copy(1, true, 10, 20, 7), &words.h2d);
  ASSERT_TRUE(world.until_finished(1));
  EXPECT_TRUE(world.finished[0].ok);
  EXPECT_EQ(world.finished[0].bytes, MoverWorld::kSlot * 7);
  for (std::uint32_t i = 0; i < 7; ++i) EXPECT_TRUE(world.holds(10 + i, 20 + i)) << i;
  EXPECT_FALSE(world.holds(17, 27));  // the control: nothing came there
  kernels::fill_pattern(world.bytes(Tier::kHbm, 3), 77);
  world.mover->copy(MoverWorld::copy(2, false, 3, 30, 1), nullptr);
  ASSERT_TRUE(world.until_finished(2));
  EXPECT_TRUE(kernels::has_pattern(world.bytes(Tier::kDram, 30), 77));
}

TEST(Mover, MovesSlotsWithinDramAfterAllElseThatGoesOut) {
  MoverWorld world(held());
  world.fill();
  core::MoveSlots move{Ticket(1), MoverWorld::kSlot, {}};
  for (std::uint32_t i = 0; i < 20; ++i) {
    move.pairs.push_back({MoverWorld::slot(i), MoverWorld::slot(100 + i)});
  }
  world.mover->move(move);
  world.mover->copy(MoverWorld::copy(2, false, 50, 50, 20), nullptr);
  world.let_all_go();
  EXPECT_THAT(world.order(), ElementsAre(2, 1));
  EXPECT_EQ(world.finished.back().bytes, MoverWorld::kSlot * 20);
  for (std::uint32_t i = 0; i < 20; ++i) {
    EXPECT_TRUE(kernels::has_pattern(world.bytes(Tier::kDram, 100 + i), i)) << i;
  }
  EXPECT_EQ(world.mover->counters().runs[1].sum, MoverWorld::kSlot * 20) << "the swap-out alone";
}

TEST(Mover, AFenceComesWithTheLastBurstNotBefore) {
  MoverWorld world(held());
  Words words;
  world.mover->copy(MoverWorld::copy(9, true, 0, 0, 5), &words.h2d);  // three bursts
  for (int burst = 0; burst < 2; ++burst) {
    ASSERT_TRUE(world.backend->step());
    ASSERT_TRUE(world.until([&] {
      return world.backend->counters().batches_completed[0] == static_cast<unsigned>(burst) + 1;
    }));
    EXPECT_EQ(words.h2d, 0u);
    EXPECT_TRUE(world.finished.empty());
  }
  ASSERT_TRUE(world.backend->step());
  ASSERT_TRUE(world.until_finished(1));
  EXPECT_EQ(words.h2d, 9u);
}

TEST(Mover, PutsAtMostTwoBurstsIntoTheQueue) {
  MoverWorld world(held());
  world.mover->copy(MoverWorld::copy(1, true, 0, 0, 100), nullptr);
  EXPECT_EQ(world.backend->faults().held, 2u);
  world.poll();
  EXPECT_EQ(world.backend->faults().held, 2u);
  world.let_all_go();
  EXPECT_THAT(world.order(), ElementsAre(1));
}

TEST(Mover, ServesLayersThenSwapInsThenTheBackground) {
  MoverWorld world(held());
  Words words;
  world.mover->copy(MoverWorld::copy(1, true, 0, 0, 20, true), nullptr);
  world.mover->copy(MoverWorld::copy(2, true, 50, 50, 20), &words.h2d);
  world.mover->stream(MoverWorld::stream(3, 1, 4, {{1, 0, MoverWorld::pairs(100, 100, 20)}}),
                      words.layer());
  world.let_all_go();
  EXPECT_THAT(world.order(), ElementsAre(3, 2, 1));
}

TEST(Mover, ServesSwapOutsAheadOfEagerCopiesBesideTheOtherDirection) {
  MoverWorld world(held());
  world.mover->copy(MoverWorld::copy(1, false, 0, 0, 20, true), nullptr);
  world.mover->copy(MoverWorld::copy(2, false, 50, 50, 20), nullptr);
  world.mover->copy(MoverWorld::copy(3, true, 100, 100, 2), nullptr);
  EXPECT_EQ(world.backend->faults().held, 3u);  // two out, one in: the queues work at once
  world.let_all_go();
  const auto order = world.order();
  EXPECT_LT(std::find(order.begin(), order.end(), 2u), std::find(order.begin(), order.end(), 1u));
}

// The second job's bytes are there first; its fence has to wait for the first job's.
TEST(Mover, FencesOfOneWordAreWrittenInOrderThoughBurstsOvertake) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    FaultScript script = held();
    script.seed = seed;
    script.reorder_within_direction = true;
    MoverWorld world(script);
    world.fill();
    Words words;
    world.mover->copy(MoverWorld::copy(5, true, 0, 0, 2), &words.h2d);
    world.mover->copy(MoverWorld::copy(6, true, 10, 10, 2), &words.h2d);
    for (std::uint64_t ended = 1; world.backend->step(); ++ended) {
      ASSERT_TRUE(
          world.until([&] { return world.backend->counters().batches_completed[0] == ended; }));
      if (words.h2d >= 5) {
        EXPECT_TRUE(world.holds(0, 0) && world.holds(1, 1)) << seed;
      }
    }
    ASSERT_TRUE(world.until_finished(2));
    EXPECT_EQ(words.h2d, 6u);
  }
}

TEST(Mover, AFailedBurstKeepsTheFencesOfItsSessionShut) {
  FaultScript script;
  script.fail_copies = {2};
  MoverWorld world(script);
  Words words;
  world.mover->copy(MoverWorld::copy(5, true, 0, 0, 6), &words.h2d);
  world.mover->copy(MoverWorld::copy(6, true, 10, 10, 2), &words.h2d);
  ASSERT_TRUE(world.until_finished(2));
  EXPECT_THAT(world.order(), ElementsAre(5, 6));
  EXPECT_FALSE(world.finished[0].ok);
  EXPECT_TRUE(world.finished[1].ok);
  EXPECT_EQ(words.h2d, 0u);
  Words later;  // a session after it, on a page at the same place or another
  world.mover->copy(MoverWorld::copy(7, true, 20, 20, 2), &later.h2d);
  ASSERT_TRUE(world.until_finished(3));
  EXPECT_EQ(later.h2d, 7u);
}

TEST(Mover, CountsACompletionReportedTwiceOnce) {
  FaultScript script;
  script.duplicate_completions = {1, 2, 3};
  MoverWorld world(script);
  world.mover->copy(MoverWorld::copy(5, true, 0, 0, 6), nullptr);
  world.mover->copy(MoverWorld::copy(6, true, 10, 10, 2), nullptr);
  ASSERT_TRUE(world.until([&] { return !world.mover->busy() && world.finished.size() >= 2; }));
  world.poll();
  EXPECT_THAT(world.order(), ElementsAre(5, 6));
  EXPECT_EQ(world.finished[0].bytes, MoverWorld::kSlot * 6);
}

TEST(Mover, ScrubsSlotsAndSlabsInBursts) {
  MoverWorld world;
  world.fill();
  core::Scrub scrub;
  scrub.ticket = Ticket(1);
  scrub.tier = Tier::kDram;
  scrub.slots = {MoverWorld::slot(3), MoverWorld::slot(4)};
  scrub.slot_bytes = MoverWorld::kSlot;
  world.mover->scrub(scrub);
  ASSERT_TRUE(world.until_finished(1));
  EXPECT_TRUE(kernels::all_zero(world.bytes(Tier::kDram, 3)));
  EXPECT_TRUE(kernels::all_zero(world.bytes(Tier::kDram, 4)));
  EXPECT_TRUE(kernels::has_pattern(world.bytes(Tier::kDram, 5), 5));
  scrub.ticket = Ticket(2);
  scrub.slabs = {SlabIndex(0)};
  scrub.slots.clear();
  world.mover->scrub(scrub);
  ASSERT_TRUE(world.until_finished(2));
  for (std::uint32_t i = 0; i < MoverWorld::kSlots; ++i) {
    ASSERT_TRUE(kernels::all_zero(world.bytes(Tier::kDram, i))) << i;
  }
}

TEST(Mover, CountsHowLongTheRunsAre) {
  MoverWorld world;
  auto copy = MoverWorld::copy(1, true, 0, 100, 8);  // one run of 128 KiB
  const auto apart = MoverWorld::pairs(20, 50, 1);   // one of 16 KiB
  copy.pairs.insert(copy.pairs.end(), apart.begin(), apart.end());
  world.mover->copy(copy, nullptr);
  const RunLengths& runs = world.mover->counters().runs[0];
  EXPECT_EQ(runs.counts[0], 1u);
  EXPECT_EQ(runs.counts[1], 1u);
  EXPECT_EQ(runs.sum, MoverWorld::kSlot * 9);
  EXPECT_EQ(world.mover->counters().runs[1].sum, Bytes(0));
}

TEST(RunCursor, CutsARunOnlyWhereItIsLongerThanABurst) {
  RunCursor sut({{1000, 9000, Bytes(10)}, {2000, 8000, Bytes(25)}, {3000, 0, Bytes(4)}});
  const auto next = [&] {
    std::vector<std::uintptr_t> out;
    std::vector<kernels::CopyExtent> burst;
    sut.take(Bytes(12), burst);
    for (const auto& e : burst) {
      out.insert(out.end(), {e.destination, e.source, e.length.size()});
    }
    return out;
  };
  EXPECT_THAT(next(), ElementsAre(1000, 9000, 10));
  EXPECT_THAT(next(), ElementsAre(2000, 8000, 12));
  EXPECT_THAT(next(), ElementsAre(2012, 8012, 12));
  EXPECT_THAT(next(), ElementsAre(2024, 8024, 1, 3000, 0, 4));
  EXPECT_TRUE(sut.done());
}

}  // namespace
}  // namespace kvd::mover
