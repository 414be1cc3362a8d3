// kvd-bench crash: how soon the daemon knows of an engine's death, whatever that engine had mapped,
// and how soon its memory can be used again.
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "kvd/daemon/sessions/liveness.hpp"
#include "tests/engines/child_process.hpp"
#include "tests/lab/bench/bench.hpp"
#include "tests/support/daemon_thread.hpp"

namespace kvd::bench::crash_benchmark {
namespace {

constexpr Bytes kSmall = kMiB;
constexpr Bytes kRegion = kMiB * 256;

double since(TimePoint start, TimePoint end) { return to_seconds(end - start) * 1e6; }

void wait_for_end(int pidfd) {
  pollfd gone{pidfd, POLLIN, 0};
  KVD_CHECK(::poll(&gone, 1, 60'000) == 1, "a killed process does not end");
}

UniqueFd pidfd_of(pid_t pid) {
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  KVD_CHECK(pidfd.valid(), "no pidfd");
  return pidfd;
}

// The engine: it has small pages, touches all of them, and holds the keeper mutex of its page until
// it dies.
[[noreturn]] void be_victim(int page_fd, Bytes bytes, int ready) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto page = shm::MappedClientPage::map(page_fd, Bytes(shm::kClientPageBytes));
  if (!page.ok() || !page->init_keeper().ok()) ::_exit(1);
  ::pthread_mutex_lock(&page->page().keeper);
  void* memory =
      ::mmap(nullptr, bytes.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) ::_exit(1);
  ::madvise(memory, bytes.size(), MADV_NOHUGEPAGE);
  for (std::size_t at = 0; at < bytes.size(); at += 4096)
    static_cast<volatile char*>(memory)[at] = 1;
  if (::write(ready, "r", 1) != 1) ::_exit(1);
  for (;;) ::pause();
}

struct Death {
  double notice_us = 0;  // kill until the watcher says so
  double pidfd_us = 0;   // kill until the kernel says that the process is gone
};

class Morgue {
 public:
  Death kill_one(Bytes mapped) {
    auto made = shm::ServedClientPage::create();
    KVD_CHECK(made.ok(), "a client page");
    const auto page = std::make_shared<shm::ServedClientPage>(std::move(*made));
    const pid_t victim = start_victim(page->fd(), mapped);
    const UniqueFd pidfd = pidfd_of(victim);
    noticed_ = 0;
    KVD_CHECK(liveness_.watch(EngineId(1), page).ok(), "watch");
    const std::atomic_ref<std::uint32_t> word(*page->keeper().address());
    while ((word & FUTEX_WAITERS) == 0) std::this_thread::yield();

    const TimePoint start = clock_.now();
    ::kill(victim, SIGKILL);
    wait_for_end(pidfd.get());
    const TimePoint gone = clock_.now();
    while (noticed_ == 0) std::this_thread::yield();
    ::waitpid(victim, nullptr, 0);
    return {since(start, TimePoint(noticed_)), since(start, gone)};
  }

 private:
  static pid_t start_victim(int page_fd, Bytes mapped) {
    std::array<int, 2> ends{};
    KVD_CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0, "a pipe");
    const UniqueFd reader(ends[0]);
    UniqueFd writer(ends[1]);
    const pid_t victim = ::fork();
    KVD_CHECK(victim >= 0, "fork");
    if (victim == 0) be_victim(page_fd, mapped, writer.get());
    writer.reset();
    char byte = 0;
    KVD_CHECK(::read(reader.get(), &byte, 1) == 1, "no memory for the engine that is to die");
    return victim;
  }

  SteadyClock clock_;
  std::atomic<std::int64_t> noticed_ = 0;
  daemon::Liveness liveness_{[this](EngineId) { noticed_ = clock_.now().count(); }};
};

std::vector<Row> notice_rows(int repetitions, Bytes large) {
  Morgue morgue;
  std::vector<double> small, big, pidfd;
  for (int i = 0; i < repetitions; ++i) {
    small.push_back(morgue.kill_one(kSmall).notice_us);
    const Death death = morgue.kill_one(large);
    big.push_back(death.notice_us);
    pidfd.push_back(death.pidfd_us);
  }
  const double s = median(small), b = median(big), p = median(pidfd);
  return {{"notice_size", b, s, b / s, "us"}, {"notice_pidfd", b, p, b / p, "us"}};
}

double memset_us(void* memory, std::size_t bytes) {
  const SteadyClock clock;
  std::memset(memory, 0x5A, bytes);  // a host may treat zeros over zeros specially
  const TimePoint start = clock.now();
  std::memset(memory, 0, bytes);
  asm volatile("" : : "r"(memory) : "memory");
  return since(start, clock.now());
}

/// When the daemon last had a dead engine's memory back, by its own report.
TimePoint returned_at(test::DaemonThread& daemon) {
  TimePoint at{0};
  const auto snapshot = daemon.daemon().snapshot(std::chrono::seconds(10));
  KVD_CHECK(snapshot.ok(), "the control thread does not answer");
  for (const admin::Happening& one : snapshot->happenings) {
    if (one.text.find("zeroed and free") != std::string::npos) at = one.at;
  }
  return at;
}

// The time from the kill until every byte of the engine's region is zeroed and free again.
Row reclaim_row(int repetitions) {
  test::DaemonThread daemon([](daemon::Config& config) {
    config.hbm = kRegion;
    config.slab = kMiB * 64;
    config.dram = kMiB * 64;
  });
  const SteadyClock clock;
  std::vector<std::byte> memory(kRegion.size(), std::byte{1});
  const std::string engine =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "kvd-test-engine";
  std::vector<double> values, floors;
  for (int i = 0; i < repetitions; ++i) {
    const double zeroing = memset_us(memory.data(), memory.size());
    test::ChildProcess victim({{engine, "hold", daemon.endpoint(), "256", "0"}, {}});
    KVD_CHECK(victim.wait_for_line("ready").has_value(), "kvd-test-engine does not run");
    const UniqueFd pidfd = pidfd_of(victim.pid());
    TimePoint gone{0};
    const TimePoint start = clock.now();
    victim.signal(SIGKILL);
    std::thread watcher([&] {
      wait_for_end(pidfd.get());
      gone = clock.now();
    });
    // Free bytes alone would include slabs that are still being zeroed.
    KVD_CHECK(daemon.wait_all_free(), "the memory does not come back");
    values.push_back(since(start, returned_at(daemon)));
    watcher.join();
    floors.push_back(since(start, gone) + zeroing);
  }
  const double v = median(values), f = median(floors);
  return {"reclaim", v, f, v / f, "us"};
}

int run(const Arguments& arguments) {
  const auto repetitions = static_cast<int>(std::max(1.0, arguments.number("--repetitions", 9)));
  const auto mib = static_cast<std::int64_t>(std::max(1.0, arguments.number("--mib", 2048)));
  std::vector<Row> rows = notice_rows(repetitions, kMiB * mib);
  rows.push_back(reclaim_row(repetitions));
  return print_rows(rows, arguments.json);
}

const Registration registration{
    {"crash", "an engine's death [--repetitions N] [--mib touched by the large engine]", run}};

}  // namespace
}  // namespace kvd::bench::crash_benchmark
