#include "kernels/device/host/host_backend.hpp"

#include <gtest/gtest.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <thread>

#include "kernels/device/fence.hpp"
#include "tests/contract/device/device_fixture.hpp"

namespace kvd::kernels {
namespace {

constexpr Direction kIn = Direction::kHostToDevice;
constexpr Direction kOut = Direction::kDeviceToHost;
constexpr BytesPerSecond kOneMibASecond{1024.0 * 1024.0};

class HostBackendTest : public ::testing::Test {
 protected:
  // Manual time: a throttled copy ends when the test says so and never by itself.
  void start(BytesPerSecond link) {
    HostConfig config;
    config.link_bandwidth = link;
    sut_ = HostBackend::create(config, clock_).value();
    hbm_ = slab_or_die(*sut_, Tier::kHbm, kMiB * 4);
    dram_ = slab_or_die(*sut_, Tier::kDram, kMiB * 4);
  }

  CopyBatch in(std::uint64_t ticket, Bytes length) {
    return batch_of(ticket, kIn, {{hbm_.address, dram_.address, length}});
  }
  CopyBatch out(std::uint64_t ticket, Bytes length) {
    const std::size_t half =
        kMiB.size() * 2;  // apart from the fields that in() touches, up to its half
    return batch_of(ticket, kOut, {{dram_.address + half, hbm_.address + half, length}});
  }

  // The copy threads read the clock when they get to run, so time moves until one has finished, for
  // less than a second in all.
  std::vector<Completion> poll_while_time_passes(Nanoseconds step) {
    std::vector<Completion> completed;
    while (completed.empty() && clock_.now() - kBegin < std::chrono::milliseconds(900)) {
      clock_.advance(step);
      if (readable(sut_->completion_fd(), std::chrono::milliseconds(20))) sut_->poll(completed);
    }
    return completed;
  }

  static constexpr TimePoint kBegin = std::chrono::hours(1);
  ManualClock clock_{kBegin};
  std::unique_ptr<HostBackend> sut_;
  Slab hbm_, dram_;
};

TEST_F(HostBackendTest, RefusesRatesThatAreNone) {
  for (const double rate : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    HostConfig config;
    config.link_bandwidth.value = rate;
    EXPECT_EQ(HostBackend::create(config, clock_).error().code, ErrorCode::kInvalidArgument);
  }
}

TEST_F(HostBackendTest, ADisabledTierIsUnsupported) {
  HostConfig config;
  config.tiers[0].enabled = false;
  const auto sut = HostBackend::create(config, clock_).value();
  EXPECT_EQ(sut->create_slab(Tier::kHbm, kMiB * 2).error().code, ErrorCode::kUnsupported);
  EXPECT_TRUE(sut->create_slab(Tier::kDram, kMiB * 2).ok());
}

TEST_F(HostBackendTest, AThrottledCopyTakesTheTimeOfItsBytes) {
  start(kOneMibASecond);
  constexpr Nanoseconds kLeast = std::chrono::microseconds(976) - LinkThrottle::kBurst;

  ASSERT_TRUE(sut_->submit(in(1, kKiB)).ok());
  const auto completed = poll_while_time_passes(std::chrono::microseconds(100));

  ASSERT_EQ(completed.size(), 1u);
  EXPECT_GE(clock_.now() - kBegin, kLeast);
  EXPECT_GE(completed[0].busy, kLeast) << "waiting for the link counts as busy";
}

TEST_F(HostBackendTest, LiftingTheThrottleFreesWhatItHeld) {
  start({1.0});
  for (std::uint64_t t = 1; t <= 3; ++t) ASSERT_TRUE(sut_->submit(in(t, kMiB * 4)).ok());
  std::vector<Completion> completed;
  sut_->poll(completed);
  EXPECT_TRUE(completed.empty());

  sut_->set_link_bandwidth({});

  EXPECT_EQ(wait_for(*sut_, 3).size(), 3u);
}

TEST_F(HostBackendTest, OneDirectionDoesNotWaitForTheOther) {
  start(kOneMibASecond);
  ASSERT_TRUE(sut_->submit(in(1, kMiB)).ok());   // a second
  ASSERT_TRUE(sut_->submit(out(2, kKiB)).ok());  // a millisecond

  const auto completed = poll_while_time_passes(std::chrono::milliseconds(1));

  ASSERT_EQ(completed.size(), 1u);
  EXPECT_EQ(completed[0].ticket, Ticket(2));
  sut_->set_link_bandwidth({});
  wait_for(*sut_, 1);
}

// Whether the kernel shows the thread as sleeping.
bool asleep(pid_t thread) {
  std::ifstream stat("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string line;
  std::getline(stat, line);
  return line.find(") S ") != std::string::npos;
}

TEST_F(HostBackendTest, AFenceWakesAFutexWaiter) {
  start({1.0});
  std::atomic<std::uint64_t> word{0};
  std::atomic<pid_t> waiter_id{0};
  long woken = -1;
  std::thread waiter([&] {
    waiter_id = static_cast<pid_t>(::syscall(SYS_gettid));
    const timespec deadline{20, 0};
    woken = ::syscall(SYS_futex, &word, FUTEX_WAIT, 0u, &deadline, nullptr, 0);
  });
  while (waiter_id == 0 || !asleep(waiter_id)) std::this_thread::yield();
  CopyBatch batch = in(1, kKiB);
  batch.fence = {&word, 0x1'0000'0001};
  ASSERT_TRUE(sut_->submit(std::move(batch)).ok());

  sut_->set_link_bandwidth({});

  wait_for(*sut_, 1);
  waiter.join();
  EXPECT_EQ(woken, 0) << "slept past the store";
  EXPECT_EQ(word.load(), 0x1'0000'0001u);
}

std::size_t open_slab_files() {
  std::size_t count = 0;
  std::error_code gone;  // the iterator's own descriptor is listed too, and read after its end
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const std::string target = std::filesystem::read_symlink(entry, gone).string();
    if (target.starts_with("/memfd:kvd-")) ++count;
  }
  return count;
}

std::size_t threads() {
  const auto tasks = std::filesystem::directory_iterator("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
}

TEST_F(HostBackendTest, ASlabsFileClosesWithIt) {
  start({});
  EXPECT_EQ(open_slab_files(), 2u);
  ASSERT_TRUE(sut_->destroy_slab(hbm_.handle).ok());
  EXPECT_EQ(open_slab_files(), 1u);
  sut_.reset();
  EXPECT_EQ(open_slab_files(), 0u);
}

TEST_F(HostBackendTest, DestructionDropsTheQueueAndCopiesNothingAfterwards) {
  std::thread([] {}).join();  // a sanitizer starts a thread of its own beside the first
  const std::size_t threads_before = threads();
  start({1.0});
  fill_pattern(bytes_of(dram_), 1);
  auto fd = sut_->export_slab(hbm_.handle);
  ASSERT_TRUE(fd.ok());
  void* peer = ::mmap(nullptr, hbm_.size.size(), PROT_READ, MAP_SHARED, fd->get(), 0);
  ASSERT_NE(peer, MAP_FAILED);
  std::atomic<std::uint64_t> word{0};
  for (std::uint64_t t = 1; t <= 3; ++t) {
    CopyBatch batch = in(t, kMiB * 4);
    batch.fence = {&word, t};
    ASSERT_TRUE(sut_->submit(std::move(batch)).ok());
  }

  sut_.reset();

  EXPECT_EQ(word.load(), 0u);
  // A joined thread may stay listed for a moment, a forgotten one stays for good.
  while (threads() > threads_before) std::this_thread::yield();
  // At one byte a second only the first piece can have moved.
  const auto rest =
      std::span(static_cast<std::byte*>(peer), hbm_.size.size()).subspan(CopyQueue::kPiece.size());
  EXPECT_TRUE(all_zero(rest));
  ::munmap(peer, hbm_.size.size());
}

TEST(Fence, NeverGoesBackwards) {
  std::atomic<std::uint64_t> word = 0;
  publish({&word, 5});
  publish({&word, 3});
  EXPECT_EQ(word, 5u);
  publish({&word, 6});
  EXPECT_EQ(word, 6u);
}

}  // namespace
}  // namespace kvd::kernels
