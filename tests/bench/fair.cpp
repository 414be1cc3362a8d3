// kvd-bench fair: what a step of an engine costs while another domain is at its limits, beside the
// same step while that domain is idle. The daemon is a process, its engines are threads.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "ipc/vocabulary/check.hpp"
#include "kvd_client/client.hpp"
#include "tests/bench/bench.hpp"
#include "tests/support/daemon_process.hpp"

namespace kvd::bench::fair_benchmark {
namespace {

using SteadyTime = std::chrono::steady_clock;

constexpr std::chrono::seconds kTimeout{60};
/// Groups that no system gives away; they need not exist.
constexpr unsigned kGroupA = 60'001, kGroupB = 60'002;
constexpr std::uint64_t kQueued = 1024;  ///< requests an engine may have, by default

/// Of this thread alone: the kernel keeps credentials by thread, and a socket shows its maker's.
bool join_group(unsigned group) {
  return ::syscall(SYS_setresgid, group, group, static_cast<gid_t>(-1)) == 0;
}

/// Takes whatever it is granted for computed, at once. Its requests never end.
class Engine {
 public:
  Engine(const std::string& endpoint, const std::string& name) : client_(open(endpoint, name)) {}

  /// As many requests as kvd takes, up to that many.
  std::uint64_t submit(std::uint64_t most) {
    constexpr std::uint64_t kPrompt = 16, kAnswer = 20'000;
    std::uint64_t taken = 0;
    while (taken < most && client_.submit({taken + 1, kPrompt, kAnswer, {}, {}}, kTimeout).ok()) {
      ++taken;
    }
    return taken;
  }

  void step() {
    const auto step = client_.step(reports_, iteration_, 0, kTimeout);
    KVD_CHECK(step.ok(), step.ok() ? "" : step.error().message.c_str());
    reports_.clear();
    iteration_ = step->iteration;
    for (const kvd_client::RunEntry& entry : step->run) {
      reports_.push_back({entry.request, entry.tokens_present + entry.tokens, false});
    }
  }

 private:
  static kvd_client::Client open(const std::string& endpoint, const std::string& name) {
    kvd_client::Options options;
    options.endpoint = endpoint;
    options.engine_name = name;
    options.shape = {1, 1, 16, 256};  // slots of 4 KiB, the smallest there are
    auto client = kvd_client::Client::open(options);
    KVD_CHECK(client.ok(), client.ok() ? "" : client.error().message.c_str());
    return std::move(*client);
  }

  kvd_client::Client client_;
  std::vector<kvd_client::StepReport> reports_;
  std::uint64_t iteration_ = 0;
};

/// The domain at its limits: engines with full queues that step as fast as they are answered.
class Crowd {
 public:
  Crowd(const std::string& endpoint, int engines) {
    for (int i = 0; i < engines; ++i) {
      threads_.emplace_back([this, &endpoint, i] { serve(endpoint, "a" + std::to_string(i)); });
    }
    while (ready_ < engines) std::this_thread::yield();
  }
  ~Crowd() {
    stop_ = true;
    run(true);
    for (std::thread& thread : threads_) thread.join();
  }
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;

  void run(bool on) {
    runs_ = on;
    runs_.notify_all();
  }
  [[nodiscard]] std::uint64_t queued() const { return queued_; }

 private:
  void serve(const std::string& endpoint, const std::string& name) {
    KVD_CHECK(join_group(kGroupA), "two domains need two groups: run it as root");
    std::optional<Engine> engine;
    {
      const std::lock_guard lock(one_by_one_);
      engine.emplace(endpoint, name);
    }
    queued_ += engine->submit(kQueued);
    ++ready_;
    while (!stop_) {
      runs_.wait(false);
      if (!stop_) engine->step();
    }
  }

  std::mutex one_by_one_;  ///< attaching: kvd takes few newcomers of a user at a time
  std::atomic<bool> runs_ = false, stop_ = false;
  std::atomic<int> ready_ = 0;
  std::atomic<std::uint64_t> queued_ = 0;
  std::vector<std::thread> threads_;
};

std::vector<double> steps_ms(Engine& engine, int count) {
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    const auto start = SteadyTime::now();
    engine.step();
    times.push_back(std::chrono::duration<double, std::milli>(SteadyTime::now() - start).count());
  }
  return times;
}

double p99(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() * 99 / 100];
}

std::string two_domains() {
  const auto domain = [](const char* name, unsigned group) {
    return std::string("[[domain]]\nname = \"") + name + "\"\ngids = [" + std::to_string(group) +
           "]\nhbm_guarantee = \"64MiB\"\n";
  };
  return domain("a", kGroupA) + domain("b", kGroupB);
}

int run(const Arguments& arguments) {
  const int rounds = std::max(1, static_cast<int>(arguments.number("--repetitions", 9)));
  const int engines = std::max(1, static_cast<int>(arguments.number("--engines", 31)));
  const int steps = std::max(1, static_cast<int>(arguments.number("--steps", 100)));
  const test::RuntimeFolder folder;
  test::KvdSettings settings;
  settings.hbm = "256MiB";
  settings.dram = "256MiB";
  settings.extra = two_domains();
  const test::KvdProcess kvd(folder, settings);
  KVD_CHECK(kvd.wait_ready(), "kvd does not start");
  Crowd crowd(kvd.endpoint(), engines);
  KVD_CHECK(join_group(kGroupB), "two domains need two groups: run it as root");
  Engine other(kvd.endpoint(), "b");
  KVD_CHECK(other.submit(1) == 1, "its request is taken");
  (void)steps_ms(other, steps);
  std::vector<double> loaded, idle;
  for (int i = 0; i < rounds; ++i) {
    crowd.run(false);
    for (const double ms : steps_ms(other, steps)) idle.push_back(ms);
    crowd.run(true);
    for (const double ms : steps_ms(other, steps)) loaded.push_back(ms);
  }
  std::fprintf(stderr, "the other domain: %d engines, %llu requests\n", engines,
               static_cast<unsigned long long>(crowd.queued()));
  const double value = p99(loaded), floor = p99(idle), middle = median(loaded);
  const double middle_idle = median(idle);
  return print_rows({{"other_domain_p99", value, floor, value / floor, "ms"},
                     {"other_domain_p50", middle, middle_idle, middle / middle_idle, "ms"}},
                    arguments.json);
}

const Registration registration{
    {"fair",
     "a step while another domain is at its limits; --engines N, --steps N, --repetitions N", run}};

}  // namespace
}  // namespace kvd::bench::fair_benchmark
