#include "ipc/shm/client_page.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

namespace kvd::shm {
namespace {

constexpr Bytes kPage{kClientPageBytes};

struct Pair {
  ServedClientPage served;
  MappedClientPage mapped;
};

Pair make_pair() {
  auto served = ServedClientPage::create();
  EXPECT_TRUE(served.ok());
  auto mapped = MappedClientPage::map(served->fd(), kPage);
  EXPECT_TRUE(mapped.ok());
  return {std::move(served).value(), std::move(mapped).value()};
}

/// Sleeps until the word differs from `seen`; false after ten seconds.
bool wait_for_change(const KeeperWord& word, KeeperWord::View seen) {
  const timespec limit{10, 0};
  while (std::atomic_ref(*word.address()).load() == seen.value) {
    if (syscall(SYS_futex, word.address(), FUTEX_WAIT, seen.value, &limit, nullptr, 0) != 0 &&
        errno == ETIMEDOUT) {
      return false;
    }
  }
  return true;
}

TEST(ClientPage, StartsAtZero) {
  const auto page = ServedClientPage::create();
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(page->heartbeat(), 0u);
  EXPECT_FALSE(page->using_version());
  EXPECT_EQ(page->iteration_finished(), 0u);
  EXPECT_FALSE(page->poisoned());
}

TEST(ClientPage, BothSidesSeeEachOthersWords) {
  Pair sut = make_pair();
  sut.mapped.page().heartbeat = 3;
  sut.mapped.page().using_version = 4;
  sut.mapped.page().iteration_finished = 5;
  sut.served.fence_h2d() = 6;
  sut.served.fence_d2h() = 7;
  EXPECT_EQ(sut.served.heartbeat(), 3u);
  EXPECT_EQ(sut.served.using_version(), PlanVersion(4));
  EXPECT_EQ(sut.served.iteration_finished(), 5u);
  EXPECT_EQ(sut.mapped.page().fence_h2d, 6u);
  EXPECT_EQ(sut.mapped.page().fence_d2h, 7u);
}

TEST(ClientPage, PoisonIsSeenByTheClient) {
  Pair sut = make_pair();
  sut.served.poison();
  EXPECT_NE(sut.mapped.page().poison, 0u);
  EXPECT_TRUE(sut.served.poisoned());
}

TEST(ClientPage, ForeignMemoryIsRefused) {
  const auto memfd = create_memfd("no-page", kPage);
  EXPECT_FALSE(MappedClientPage::map(memfd->get(), kPage).ok());
  const auto page = ServedClientPage::create();
  EXPECT_FALSE(MappedClientPage::map(page->fd(), Bytes(64)).ok());
}

TEST(KeeperWord, TellsWhetherSomebodyHoldsIt) {
  Pair sut = make_pair();
  ASSERT_TRUE(sut.mapped.init_keeper().ok());
  EXPECT_FALSE(KeeperWord(&sut.mapped.page().keeper).arm().held());
  ASSERT_TRUE(sut.mapped.init_keeper().ok());  // arming a free mutex makes glibc wait for nobody
  pthread_mutex_lock(&sut.mapped.page().keeper);
  const auto view = sut.served.keeper().arm();
  EXPECT_TRUE(view.held());
  EXPECT_FALSE(view.owner_died());
  EXPECT_EQ(view.value & FUTEX_TID_MASK, static_cast<std::uint32_t>(gettid()));
  pthread_mutex_unlock(&sut.mapped.page().keeper);
}

/// Holds the keeper mutex in a child until it is killed, and says so through a pipe.
pid_t child_holding(Pair& pair, int ready) {
  const int fd = pair.served.fd();
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto page = MappedClientPage::map(fd, kPage);
  if (!page.ok() || !page->init_keeper().ok()) _exit(1);
  pthread_mutex_lock(&page->page().keeper);
  if (write(ready, "x", 1) != 1) _exit(1);
  while (true) pause();
}

TEST(KeeperWord, WakesTheDaemonWhenTheHolderIsKilled) {
  Pair sut = make_pair();
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = child_holding(sut, ready[1]);
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  const KeeperWord word = sut.served.keeper();
  const auto before = word.arm();
  ASSERT_TRUE(before.held());
  std::thread killer([&] { kill(child, SIGKILL); });
  EXPECT_TRUE(wait_for_change(word, before));
  EXPECT_TRUE(word.arm().owner_died());
  killer.join();
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
}

TEST(KeeperWord, HostileBytesAreOnlyRead) {
  Pair sut = make_pair();
  std::memset(static_cast<void*>(&sut.mapped.page().keeper), 0xff, sizeof(pthread_mutex_t));
  const auto view = sut.served.keeper().arm();
  EXPECT_TRUE(view.owner_died());
  std::memset(static_cast<void*>(&sut.mapped.page().keeper), 0, sizeof(pthread_mutex_t));
  EXPECT_FALSE(sut.served.keeper().arm().owner_died());
}

}  // namespace
}  // namespace kvd::shm
