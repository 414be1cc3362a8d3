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

// The second job's bytes arrive first; its fence has to wait for the first job's.
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

core::CopySlots of(std::uint32_t domain, std::uint32_t engine, core::CopySlots copy) {
  copy.domain = DomainId(domain);
  copy.engine = EngineId(engine);
  return copy;
}

// Two bursts are with the device already; of a queue there are ten.
TEST(Mover, AnotherDomainsCopyWaitsForABurstOfEachAndNotForTheirQueues) {
  for (const bool to_hbm : {true, false}) {
    for (const bool background : {true, false}) {
      MoverWorld world(held());
      const auto hog = [&](std::uint64_t ticket, std::uint32_t domain) {
        return of(domain, 1, MoverWorld::copy(ticket, to_hbm, 0, 0, 20, background));
      };
      for (const std::uint64_t ticket : {1u, 2u, 3u}) world.mover->copy(hog(ticket, 1), nullptr);
      world.mover->copy(hog(4, 2), nullptr);
      world.mover->copy(of(3, 2, MoverWorld::copy(5, to_hbm, 90, 90, 2, background)), nullptr);
      world.let_all_go();
      EXPECT_EQ(world.order().front(), 5u);
      EXPECT_EQ(world.order()[1], 1u) << "the first of the longer queue had a start of two bursts";
      EXPECT_EQ(world.order()[2], 4u);
    }
  }
}

TEST(JobTurns, ADomainThatTookLittleWaitsForOneBurstHoweverManyTakeMuch) {
  JobTurns sut;
  const auto serve = [&] {
    const Ticket job = *sut.next({});
    sut.took(DomainId(static_cast<std::uint32_t>(job.value)), job.value == 3 ? kKiB : kMiB);
    return job.value;
  };
  const Owner small{DomainId(3), EngineId(1)};
  for (const std::uint32_t domain : {1u, 2u, 4u}) {
    sut.add({DomainId(domain), EngineId(1)}, Ticket(domain));
  }
  for (int i = 0; i < 30; ++i) (void)serve();
  for (int i = 0; i < 8; ++i) {
    sut.add(small, Ticket(3));
    EXPECT_TRUE(serve() == 3 || serve() == 3) << i;
    sut.remove(small, Ticket(3));
    EXPECT_NE(serve(), 3u) << i;
  }
}

TEST(Mover, EnginesOfADomainTakeTurnsToo) {
  MoverWorld world(held());
  for (const std::uint64_t ticket : {1u, 2u, 3u}) {
    world.mover->copy(of(1, 1, MoverWorld::copy(ticket, true, 0, 0, 20)), nullptr);
  }
  world.mover->copy(of(1, 2, MoverWorld::copy(4, true, 50, 50, 2)), nullptr);
  world.let_all_go();
  EXPECT_THAT(world.order(), ElementsAre(4, 1, 2, 3));
}

TEST(Mover, OfADroppedCopyOnlyWhatTheDeviceHasIsCopied) {
  MoverWorld world(held());
  world.fill();
  Words words;
  world.mover->copy(MoverWorld::copy(1, true, 0, 0, 20), &words.h2d);
  world.mover->copy(MoverWorld::copy(2, true, 50, 50, 20), &words.h2d);
  world.mover->drop(Ticket(2));
  world.mover->drop(Ticket(1));
  world.mover->drop(Ticket(9));  // has ended, or never was
  world.poll();
  EXPECT_THAT(world.order(), ElementsAre(2)) << "nothing of it was begun";
  world.let_all_go();
  ASSERT_THAT(world.order(), ElementsAre(2, 1)) << "not before the device has done with it";
  for (const core::CopyFinished& end : world.finished) EXPECT_TRUE(end.dropped && !end.ok);
  EXPECT_EQ(world.finished[1].bytes, MoverWorld::kSlot * 4) << "two bursts";
  EXPECT_TRUE(world.holds(3, 3));
  EXPECT_FALSE(world.holds(4, 4));
  EXPECT_EQ(words.h2d, 0u) << "no fence says that it is there";
  world.mover->copy(MoverWorld::copy(3, true, 0, 0, 1), nullptr);
  world.let_all_go();
  EXPECT_TRUE(world.finished[2].ok) << "others go on";
}

TEST(Mover, ACopyThatTheDeviceHasAllOfIsNotDropped) {
  MoverWorld world(held());
  Words words;
  world.mover->copy(MoverWorld::copy(1, true, 0, 0, 3), &words.h2d);
  world.mover->drop(Ticket(1));
  world.let_all_go();
  ASSERT_THAT(world.order(), ElementsAre(1));
  EXPECT_TRUE(world.finished[0].ok && !world.finished[0].dropped);
  EXPECT_EQ(words.h2d, 1u);
}

// One domain's layers are always due.
TEST(Mover, StreamsOfOneDomainLeaveAFourthOfTheBurstsToWhatOthersWaitFor) {
  MoverWorld world(held());
  Words words;
  core::StreamLayers layers =
      MoverWorld::stream(1, 1, 4, {{1, 0, MoverWorld::pairs(100, 100, 60)}});
  layers.domain = DomainId(1);
  world.mover->stream(layers, words.layer());
  world.mover->copy(of(1, 1, MoverWorld::copy(2, true, 0, 0, 2)), nullptr);
  world.mover->copy(of(2, 2, MoverWorld::copy(3, true, 50, 50, 4)), nullptr);
  world.let_all_go();
  EXPECT_THAT(world.order(), ElementsAre(3, 1, 2)) << "its own come after its layers";
}

// Blocks of two pieces, the second halves far behind the first ones.
TEST(Mover, CopiesBlocksOfARegionBothWaysInBurstsOfFewPieces) {
  MoverWorld world(held());
  world.fill();
  constexpr std::uint32_t kBlocks = 100;
  auto layout = std::make_shared<core::BlockLayout>();
  const Bytes half(MoverWorld::kSlot.value / 2);
  layout->pieces = {{Bytes(0), half, half}, {half * kBlocks, half, half}};
  layout->slabs = {SlabIndex(0)};
  layout->slab_bytes = kMiB * 4;
  core::CopyRanges copy{Ticket(1), DomainId(1), EngineId(1), true, MoverWorld::kSlot, layout, {}};
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    copy.blocks.push_back({kBlocks - 1 - i, MoverWorld::slot(150 + i)});
  }
  world.mover->copy(copy);
  world.let_all_go();
  ASSERT_THAT(world.order(), ElementsAre(1));
  EXPECT_EQ(world.finished[0].bytes, MoverWorld::kSlot * kBlocks);
  const std::byte* hbm = world.bytes(Tier::kHbm, 0).data();
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    const std::byte* slot = world.bytes(Tier::kDram, 150 + i).data();
    const std::uint32_t block = kBlocks - 1 - i;
    ASSERT_EQ(std::memcmp(hbm + block * half.size(), slot, half.size()), 0) << block;
    ASSERT_EQ(std::memcmp(hbm + (kBlocks + block) * half.size(), slot + half.size(), half.size()),
              0)
        << block;
  }
  copy.ticket = Ticket(2);
  copy.to_hbm = false;
  for (auto& [block, slot] : copy.blocks) slot = MoverWorld::slot(block);
  world.mover->copy(copy);
  world.let_all_go();
  EXPECT_EQ(std::memcmp(world.bytes(Tier::kDram, 7).data(), hbm + 7 * half.size(), half.size()), 0);
  EXPECT_EQ(world.mover->counters().runs[1].sum, MoverWorld::kSlot * kBlocks);
}

TEST(Mover, ManyTinyPiecesAreManyBursts) {
  MoverWorld world(held());
  auto layout = std::make_shared<core::BlockLayout>();
  constexpr std::uint32_t kPieces = 4096;
  for (std::uint32_t i = 0; i < kPieces; ++i)
    layout->pieces.push_back({Bytes(i * 2), Bytes(8192), Bytes(1)});
  layout->slabs = {SlabIndex(0)};
  layout->slab_bytes = kMiB * 4;
  world.mover->copy({Ticket(1),
                     DomainId(1),
                     EngineId(1),
                     true,
                     MoverWorld::kSlot,
                     layout,
                     {{0, MoverWorld::slot(0)}, {1, MoverWorld::slot(1)}}});
  EXPECT_EQ(world.backend->faults().held, 2u) << "of the four that it takes";
  world.let_all_go();
  EXPECT_EQ(world.finished.at(0).bytes, Bytes(kPieces * 2));
  EXPECT_EQ(world.backend->counters().batches_completed[0], 4u);
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
