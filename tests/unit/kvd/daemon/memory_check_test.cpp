#include "kvd/daemon/memory_check.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/kvd/daemon/config_fixture.hpp"

namespace kvd::daemon {
namespace {
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

/// A machine of files: 10 GiB available, no control groups until a test adds some.
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
  /// The most that passes, to the byte: one byte more must not.
  void expect_room(Bytes room) {
    const Status all = check(room);
    EXPECT_TRUE(all.ok()) << all.error().message;
    EXPECT_EQ(check(room + Bytes(1)).code(), ErrorCode::kOutOfMemory);
  }
  Status check(Bytes wanted) { return check_memory(wanted, kGiB, root_.root()); }

  TemporaryFolder root_;
};

TEST_F(MemoryCheck, WithoutGroupsTheMachineDecides) {
  expect_room(9 * kGiB);
  const Status refused = check(4096 * kGiB);
  EXPECT_EQ(refused.error().message,
            "pool.hbm + pool.dram: 4 TiB exceeds what this machine can give (9 GiB: MemAvailable "
            "10 GiB - pool.reserve 1 GiB); lower pool.hbm + pool.dram");
}

TEST_F(MemoryCheck, TheGroupsOwnLimitBinds) {
  root_.write("proc/self/cgroup", "0::/a/b\n");
  group("/a/b", 4 * kGiB, kGiB);
  expect_room(3 * kGiB);
  EXPECT_THAT(check(4 * kGiB).error().message,
              AllOf(HasSubstr("3 GiB: memory.max 4 GiB - 1 GiB in use, of cgroup /a/b)"),
                    HasSubstr("lower pool.hbm")));
}

TEST_F(MemoryCheck, AnAncestorsLimitBinds) {
  root_.write("proc/self/cgroup", "0::/a/b/c\n");
  group("/a/b/c", 8 * kGiB, kGiB);
  root_.write("sys/fs/cgroup/a/b/memory.max", "max\n");
  root_.write("sys/fs/cgroup/a/b/memory.current", "1\n");
  group("/a", 6 * kGiB, 5 * kGiB);
  expect_room(kGiB);
  EXPECT_THAT(check(2 * kGiB).error().message, HasSubstr("of cgroup /a)"));
}

TEST_F(MemoryCheck, InAContainerTheRootFolderIsItsGroup) {
  root_.write("proc/self/cgroup", "0::/\n");
  group("", 2 * kGiB, kGiB);
  expect_room(kGiB);
}

TEST_F(MemoryCheck, APathOutsideTheContainerStillFindsItsRoot) {
  root_.write("proc/self/cgroup", "0::/docker/0123\n");
  group("", 2 * kGiB, kGiB);
  expect_room(kGiB);
}

TEST_F(MemoryCheck, UnlimitedAndLargerGroupsDoNotBind) {
  root_.write("proc/self/cgroup", "0::/a\n");
  root_.write("sys/fs/cgroup/a/memory.max", "max\n");
  root_.write("sys/fs/cgroup/a/memory.current", "123\n");
  expect_room(9 * kGiB);
  group("/a", 64 * kGiB, kGiB);
  expect_room(9 * kGiB);
}

TEST_F(MemoryCheck, IdlePageCacheCountsAsFree) {
  root_.write("proc/self/cgroup", "0::/a\n");
  group("/a", 4 * kGiB, 3 * kGiB);
  root_.write("sys/fs/cgroup/a/memory.stat",
              "anon 5\nactive_file 7\ninactive_file " + std::to_string(kGiB.value) + "\n");
  expect_room(2 * kGiB);
}

TEST_F(MemoryCheck, VersionOneIsUnderstood) {
  root_.write("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/x/y\n0::/\n");
  const std::string folder = "sys/fs/cgroup/memory/x";
  root_.write(folder + "/y/memory.limit_in_bytes", "9223372036854771712\n");
  root_.write(folder + "/y/memory.usage_in_bytes", "4096\n");
  root_.write(folder + "/memory.limit_in_bytes", std::to_string((2 * kGiB).value));
  root_.write(folder + "/memory.usage_in_bytes", std::to_string(kGiB.value));
  expect_room(kGiB);
}

TEST_F(MemoryCheck, OverfullIsNoRoomAtAll) {
  root_.write("proc/self/cgroup", "0::/a\n");
  group("/a", kGiB, 2 * kGiB);
  expect_room(Bytes(0));
}

TEST_F(MemoryCheck, AReserveBeyondWhatIsThereIsNoRoomAtAll) {
  EXPECT_TRUE(check_memory(Bytes(0), 64 * kGiB, root_.root()).ok());
  EXPECT_FALSE(check_memory(Bytes(1), 64 * kGiB, root_.root()).ok());
  EXPECT_THAT(check_memory(Bytes(1), 64 * kGiB, root_.root(), "pool.dram").error().message,
              AllOf(StartsWith("pool.dram: "), EndsWith("lower pool.dram")));
}

TEST_F(MemoryCheck, WithoutProcItSaysSo) {
  const TemporaryFolder empty;
  const Status refused = check_memory(kGiB, kGiB, empty.root());
  EXPECT_EQ(refused.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(refused.error().message, HasSubstr("mount /proc"));
}

TEST_F(MemoryCheck, ThisMachineAnswers) {
  EXPECT_TRUE(check_memory(kMiB, Bytes(0)).ok());
  EXPECT_EQ(check_memory(kGiB * 1024 * 1024, Bytes(0)).code(), ErrorCode::kOutOfMemory);
}

}  // namespace
}  // namespace kvd::daemon
