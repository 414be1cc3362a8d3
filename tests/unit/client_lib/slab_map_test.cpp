#include "client_lib/src/memory/slab_map.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include "ipc/shm/sealed_memfd.hpp"
#include "ipc/vocabulary/clock.hpp"

namespace kvd::client {
namespace {

constexpr Bytes kSlab{std::int64_t{64} * 1024};
constexpr Bytes kSlot{std::int64_t{16} * 1024};

UniqueFd slab_file() { return std::move(shm::create_memfd("test", kSlab)).value(); }

wire::MapSlab frame_of(std::uint64_t region, std::uint32_t slab, std::uint32_t position = 0,
                       std::uint32_t count = 0) {
  wire::MapSlab frame;
  frame.region = region;
  frame.bytes = kSlab.size();
  frame.slab = slab;
  frame.position = position;
  frame.count = count;
  return frame;
}

TimePoint at_once() { return SteadyClock().now(); }

TEST(SlabMapTest, ComputesSlotAddresses) {
  SlabMap map;
  ASSERT_TRUE(map.map(frame_of(0, 7), slab_file()).ok());
  const auto first = map.slot_address(SlotId(SlabIndex(7), 0), kSlot);
  const auto last = map.slot_address(SlotId(SlabIndex(7), 3), kSlot);
  ASSERT_TRUE(first.ok() && last.ok());
  EXPECT_EQ(*last - *first, 3 * kSlot.value);
  EXPECT_EQ(map.slot_address(SlotId(SlabIndex(7), 4), kSlot).error().code, ErrorCode::kInternal);
  EXPECT_EQ(map.slot_address(SlotId(SlabIndex(8), 0), kSlot).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(map.slot_address(SlotId(), kSlot).error().code, ErrorCode::kNotFound);
}

TEST(SlabMapTest, RefusesFramesThatContradictThemselves) {
  SlabMap map;
  EXPECT_FALSE(map.map(frame_of(1, 7, 2, 2), slab_file()).ok());
  EXPECT_FALSE(map.map(frame_of(1, 7, 0, 0), slab_file()).ok());
  wire::MapSlab empty = frame_of(0, 7);
  empty.bytes = 0;
  EXPECT_FALSE(map.map(empty, slab_file()).ok());
  wire::MapSlab huge = frame_of(1, 7, 0, 0xffffffffu);
  huge.bytes = std::uint64_t{1} << 62;
  EXPECT_FALSE(map.map(huge, slab_file()).ok());
}

TEST(SlabMapTest, HandsOverARegionOnlyWhenComplete) {
  SlabMap map;
  ASSERT_TRUE(map.map(frame_of(1, 7, 1, 2), slab_file()).ok());
  EXPECT_EQ(map.take_region(RegionId(1), at_once()).error().code, ErrorCode::kDeadlineExceeded);
  ASSERT_TRUE(map.map(frame_of(1, 8, 0, 2), slab_file()).ok());
  const auto region = map.take_region(RegionId(1), at_once());
  ASSERT_TRUE(region.ok());
  EXPECT_EQ((*region)->range->size(), kSlab * 2);
  EXPECT_TRUE(map.untaken_regions().empty());
}

TEST(SlabMapTest, FailsARegionWhoseFramesDisagree) {
  SlabMap map;
  ASSERT_TRUE(map.map(frame_of(1, 7, 0, 2), slab_file()).ok());
  EXPECT_FALSE(map.map(frame_of(1, 8, 0, 2), slab_file()).ok()) << "same position twice";
  EXPECT_EQ(map.take_region(RegionId(1), at_once()).error().code, ErrorCode::kInvalidArgument);
}

TEST(SlabMapTest, LetsLateFramesOfADiscardedRegionGo) {
  SlabMap map;
  ASSERT_TRUE(map.map(frame_of(1, 7, 0, 2), slab_file()).ok());
  EXPECT_EQ(map.untaken_regions().size(), 1u);
  map.discard_region(RegionId(1));
  EXPECT_TRUE(map.map(frame_of(1, 8, 1, 2), slab_file()).ok());
  EXPECT_TRUE(map.untaken_regions().empty());
}

TEST(SlabMapTest, RemembersNoRegionOfWhichNothingIsToCome) {
  SlabMap map;
  ASSERT_TRUE(map.map(frame_of(1, 7, 0, 1), slab_file()).ok());
  map.discard_region(RegionId(1));
  ASSERT_TRUE(map.map(frame_of(1, 7, 0, 1), slab_file()).ok());
  EXPECT_EQ(map.untaken_regions().size(), 1u);
}

TEST(SlabMapTest, ClosingEndsWaitsAndKeepsSlabs) {
  SlabMap map;
  ASSERT_TRUE(map.map(frame_of(0, 7), slab_file()).ok());
  map.forsake();
  EXPECT_EQ(map.take_region(RegionId(1), at_once() + std::chrono::hours(1)).error().code,
            ErrorCode::kUnavailable);
  EXPECT_TRUE(map.slot_address(SlotId(SlabIndex(7), 0), kSlot).ok());
  EXPECT_TRUE(map.close_and_unmap(kLongestDrain));
  EXPECT_FALSE(map.slot_address(SlotId(SlabIndex(7), 0), kSlot).ok());
}

// The next daemon has no room while the memory of the one before is mapped.
TEST(SlabMapTest, ForsakenMemoryIsGivenBackUnderWhoStillReadsIt) {
  SlabMap map;
  const UniqueFd block = slab_file(), taken = slab_file(), untaken = slab_file();
  ASSERT_TRUE(map.map(frame_of(0, 7), block).ok());
  ASSERT_TRUE(map.map(frame_of(1, 8, 0, 1), taken).ok());
  ASSERT_TRUE(map.map(frame_of(2, 9, 0, 1), untaken).ok());
  const auto region = map.take_region(RegionId(1), at_once());
  ASSERT_TRUE(region.ok());
  std::byte* const address = map.slot_address(SlotId(SlabIndex(7), 0), kSlot).value();
  *address = *(*region)->range->data() = std::byte{7};
  map.forsake();
  EXPECT_EQ(*address, std::byte{0}) << "to be read all the same";
  *address = std::byte{9};
  std::byte in_file{};
  ASSERT_EQ(::pread(block.get(), &in_file, 1, 0), 1);
  EXPECT_EQ(in_file, std::byte{7}) << "what is written there is nobody's";
  EXPECT_EQ(*(*region)->range->data(), std::byte{7}) << "the engine still uses it";
  EXPECT_TRUE(map.untaken_regions().empty());
  EXPECT_TRUE(map.close_and_unmap(Nanoseconds(0)));
}

}  // namespace
}  // namespace kvd::client
