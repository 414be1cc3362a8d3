#include "kvd/daemon/config/memory_check.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvd/core/door/kept_for_engines.hpp"
#include "kvd/daemon/config/needs.hpp"
#include "tests/unit/kvd/daemon/config_fixture.hpp"

namespace kvd::daemon {
namespace {
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

/// A machine of files: 20 GiB, of which 10 are available; no control groups until a test adds some.
class MemoryCheck : public testing::Test {
 protected:
  MemoryCheck() {
    root_.write("proc/meminfo",
                "MemTotal:       20971520 kB\nMemFree:         1048576 kB\n"
                "MemAvailable:   10485760 kB\n");
  }
  void group(const std::string& path, Bytes max, Bytes current) {
    const std::string folder = "sys/fs/cgroup" + path;
    root_.write(folder + "/memory.max", std::to_string(max.value) + "\n");
    root_.write(folder + "/memory.current", std::to_string(current.value) + "\n");
  }
  MemoryRoom room() { return memory_room(kGiB, root_.path()).value(); }
  void expect_room(Bytes most, Bytes now) {
    EXPECT_EQ(room().most.bytes, most);
    EXPECT_EQ(room().now.bytes, now);
  }
  Status take(Bytes wanted) { return memory_gate(kGiB, root_.path())(wanted); }

  test::WrittenFolder root_;
};

TEST_F(MemoryCheck, WithoutGroupsTheMachineDecides) {
  expect_room(19 * kGiB, 9 * kGiB);
  EXPECT_EQ(room().now.reason, "MemAvailable 10 GiB - pool.reserve 1 GiB");
}

TEST_F(MemoryCheck, WhatCanNeverFitIsRefusedWithNumbersAndRemedy) {
  EXPECT_TRUE(check_memory(18 * kGiB, kGiB, room(), "pool.dram").ok()) << "though 9 GiB are left";
  const Status refused = check_memory(18 * kGiB, 2 * kGiB, room(), "pool.dram");
  EXPECT_EQ(refused.code(), ErrorCode::kOutOfMemory);
  EXPECT_EQ(refused.error().message,
            "pool.dram: 18 GiB, and 2 GiB for kvd itself, exceeds what this machine can give (19 "
            "GiB: MemTotal 20 GiB - pool.reserve 1 GiB); lower pool.dram, or raise the limit");
}

TEST_F(MemoryCheck, TheGroupsOwnLimitBinds) {
  root_.write("proc/self/cgroup", "0::/a/b\n");
  group("/a/b", 4 * kGiB, kGiB);
  expect_room(4 * kGiB, 3 * kGiB);
  EXPECT_EQ(room().most.reason, "memory.max 4 GiB of cgroup /a/b");
  EXPECT_EQ(room().now.reason, "memory.max 4 GiB - 1 GiB in use, of cgroup /a/b");
}

TEST_F(MemoryCheck, WhereTheKernelHoldsUpWhoTakesMoreIsALimit) {
  root_.write("proc/self/cgroup", "0::/a\n");
  group("/a", 4 * kGiB, kGiB);
  root_.write("sys/fs/cgroup/a/memory.high", std::to_string((2 * kGiB).value));
  expect_room(2 * kGiB, kGiB);
  EXPECT_THAT(room().now.reason, StartsWith("memory.high 2 GiB"));
}

TEST_F(MemoryCheck, AnAncestorsLimitBinds) {
  root_.write("proc/self/cgroup", "0::/a/b/c\n");
  group("/a/b/c", 8 * kGiB, kGiB);
  root_.write("sys/fs/cgroup/a/b/memory.max", "max\n");
  root_.write("sys/fs/cgroup/a/b/memory.current", "1\n");
  group("/a", 6 * kGiB, 5 * kGiB);
  expect_room(6 * kGiB, kGiB);
  EXPECT_THAT(room().now.reason, EndsWith("of cgroup /a"));
}

TEST_F(MemoryCheck, InAContainerTheRootFolderIsItsGroup) {
  root_.write("proc/self/cgroup", "0::/\n");
  group("", 2 * kGiB, kGiB);
  expect_room(2 * kGiB, kGiB);
}

TEST_F(MemoryCheck, APathOutsideTheContainerStillFindsItsRoot) {
  root_.write("proc/self/cgroup", "0::/docker/0123\n");
  group("", 2 * kGiB, kGiB);
  expect_room(2 * kGiB, kGiB);
}

TEST_F(MemoryCheck, UnlimitedAndLargerGroupsDoNotBind) {
  root_.write("proc/self/cgroup", "0::/a\n");
  root_.write("sys/fs/cgroup/a/memory.max", "max\n");
  root_.write("sys/fs/cgroup/a/memory.current", "123\n");
  expect_room(19 * kGiB, 9 * kGiB);
  group("/a", 64 * kGiB, kGiB);
  expect_room(19 * kGiB, 9 * kGiB);
}

TEST_F(MemoryCheck, IdlePageCacheCountsAsFree) {
  root_.write("proc/self/cgroup", "0::/a\n");
  group("/a", 4 * kGiB, 3 * kGiB);
  root_.write("sys/fs/cgroup/a/memory.stat",
              "anon 5\nactive_file 7\ninactive_file " + std::to_string(kGiB.value) + "\n");
  expect_room(4 * kGiB, 2 * kGiB);
}

TEST_F(MemoryCheck, VersionOneIsUnderstood) {
  root_.write("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/x/y\n0::/\n");
  const std::string folder = "sys/fs/cgroup/memory/x";
  root_.write(folder + "/y/memory.limit_in_bytes", "9223372036854771712\n");
  root_.write(folder + "/y/memory.usage_in_bytes", "4096\n");
  root_.write(folder + "/memory.limit_in_bytes", std::to_string((2 * kGiB).value));
  root_.write(folder + "/memory.usage_in_bytes", std::to_string(kGiB.value));
  expect_room(2 * kGiB, kGiB);
}

TEST_F(MemoryCheck, OverfullIsNoRoomAtAll) {
  root_.write("proc/self/cgroup", "0::/a\n");
  group("/a", kGiB, 2 * kGiB);
  expect_room(kGiB, Bytes(0));
}

TEST_F(MemoryCheck, AReserveBeyondWhatIsThereIsNoRoomAtAll) {
  EXPECT_EQ(memory_room(64 * kGiB, root_.path())->most.bytes, Bytes(0));
}

TEST_F(MemoryCheck, ASlabLeavesWhatKvdItselfIsGoingToNeed) {
  const Bytes beside = kept_free(Bytes(0)) + page_overhead(kGiB);
  root_.write("proc/self/cgroup", "0::/a\n");
  group("/a", 4 * kGiB + beside, 3 * kGiB);
  EXPECT_TRUE(take(kGiB).ok());
  EXPECT_THAT(
      take(kGiB + kMiB).error().message,
      AllOf(HasSubstr("in use"), HasSubstr("of cgroup /a"), HasSubstr("kvd itself needs ")));
}

TEST_F(MemoryCheck, WhatKvdHasTakenOfItsOwnIsNotKeptForItTwice) {
  root_.write("proc/self/status", "VmRSS:  500 kB\nRssAnon:  102400 kB\n");
  root_.write("proc/self/cgroup", "0::/a\n");
  group("/a", 4 * kGiB + kept_free(kMiB * 100) + page_overhead(kGiB), 3 * kGiB);
  EXPECT_TRUE(take(kGiB).ok());
  EXPECT_EQ(take(kGiB + kMiB).code(), ErrorCode::kOutOfMemory);
  EXPECT_EQ(kept_free(64 * kGiB), Bytes(0));
}

TEST_F(MemoryCheck, WithoutProcItSaysSo) {
  const test::WrittenFolder empty;
  const auto refused = memory_room(kGiB, empty.path());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(refused.error().message, HasSubstr("mount /proc"));
  EXPECT_EQ(memory_gate(kGiB, empty.path())(kMiB).code(), ErrorCode::kUnavailable);
}

TEST_F(MemoryCheck, ThisMachineAnswers) {
  EXPECT_TRUE(memory_gate(Bytes(0))(kMiB).ok());
  EXPECT_EQ(memory_gate(Bytes(0))(kGiB * 1024 * 1024).code(), ErrorCode::kOutOfMemory);
}

// 4.2 MiB a GiB were measured of 4 KiB pages, so the unit's limit has to grow with the pools.
TEST(Needs, WhatIsBesideGrowsWithThePools) {
  Config config;
  config.backend = BackendChoice::kHost;
  config.hbm = 8 * kGiB;
  config.dram = 8 * kGiB;
  const Bytes small = memory_beside(config);
  EXPECT_GE(small, core::kKeptForEngines + page_overhead(16 * kGiB));
  config.hbm = 1024 * kGiB;
  EXPECT_GE(memory_beside(config) - small, kKiB * 4300 * 1016);
  EXPECT_EQ(memory_at_most(config), 1032 * kGiB + memory_beside(config));
  config.backend = BackendChoice::kCuda;
  EXPECT_EQ(host_pools(config), 8 * kGiB);
  EXPECT_GE(memory_beside(config), 2 * kGiB) << "the driver's";
}

TEST(Needs, EverySlabAndEveryEngineTakesDescriptors) {
  Config config;
  config.hbm = 64 * kMiB;
  config.dram = 128 * kMiB;
  config.slab = 2 * kMiB;
  config.max_engines = 16;
  const std::uint64_t needed = descriptors_needed(config);
  config.max_engines = 17;
  EXPECT_GT(descriptors_needed(config), needed);
  config.slab = 4 * kMiB;
  EXPECT_LT(descriptors_needed(config), needed - 40);
  EXPECT_TRUE(check_descriptors(config, descriptors_needed(config)).ok());
  const Status refused = check_descriptors(config, 100);
  EXPECT_THAT(refused.error().message,
              AllOf(HasSubstr("needs " + std::to_string(descriptors_needed(config))),
                    HasSubstr("limit is 100"), HasSubstr("LimitNOFILE"), HasSubstr("pool.slab")));
}

}  // namespace
}  // namespace kvd::daemon
