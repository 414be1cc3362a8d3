#include "tests/support/faulty/faulty_backend.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "kernels/device/host/host_backend.hpp"
#include "tests/contract/device/device_fixture.hpp"

namespace kvd::kernels {
namespace {

using ::testing::ElementsAre;

constexpr Direction kIn = Direction::kHostToDevice;
constexpr Direction kOut = Direction::kDeviceToHost;

class FaultyBackendTest : public ::testing::Test {
 protected:
  void start(FaultScript script) {
    sut_ =
        FaultyBackend::create(HostBackend::create({}, clock_).value(), std::move(script)).value();
    hbm_ = slab_or_die(*sut_, Tier::kHbm, kMiB * 2);
    dram_ = slab_or_die(*sut_, Tier::kDram, kMiB * 2);
    fill_pattern(bytes_of(dram_), 1);
  }

  // Each ticket has its own KiB in each half of the slabs. Each direction uses one half.
  CopyBatch batch(std::uint64_t ticket, Direction direction) {
    const std::size_t at = ticket * kKiB.size() + (direction == kIn ? 0 : kMiB.size());
    const auto to = direction == kIn ? hbm_.address + at : dram_.address + at;
    const auto from = direction == kIn ? dram_.address + at : hbm_.address + at;
    return {Ticket(ticket), direction, {{to, from, kKiB}}, {&fence_, ticket}};
  }
  void submit(std::uint64_t ticket, Direction direction) {
    ASSERT_TRUE(sut_->submit(batch(ticket, direction)).ok());
  }
  bool arrived(std::uint64_t ticket) {
    const auto at = ticket * kKiB.size();
    return bytes_of(hbm_)[at] == bytes_of(dram_)[at];
  }

  // The order in which step() lets go ten batches, odd tickets in, even ones out.
  std::vector<std::uint64_t> release_order(FaultScript script) {
    script.hold_copies = true;
    start(script);
    for (std::uint64_t t = 1; t <= 10; ++t) submit(t, t % 2 == 1 ? kIn : kOut);
    std::vector<std::uint64_t> order;
    while (const Ticket ticket = sut_->step()) order.push_back(ticket.value);
    wait_for(*sut_, 10);
    return order;
  }

  SteadyClock clock_;
  std::unique_ptr<FaultyBackend> sut_;
  Slab hbm_, dram_;
  std::atomic<std::uint64_t> fence_{0};
};

std::vector<std::uint64_t> only(std::vector<std::uint64_t> tickets, std::uint64_t remainder) {
  std::erase_if(tickets, [&](std::uint64_t t) { return t % 2 != remainder; });
  return tickets;
}

TEST_F(FaultyBackendTest, FailsTheNthCreate) {
  FaultScript script;
  script.fail_creates = {3};
  start(script);
  const auto third = sut_->create_slab(Tier::kHbm, kMiB * 2);
  ASSERT_FALSE(third.ok());
  EXPECT_EQ(third.error().code, ErrorCode::kOutOfMemory);
  EXPECT_TRUE(sut_->create_slab(Tier::kHbm, kMiB * 2).ok());
  EXPECT_EQ(sut_->faults().failed_creates, 1u);
}

TEST_F(FaultyBackendTest, FailsTheNthCopyInItsPlace) {
  FaultScript script;
  script.fail_copies = {2};
  start(script);
  for (std::uint64_t t = 1; t <= 2; ++t) submit(t, kIn);

  const auto completed = wait_for(*sut_, 2);

  ASSERT_EQ(completed.size(), 2u);
  EXPECT_TRUE(completed[0].status.ok());
  EXPECT_EQ(completed[1].ticket, Ticket(2));
  EXPECT_EQ(completed[1].status.code(), ErrorCode::kDeviceError);
  EXPECT_EQ(fence_.load(), 1u);
  EXPECT_FALSE(arrived(2));
  EXPECT_EQ(sut_->counters().batches_failed[0], 1u);
  EXPECT_EQ(sut_->faults().failed_copies, 1u);
}

TEST_F(FaultyBackendTest, LosesAFenceButNotTheBytes) {
  FaultScript script;
  script.lose_fences = {1};
  start(script);
  submit(1, kIn);

  const auto completed = wait_for(*sut_, 1);

  EXPECT_TRUE(completed.at(0).status.ok());
  EXPECT_TRUE(arrived(1));
  EXPECT_EQ(fence_.load(), 0u);
  EXPECT_EQ(sut_->faults().lost_fences, 1u);
}

TEST_F(FaultyBackendTest, ReportsACompletionTwiceAndCountsItOnce) {
  FaultScript script;
  script.duplicate_completions = {1};
  start(script);
  submit(1, kIn);

  const auto completed = wait_for(*sut_, 2);

  ASSERT_EQ(completed.size(), 2u);
  EXPECT_EQ(completed[0].ticket, completed[1].ticket);
  EXPECT_EQ(sut_->counters().batches_completed[0], 1u);
  EXPECT_EQ(sut_->faults().duplicates, 1u);
  EXPECT_TRUE(sut_->destroy_slab(hbm_.handle).ok()) << "the slab's use was given back twice";
}

TEST_F(FaultyBackendTest, HeldBatchesMoveNothingUntilStepped) {
  FaultScript script;
  script.hold_copies = true;
  start(script);
  submit(1, kIn);
  submit(2, kIn);
  EXPECT_FALSE(readable(sut_->completion_fd(), std::chrono::milliseconds(0)));
  EXPECT_FALSE(arrived(1));
  EXPECT_EQ(sut_->destroy_slab(hbm_.handle).code(), ErrorCode::kWouldBlock);

  EXPECT_EQ(sut_->step(), Ticket(1));

  EXPECT_EQ(wait_for(*sut_, 1).at(0).ticket, Ticket(1));
  EXPECT_EQ(fence_.load(), 1u);
  EXPECT_FALSE(arrived(2));
  sut_->release_all();
  EXPECT_EQ(wait_for(*sut_, 1).at(0).ticket, Ticket(2));
  EXPECT_EQ(sut_->step(), Ticket());
  EXPECT_EQ(sut_->faults().held, 2u);
}

TEST_F(FaultyBackendTest, DirectionsOvertakeEachOtherBySeedAndNeverThemselves) {
  FaultScript script;
  script.seed = 5;
  const auto first = release_order(script);
  const auto again = release_order(script);
  script.seed = 6;
  const auto other = release_order(script);

  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
  for (const auto& order : {first, other}) {
    EXPECT_THAT(only(order, 1), ElementsAre(1, 3, 5, 7, 9));
    EXPECT_THAT(only(order, 0), ElementsAre(2, 4, 6, 8, 10));
  }
}

TEST_F(FaultyBackendTest, ReordersWithinADirectionWhenAsked) {
  FaultScript script;
  script.reorder_within_direction = true;
  EXPECT_THAT(only(release_order(script), 1), ::testing::Not(ElementsAre(1, 3, 5, 7, 9)));
}

TEST_F(FaultyBackendTest, ChanceReleasesHeldBatchesWhilePolled) {
  FaultScript script;
  script.hold_copies = true;
  script.release_chance = 0.2;
  start(script);
  for (std::uint64_t t = 1; t <= 10; ++t) submit(t, kIn);
  std::vector<std::uint64_t> tickets;
  for (const Completion& done : wait_for(*sut_, 10)) tickets.push_back(done.ticket.value);
  EXPECT_THAT(tickets, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
}

}  // namespace
}  // namespace kvd::kernels
