// kvd-bench neighbours: what an engine notices of three hostile users that do all they may at once.
// The daemon is a process; its engines are threads, each in a group and so a domain of its own.
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ipc/vocabulary/check.hpp"
#include "kvd_client/client.hpp"
#include "tests/lab/bench/bench.hpp"
#include "tests/lab/bench/floors/raw_ring.hpp"
#include "tests/support/daemon_process.hpp"

namespace kvd::bench::neighbours_benchmark {
namespace {

constexpr const char* kNeighboursHelp = R"(usage: kvd-bench neighbours [--json] [--seconds N]

An honest engine beside three users who do all they may, each in a domain of its own: loads of whole
regions, stores and drops of 4,096 blocks, full queues that step without a pause, names, caches of
ever other shapes and models, untrue demands for memory, and plain GETs of all that the admin
interface shows, without a pause. They work for four fifths of the time, in turn with quiet. As root,
since domains need groups.

kvd shares out its own time, not the machine's. So their 15 threads and the one that asks run at the
lowest priority (--nice 0: at that of the engine, as programs that fill all cores do), and
other_wake_p99 is what the same load does to two threads without kvd that wake each other.

  other_load_p99    ms for a load of 64 KiB; floor: in the quiet      limit: 5 x floor, or 20 ms
  other_step_p99    ms for a step; floor: in the quiet                limit: 2 x floor, or 20 ms
  other_rows_kept   of the blocks that the engine has cached; floor: all of them  limit: all
  other_wake_p99    ms for a 64-byte round trip between two plain threads; floor: in the quiet
  anon_bytes        MiB of kvd's own memory at its most
                    floor: what kvd --print-unit leaves beside the pools          limit: that

  --seconds N   60
  --nice N      19, of the hostile threads
Ends with 1 where a limit is exceeded.
)";

using SteadyTime = std::chrono::steady_clock;
using Client = kvd_client::Client;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kTimeout{60};
/// Groups that no system assigns; they need not exist.
constexpr unsigned kHonest = 60'000;
constexpr unsigned kHostile[] = {60'001, 60'002, 60'003};
constexpr std::uint64_t kBlock = 64 << 10;
constexpr std::uint32_t kRows = 32;

/// Changes only this thread: the kernel keeps credentials for each thread, and a socket shows those
/// of its maker.
void join_group(unsigned group) {
  const bool joined = ::syscall(SYS_setresgid, group, group, static_cast<gid_t>(-1)) == 0;
  KVD_CHECK(joined, "domains need groups: run it as root");
}

kvd_client::Digest digest(std::uint64_t number) {
  kvd_client::Digest made{};
  std::memcpy(made.data(), &number, sizeof number);
  return made;
}

std::vector<kvd_client::Digest> digests(std::uint64_t first, std::size_t count) {
  std::vector<kvd_client::Digest> made;
  for (std::size_t i = 0; i < count; ++i) made.push_back(digest(first + i));
  return made;
}

std::vector<std::uint32_t> blocks(std::size_t count) {
  std::vector<std::uint32_t> made(count);
  std::iota(made.begin(), made.end(), 0);
  return made;
}

/// None: the session was refused.
std::optional<Client> open(const std::string& endpoint, const char* name,
                           kvd_client::ModelShape shape = {}) {
  static std::mutex one_by_one;  // kvd accepts only a few newcomers of a user at a time
  const std::lock_guard lock(one_by_one);
  kvd_client::Options options;
  options.endpoint = endpoint;
  options.engine_name = name;
  options.shape = shape;
  options.model = "m";
  auto client = Client::open(options);
  if (!client.ok()) return std::nullopt;
  return std::move(*client);
}

std::optional<std::uint64_t> open_cache(Client& client, std::uint64_t region_bytes,
                                        std::uint64_t block, std::uint64_t pieces) {
  const auto region = client.allocate_region(region_bytes, kTimeout);
  if (!region.ok()) return std::nullopt;
  kvd_client::CacheOptions options;
  options.model = "m";
  options.block_tokens = 16;
  options.block_bytes = block;
  options.region_id = region->id;
  options.blocks = region_bytes / block;
  for (std::uint64_t i = 0; i < pieces; ++i) {
    options.pieces.push_back({i * (region_bytes / pieces), block / pieces, block / pieces});
  }
  const auto cache = client.caches().open(options, kTimeout);
  return cache.ok() ? std::optional(*cache) : std::nullopt;
}

/// Says when the hostile users work.
struct Gate {
  std::atomic<bool> open = false, closed_for_good = false;
  /// False: the run is over.
  [[nodiscard]] bool pass() const {
    if (!closed_for_good) open.wait(false);
    return !closed_for_good;
  }
  void set(bool on) {
    open = on;
    open.notify_all();
  }
};

// ---- what a hostile user does; each returns when its session has ended ----

void load_regions(const std::string& endpoint, const Gate& gate) {
  constexpr std::uint64_t kRegion = 32 << 20;
  auto client = open(endpoint, "loads");
  if (!client) return;
  const auto cache = open_cache(*client, kRegion, kBlock, 16);
  if (!cache) return;
  std::vector<std::uint64_t> open_tickets(1);
  const auto one = digests(1, 1);
  (void)client->caches().store(*cache, one, blocks(1), false, kTimeout, open_tickets[0]);
  (void)client->caches().wait(open_tickets, kTimeout);
  const std::vector<kvd_client::Digest> same(kRegion / kBlock, one[0]);
  const auto into = blocks(kRegion / kBlock);
  while (gate.pass()) {
    std::uint64_t ticket = 0;
    if (client->caches().load(*cache, same, into, kTimeout, ticket).ok())
      open_tickets.push_back(ticket);
    const auto states = client->caches().poll(open_tickets);
    std::erase_if(open_tickets, [&](const std::uint64_t& each) {
      const auto at = static_cast<std::size_t>(&each - open_tickets.data());
      return states[at] != kvd_client::TicketState::kPending;
    });
  }
}

void store_and_drop(const std::string& endpoint, const Gate& gate) {
  constexpr std::uint64_t kCount = 4096;
  auto client = open(endpoint, "drops");
  if (!client) return;
  const auto cache = open_cache(*client, kCount * 4096, 4096, 1);
  const auto all = blocks(kCount);
  for (std::uint64_t first = 0; cache && gate.pass(); first += kCount / 2) {
    std::uint64_t ticket = 0;
    const auto named = digests(first, kCount);
    (void)client->caches().store(*cache, named, all, first % 3 == 0, kTimeout, ticket);
    (void)client->caches().drop(*cache, named, kTimeout);
    if (ticket != 0) (void)client->caches().poll({&ticket, 1});
  }
}

void step(const std::string& endpoint, const Gate& gate) {
  auto client = open(endpoint, "steps", {1, 1, 16, 256});
  if (!client) return;
  for (std::uint64_t request = 1; request <= 1024; ++request) {
    if (!client->submit({request, 1024, 20'000, {}, {}, {}}, kTimeout).ok()) break;
    (void)client->name_blocks(request, 0, digests(request * 64, 64), kTimeout);
  }
  std::vector<kvd_client::StepReport> reports;
  std::uint64_t iteration = 0;
  while (gate.pass()) {
    const auto step = client->step(reports, iteration, 0, kTimeout);
    if (!step.ok()) return;
    reports.clear();
    iteration = step->iteration;
    for (const kvd_client::RunEntry& entry : step->run) {
      reports.push_back({entry.request, entry.tokens_present + entry.tokens, false});
    }
  }
}

void open_models(const std::string& endpoint, const Gate& gate) {
  auto client = open(endpoint, "models");
  if (!client) return;
  std::uint64_t number = 0;
  while (gate.pass()) {
    std::vector<std::uint64_t> caches;
    for (int i = 0; i < 16; ++i) {
      kvd_client::CacheOptions options;
      options.model = "made up " + std::to_string(++number);
      options.block_tokens = 16;
      options.block_bytes = 4096 * (1 + number % 500);
      const auto cache = client->caches().open(options, kTimeout);
      if (cache.ok()) caches.push_back(*cache);
    }
    for (const std::uint64_t cache : caches) (void)client->caches().close(cache, kTimeout);
    std::this_thread::sleep_for(milliseconds(1));
  }
}

void demand(const std::string& endpoint, const Gate& gate) {
  auto client = open(endpoint, "demands");
  if (!client) return;
  constexpr std::uint64_t kAll = std::uint64_t{1} << 28;
  const auto space = client->reserve_region(kAll, kTimeout);
  while (space.ok() && gate.pass()) {
    const kvd_client::Demand lie{kAll, kAll, kAll, 1, std::uint64_t{1} << 62};
    (void)client->share_region(space->id, lie, kTimeout);
    std::this_thread::sleep_for(milliseconds(1));
  }
}

/// The three hostile users, and one who asks kvd-admin.
class Hostile {
 public:
  Hostile(const test::KvdProcess& kvd, int nice) {
    constexpr Kind kKinds[] = {load_regions, store_and_drop, step, open_models, demand};
    for (const unsigned group : kHostile) {
      for (const Kind kind : kKinds) start(kind, group, nice, kvd.endpoint());
    }
    threads_.emplace_back([this, nice, &kvd] {
      be_nice(nice);
      while (gate_.pass()) (void)kvd.get("/v1/overview");
    });
  }
  ~Hostile() {
    gate_.closed_for_good = true;
    gate_.set(true);
    for (std::thread& thread : threads_) thread.join();
  }
  Hostile(const Hostile&) = delete;
  Hostile& operator=(const Hostile&) = delete;

  void work(bool on) { gate_.set(on); }

 private:
  using Kind = void (*)(const std::string&, const Gate&);

  void start(Kind kind, unsigned group, int nice, const std::string& endpoint) {
    threads_.emplace_back([=, this] {
      be_nice(nice);
      join_group(group);
      while (gate_.pass()) {
        kind(endpoint, gate_);
        std::this_thread::sleep_for(milliseconds(10));  // a session that has ended
      }
    });
  }
  /// Changes only this thread.
  static void be_nice(int nice) { ::setpriority(PRIO_PROCESS, 0, nice); }

  Gate gate_;
  std::vector<std::thread> threads_;
};

// ---- the honest one ----

struct Times {
  std::vector<double> load, step, wake;
};

class Honest {
 public:
  explicit Honest(const std::string& endpoint)
      : placer_(open(endpoint, "placer")), stepper_(open(endpoint, "stepper", {1, 1, 16, 256})) {
    KVD_CHECK(placer_ && stepper_, "it attaches");
    const auto cache = open_cache(*placer_, 4 << 20, kBlock, 1);
    KVD_CHECK(cache.has_value(), "it has a region");
    cache_ = *cache;
    std::uint64_t ticket = 0;
    KVD_CHECK(placer_->caches().store(cache_, rows_, blocks(kRows), false, kTimeout, ticket).ok(),
              "stored");
    KVD_CHECK(placer_->caches().wait({&ticket, 1}, kTimeout).ok(), "stored");
    KVD_CHECK(stepper_->submit({1, 16, 100'000, {}, {}, {}}, kTimeout).ok(), "submitted");
  }

  void measure(SteadyTime::time_point until, Times& times) {
    while (SteadyTime::now() < until) {
      times.load.push_back(timed([this] { load(); }));
      times.step.push_back(timed([this] { step(); }));
      times.wake.push_back(timed([this] { echo_.round_trip(); }));
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  std::uint64_t rows() {
    const auto found = placer_->caches().lookup(cache_, rows_, kTimeout);
    return found.ok() ? *found : 0;
  }

 private:
  static double timed(const std::function<void()>& work) {
    const auto begin = SteadyTime::now();
    work();
    return std::chrono::duration<double, std::milli>(SteadyTime::now() - begin).count();
  }
  void load() {
    std::uint64_t ticket = 0;
    const std::uint32_t into = 40;
    if (!placer_->caches().load(cache_, {rows_.data(), 1}, {&into, 1}, kTimeout, ticket).ok())
      return;
    (void)placer_->caches().wait({&ticket, 1}, kTimeout);
  }
  void step() {
    const auto step = stepper_->step(reports_, iteration_, 0, kTimeout);
    KVD_CHECK(step.ok(), step.ok() ? "" : step.error().message.c_str());
    reports_.clear();
    iteration_ = step->iteration;
    for (const kvd_client::RunEntry& entry : step->run) {
      reports_.push_back({entry.request, entry.tokens_present + entry.tokens, false});
    }
  }

  const std::vector<kvd_client::Digest> rows_ = digests(1 << 20, kRows);
  RawRingEcho echo_{std::chrono::nanoseconds(0)};
  std::optional<Client> placer_, stepper_;
  std::uint64_t cache_ = 0;
  std::vector<kvd_client::StepReport> reports_;
  std::uint64_t iteration_ = 0;
};

// ---- kvd ----

double anonymous_mib(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::atof(line.c_str() + 8) / 1024;
  }
  return 0;
}

/// MemoryMax of the unit that kvd prints, less the pools.
double printed_mib(const test::KvdProcess& kvd, double pools) {
  test::ChildProcess unit(
      {{test::built_program("kvd"), "--config", kvd.config_file(), "--print-unit"}, {}});
  const auto line = unit.wait_for_line("MemoryMax=");
  const double bytes = line ? std::atof(line->c_str() + std::strlen("MemoryMax=")) : 0;
  return bytes / (1 << 20) - pools;
}

std::string domains() {
  std::string tables;
  const auto add = [&](unsigned group, const char* more) {
    const std::string name = std::to_string(group);
    tables += "[[domain]]\nname = \"d" + name + "\"\ngids = [" + name + "]\n" + more;
  };
  add(kHonest, "hbm_guarantee = \"64MiB\"\ndram_guarantee = \"64MiB\"\n");
  for (const unsigned group : kHostile) add(group, "");
  return tables;
}

double p99(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() * 99 / 100];
}

int report(const std::vector<Row>& rows, const std::vector<double>& limits, bool json) {
  bool held = true;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool is_least = rows[i].name == "other_rows_kept";
    const bool holds = is_least ? rows[i].value >= limits[i] : rows[i].value <= limits[i];
    held = held && holds;
    if (std::isinf(limits[i])) continue;
    std::fprintf(stderr, "%-16s %s %g: %s\n", rows[i].name.c_str(),
                 is_least ? ">=" : "<=", limits[i], holds ? "held" : "exceeded");
  }
  (void)print_rows(rows, json);
  return held ? 0 : 1;
}

int run(const Arguments& arguments) {
  const double seconds = arguments.number("--seconds", 60);
  const int rounds = std::max(1, static_cast<int>(seconds / 5));
  const test::RuntimeFolder folder;
  test::KvdSettings settings;
  settings.hbm = "512MiB";
  settings.dram = "512MiB";
  settings.extra =
      "[disk]\npath = \"" + folder.file("disk") + "\"\nsize = \"256MiB\"\n" + domains();
  const test::KvdProcess kvd(folder, settings);
  KVD_CHECK(kvd.wait_ready(), "kvd does not start");
  const double printed = printed_mib(kvd, 1024);
  join_group(kHonest);
  Honest honest(kvd.endpoint());
  Hostile hostile(kvd, static_cast<int>(arguments.number("--nice", 19)));
  Times quiet, loaded;
  double most = 0;
  for (int i = 0; i < rounds; ++i) {
    const auto begin = SteadyTime::now();
    const auto at = [&](double share) {
      return begin + milliseconds(static_cast<int>(seconds / rounds * 1000 * share));
    };
    honest.measure(at(0.15), quiet);
    hostile.work(true);
    honest.measure(at(0.95), loaded);
    most = std::max(most, anonymous_mib(kvd.pid()));
    hostile.work(false);
    std::this_thread::sleep_until(at(1));  // whatever they ordered ends
  }
  const auto row = [](const char* name, double value, double floor, const char* unit) {
    return Row{name, value, floor, value / floor, unit};
  };
  const double load = p99(quiet.load), step = p99(quiet.step);
  constexpr double kNoLimit = std::numeric_limits<double>::infinity();
  return report({row("other_load_p99", p99(loaded.load), load, "ms"),
                 row("other_step_p99", p99(loaded.step), step, "ms"),
                 row("other_rows_kept", static_cast<double>(honest.rows()), kRows, "blocks"),
                 row("other_wake_p99", p99(loaded.wake), p99(quiet.wake), "ms"),
                 row("anon_bytes", most, printed, "MiB")},
                {std::max(5 * load, 20.0), std::max(2 * step, 20.0), kRows, kNoLimit, printed},
                arguments.json);
}

const Registration registration{
    {"neighbours", "an engine beside three users who do all they may; more: neighbours --help", run,
     kNeighboursHelp}};

}  // namespace
}  // namespace kvd::bench::neighbours_benchmark
