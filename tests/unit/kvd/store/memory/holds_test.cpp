// Slots that are given up are free only once nothing touches them any more.
#include "kvd/store/memory/holds.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/unit/kvd/pool/pool_fixture.hpp"

namespace kvd::store {
namespace {

using pool::granted;
using pool::kA;
using pool::kB;
using pool::kEngine;
using pool::kOther;
using pool::SlotState;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Bytes kSlot{128};
constexpr Ticket kCopy{7}, kStream{8};

struct HoldsTest : ::testing::Test {
  pool::TierPool dram = pool::make_pool(4);
  DevicePools devices{{dram.config(), dram.config()}, {}};
  pool::TierPool& hbm = devices.of(DeviceId(0));
  pool::TierPool& other_hbm = devices.of(DeviceId(1));
  Holds sut{devices, dram};

  HoldsTest() {
    for (pool::TierPool& device : devices) {
      EXPECT_TRUE(device.add_class(pool::kSmall, kSlot).ok());
      EXPECT_TRUE(device.add_class(pool::kLarge, Bytes(256)).ok());
    }
    sut.engine_came(kEngine);
    sut.engine_came(kOther);
  }
  ~HoldsTest() override { EXPECT_EQ(fault(), ""); }

  Hold hold(std::vector<Ticket> copies, std::uint64_t iteration) {
    Hold made{.copies = std::move(copies),
              .engine = kEngine,
              .iteration = iteration,
              .domain = kA,
              .slot_bytes = kSlot};
    made.hbm = granted(hbm, 2);
    made.dram = granted(dram, 1);
    return made;
  }
  std::string fault() const {
    return hbm.validate() + other_hbm.validate() + dram.validate() + sut.validate();
  }
  std::uint64_t in(const pool::TierPool& pool, SlotState state) const {
    return pool.stats().slots_by_state[static_cast<std::size_t>(state)];
  }
  std::uint64_t used(const pool::TierPool& pool) const {
    std::uint64_t sum = 0;
    for (std::size_t s = 1; s < pool::kSlotStates; ++s) sum += in(pool, static_cast<SlotState>(s));
    return sum;
  }
};

TEST_F(HoldsTest, FreesAtOnceWhatNothingTouches) {
  sut.iteration_finished(kEngine, 3);
  sut.add(hold({}, 3));
  EXPECT_EQ(used(hbm), 0u);
  EXPECT_EQ(used(dram), 0u);
  EXPECT_THAT(sut.all(), IsEmpty());
}

TEST_F(HoldsTest, KeepsHbmForTheIterationThatRunsAndFreesDram) {
  sut.iteration_finished(kEngine, 2);
  sut.add(hold({}, 3));
  EXPECT_EQ(in(hbm, SlotState::kDraining), 2u);
  EXPECT_EQ(used(dram), 0u) << "no engine maps DRAM";
  sut.iteration_finished(kOther, 9);
  EXPECT_EQ(used(hbm), 2u) << "another engine's iteration says nothing";
  sut.iteration_finished(kEngine, 3);
  EXPECT_EQ(used(hbm), 0u);
}

TEST_F(HoldsTest, KeepsBothTiersUntilTheLastCopyHasEnded) {
  sut.add(hold({kCopy, kStream}, 0));
  sut.copy_ended(kStream);
  EXPECT_EQ(in(hbm, SlotState::kDraining), 2u);
  EXPECT_EQ(in(dram, SlotState::kDraining), 1u);
  sut.copy_ended(kCopy);
  EXPECT_EQ(used(hbm), 0u);
  EXPECT_EQ(used(dram), 0u);
}

TEST_F(HoldsTest, WaitsForTheIterationAfterTheCopy) {
  sut.add(hold({kCopy}, 1));
  sut.copy_ended(kCopy);
  EXPECT_EQ(used(dram), 0u);
  EXPECT_EQ(in(hbm, SlotState::kDraining), 2u);
  sut.iteration_finished(kEngine, 1);
  EXPECT_EQ(used(hbm), 0u);
}

TEST_F(HoldsTest, ADyingEnginesSlotsAreDirtyOnceItIsGone) {
  sut.add(hold({}, 1));
  sut.engine_dying(kEngine);
  sut.add(hold({}, 0));
  EXPECT_EQ(in(hbm, SlotState::kQuarantined), 4u);
  sut.iteration_finished(kEngine, 1);
  EXPECT_EQ(in(hbm, SlotState::kQuarantined), 4u) << "its word counts no more";
  EXPECT_THAT(sut.take_dirty(), IsEmpty());
  sut.engine_gone(kEngine);
  const auto dirty = sut.take_dirty();
  ASSERT_THAT(dirty, SizeIs(1)) << "one of each domain and slot size";
  EXPECT_THAT(dirty[0].slots, SizeIs(4));
  EXPECT_EQ(dirty[0].slot_bytes, kSlot);
  EXPECT_EQ(in(hbm, SlotState::kQuarantined), 4u) << "zeroed by the one who took them";
}

// The blocks are given up while the engine lives. It then dies and is gone, and only after that the
// copy ends.
TEST_F(HoldsTest, ACopyThatOutlivesItsEngineLeavesDirtySlots) {
  sut.add(hold({kCopy}, 1));
  sut.engine_dying(kEngine);
  sut.engine_gone(kEngine);
  EXPECT_THAT(sut.take_dirty(), IsEmpty()) << "a copy still writes them";
  EXPECT_EQ(in(hbm, SlotState::kDraining), 2u);
  sut.copy_ended(kCopy);
  EXPECT_THAT(sut.take_dirty(), SizeIs(1));
  EXPECT_EQ(used(dram), 0u);
}

TEST_F(HoldsTest, AGoodbyeAfterTheLastIterationLeavesNothingDirty) {
  sut.add(hold({kCopy}, 1));
  sut.add(hold({}, 1));
  sut.iteration_finished(kEngine, 1);
  sut.engine_gone(kEngine);
  EXPECT_EQ(used(hbm), 2u);
  sut.copy_ended(kCopy);
  EXPECT_EQ(used(hbm), 0u);
  EXPECT_THAT(sut.take_dirty(), IsEmpty());
}

TEST_F(HoldsTest, DirtySlotsOfTwoSizesOrDomainsStayApart) {
  Hold large{.engine = kEngine, .domain = kA, .slot_bytes = Bytes(256)};
  large.hbm = granted(hbm, 1, pool::kLarge);
  Hold foreign{.engine = kEngine, .domain = kB, .slot_bytes = kSlot};
  foreign.hbm = granted(hbm, 1, pool::kSmall, kB);
  sut.engine_dying(kEngine);
  sut.add(hold({}, 0));
  sut.add(std::move(large));
  sut.add(std::move(foreign));
  sut.engine_gone(kEngine);
  EXPECT_THAT(sut.take_dirty(), SizeIs(3));
}

TEST_F(HoldsTest, SlotsOfTwoDevicesAreHeldTogetherAndComeOutDirtyApart) {
  Hold both = hold({kCopy}, 0);
  both.hbm.push_back(granted(other_hbm, 1)[0]);
  sut.add(std::move(both));
  EXPECT_EQ(used(other_hbm), 1u);
  sut.engine_dying(kEngine);
  sut.copy_ended(kCopy);
  sut.engine_gone(kEngine);
  const std::vector<DirtySlots> dirty = sut.take_dirty();
  ASSERT_THAT(dirty, SizeIs(2));
  EXPECT_THAT(dirty[0].slots, SizeIs(2));
  EXPECT_EQ(dirty[1].device, DeviceId(1));
  EXPECT_THAT(dirty[1].slots, SizeIs(1));
}

TEST_F(HoldsTest, CountsWhatItHolds) {
  sut.add(hold({kCopy}, 0));
  EXPECT_EQ(sut.slots(Tier::kHbm), 2u);
  EXPECT_EQ(sut.slots(Tier::kDram), 1u);
  sut.engine_dying(kEngine);
  sut.copy_ended(kCopy);
  sut.engine_gone(kEngine);
  EXPECT_EQ(sut.slots(Tier::kHbm), 2u) << "dirty and not taken yet";
  EXPECT_EQ(sut.slots(Tier::kDram), 0u);
}

TEST_F(HoldsTest, ValidateSeesASlotThatWasFreedBehindItsBack) {
  Hold held = hold({kCopy}, 0);
  const SlotId slot = held.hbm[0];
  sut.add(std::move(held));
  hbm.release(slot);
  EXPECT_NE(sut.validate(), "");
  EXPECT_EQ(allocate(hbm, 1).slots[0], slot);
  hbm.drain(slot);  // as it was, for the check at the end
}

/// What touches a slot, kept by hand: free exactly when nothing does.
TEST_F(HoldsTest, RandomHistoriesFreeNothingEarlyAndLoseNothing) {
  const auto seed = static_cast<std::uint64_t>(::testing::UnitTest::GetInstance()->random_seed());
  std::mt19937_64 random(seed);
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::uint64_t finished = 0, ticket = 100;
  std::vector<Ticket> open;
  for (int round = 0; round < 2000; ++round) {
    switch (random() % 3) {
      case 0: {
        if (hbm.available(kA) < kSlot * 4 || dram.available(kA) < kSlot * 4) break;
        std::vector<Ticket> copies;
        for (auto n = random() % 3; n > 0; --n)
          copies.push_back(open.emplace_back(Ticket(++ticket)));
        sut.add(hold(std::move(copies), finished + random() % 3));
        break;
      }
      case 1:
        sut.iteration_finished(kEngine, ++finished);
        break;
      default:
        if (open.empty()) break;
        std::swap(open[random() % open.size()], open.back());
        sut.copy_ended(open.back());
        open.pop_back();
    }
    ASSERT_EQ(fault(), "");
    ASSERT_EQ(sut.slots(Tier::kHbm), used(hbm));
    ASSERT_EQ(sut.slots(Tier::kDram), used(dram));
    for (const Hold& held : sut.all()) {
      ASSERT_TRUE(!held.copies.empty() || held.iteration > finished) << "held for nothing";
    }
  }
  for (const Ticket copy : open) sut.copy_ended(copy);
  sut.iteration_finished(kEngine, finished + 3);
  EXPECT_EQ(used(hbm) + used(dram), 0u);
}

TEST_F(HoldsTest, WhatIsReadWhileItsOwnerKeepsItWaitsForTheCopyOnceItIsGivenUp) {
  const auto read = granted(dram, 2), other = granted(dram, 1);
  sut.copy_reads(kCopy, Tier::kDram, read);
  EXPECT_THAT(sut.all(), IsEmpty()) << "its owner has it";
  Hold given_up;
  given_up.dram = {read[0], other[0]};
  sut.add(given_up);
  EXPECT_EQ(dram.state(read[0]), SlotState::kDraining);
  EXPECT_EQ(dram.state(other[0]), SlotState::kFree);
  Hold streamed;
  streamed.copies = {kStream};
  streamed.dram = {read[1]};
  sut.add(streamed);
  sut.copy_ended(kCopy);
  EXPECT_EQ(dram.state(read[0]), SlotState::kFree);
  EXPECT_EQ(dram.state(read[1]), SlotState::kDraining) << "a stream reads it, too";
  sut.copy_ended(kStream);
  EXPECT_EQ(used(dram), 0u);
}

}  // namespace
}  // namespace kvd::store
