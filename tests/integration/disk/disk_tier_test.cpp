#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/integration/disk/disk_world.hpp"
#include "tests/integration/disk/faulty_io.hpp"

namespace kvd::disk {
namespace {

using ::testing::UnorderedElementsAreArray;

class DiskTierWays : public EveryWay {};

TEST_P(DiskTierWays, GivesBackWhatItWasGiven) {
  std::vector<SlotGeneration> generations;
  for (std::uint32_t i = 0; i < world_.tier().slots(); ++i) {
    generations.push_back(world_.store(DiskSlot(i), i));
  }
  for (std::uint32_t i = 0; i < world_.tier().slots(); ++i) {
    EXPECT_EQ(world_.load(DiskSlot(i), generations[i], i), Fault::kNone);
  }
  const DiskStatus status = world_.tier().status();
  EXPECT_EQ(status.segments, 2u);
  EXPECT_EQ(status.loads, world_.tier().slots());
  EXPECT_EQ(status.stores, world_.tier().slots());
  EXPECT_EQ(status.loaded, status.stored);
  EXPECT_EQ(status.loaded, GetParam().group_bytes * (3 * std::int64_t{world_.tier().slots()}));
  EXPECT_EQ(status.under_way, 0u);
}

TEST_P(DiskTierWays, GivesEachRunOfLayerGroups) {
  const SlotGeneration generation = world_.store(DiskSlot(2), 5);
  for (std::uint32_t first = 0; first < 3; ++first) {
    for (std::uint32_t count = 1; first + count <= 3; ++count) {
      EXPECT_EQ(world_.load(DiskSlot(2), generation, 5, first, count), Fault::kNone);
    }
  }
}

TEST_P(DiskTierWays, HasManyUnderWayAtOnce) {
  auto control = add_faults(world_.options().wrap);
  world_.reopen();
  const std::uint32_t count = world_.tier().slots();
  std::vector<BlockMemory> memory;
  std::vector<Ticket> tickets;
  std::vector<SlotGeneration> generations;
  for (std::uint32_t i = 0; i < count; ++i) {
    memory.emplace_back(world_.options().shape).fill(i);
    Store store = world_.store_of(DiskSlot(i), i, memory.back());
    tickets.push_back(store.ticket);
    generations.push_back(*world_.tier().store(std::move(store)));
  }
  for (const Ticket ticket : tickets) EXPECT_EQ(world_.wait(ticket).fault, Fault::kNone);
  control->set_hold(true);  // the page cache could answer each load before the next one comes
  std::vector<BlockMemory> read;
  for (std::uint32_t i = 0; i < count; ++i) {
    read.emplace_back(world_.options().shape);
    Load load = world_.load_of(DiskSlot(i), generations[i], i, read.back());
    tickets[i] = load.ticket;
    ASSERT_TRUE(world_.tier().load(std::move(load)).ok());
  }
  EXPECT_TRUE(test::poll_until([&] { return world_.tier().status().under_way == count; }));
  control->set_hold(false);
  for (std::uint32_t i = 0; i < count; ++i) {
    EXPECT_EQ(world_.wait(tickets[i]).fault, Fault::kNone);
    EXPECT_TRUE(read[i].same(memory[i], 0, 3));
  }
  EXPECT_EQ(world_.tier().status().most_under_way, count);
}

TEST_P(DiskTierWays, WorksInRegisteredMemory) {
  BlockMemory memory(world_.options().shape);
  world_.tier().add_slab(memory.slab());
  EXPECT_EQ(world_.tier().status().registered_slabs, GetParam().io_uring ? 1u : 0u)
      << world_.tier().status().registered_reason;
  memory.fill(9);
  Store store = world_.store_of(DiskSlot(1), 9, memory);
  const Ticket stored = store.ticket;
  const auto generation = world_.tier().store(std::move(store));
  ASSERT_EQ(world_.wait(stored).fault, Fault::kNone);
  memory.fill(10);
  Load load = world_.load_of(DiskSlot(1), *generation, 9, memory);
  const Ticket loaded = load.ticket;
  ASSERT_TRUE(world_.tier().load(std::move(load)).ok());
  EXPECT_EQ(world_.wait(loaded).fault, Fault::kNone);
  BlockMemory expected(world_.options().shape);
  expected.fill(9);
  EXPECT_TRUE(memory.same(expected, 0, 3));
  world_.tier().remove_slab(memory.slab());
  EXPECT_EQ(world_.tier().status().registered_slabs, 0u);
}

TEST_P(DiskTierWays, FindsItsBlocksAgainByTheirHeaders) {
  std::vector<FoundBlock> expected;
  for (const std::uint32_t i : {0u, 3u, world_.tier().slots() - 1}) {
    expected.push_back({DiskSlot(i), world_.store(DiskSlot(i), i), key_of(i)});
  }
  world_.reopen();
  EXPECT_FALSE(world_.tier().take_index().has_value());
  EXPECT_THAT(world_.scan(), UnorderedElementsAreArray(expected));
  for (const FoundBlock& block : expected) {
    EXPECT_EQ(world_.load(block.slot, block.generation, block.slot.value), Fault::kNone);
  }
}

TEST_P(DiskTierWays, FindsItsBlocksAgainByACheckpoint) {
  const std::vector<FoundBlock> index = {{DiskSlot(4), world_.store(DiskSlot(4), 4), key_of(4)}};
  const auto closed = world_.tier().close(test::kPatience, index);
  EXPECT_TRUE(closed.checkpoint.ok());
  EXPECT_TRUE(closed.held.empty());
  world_.reopen();
  EXPECT_EQ(world_.tier().take_index(), index);
  EXPECT_FALSE(world_.tier().take_index().has_value()) << "once";
  EXPECT_EQ(world_.load(DiskSlot(4), index[0].generation, 4), Fault::kNone);
  world_.reopen();
  EXPECT_FALSE(world_.tier().take_index().has_value()) << "it was of the stop before the last";
}

TEST_P(DiskTierWays, WhatWasClearedIsInNoIndexOfThisLifeOrALaterOne) {
  const std::vector<FoundBlock> index = {{DiskSlot(4), world_.store(DiskSlot(4), 4), key_of(4)}};
  world_.tier().clear();
  ASSERT_TRUE(world_.tier().keep_cleared().ok());
  const SlotGeneration later = world_.store(DiskSlot(5), 5);
  EXPECT_EQ(world_.scan(), (std::vector<FoundBlock>{{DiskSlot(5), later, key_of(5)}}));
  EXPECT_TRUE(world_.tier().close(test::kPatience, index).checkpoint.ok());
  world_.reopen();
  EXPECT_EQ(world_.tier().take_index(), std::vector<FoundBlock>());
  EXPECT_EQ(world_.scan(), (std::vector<FoundBlock>{{DiskSlot(5), later, key_of(5)}}));
}

TEST_P(DiskTierWays, WhatSaysWhatWasClearedIsWrittenWholeOrCountsForAll) {
  const std::string file = world_.options().folder + "/cleared";
  world_.store(DiskSlot(4), 4);
  std::filesystem::create_directory(file + ".new");
  EXPECT_EQ(world_.tier().keep_cleared().code(), ErrorCode::kUnavailable);
  for (const std::string text : {"", "12", "x\n", "-1\n", "99999999999999999999\n"}) {
    std::ofstream(file) << text;
    world_.reopen();
    EXPECT_EQ(world_.scan(), std::vector<FoundBlock>()) << text;
  }
  std::ofstream(file) << "0\n";
  world_.reopen();
  EXPECT_EQ(world_.scan().size(), 1u);
}

TEST_P(DiskTierWays, MissesWhatIsNotThere) {
  EXPECT_EQ(world_.load(DiskSlot(0), SlotGeneration(1), 1), Fault::kEmpty);
  const SlotGeneration first = world_.store(DiskSlot(0), 1);
  EXPECT_EQ(world_.load(DiskSlot(0), first, 2), Fault::kOtherKey);
  const SlotGeneration second = world_.store(DiskSlot(0), 2);
  EXPECT_GT(second, first);
  EXPECT_EQ(world_.load(DiskSlot(0), first, 1), Fault::kOverwritten);
  EXPECT_EQ(world_.load(DiskSlot(0), second, 2), Fault::kNone);
  for (const Fault fault : {Fault::kEmpty, Fault::kOtherKey, Fault::kOverwritten}) {
    EXPECT_EQ(world_.faults(fault), 1u) << name(fault);
  }
}

TEST_P(DiskTierWays, GivesADomainNothingOfAnother) {
  const SlotGeneration generation = world_.store(DiskSlot(0), 1);
  BlockMemory memory(world_.options().shape);
  Load load = world_.load_of(DiskSlot(0), generation, 1, memory);
  load.key = key_of(1, 2);
  const Ticket ticket = load.ticket;
  ASSERT_TRUE(world_.tier().load(std::move(load)).ok());
  EXPECT_EQ(world_.wait(ticket).fault, Fault::kOtherKey);
}

TEST_P(DiskTierWays, CountsGenerationsOnOverRestarts) {
  const SlotGeneration before = world_.store(DiskSlot(0), 1);
  world_.reopen();
  EXPECT_GT(world_.store(DiskSlot(0), 1), before);
}

TEST_P(DiskTierWays, RefusesWhatCannotBe) {
  BlockMemory memory(world_.options().shape);
  const auto load_code = [&](auto change) {
    Load load = world_.load_of(DiskSlot(0), SlotGeneration(1), 1, memory);
    change(load);
    return world_.tier().load(std::move(load)).code();
  };
  EXPECT_EQ(load_code([&](Load& l) { l.slot = DiskSlot(world_.tier().slots()); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(load_code([](Load& l) { l.first_group = 1; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(load_code([](Load& l) { l.first_group = 3; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(load_code([](Load& l) { l.groups.clear(); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(load_code([](Load& l) { l.groups[1] = l.groups[1].first(100); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(load_code([](Load& l) { l.patience = Nanoseconds(0); }), ErrorCode::kInvalidArgument);
  Store store = world_.store_of(DiskSlot(0), 1, memory);
  store.groups.pop_back();
  EXPECT_EQ(world_.tier().store(std::move(store)).error().code, ErrorCode::kInvalidArgument);
  Scan scan{world_.next_ticket(), DiskSlot(0), kMaxScan + 1, test::kPatience};
  EXPECT_EQ(world_.tier().scan(scan).code(), ErrorCode::kInvalidArgument);
}

TEST_P(DiskTierWays, TakesMemoryFromAnywhereUnlessDirectIoCannot) {
  const SlotGeneration generation = world_.store(DiskSlot(0), 1);
  BlockMemory memory(world_.options().shape), expected(world_.options().shape);
  Load load = world_.load_of(DiskSlot(0), generation, 1, memory);
  load.groups = {memory.slab().subspan(512, GetParam().group_bytes.size())};
  const Ticket ticket = load.ticket;
  const std::span<std::byte> read = load.groups[0];
  if (world_.tier().status().direct) {
    EXPECT_EQ(world_.tier().load(std::move(load)).code(), ErrorCode::kInvalidArgument);
    return;
  }
  ASSERT_TRUE(world_.tier().load(std::move(load)).ok());
  EXPECT_EQ(world_.wait(ticket).fault, Fault::kNone);
  expected.fill(1);
  EXPECT_EQ(std::memcmp(read.data(), expected.group(0).data(), read.size()), 0);
}

INSTANTIATE_TEST_SUITE_P(Way, DiskTierWays, kWays, name_of_way);

TEST(DiskTierStatus, SaysWhyItDoesNotWorkAsWellAsItCould) {
  DiskWorld world(kRingDirect);
  world.options().io_uring = false;
  world.options().direct = false;
  world.open();
  DiskStatus status = world.tier().status();
  EXPECT_EQ(status.io, "threads");
  EXPECT_EQ(status.io_reason, "switched off");
  EXPECT_FALSE(status.direct);
  EXPECT_EQ(status.direct_reason, "switched off");
  BlockMemory memory(world.options().shape);
  world.tier().add_slab(memory.slab());
  EXPECT_THAT(world.tier().status().registered_reason, ::testing::HasSubstr("io_uring only"));
}

}  // namespace
}  // namespace kvd::disk
