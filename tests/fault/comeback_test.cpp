// kvd comes back after any end, though engines still map the memory of the one before: in the limit
// that it prints itself, under kvd-holder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kvd_client/client.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/memory_group.hpp"
#include "tests/support/patience.hpp"

namespace kvd::test {
namespace {

using nlohmann::json;
using std::chrono::duration;
using std::chrono::steady_clock;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::uint64_t kMi = 1 << 20;
constexpr kvd_client::Duration kLong = std::chrono::seconds(60);

/// The limit that kvd prints for these pools.
std::uint64_t printed_limit(const KvdSettings& settings) {
  ChildProcess print({{built_program("kvd"), "--backend", "host", "--pool.hbm", settings.hbm,
                       "--pool.dram", settings.dram, "--pool.slab", settings.slab, "--print-unit"},
                      {}});
  const auto line = print.wait_for_line("MemoryMax=");
  return line ? std::stoull(line->substr(line->find('=') + 1)) : 0;
}

/// Bytes of a field of /proc/meminfo.
std::uint64_t meminfo(const std::string& field) {
  std::ifstream file("/proc/meminfo");
  std::string word;
  for (std::uint64_t number = 0; file >> word;) {
    if (word == field && file >> number) return number << 10;
  }
  return 0;
}

/// The limit as what pool.reserve leaves of this machine, for where no control group can be made.
void limit_by_reserve(KvdSettings& settings, std::uint64_t limit) {
  settings.environment.push_back("KVD_POOL_RESERVE=" +
                                 std::to_string(meminfo("MemAvailable:") - limit));
}

int ends() {
  const char* wanted = std::getenv("KVD_TEST_ENDS");
  return wanted != nullptr ? std::atoi(wanted) : 5;
}

/// kvd under kvd-holder in a group that has the memory it asked for, and an engine with four fifths
/// of HBM.
class Comeback : public ::testing::Test {
 protected:
  Comeback() {
    const std::uint64_t limit = printed_limit(settings_);
    group_ = MemoryGroup::create(limit);
    if (group_) {
      settings_.under = group_->enter();
    } else {
      limit_by_reserve(settings_, limit);
    }
    settings_.under.push_back(built_program("kvd-holder"));
    settings_.under.emplace_back("--");
  }
  void start() {
    kvd_.emplace(folder_, settings_);
    ASSERT_TRUE(kvd_->wait_ready()) << kvd_->log();
    boot_ = boot().value_or("");
    kvd_client::Options options;
    options.endpoint = kvd_->endpoint();
    auto opened = kvd_client::Client::open(options);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    engine_.emplace(std::move(opened).value());
    take_most();
  }
  void take_most() {
    const auto region = engine_->allocate_region(410 * kMi, kLong);
    ASSERT_TRUE(region.ok()) << region.error().message << "\n" << kvd_->log();
    region_ = *region;
    *region_.address = std::byte{7};
  }
  [[nodiscard]] std::optional<std::string> boot() const {
    const json status = json::parse(kvd_->get("/v1/status").body, nullptr, false);
    if (!status.contains("boot_id") || kvd_->get("/readyz").status != 200) return std::nullopt;
    return status["boot_id"].get<std::string>();
  }
  [[nodiscard]] bool is_another() {
    const auto now = boot();
    if (!now || *now == boot_) return false;
    boot_ = *now;
    return true;
  }
  /// kvd ends by the signal to it or to its holder. Returns the seconds until another one is ready.
  double end_by(int signal, bool to_holder) {
    const auto begun = steady_clock::now();
    ::kill(to_holder ? kvd_->pid() : child_of(kvd_->pid()), signal);
    EXPECT_TRUE(poll_until([&] { return is_another(); })) << kvd_->log();
    return duration<double>(steady_clock::now() - begun).count();
  }
  [[nodiscard]] double missing() const {
    return kvd_->metric(R"(kvd_pool_missing_bytes{tier="hbm",device="0"})").value_or(-1) +
           kvd_->metric(R"(kvd_pool_missing_bytes{tier="dram",device=""})").value_or(-1);
  }
  /// Does what an engine does that has noticed the end: it releases its memory, and takes the same
  /// amount again.
  void take_anew() {
    ASSERT_TRUE(engine_->ping(kLong).ok());
    EXPECT_EQ(*region_.address, std::byte{7}) << "what it computes in stays";
    ASSERT_TRUE(engine_->free_region(region_.id, kLong).ok());
    take_most();
    ASSERT_TRUE(poll_until([&] { return missing() == 0; })) << kvd_->log();
  }
  static void tell(const char* what, std::vector<double> seconds) {
    std::sort(seconds.begin(), seconds.end());
    std::printf("%s, %zu times: seconds until ready: least %.2f, median %.2f, most %.2f\n", what,
                seconds.size(), seconds.front(), seconds[seconds.size() / 2], seconds.back());
  }

  const RuntimeFolder folder_;
  KvdSettings settings_{.hbm = "512MiB", .dram = "128MiB", .slab = "32MiB"};
  std::optional<MemoryGroup> group_;
  std::optional<KvdProcess> kvd_;
  std::optional<kvd_client::Client> engine_;
  kvd_client::Region region_;
  std::string boot_;
};

TEST_F(Comeback, AfterEveryEndTheEngineThatMapsMostOfHbmIsTakenBack) {
  ASSERT_NO_FATAL_FAILURE(start());
  for (int i = 0; i < ends(); ++i) {
    (void)end_by(SIGKILL, false);
    (void)end_by(SIGUSR1, true);
    EXPECT_EQ(missing(), 0) << "the region takes no memory anew";
  }
  ASSERT_NO_FATAL_FAILURE(take_anew());
  EXPECT_EQ(group_ ? group_->kills() : 0, 0u);
}

TEST_F(Comeback, WhereNothingIsKeptAfterEveryEndUnderAnEngineThatMapsMostOfHbm) {
  settings_.extra = "[restart]\nkeep = \"never\"\n";
  ASSERT_NO_FATAL_FAILURE(start());
  std::vector<double> kills, upgrades;
  for (int i = 0; i < ends(); ++i) {
    kills.push_back(end_by(SIGKILL, false));
    EXPECT_TRUE(missing() > 0 || !group_) << "the engine still has it";
    ASSERT_NO_FATAL_FAILURE(take_anew());
    upgrades.push_back(end_by(SIGUSR1, true));
    ASSERT_NO_FATAL_FAILURE(take_anew());
  }
  tell("killed", kills);
  tell("upgraded", upgrades);
  EXPECT_EQ(group_ ? group_->kills() : 0, 0u);
  EXPECT_THAT(kvd_->log(), HasSubstr("have no memory yet"));
  engine_.reset();
  kvd_->signal(SIGTERM);
  EXPECT_EQ(kvd_->wait(), 0) << kvd_->log();
}

TEST(MemoryLimit, NearItTheStartIsRefusedAndNotKilled) {
  for (const std::uint64_t limit : {194u, 196u, 300u}) {
    const auto group = MemoryGroup::create(limit * kMi);
    if (!group) GTEST_SKIP() << "no control group for memory can be made here";
    const RuntimeFolder folder;
    KvdProcess kvd(folder, {.hbm = "64MiB", .dram = "128MiB", .under = group->enter()});
    EXPECT_EQ(kvd.wait(), 1) << kvd.log();
    EXPECT_EQ(group->kills(), 0u);
    EXPECT_THAT(kvd.log(), AllOf(HasSubstr("192 MiB, and "), HasSubstr("exceeds"),
                                 HasSubstr(std::to_string(limit) + " MiB"),
                                 HasSubstr("lower pool.hbm + pool.dram, or raise the limit")));
  }
}

TEST(MemoryLimit, WhereNotOneSlabFitsYetTheStatusAsksForAnotherTry) {
  // Another program, here the test itself, holds what kvd needs.
  constexpr std::size_t kOther = 512 * kMi;
  void* other = ::mmap(nullptr, kOther, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  ASSERT_NE(other, MAP_FAILED);
  const RuntimeFolder folder;
  KvdSettings settings;
  const std::uint64_t reserve = meminfo("MemTotal:") - printed_limit(settings) - kMi;
  settings.environment.push_back("KVD_POOL_RESERVE=" + std::to_string(reserve));
  KvdProcess kvd(folder, settings);
  EXPECT_EQ(kvd.wait(), 75) << kvd.log();
  EXPECT_THAT(kvd.log(), AllOf(HasSubstr("not one slab fits yet"), HasSubstr("MemAvailable")));
  ::munmap(other, kOther);
}

/// How often kvd-holder starts a program that ends so, until it has been started `most` times.
int starts(const std::string& end, int most) {
  const RuntimeFolder folder;
  const std::string count = folder.file("count");
  ChildProcess holder({{built_program("kvd-holder"), "--", "sh", "-c",
                        "echo x >>" + count + "; [ $(wc -l <" + count + ") -lt " +
                            std::to_string(most) + " ] || exit 0; " + end},
                       {}});
  (void)holder.wait();
  std::ifstream file(count);
  return static_cast<int>(std::count(std::istreambuf_iterator<char>(file), {}, '\n'));
}

TEST(Holder, StartsWhatWasKilledOrIsToWaitWithoutEndAndNothingElse) {
  EXPECT_EQ(starts("exit 75", 7), 7);
  EXPECT_EQ(starts("kill -9 $$", 7), 7);
  EXPECT_EQ(starts("exit 1", 7), 5);
  EXPECT_EQ(starts("exit 2", 7), 1);
}

TEST(Holder, EndsAtOnceWhileItWaitsToStartTheProgramAgain) {
  ChildProcess holder({{built_program("kvd-holder"), "--", "sh", "-c", "exit 75"}, {}});
  ASSERT_TRUE(holder.wait_for_error("ended with status 75"));
  holder.signal(SIGTERM);
  EXPECT_EQ(holder.wait(), 75);
}

bool maps(pid_t process, const std::string& name) {
  std::ostringstream text;
  text << std::ifstream("/proc/" + std::to_string(process) + "/maps").rdbuf();
  return text.str().find(name) != std::string::npos;
}

// Level 3: the slabs of blocks are of no use without the daemon that has the table.
TEST(LettingGo, AnEngineLetsGoOfItsBlocksAsSoonAsTheDaemonIsGone) {
  const RuntimeFolder folder;
  KvdProcess kvd(folder);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  ChildProcess engine({{built_program("kvd-pattern"), "--endpoint", kvd.endpoint(), "--requests",
                        "12", "--prompt", "48", "--new", "480", "--step-ms", "20"},
                       {}});
  const auto maps_slabs = [&] { return maps(engine.pid(), "/memfd:kvd-hbm"); };
  ASSERT_TRUE(poll_until(maps_slabs)) << engine.errors();
  kvd.signal(SIGKILL);
  ASSERT_EQ(kvd.wait(), 128 + SIGKILL);
  EXPECT_TRUE(poll_until([&] { return !maps_slabs(); }, std::chrono::seconds(10)));
  EXPECT_FALSE(engine.ended()) << engine.errors();
}

/// kvd with 96 slabs and eight engines at most, under a limit of descriptors.
KvdSettings limited(int descriptors) {
  return {.hbm = "64MiB",
          .dram = "128MiB",
          .extra = "[engine]\nmax_engines = 8\n[[domain]]\nname = 'all'\nper_user = false\n",
          .under = {"/bin/sh", "-c", "ulimit -n " + std::to_string(descriptors) + " && exec \"$@\"",
                    "sh"}};
}

TEST(Descriptors, TooFewForAllEnginesAreRefusedAtTheStartWithBothNumbers) {
  for (const int descriptors : {64, 128}) {
    const RuntimeFolder folder;
    KvdProcess kvd(folder, limited(descriptors));
    EXPECT_EQ(kvd.wait(), 1);
    EXPECT_THAT(kvd.log(), AllOf(HasSubstr("file descriptors, and its limit is " +
                                           std::to_string(descriptors)),
                                 HasSubstr("LimitNOFILE")));
  }
}

TEST(Descriptors, AKvdThatIsReadyHasThemForAllItsEngines) {
  const RuntimeFolder folder;
  const KvdProcess kvd(folder, limited(96 + 6 * 8 + 128));
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  std::vector<kvd_client::Client> engines;
  for (int i = 0; i < 8; ++i) {
    kvd_client::Options options;
    options.endpoint = kvd.endpoint();
    options.transport = i % 2 == 0 ? kvd_client::Transport::kRing : kvd_client::Transport::kZmq;
    auto engine = kvd_client::Client::open(options);
    ASSERT_TRUE(engine.ok()) << i << ": " << engine.error().message;
    engines.push_back(std::move(engine).value());
    EXPECT_TRUE(engines.back().allocate_region(2 * kMi, kLong).ok()) << i;
  }
}

}  // namespace
}  // namespace kvd::test
