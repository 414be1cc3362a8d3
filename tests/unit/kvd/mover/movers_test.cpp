// Two devices with HBM of their own and one DRAM between them.
#include "kvd/mover/movers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/kvd/mover/mover_world.hpp"

namespace kvd::mover {
namespace {

using kernels::FaultScript;
using testing::IsEmpty;
using testing::SizeIs;

constexpr Bytes kSlot = MoverWorld::kSlot;

class MoversTest : public testing::Test {
 protected:
  /// `held`: copies of the second device go one by one.
  void open(bool held = false) {
    kernels::HostConfig host;
    host.pages = kernels::PagePreference::kSmall;
    host.populate_threads = 1;
    for (const bool hold : {false, held}) {
      FaultScript script;
      script.hold_copies = hold;
      backends.push_back(
          kernels::FaultyBackend::create(kernels::HostBackend::create(host, clock).value(), script)
              .value());
    }
    const SlabStore::Size size{kMiB * 4, 1};
    slabs = std::make_unique<SlabStore>(
        SlabStore::create({{backends[0].get(), size}, {backends[1].get(), size}}, size, {})
            .value());
    sut = std::make_unique<Movers>(
        std::vector<kernels::CopyQueues*>{backends[0].get(), backends[1].get()}, *slabs);
    for (std::uint32_t i = 0; i < 16; ++i) kernels::fill_pattern(bytes(Tier::kDram, 0, i), i);
  }

  std::span<std::byte> bytes(Tier tier, std::uint32_t slab, std::uint32_t index) const {
    return {reinterpret_cast<std::byte*>(slabs->address(tier, {SlabIndex(slab), index}, kSlot)),
            kSlot.size()};
  }
  /// DRAM slot i to slot i of the device that `devices` says.
  static core::CopySlots into(std::uint64_t ticket, const std::vector<std::uint32_t>& devices) {
    core::CopySlots copy{Ticket(ticket), EngineId(1), true, kSlot, {}, false};
    for (std::uint32_t i = 0; i < devices.size(); ++i) {
      copy.pairs.push_back({{SlabIndex(devices[i]), i}, {SlabIndex(0), i}});
    }
    return copy;
  }
  [[nodiscard]] bool until_finished(std::size_t count) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    for (sut->poll(finished); finished.size() < count; sut->poll(finished)) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      pollfd wait[] = {{backends[0]->completion_fd(), POLLIN, 0},
                       {backends[1]->completion_fd(), POLLIN, 0}};
      ::poll(wait, 2, 1);
    }
    return true;
  }

  SteadyClock clock;
  std::vector<std::unique_ptr<kernels::FaultyBackend>> backends;
  std::unique_ptr<SlabStore> slabs;
  std::unique_ptr<Movers> sut;
  std::vector<core::CopyFinished> finished;
  Words words;
};

TEST_F(MoversTest, SlabsOfHbmAreNumberedThroughTheDevices) {
  open();
  EXPECT_EQ(slabs->device_of(SlabIndex(0)), DeviceId(0));
  EXPECT_EQ(slabs->device_of(SlabIndex(1)), DeviceId(1));
  EXPECT_EQ(&slabs->backend_of(Tier::kHbm, SlabIndex(1)), backends[1].get());
  EXPECT_EQ(&slabs->backend_of(Tier::kDram, SlabIndex(0)), backends[0].get());
}

TEST_F(MoversTest, EachDeviceCopiesItsOwnAndBothReachDram) {
  open();
  sut->copy(into(1, {0, 0}), nullptr);
  sut->copy(into(2, {1, 1}), &words.h2d);
  ASSERT_TRUE(until_finished(2));
  EXPECT_TRUE(finished[0].ok && finished[1].ok);
  EXPECT_EQ(words.h2d, 2u);
  for (const std::uint32_t device : {0u, 1u}) {
    EXPECT_TRUE(kernels::has_pattern(bytes(Tier::kHbm, device, 1), 1));
    EXPECT_EQ(backends[device]->counters().batches_completed[0], 1u);
  }
  core::CopySlots out{Ticket(3), EngineId(1), false, kSlot, {}, false};
  kernels::fill_pattern(bytes(Tier::kHbm, 1, 5), 55);
  out.pairs.push_back({{SlabIndex(1), 5}, {SlabIndex(0), 9}});
  sut->copy(out, nullptr);
  ASSERT_TRUE(until_finished(3));
  EXPECT_TRUE(kernels::has_pattern(bytes(Tier::kDram, 0, 9), 55));
}

TEST_F(MoversTest, AFullQueueOfOneDelaysNobodyOnTheOther) {
  open(true);
  sut->copy(into(1, {1}), nullptr);
  sut->copy(into(2, {0}), nullptr);
  ASSERT_TRUE(until_finished(1));
  EXPECT_EQ(finished[0].ticket, Ticket(2));
  EXPECT_TRUE(sut->busy());
  ASSERT_TRUE(backends[1]->step());
  ASSERT_TRUE(until_finished(2));
  EXPECT_FALSE(sut->busy());
}

TEST_F(MoversTest, ACopyOfBothEndsOnceAndItsFenceComesWithTheLastPart) {
  open(true);
  sut->copy_apart(into(7, {0, 1, 0, 1}), &words.h2d);
  while (backends[0]->counters().batches_completed[0] == 0) sut->poll(finished);
  EXPECT_THAT(finished, IsEmpty());
  EXPECT_EQ(words.h2d, 0u);
  ASSERT_TRUE(backends[1]->step());
  ASSERT_TRUE(until_finished(1));
  sut->poll(finished);
  ASSERT_THAT(finished, SizeIs(1));
  EXPECT_EQ(finished[0].bytes, kSlot * 4);
  EXPECT_EQ(words.h2d, 7u);
  for (std::uint32_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(kernels::has_pattern(bytes(Tier::kHbm, i % 2, i), i)) << i;
  }
}

TEST_F(MoversTest, FencesOfAWordComeInTheOrderOfTheCopies) {
  open(true);
  sut->copy_apart(into(7, {0, 1}), &words.h2d);
  sut->copy_apart(into(8, {0}), &words.h2d);
  ASSERT_TRUE(until_finished(1));
  EXPECT_EQ(finished[0].ticket, Ticket(8));
  EXPECT_EQ(words.h2d, 0u) << "the one before is not complete";
  ASSERT_TRUE(backends[1]->step());
  ASSERT_TRUE(until_finished(2));
  EXPECT_EQ(words.h2d, 8u);
}

TEST_F(MoversTest, ScrubsGoToTheDeviceOfTheirSlots) {
  open();
  kernels::fill_pattern(bytes(Tier::kHbm, 1, 3), 3);
  core::Scrub scrub{Ticket(1), Tier::kHbm, {}, {{SlabIndex(1), 3}}, kSlot};
  sut->scrub(scrub);
  ASSERT_TRUE(until_finished(1));
  EXPECT_EQ(bytes(Tier::kHbm, 1, 3)[0], std::byte(0));
  EXPECT_EQ(backends[1]->counters().batches_completed[0], 1u);
  sut->scrub({Ticket(2), Tier::kDram, {SlabIndex(0)}, {}, Bytes(0)});
  ASSERT_TRUE(until_finished(2));
  EXPECT_EQ(bytes(Tier::kDram, 0, 3)[0], std::byte(0));
}

TEST_F(MoversTest, OneThatGoesWhileTheOtherCopiesLeavesDramWhereItIs) {
  open(true);
  sut->copy(into(1, {1}), nullptr);
  sut.reset();
  slabs.reset();
  EXPECT_GT(backends[0]->counters().live[1], Bytes(0)) << "a copy of the second may still read it";
  backends.pop_back();
}

}  // namespace
}  // namespace kvd::mover
