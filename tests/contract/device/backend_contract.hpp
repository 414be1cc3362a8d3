#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "tests/contract/device/device_fixture.hpp"

/// What every DeviceBackend promises. Instantiate with a factory per backend:
///   INSTANTIATE_TEST_SUITE_P(Host, DeviceBackendContract, ::testing::Values(&make_host));
/// The tests touch DRAM slabs by CPU and HBM slabs by copies only, as on a real device.
namespace kvd::kernels {

using BackendFactory = std::unique_ptr<DeviceBackend> (*)();

class DeviceBackendContract : public ::testing::TestWithParam<BackendFactory> {
 protected:
  static constexpr Direction kIn = Direction::kHostToDevice;
  static constexpr Direction kOut = Direction::kDeviceToHost;

  void SetUp() override {
    if (!sut_) GTEST_SKIP() << "not to be had on this machine";
  }

  Slab hbm(Bytes size = kMiB * 4) { return slab_or_die(*sut_, Tier::kHbm, size); }
  Slab dram(Bytes size = kMiB * 4) { return slab_or_die(*sut_, Tier::kDram, size); }

  // Submits and waits for the one completion.
  Completion copy(CopyBatch batch) {
    EXPECT_TRUE(sut_->submit(std::move(batch)).ok());
    const auto completed = wait_for(*sut_, 1);
    return completed.empty() ? Completion{} : completed.front();
  }

  ErrorCode refused(CopyBatch batch) { return sut_->submit(std::move(batch)).code(); }

  std::unique_ptr<DeviceBackend> sut_ = GetParam()();
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceBackendContract);

TEST_P(DeviceBackendContract, SlabsAreZeroedAndAsLargeAsAsked) {
  const Slab device = hbm(), host = dram();
  EXPECT_EQ(device.size, kMiB * 4);
  EXPECT_EQ(host.tier, Tier::kDram);
  EXPECT_NE(device.handle, host.handle);
  EXPECT_TRUE(all_zero(bytes_of(host)));
  fill_pattern(bytes_of(host), 1);

  copy(batch_of(1, kOut, {{host.address, device.address, device.size}}));

  EXPECT_TRUE(all_zero(bytes_of(host))) << "a fresh HBM slab held bytes";
}

TEST_P(DeviceBackendContract, SizesOffTheGranularityAreRefused) {
  const Bytes grain = sut_->granularity(Tier::kHbm);
  for (const Bytes size : {Bytes(0), grain + Bytes(1), grain - Bytes(1), Bytes(-grain.value)}) {
    const auto slab = sut_->create_slab(Tier::kHbm, size);
    ASSERT_FALSE(slab.ok()) << size.value;
    EXPECT_EQ(slab.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST_P(DeviceBackendContract, MoreThanTheMachineHasIsOutOfMemory) {
  const auto slab = sut_->create_slab(Tier::kDram, kGiB * 1024 * 1024);
  ASSERT_FALSE(slab.ok());
  EXPECT_EQ(slab.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(sut_->counters().slab_failures, 1u);
}

TEST_P(DeviceBackendContract, BytesSurviveTheWayInAndOut) {
  const Slab device = hbm(), host = dram(), back = dram();
  fill_pattern(bytes_of(host), 2);

  const Completion in = copy(batch_of(1, kIn, {{device.address, host.address, kMiB * 4}}));
  const Completion out = copy(batch_of(2, kOut, {{back.address, device.address, kMiB * 4}}));

  EXPECT_TRUE(in.status.ok());
  EXPECT_EQ(in.ticket, Ticket(1));
  EXPECT_EQ(in.bytes, kMiB * 4);
  EXPECT_EQ(out.ticket, Ticket(2));
  EXPECT_TRUE(has_pattern(bytes_of(back), 2));
}

TEST_P(DeviceBackendContract, ScatteredUnalignedExtentsMoveExactlyTheirBytes) {
  const Slab device = hbm(), host = dram(), back = dram();
  fill_pattern(bytes_of(host), 3);
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  // 32 fields of 128 KiB, in each of which a random stretch is copied.
  CopyBatch in = batch_of(1, kIn, {}), out = batch_of(2, kOut, {});
  std::vector<std::byte> expected(host.size.size());
  for (std::size_t field = 0; field < 32; ++field) {
    const std::size_t start = field * 131072 + random() % 1000;
    const Bytes length(static_cast<std::int64_t>(1 + random() % 130000));
    in.extents.push_back({device.address + start, host.address + start, length});
    out.extents.push_back({back.address + start, device.address + start, length});
    std::memcpy(expected.data() + start, bytes_of(host).data() + start, length.size());
  }

  copy(in);
  copy(out);

  EXPECT_EQ(std::memcmp(bytes_of(back).data(), expected.data(), expected.size()), 0);
}

TEST_P(DeviceBackendContract, BytesMoveWithinDram) {
  const Slab from = dram(), to = dram();
  fill_pattern(bytes_of(from), 5);
  CopyBatch batch = batch_of(1, kOut, {{to.address, from.address, from.size}});
  batch.in_place = true;
  EXPECT_TRUE(copy(std::move(batch)).status.ok());
  EXPECT_TRUE(has_pattern(bytes_of(to), 5));
}

TEST_P(DeviceBackendContract, SourceZeroWritesZeros) {
  const Slab host = dram();
  fill_pattern(bytes_of(host), 4);

  copy(batch_of(1, kOut, {{host.address + 100, 0, kMiB}}));

  EXPECT_TRUE(all_zero(bytes_of(host).subspan(100, kMiB.size())));
  EXPECT_EQ(bytes_of(host)[99], pattern_at(99, 4));
  EXPECT_EQ(bytes_of(host)[kMiB.size() + 100], pattern_at(kMiB.size() + 100, 4));
}

TEST_P(DeviceBackendContract, BatchesOfADirectionEndInOrder) {
  const Slab device = hbm(), host = dram();
  constexpr std::uint64_t kBatches = 60;
  for (std::uint64_t t = 1; t <= kBatches; ++t) {
    // Large and small in turn, so that an unordered queue would show.
    const Bytes length = t % 2 == 1 ? kMiB * 2 : kKiB;
    ASSERT_TRUE(sut_->submit(batch_of(t, kIn, {{device.address, host.address, length}})).ok());
    ASSERT_TRUE(sut_->submit(batch_of(1000 + t, kOut,
                                      {{host.address + kMiB.size() * 3,
                                        device.address + kMiB.size() * 3, kKiB * 64}}))
                    .ok());
  }

  std::uint64_t in = 0, out = 1000;
  for (const Completion& done : wait_for(*sut_, 2 * kBatches)) {
    std::uint64_t& last = done.ticket.value > 1000 ? out : in;
    EXPECT_EQ(done.ticket.value, last + 1);
    last = done.ticket.value;
  }
}

TEST_P(DeviceBackendContract, ABatchWithoutExtentsFencesWhatCameBefore) {
  const Slab device = hbm(), host = dram();
  std::atomic<std::uint64_t> word{0};
  ASSERT_TRUE(sut_->submit(batch_of(1, kIn, {{device.address, host.address, kMiB * 4}})).ok());
  CopyBatch empty = batch_of(2, kIn, {});
  empty.fence = {&word, 2};
  ASSERT_TRUE(sut_->submit(std::move(empty)).ok());

  const auto completed = wait_for(*sut_, 2);

  ASSERT_EQ(completed.size(), 2u);
  EXPECT_EQ(completed[1].ticket, Ticket(2));
  EXPECT_EQ(word.load(), 2u);
}

TEST_P(DeviceBackendContract, AFenceIsWrittenAfterTheBytesAndNeverBefore) {
  const Slab device = hbm(), host = dram(), back = dram();
  std::atomic<std::uint64_t> word{0};
  for (std::uint64_t round = 1; round <= 10; ++round) {
    const auto salt = static_cast<unsigned>(round);
    fill_pattern(bytes_of(host), salt);
    copy(batch_of(2 * round, kIn, {{device.address, host.address, kMiB * 4}}));
    CopyBatch out = batch_of(2 * round + 1, kOut, {{back.address, device.address, kMiB * 4}});
    out.fence = {&word, round};
    ASSERT_TRUE(sut_->submit(std::move(out)).ok());

    while (word.load(std::memory_order_acquire) < round) std::this_thread::yield();

    // The last bytes first: they are what an early fence would lack.
    ASSERT_EQ(bytes_of(back).back(), pattern_at(back.size.size() - 1, salt));
    ASSERT_TRUE(has_pattern(bytes_of(back), salt));
    wait_for(*sut_, 1);
  }
}

TEST_P(DeviceBackendContract, BothDirectionsAtOnceKeepTheirBytesApart) {
  const Slab in_from = dram(), in_to = hbm(), out_from = hbm(), out_to = dram(), check = dram();
  fill_pattern(bytes_of(in_from), 5);
  fill_pattern(bytes_of(check), 6);
  copy(batch_of(1, kIn, {{out_from.address, check.address, check.size}}));
  for (std::uint64_t t = 2; t < 22; t += 2) {
    ASSERT_TRUE(sut_->submit(batch_of(t, kIn, {{in_to.address, in_from.address, kMiB * 4}})).ok());
    ASSERT_TRUE(
        sut_->submit(batch_of(t + 1, kOut, {{out_to.address, out_from.address, kMiB * 4}})).ok());
  }
  wait_for(*sut_, 20);

  copy(batch_of(100, kOut, {{check.address, in_to.address, check.size}}));

  EXPECT_TRUE(has_pattern(bytes_of(out_to), 6));
  EXPECT_TRUE(has_pattern(bytes_of(check), 5));
}

TEST_P(DeviceBackendContract, BadBatchesAreRefusedAndLeaveNoTrace) {
  const Slab device = hbm(), host = dram();
  const std::uintptr_t d = device.address, h = host.address;
  const std::size_t size = device.size.size();
  std::byte elsewhere{};
  const auto outside = reinterpret_cast<std::uintptr_t>(&elsewhere);
  const std::vector<CopyExtent> bad = {
      {outside, h, Bytes(1)},         // destination in no slab
      {d, outside, Bytes(1)},         // source in no slab
      {d, h, Bytes(0)},               // no bytes
      {d, h, Bytes(-1)},              //
      {d + size - 10, h, Bytes(11)},  // runs over the end
      {d, h + size, Bytes(1)},        // starts at the end
      {d - 1, h, Bytes(2)},           // starts before the start
      {0, h, Bytes(1)},               //
      {d, d + 10, Bytes(11)},         // overlaps itself
      {d, h, Bytes(INT64_MAX)},       //
  };
  for (std::size_t i = 0; i < bad.size(); ++i) {
    const CopyExtent good{d, h, kKiB};
    EXPECT_EQ(refused(batch_of(1, kIn, {good, bad[i]})), ErrorCode::kInvalidArgument) << i;
  }
  EXPECT_EQ(refused(batch_of(0, kIn, {{d, h, kKiB}})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(sut_->counters().batches_submitted[0], 0u);
  EXPECT_TRUE(sut_->destroy_slab(device.handle).ok());
  EXPECT_TRUE(sut_->destroy_slab(host.handle).ok());
}

TEST_P(DeviceBackendContract, ATicketInFlightCannotBeUsedTwice) {
  const Slab device = hbm(), host = dram();
  ASSERT_TRUE(sut_->submit(batch_of(7, kIn, {{device.address, host.address, kMiB}})).ok());
  EXPECT_EQ(refused(batch_of(7, kOut, {})), ErrorCode::kInvalidArgument);
  wait_for(*sut_, 1);
  EXPECT_TRUE(copy(batch_of(7, kOut, {})).status.ok());
}

TEST_P(DeviceBackendContract, ASlabInUseStaysUntilItsCopiesArePolled) {
  const Slab device = hbm(), host = dram(), other = dram();
  ASSERT_TRUE(sut_->submit(batch_of(1, kIn, {{device.address, host.address, kMiB}})).ok());

  EXPECT_EQ(sut_->destroy_slab(device.handle).code(), ErrorCode::kWouldBlock);
  EXPECT_EQ(sut_->destroy_slab(host.handle).code(), ErrorCode::kWouldBlock);
  EXPECT_TRUE(sut_->destroy_slab(other.handle).ok());

  wait_for(*sut_, 1);
  EXPECT_TRUE(sut_->destroy_slab(device.handle).ok());
  EXPECT_TRUE(sut_->destroy_slab(host.handle).ok());
}

/// Whether a page has bytes. A driver may keep the addresses, with nothing behind them.
inline bool can_be_read(const void* page) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const UniqueFd out(ends[0]), in(ends[1]);
  return ::write(in.get(), page, 1) == 1;
}

TEST_P(DeviceBackendContract, ADestroyedSlabIsGone) {
  const Slab device = hbm(), host = dram();
  EXPECT_TRUE(can_be_read(bytes_of(host).data())) << "control";
  ASSERT_TRUE(sut_->destroy_slab(host.handle).ok());

  EXPECT_EQ(sut_->destroy_slab(host.handle).code(), ErrorCode::kNotFound);
  EXPECT_FALSE(sut_->export_slab(host.handle).ok());
  EXPECT_EQ(refused(batch_of(1, kIn, {{device.address, host.address, kKiB}})),
            ErrorCode::kInvalidArgument);
  EXPECT_FALSE(can_be_read(bytes_of(host).data())) << "still mapped";
  EXPECT_NE(dram().handle, host.handle) << "handles are never reused";
}

TEST_P(DeviceBackendContract, ADiscardedSlabIsGoneAlthoughAPeerHasItsDescriptor) {
  const Slab device = hbm();
  const Result<UniqueFd> given = sut_->export_slab(device.handle);
  ASSERT_TRUE(given.ok());
  ASSERT_TRUE(sut_->discard_slab(device.handle).ok());

  EXPECT_EQ(sut_->discard_slab(device.handle).code(), ErrorCode::kNotFound);
  EXPECT_FALSE(sut_->export_slab(device.handle).ok());
  EXPECT_EQ(sut_->counters().live[0], Bytes(0));
  EXPECT_NE(hbm().handle, device.handle);
}

TEST_P(DeviceBackendContract, CountersAddUp) {
  const Slab device = hbm(), host = dram();
  copy(batch_of(1, kIn, {{device.address, host.address, kMiB}}));
  copy(batch_of(2, kIn, {{device.address, host.address, kMiB}}));
  copy(batch_of(3, kOut, {{host.address, device.address, kKiB}}));
  ASSERT_TRUE(sut_->destroy_slab(host.handle).ok());

  const DeviceCounters counters = sut_->counters();

  EXPECT_EQ(counters.slabs_created, 2u);
  EXPECT_EQ(counters.slabs_destroyed, 1u);
  EXPECT_EQ(counters.live[0], kMiB * 4);
  EXPECT_EQ(counters.live[1], Bytes(0));
  EXPECT_EQ(counters.batches_submitted[0], 2u);
  EXPECT_EQ(counters.batches_completed[0], 2u);
  EXPECT_EQ(counters.bytes[0], kMiB * 2);
  EXPECT_EQ(counters.batches_completed[1], 1u);
  EXPECT_EQ(counters.bytes[1], kKiB);
  EXPECT_EQ(counters.batches_failed[0] + counters.batches_failed[1], 0u);
}

TEST_P(DeviceBackendContract, CompletionFdIsReadableExactlyWhilePollHasSomething) {
  const Slab device = hbm(), host = dram();
  EXPECT_FALSE(readable(sut_->completion_fd(), std::chrono::milliseconds(0)));
  ASSERT_TRUE(sut_->submit(batch_of(1, kIn, {{device.address, host.address, kKiB}})).ok());
  ASSERT_TRUE(readable(sut_->completion_fd()));

  std::vector<Completion> completed;
  sut_->poll(completed);

  EXPECT_EQ(completed.size(), 1u);
  EXPECT_FALSE(readable(sut_->completion_fd(), std::chrono::milliseconds(0)));
  sut_->poll(completed);
  EXPECT_EQ(completed.size(), 1u);
}

TEST_P(DeviceBackendContract, ExportedDescriptorsAreNewAndCloseOnExec) {
  const Slab host = dram();
  auto first = sut_->export_slab(host.handle), second = sut_->export_slab(host.handle);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(first->get(), second->get());
  EXPECT_NE(::fcntl(first->get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(sut_->export_slab(SlabHandle(999)).error().code, ErrorCode::kNotFound);
}

/// What a peer process finds; async-signal-safe, since it runs in a fork of a threaded process.
inline int act_as_peer(int fd, std::uintptr_t inherited, std::size_t size, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) return 1;
  if (::msync(reinterpret_cast<void*>(inherited), 4096, MS_ASYNC) == 0) return 2;
  void* mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return 3;
  auto* bytes = static_cast<volatile unsigned char*>(mapped);
  if (bytes[0] != 11 || bytes[size - 1] != 22) return 4;
  if (::ftruncate(fd, static_cast<off_t>(size / 2)) == 0 || errno != EPERM) return 5;
  if (::ftruncate(fd, static_cast<off_t>(2 * size)) == 0 || errno != EPERM) return 6;
  bytes[1] = 33;
  return 0;
}

/// For backends whose DRAM slabs are memfds, which a peer maps by their descriptors.
class MemfdContract : public DeviceBackendContract {};

TEST_P(MemfdContract, APeerProcessSharesTheBytesAndCannotResizeThem) {
  const Slab host = dram();
  bytes_of(host).front() = std::byte{11};
  bytes_of(host).back() = std::byte{22};
  auto fd = sut_->export_slab(host.handle);
  ASSERT_TRUE(fd.ok());

  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(act_as_peer(fd->get(), host.address, host.size.size(), parent));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);

  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "see act_as_peer for the number";
  EXPECT_EQ(bytes_of(host)[1], std::byte{33});
}

TEST_P(MemfdContract, APeersMappingOutlivesTheSlab) {
  const Slab host = dram();
  fill_pattern(bytes_of(host), 9);
  auto fd = sut_->export_slab(host.handle);
  ASSERT_TRUE(fd.ok());
  void* peer = ::mmap(nullptr, host.size.size(), PROT_READ, MAP_SHARED, fd->get(), 0);
  ASSERT_NE(peer, MAP_FAILED);

  ASSERT_TRUE(sut_->destroy_slab(host.handle).ok());

  EXPECT_TRUE(has_pattern({static_cast<std::byte*>(peer), host.size.size()}, 9));
  ::munmap(peer, host.size.size());
}

}  // namespace kvd::kernels
