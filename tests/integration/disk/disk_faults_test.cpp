#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/integration/disk/disk_world.hpp"
#include "tests/integration/disk/faulty_io.hpp"

namespace kvd::disk {
namespace {

class DiskFaults : public EveryWay {};

TEST_P(DiskFaults, EveryFieldAndEveryGroupIsLookedAt) {
  const DiskSlot slot(3);
  const SlotGeneration generation = world_.store(slot, 1);
  const Layout& layout = world_.tier().layout();
  std::vector<Bytes> places;
  for (const int field : {0, 8, 12, 16, 24, 32, 36, 40, 64, 96, 128, 160, 172, 184, 200, 4092}) {
    places.push_back(layout.header_offset(slot) + Bytes(field));
  }
  for (std::uint32_t group = 0; group < 3; ++group) {
    const Bytes start = layout.group_offset(slot, group), size = layout.shape().group_bytes;
    for (const Bytes at : {Bytes(0), size * 2 / Bytes(3) * Bytes(1), size - Bytes(1)}) {
      places.push_back(start + at);
    }
  }
  for (const Bytes place : places) {
    world_.flip(0, place);
    EXPECT_NE(world_.load(slot, generation, 1), Fault::kNone) << "byte " << place.value;
    world_.flip(0, place);
    EXPECT_EQ(world_.load(slot, generation, 1), Fault::kNone) << "byte " << place.value;
  }
}

TEST_P(DiskFaults, ACorruptGroupSpoilsOnlyLoadsOfIt) {
  const SlotGeneration generation = world_.store(DiskSlot(0), 1);
  world_.flip(0, world_.tier().layout().group_offset(DiskSlot(0), 1));
  EXPECT_EQ(world_.load(DiskSlot(0), generation, 1, 0, 1), Fault::kNone);
  EXPECT_EQ(world_.load(DiskSlot(0), generation, 1, 1, 1), Fault::kCorruptPayload);
  EXPECT_EQ(world_.load(DiskSlot(0), generation, 1, 2, 1), Fault::kNone);
  EXPECT_EQ(world_.load(DiskSlot(0), generation, 1), Fault::kCorruptPayload);
  EXPECT_EQ(world_.faults(Fault::kCorruptPayload), 2u);
}

// What a crash leaves: of a store over an old block, the first n sectors of the payload, then the
// header; or, where the device reorders, the header without all of the payload.
TEST_P(DiskFaults, AStoreTornAtAnySectorIsAMiss) {
  const DiskSlot slot(1);
  const Layout& layout = world_.tier().layout();
  const auto image = [&] {
    return world_.read_file(0, layout.header_offset(slot), layout.slot_bytes().size());
  };
  const SlotGeneration old_generation = world_.store(slot, 1);
  const std::vector<std::byte> old_bytes = image();
  const SlotGeneration new_generation = world_.store(slot, 2);
  const std::vector<std::byte> new_bytes = image();
  for (std::size_t payload = 4096; payload <= new_bytes.size(); payload += 4096) {
    for (const bool header : {false, true}) {
      std::vector<std::byte> torn = old_bytes;
      std::copy(new_bytes.begin() + 4096, new_bytes.begin() + std::ptrdiff_t(payload),
                torn.begin() + 4096);
      if (header) std::copy(new_bytes.begin(), new_bytes.begin() + 4096, torn.begin());
      world_.write_file(0, layout.header_offset(slot), torn);
      const bool complete_old = !header && payload == 4096;
      const bool complete_new = header && payload == new_bytes.size();
      EXPECT_EQ(world_.load(slot, old_generation, 1) == Fault::kNone, complete_old) << payload;
      EXPECT_EQ(world_.load(slot, new_generation, 2) == Fault::kNone, complete_new) << payload;
    }
  }
}

TEST_P(DiskFaults, AFileCutShortIsAMiss) {
  const DiskSlot slot(2);
  const SlotGeneration generation = world_.store(slot, 1);
  const Layout& layout = world_.tier().layout();
  const Bytes end = layout.header_offset(slot) + layout.slot_bytes();
  for (Bytes size = end - kSector; size >= Bytes(0); size = size - kSector) {
    ASSERT_EQ(::truncate(world_.segment(0).c_str(), size.value), 0);
    EXPECT_NE(world_.load(slot, generation, 1), Fault::kNone) << size.value;
  }
  EXPECT_GT(world_.faults(Fault::kTruncated), 0u);
  world_.reopen();  // whole again, of zeros
  EXPECT_EQ(world_.load(slot, generation, 1), Fault::kEmpty);
}

TEST_P(DiskFaults, AFileThatVanishesIsAMissAtTheNextStart) {
  const SlotGeneration generation = world_.store(DiskSlot(0), 1);
  ASSERT_EQ(::unlink(world_.segment(0).c_str()), 0);
  EXPECT_EQ(world_.load(DiskSlot(0), generation, 1), Fault::kNone) << "it is there for who has it";
  world_.reopen();
  EXPECT_EQ(world_.load(DiskSlot(0), generation, 1), Fault::kEmpty);
}

TEST_P(DiskFaults, AFullDiskFailsTheStore) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const Layout& layout = world_.tier().layout();
  const DiskSlot slot(layout.slots_per_segment() - 1);
  rlimit small = before;
  small.rlim_cur = static_cast<rlim_t>(layout.group_offset(slot, 1).value);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const SlotGeneration generation = world_.store(slot, 1, Fault::kFull);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_NE(world_.load(slot, generation, 1), Fault::kNone);
  EXPECT_EQ(world_.faults(Fault::kFull), 1u);
  EXPECT_EQ(world_.load(slot, world_.store(slot, 2), 2), Fault::kNone)
      << "the slot is of use again";
}

TEST_P(DiskFaults, BelowTheFloorNothingIsStored) {
  const SlotGeneration generation = world_.store(DiskSlot(0), 1);
  world_.options().floor = kGiB * (std::int64_t{1} << 30);
  world_.reopen();  // the segments exist, so they need no more room
  world_.store(DiskSlot(1), 2, Fault::kLowSpace);
  EXPECT_EQ(world_.faults(Fault::kLowSpace), 1u);
  EXPECT_EQ(world_.load(DiskSlot(0), generation, 1), Fault::kNone);
}

/// What a device answers, and what becomes of it.
struct Answer {
  std::int64_t result;
  Fault fault;
};

TEST_P(DiskFaults, EveryErrorOfTheDeviceIsAMissWithACounter) {
  auto control = add_faults(world_.options().wrap);
  world_.reopen();
  const SlotGeneration generation = world_.store(DiskSlot(0), 1);
  for (const Answer answer : {Answer{-EIO, Fault::kDeviceError}, Answer{-EAGAIN, Fault::kBusy},
                              Answer{-EOPNOTSUPP, Fault::kRefused},
                              Answer{-ESTALE, Fault::kVanished}, Answer{100, Fault::kTruncated}}) {
    for (const bool header : {true, false}) {
      const Bytes header_at = world_.tier().layout().header_offset(DiskSlot(0));
      control->fail([=](const Operation& operation) {
        return (operation.offset == header_at) == header ? std::optional(answer.result)
                                                         : std::nullopt;
      });
      const std::uint64_t before = world_.faults(answer.fault);
      EXPECT_EQ(world_.load(DiskSlot(0), generation, 1), answer.fault);
      EXPECT_EQ(world_.faults(answer.fault), before + 1);
    }
    control->fail(nullptr);
    EXPECT_EQ(world_.load(DiskSlot(0), generation, 1), Fault::kNone) << "it works again";
  }
}

TEST_P(DiskFaults, AFailedStoreWritesNoHeader) {
  auto control = add_faults(world_.options().wrap);
  world_.reopen();
  const Bytes header_at = world_.tier().layout().header_offset(DiskSlot(0));
  for (const Answer answer : {Answer{-ENOSPC, Fault::kFull}, Answer{4096, Fault::kFull},
                              Answer{-EIO, Fault::kDeviceError}}) {
    bool header_written = false;
    control->fail([&](const Operation& operation) -> std::optional<std::int64_t> {
      if (operation.offset == header_at) header_written = true;
      return operation.offset == header_at ? std::nullopt : std::optional(answer.result);
    });
    const SlotGeneration generation = world_.store(DiskSlot(0), 1, answer.fault);
    EXPECT_FALSE(header_written);
    control->fail(nullptr);
    EXPECT_EQ(world_.load(DiskSlot(0), generation, 1), Fault::kEmpty);
  }
}

TEST_P(DiskFaults, ThePayloadIsOnTheDeviceBeforeTheHeaderStarts) {
  auto control = add_faults(world_.options().wrap);
  world_.reopen();
  control->set_hold(true);
  BlockMemory memory(world_.options().shape);
  Store store = world_.store_of(DiskSlot(0), 1, memory);
  const Ticket ticket = store.ticket;
  ASSERT_TRUE(world_.tier().store(std::move(store)).ok());
  ASSERT_TRUE(test::poll_until([&] { return control->held_now() > 0; }));
  const Bytes header_at = world_.tier().layout().header_offset(DiskSlot(0));
  {
    const std::lock_guard lock(control->mutex);
    for (const auto& [write, offset] : control->started) EXPECT_NE(offset, header_at.value);
  }
  control->set_hold(false);
  EXPECT_EQ(world_.wait(ticket).fault, Fault::kNone);
  const std::lock_guard lock(control->mutex);
  EXPECT_EQ(control->started.back(), std::pair(true, header_at.value));
}

TEST_P(DiskFaults, AScanCountsBadHeadersAndGoesOn) {
  const SlotGeneration generation = world_.store(DiskSlot(0), 1);
  world_.store(DiskSlot(1), 2);
  world_.flip(0, world_.tier().layout().header_offset(DiskSlot(1)) + Bytes(130));
  const std::vector<FoundBlock> expected = {{DiskSlot(0), generation, key_of(1)}};
  EXPECT_EQ(world_.scan(), expected);
  EXPECT_EQ(world_.faults(Fault::kCorruptHeader), 1u);
}

INSTANTIATE_TEST_SUITE_P(Way, DiskFaults, kWays, name_of_way);

}  // namespace
}  // namespace kvd::disk
