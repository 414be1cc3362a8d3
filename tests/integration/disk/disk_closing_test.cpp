// What waits, in which order, how long, and what becomes of it when the tier closes.
#include <gmock/gmock.h>

#include <deque>

#include "ipc/vocabulary/keep.hpp"
#include "tests/integration/disk/disk_world.hpp"
#include "tests/integration/disk/faulty_io.hpp"

namespace kvd::disk {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;

/// A tier whose device stands still on command; its clock then stands still as well.
class DiskClosing : public ::testing::Test {
 protected:
  void SetUp() override {
    world_.options().depth = 1;
    world_.options().queue = 2;
    control_ = add_faults(world_.options().wrap);
    world_.use(clock_);
    world_.open();
  }
  Ticket load(DiskSlot slot, Nanoseconds patience = test::kPatience) {
    memory_.emplace_back(world_.options().shape);
    Load load = world_.load_of(slot, SlotGeneration(1), 1, memory_.back());
    load.patience = patience;
    const Ticket ticket = load.ticket;
    last_ = world_.tier().load(std::move(load)).code();
    return ticket;
  }
  Ticket store(DiskSlot slot) {
    memory_.emplace_back(world_.options().shape);
    Store store = world_.store_of(slot, 1, memory_.back());
    const Ticket ticket = store.ticket;
    const auto taken = world_.tier().store(std::move(store));
    last_ = taken.ok() ? ErrorCode::kOk : taken.error().code;
    return ticket;
  }
  /// Waits until the device has that many operations.
  void await_held(std::size_t count) {
    ASSERT_TRUE(test::poll_until([&] { return control_->held_now() >= count; }));
  }

  std::shared_ptr<ManualClock> clock_ = std::make_shared<ManualClock>();
  std::deque<BlockMemory> memory_;
  DiskWorld world_{kPoolDirect};
  std::shared_ptr<FaultyIo::Control> control_;
  ErrorCode last_ = ErrorCode::kOk;
};

TEST_F(DiskClosing, QueuesAreBounded) {
  control_->set_hold(true);
  const Ticket first = load(DiskSlot(0));
  await_held(2);  // header and payload
  const Ticket second = load(DiskSlot(1)), third = load(DiskSlot(2));
  EXPECT_EQ(last_, ErrorCode::kOk);
  load(DiskSlot(3));
  EXPECT_EQ(last_, ErrorCode::kWouldBlock);
  EXPECT_EQ(world_.tier().status().waiting, 2u);
  EXPECT_EQ(world_.tier().status().under_way, 1u);
  control_->set_hold(false);
  for (const Ticket ticket : {first, second, third}) {
    EXPECT_EQ(world_.wait(ticket).fault, Fault::kEmpty);
  }
}

TEST_F(DiskClosing, LoadsGoBeforeStoresThatCameEarlier) {
  control_->set_hold(true);
  const Ticket first = store(DiskSlot(0));
  await_held(1);
  const Ticket second = store(DiskSlot(1)), third = load(DiskSlot(2));
  control_->set_hold(false);
  for (const Ticket ticket : {first, second, third}) world_.wait(ticket);
  std::vector<bool> writes;
  for (const auto& [write, offset] : control_->started) writes.push_back(write);
  // The first store's payload and header; the load; the second store.
  EXPECT_THAT(writes, ElementsAre(true, true, false, false, true, true));
}

TEST_F(DiskClosing, AStoreComesToItsEndWhileLoadsWait) {
  control_->set_hold(true);
  load(DiskSlot(0));
  await_held(2);
  load(DiskSlot(1));
  const Ticket stored = store(DiskSlot(2));
  await_held(3);  // the store's payload, though the depth is one and a load waits
  control_->set_hold(false);
  EXPECT_EQ(world_.wait(stored).fault, Fault::kNone);
}

TEST_F(DiskClosing, ASlotTakesOneStoreAtATime) {
  control_->set_hold(true);
  const Ticket first = store(DiskSlot(0));
  store(DiskSlot(0));
  EXPECT_EQ(last_, ErrorCode::kWouldBlock);
  control_->set_hold(false);
  EXPECT_EQ(world_.wait(first).fault, Fault::kNone);
  world_.wait(store(DiskSlot(0)));
  EXPECT_EQ(last_, ErrorCode::kOk);
}

TEST_F(DiskClosing, AnOverdueRequestIsReportedAndItsMemoryLater) {
  control_->set_hold(true);
  const Ticket hung = load(DiskSlot(0), std::chrono::seconds(1));
  await_held(2);
  const Ticket waiting = load(DiskSlot(1), std::chrono::seconds(1));
  clock_->advance(std::chrono::seconds(2));
  Completion completion = world_.wait(waiting);
  EXPECT_EQ(completion.fault, Fault::kTimedOut);
  EXPECT_FALSE(completion.memory_held) << "it never started";
  completion = world_.wait(hung);
  EXPECT_EQ(completion.fault, Fault::kTimedOut);
  EXPECT_TRUE(completion.memory_held);
  EXPECT_EQ(world_.faults(Fault::kTimedOut), 2u);
  control_->set_hold(false);
  completion = world_.wait(hung);
  EXPECT_EQ(completion.fault, Fault::kTimedOut);
  EXPECT_FALSE(completion.memory_held);
  EXPECT_EQ(world_.faults(Fault::kTimedOut), 2u) << "counted once";
}

TEST_F(DiskClosing, AnOverdueStoreWritesNoHeader) {
  control_->set_hold(true);
  const Ticket ticket = store(DiskSlot(0));
  await_held(1);
  clock_->advance(test::kPatience * 2);
  EXPECT_TRUE(world_.wait(ticket).memory_held);
  control_->set_hold(false);
  EXPECT_FALSE(world_.wait(ticket).memory_held);
  EXPECT_EQ(world_.load(DiskSlot(0), SlotGeneration(1), 1), Fault::kEmpty);
}

TEST_F(DiskClosing, WhatWaitsIsEndedAndWhatIsUnderWayFinishes) {
  control_->set_hold(true);
  const Ticket under_way = store(DiskSlot(0));
  await_held(1);
  const Ticket waiting = load(DiskSlot(1));
  EXPECT_THAT(world_.tier().close(Nanoseconds(1), std::nullopt).held, Contains(under_way));
  EXPECT_EQ(world_.wait(waiting).fault, Fault::kClosed);
  control_->set_hold(false);
  EXPECT_EQ(world_.wait(under_way).fault, Fault::kNone);
  load(DiskSlot(2));
  EXPECT_EQ(last_, ErrorCode::kUnavailable);
}

TEST_F(DiskClosing, AHungDeviceHoldsUpNobodyAndKeepsItsMemory) {
  control_->set_hold(true);
  const Ticket hung = load(DiskSlot(0));
  await_held(2);
  const auto closed = world_.tier().close(std::chrono::milliseconds(1), std::vector<FoundBlock>());
  EXPECT_THAT(closed.held, ElementsAre(hung));
  EXPECT_EQ(closed.checkpoint.code(), ErrorCode::kDeadlineExceeded);
  world_.close();
  world_.options().wrap = nullptr;
  EXPECT_EQ(world_.try_open(), ErrorCode::kWouldBlock) << "its files may still be written";
  // The device comes back after the tier is gone, and finds all that it needs.
  keep_for_ever(std::make_unique<std::deque<BlockMemory>>(std::move(memory_)));
  control_->set_hold(false);
  EXPECT_TRUE(test::poll_until([&] { return control_->held_now() == 0; }));
}

}  // namespace
}  // namespace kvd::disk
