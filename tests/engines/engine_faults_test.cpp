// Faults around kvd-engine change no other user's tokens and leave nothing behind: an engine that
// dies in the middle of anything, requests given up at the worst moment, a daemon that dies while
// an iteration computes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>

#include "tests/engines/engine_support.hpp"
#include "tests/engines/schedules/engine_thread.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/daemon_thread.hpp"

namespace kvd::test {
namespace {

using namespace std::chrono_literals;
using core::RequestState;
using engine::KvMemory;

const References& references() {
  static const References made;
  return made;
}

/// Requests that need more than 12 MiB together, in a hurry, so that they push each other out.
std::vector<EngineThread::Open> submit_all(EngineThread& engine, std::size_t count = 16) {
  std::vector<EngineThread::Open> open;
  for (std::size_t i = 0; i < count; ++i) {
    open.push_back(engine.submit({.prompt = references().prompt(i),
                                  .max_tokens = References::kMostNew,
                                  .ttft_slo = 1ms,
                                  .tbt_slo = Nanoseconds(0)}));
  }
  return open;
}

void expect_answers(const std::vector<EngineThread::Open>& open,
                    const std::set<std::uint64_t>& given_up = {}) {
  for (std::size_t i = 0; i < open.size(); ++i) {
    const bool cut_short = given_up.contains(open[i].number);
    const Answer answer = cut_short ? open[i].sink->now() : open[i].sink->end();
    EXPECT_EQ(references().difference(i, answer, References::kMostNew, cut_short), "")
        << "request " << i;
  }
}

/// A pool far too small, over a link on which a swap takes tens of milliseconds; requests rotate as
/// a whole.
void crowded(daemon::Config& config) {
  config.hbm = 4 * kMiB;
  config.dram = 64 * kMiB;
  config.link_bandwidth = BytesPerSecond{50e6};
  config.tuning.placement.policy = config.tuning.admission.policy = "none";
}

const core::RequestStatus* one_in(const core::ControllerStatus& status, RequestState state,
                                  const std::set<std::uint64_t>& but = {}) {
  for (const core::RequestStatus& request : status.requests) {
    if (request.state == state && !but.contains(request.key.request.value)) return &request;
  }
  return nullptr;
}

class GivenUpIn : public testing::TestWithParam<RequestState> {};

TEST_P(GivenUpIn, LeavesTheOthersAsTheyWere) {
  DaemonThread daemon(crowded);
  auto engine = EngineThread::on_kvd(daemon.endpoint(), 1, {});
  const auto open = submit_all(*engine);
  std::set<std::uint64_t> given_up;
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(daemon.wait_until([&](const auto& status) {
      const auto* found = one_in(status, GetParam(), given_up);
      if (found == nullptr) return engine->scheduler().health().open == 0;
      engine->scheduler().abort(found->key.request.value);
      given_up.insert(found->key.request.value);
      return true;
    }));
  }
  EXPECT_GE(given_up.size(), 1U);
  expect_answers(open, given_up);
  engine.reset();
  EXPECT_TRUE(daemon.wait_all_free());
}

std::string state_name(const testing::TestParamInfo<RequestState>& test) {
  std::string out = core::name(test.param);
  std::erase_if(out, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
  return out;
}

INSTANTIATE_TEST_SUITE_P(States, GivenUpIn,
                         testing::Values(RequestState::kWaiting, RequestState::kRunning,
                                         RequestState::kSwappingOut, RequestState::kRotary,
                                         RequestState::kSwappingIn),
                         state_name);

class EngineKilledIn : public testing::TestWithParam<RequestState> {};

/// Whether the engine, when it was killed, had a request in the state. `begins`: some prompt of its
/// is not complete yet.
bool kill_in(RequestState state, const core::ControllerStatus& status, const EngineProcess& victim,
             bool& begins) {
  for (const core::EngineStatus& engine : status.engines) {
    if (engine.pid != victim.pid()) continue;
    for (const core::RequestStatus& request : status.requests) {
      if (request.key.engine != engine.id) continue;
      if (request.state == state) {
        victim.signal(SIGKILL);
        return true;
      }
      begins = begins || request.tokens < request.prompt_tokens;
    }
  }
  return false;
}

TEST_P(EngineKilledIn, TakesNobodyAlongAndLeavesNothing) {
  DaemonThread daemon(crowded);
  auto survivor = EngineThread::on_kvd(daemon.endpoint(), 1, {});
  EngineProcess victim(daemon.endpoint());
  ASSERT_TRUE(victim.wait_ready()) << victim.log();
  std::vector<Stream> streams;
  const auto ask = [&] {
    nlohmann::json prompt = nlohmann::json::array();
    for (std::size_t t = 0; t < 300; ++t) prompt.push_back((streams.size() * 31 + t) % 256);
    streams.emplace_back(
        victim.port(),
        nlohmann::json{{"prompt", prompt}, {"max_tokens", 400}, {"kvd_ttft_s", 0.001}});
  };
  while (streams.size() < 12) ask();
  const auto open = submit_all(*survivor, 8);
  EXPECT_TRUE(daemon.wait_until([&](const auto& status) {
    bool begins = false;
    if (kill_in(GetParam(), status, victim, begins)) return true;
    // The first states are short: one that was not seen in any must come again.
    if (!begins && streams.size() < 100) ask();
    return false;
  }));
  EXPECT_EQ(victim.wait(), 128 + SIGKILL);
  expect_answers(open);
  survivor.reset();
  EXPECT_TRUE(daemon.wait_all_free());
  EXPECT_EQ(daemon.status().counters.engines_died, 1U);
}

INSTANTIATE_TEST_SUITE_P(States, EngineKilledIn,
                         testing::Values(RequestState::kWaiting, RequestState::kPrefill,
                                         RequestState::kRunning, RequestState::kSwappingOut,
                                         RequestState::kRotary, RequestState::kSwappingIn),
                         state_name);

/// kvd's memory, and a look at each layer group that an iteration enters.
class WatchedMemory final : public KvMemory {
 public:
  using Look = std::function<void(const engine::Grant&, std::uint32_t group)>;
  WatchedMemory(engine::KvdMemory inside, Look look)
      : inside_(std::move(inside)), look_(std::move(look)) {}

  [[nodiscard]] std::uint32_t layers_per_block() const override {
    return inside_.layers_per_block();
  }
  [[nodiscard]] std::uint32_t block_tokens() const override { return inside_.block_tokens(); }
  Status submit(const kvd_client::Request& request) override { return inside_.submit(request); }
  Status abort(std::uint64_t request) override { return inside_.abort(request); }
  Status extend(std::uint64_t request, std::span<const engine::Token> tokens) override {
    return inside_.extend(request, tokens);
  }
  Result<engine::Grant> step(std::span<const kvd_client::StepReport> reports,
                             bool running) override {
    return inside_.step(reports, running);
  }
  Result<engine::Waited> ready(const engine::Grant& grant, std::uint32_t group) override {
    auto waited = inside_.ready(grant, group);
    if (waited.ok()) look_(grant, group);
    return waited;
  }
  Status done(const engine::Grant& grant, std::uint32_t group) override {
    return inside_.done(grant, group);
  }
  Status intact() override { return inside_.intact(); }
  Status wait_for_room() override { return inside_.wait_for_room(); }
  Status ping() override { return inside_.ping(); }

 private:
  engine::KvdMemory inside_;
  const Look look_;
};

std::unique_ptr<EngineThread> watched_engine(const std::string& endpoint,
                                             WatchedMemory::Look look) {
  auto memory = engine::KvdMemory::attach(
      {.endpoint = endpoint, .name = "watched", .layers_per_block = 1}, schedule_model().model);
  KVD_CHECK(memory.ok(), "no engine");
  return std::make_unique<EngineThread>(
      std::make_unique<WatchedMemory>(std::move(*memory), std::move(look)),
      engine::Scheduler::Config{});
}

int repetitions() {
  const char* given = std::getenv("KVD_TEST_REPETITIONS");
  return given != nullptr ? std::atoi(given) : 5;
}

/// A daemon dies between two layers of an iteration, whatever its blocks were about to do. Users
/// still get exactly what they would have got.
void kill_in_mid_iteration(const std::string& placement, bool in_a_streamed_one) {
  for (int i = 0; i < repetitions(); ++i) {
    const RuntimeFolder folder;
    // Under fcfs, layers stream whatever the size of the requests.
    const KvdSettings settings{
        .hbm = "4MiB",
        .dram = "64MiB",
        .extra = "[rotation]\npolicy = 'fcfs'\n[placement]\npolicy = '" + placement + "'\n"};
    std::optional<KvdProcess> kvd(std::in_place, folder, settings);
    ASSERT_TRUE(kvd->wait_ready()) << kvd->log();
    std::atomic<pid_t> target = kvd->pid();
    std::atomic<int> seen = 0;
    // Another layer and another iteration each time.
    const auto group = static_cast<std::uint32_t>(i) % kModelLayers;
    const int iteration = 10 + 7 * i % 60;
    const auto engine =
        watched_engine(kvd->endpoint(), [&](const engine::Grant& grant, std::uint32_t at) {
          if (at != group || grant.streamed != in_a_streamed_one || ++seen != iteration) return;
          const pid_t daemon = target.exchange(0);
          if (daemon != 0) ::kill(daemon, SIGKILL);
        });
    const auto open = submit_all(*engine);
    ASSERT_EQ(kvd->wait(), 128 + SIGKILL) << "after " << seen << " such iterations";
    kvd.emplace(folder, settings);
    ASSERT_TRUE(kvd->wait_ready()) << kvd->log();
    expect_answers(open);
    EXPECT_GE(engine->scheduler().health().restarts, 1U);
  }
}

TEST(DaemonKilled, InTheMiddleOfAnIterationChangesNoToken) { kill_in_mid_iteration("none", false); }
TEST(DaemonKilled, InTheMiddleOfAStreamedLayerChangesNoToken) {
  kill_in_mid_iteration("orbitflow", true);
}

/// The control: a byte that goes wrong where nobody but kvd looks, in DRAM, is seen in the logits.
TEST(EngineSchedules, AreLostWithFlippedBytesInDram) {
  DaemonThread daemon(crowded);
  const auto engine = EngineThread::on_kvd(daemon.endpoint(), 1, {});
  const auto open = submit_all(*engine);
  // Everything that rests in DRAM for a while has its first floats turned around.
  ASSERT_TRUE(daemon.wait_until(
      [](const auto& status) { return one_in(status, RequestState::kRotary) != nullptr; }));
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:kvd-dram") == std::string::npos) continue;
    const auto begin = std::stoull(line, nullptr, 16);
    const auto end = std::stoull(line.substr(line.find('-') + 1), nullptr, 16);
    for (auto at = begin; at < end; at += 4096) {
      volatile auto* byte = reinterpret_cast<volatile unsigned char*>(at + 3);
      *byte = *byte ^ 0x80U;
    }
  }
  std::size_t different = 0;
  for (std::size_t i = 0; i < open.size(); ++i) {
    const Answer answer = open[i].sink->end();
    different += references().difference(i, answer, References::kMostNew, false).empty() ? 0U : 1U;
  }
  EXPECT_GE(different, 1U);
}

}  // namespace
}  // namespace kvd::test
