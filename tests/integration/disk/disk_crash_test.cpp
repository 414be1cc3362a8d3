// Processes that die, and processes that may not use io_uring: each is a child of its own.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cstddef>
#include <fstream>
#include <functional>

#include "tests/integration/disk/disk_world.hpp"

namespace kvd::disk {
namespace {

/// A child that runs `work`. Forked while this process has one thread, and never returns to gtest.
class Child {
 public:
  explicit Child(const std::function<int(int)>& work) {
    int ends[2];
    KVD_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "a pipe is made");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::_exit(work(ends[1]));
    }
    ::close(ends[1]);
    line_ = UniqueFd(ends[0]);
  }
  ~Child() {
    if (pid_ > 0) kill();
  }
  /// The next bytes that it wrote; false at its end.
  bool read(void* memory, std::size_t size) const {
    pollfd event{line_.get(), POLLIN, 0};
    KVD_CHECK(::poll(&event, 1, 30000) == 1, "the child says something");
    return ::read(line_.get(), memory, size) == static_cast<ssize_t>(size);
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  }
  int exit_status() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
  UniqueFd line_;
};

/// What a child tells of a store that was acknowledged.
struct Acknowledged {
  std::uint32_t slot;
  std::uint64_t generation, seed;
};

class DiskCrash : public ::testing::TestWithParam<Way> {
 protected:
  DiskWorld world_{GetParam()};
};

TEST_P(DiskCrash, AProcessHasTheFolderUntilItDies) {
  Child child([&](int line) {
    world_.open();
    const char ready = 'r';
    if (::write(line, &ready, 1) != 1) return 1;
    ::pause();
    return 0;
  });
  char ready = 0;
  ASSERT_TRUE(child.read(&ready, 1));
  EXPECT_EQ(world_.try_open(), ErrorCode::kWouldBlock);
  child.kill();
  EXPECT_EQ(world_.try_open(), ErrorCode::kOk) << world_.message();
}

/// Stores again and again until it is killed, and reports each acknowledged store.
int store_for_ever(DiskWorld& world, int line, std::uint64_t first_seed) {
  if (world.try_open() != ErrorCode::kOk) return 1;
  for (std::uint64_t seed = first_seed;; ++seed) {
    const std::uint32_t slot = static_cast<std::uint32_t>(seed * 7) % world.tier().slots();
    const SlotGeneration generation = world.store(DiskSlot(slot), seed);
    const Acknowledged told{slot, generation.value, seed};
    if (::write(line, &told, sizeof told) != sizeof told) return 1;
  }
}

TEST_P(DiskCrash, AKillLosesNoBlockThatWasAcknowledged) {
  const std::uint64_t seed = random_seed();
  SCOPED_TRACE("KVD_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::map<std::uint32_t, Acknowledged> last;
  std::uint64_t next = 1;
  for (int kill = 0; kill < 20; ++kill) {
    Child child([&](int line) { return store_for_ever(world_, line, next); });
    Acknowledged told{};
    for (std::uint64_t n = 1 + random() % 40; n > 0 && child.read(&told, sizeof told); --n) {
      last[told.slot] = told;
      next = told.seed + 1;
    }
    child.kill();
    while (child.read(&told, sizeof told)) {
      last[told.slot] = told;
      next = told.seed + 1;
    }
    ++next;  // the one that was perhaps under way
    world_.open();
    const std::uint32_t torn = static_cast<std::uint32_t>((next - 1) * 7) % world_.tier().slots();
    for (const auto& [slot, block] : last) {
      const Fault fault = world_.load(DiskSlot(slot), SlotGeneration(block.generation), block.seed);
      EXPECT_TRUE(fault == Fault::kNone || slot == torn) << "slot " << slot << ": " << name(fault);
    }
    last.erase(torn);
    world_.close();
  }
}

INSTANTIATE_TEST_SUITE_P(Way, DiskCrash, kWays, name_of_way);

/// As container runtimes do it.
bool forbid_io_uring() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(program), program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(DiskForbidden, IoUringIsDoneWithoutAndTheStatusSaysSo) {
  DiskWorld world(kRingDirect);
  Child child([&](int) {
    if (!forbid_io_uring()) return 77;
    if (world.try_open() != ErrorCode::kOk) return 2;
    const DiskStatus status = world.tier().status();
    if (status.io != "threads") return 3;
    if (status.io_reason.find("Operation not permitted") == std::string::npos) return 4;
    const SlotGeneration generation = world.store(DiskSlot(0), 1);
    return world.load(DiskSlot(0), generation, 1) == Fault::kNone ? 0 : 5;
  });
  const int status = child.exit_status();
  if (status == 77) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace kvd::disk
