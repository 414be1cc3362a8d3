// Engines whose layers stream: what does not fit into HBM stays in DRAM and comes in while the
// iteration runs.
#include <gtest/gtest.h>

#include <thread>

#include "client_lib/examples/pattern_engine.hpp"
#include "tests/support/daemon_thread.hpp"

namespace kvd::test {
namespace {

/// Blocks of 16 KiB, eight layer groups: a token of context takes 8 KiB.
constexpr kvd_client::ModelShape kShape{8, 1, 16, 1024};

/// Two requests of 400 tokens take 6.25 MiB: more than there is HBM.
DaemonThread::Edit small_hbm(std::int64_t mib) {
  return [mib](daemon::Config& config) {
    config.hbm = mib * kMiB;
    config.tuning.placement.policy = "orbitflow";
    config.tuning.placement.window_min = 4;
    config.tuning.rotation.policy = "fcfs";
    config.tuning.slo["default"].ttft = std::chrono::seconds(20);
    config.tuning.slo["default"].tbt = std::chrono::seconds(5);
  };
}

kvd_pattern::PatternOptions options_of(const std::string& name) {
  kvd_pattern::PatternOptions options;
  options.name = name;
  options.requests = 2;
  options.prompt = 200;
  options.new_tokens = 200;
  options.shape = kShape;
  options.json = true;
  return options;
}

struct Outcome {
  kvd_client::Status status = std::monostate();
  kvd_pattern::Summary summary;
};

Outcome run(const DaemonThread& daemon, const kvd_pattern::PatternOptions& options) {
  kvd_client::Options how;
  how.endpoint = daemon.endpoint();
  how.engine_name = options.name;
  how.shape = options.shape;
  how.streams_layers = true;
  how.group = options.group;
  how.transport = options.ring ? kvd_client::Transport::kRing : kvd_client::Transport::kZmq;
  auto client = kvd_client::Client::open(how);
  KVD_CHECK(client.ok(), "the engine attaches");
  kvd_pattern::PatternEngine engine(std::move(*client), options);
  Outcome out{engine.run(), {}};
  out.summary = engine.summary();
  return out;
}

class StreamingTransports : public testing::TestWithParam<bool> {};

TEST_P(StreamingTransports, RequestsBeyondHbmRunTogetherAndEveryByteIsTheByteWritten) {
  DaemonThread daemon(small_hbm(4));
  auto options = options_of("streams");
  options.ring = GetParam();
  const Outcome out = run(daemon, options);
  EXPECT_TRUE(out.status.ok()) << out.status.error().message;
  EXPECT_EQ(out.summary.pattern_errors, 0u);
  EXPECT_GT(out.summary.bytes_checked, 0u);
  EXPECT_GT(out.summary.streamed, 0u);
  const auto shell = daemon.daemon().shell(kPatience);
  ASSERT_TRUE(shell.ok());
  EXPECT_GT(shell->mover.layer_fetches, 0u);
  EXPECT_GT(shell->mover.layer_bytes, Bytes(0));
  EXPECT_GT(shell->solver.feasible, 0u);
  EXPECT_TRUE(daemon.wait_all_free());
}

INSTANTIATE_TEST_SUITE_P(ZmqAndRing, StreamingTransports, testing::Bool(),
                         [](const auto& param) { return param.param ? "Ring" : "Zmq"; });

// The control: the same check tells when one byte is another.
TEST(Streaming, OneWrongByteIsFound) {
  DaemonThread daemon(small_hbm(4));
  auto options = options_of("corrupt");
  options.corrupt_once = true;
  const Outcome out = run(daemon, options);
  EXPECT_GT(out.summary.pattern_errors, 0u);
}

TEST(Streaming, TwoEnginesStreamSideBySide) {
  DaemonThread daemon(small_hbm(8));
  Outcome outcomes[2];
  std::thread engines[2];
  for (std::size_t i = 0; i < 2; ++i) {
    engines[i] = std::thread([&, i] {
      auto options = options_of("engine-" + std::to_string(i));
      options.seed = i + 1;
      options.ring = i == 1;
      outcomes[i] = run(daemon, options);
    });
  }
  for (auto& engine : engines) engine.join();
  for (const Outcome& out : outcomes) {
    EXPECT_TRUE(out.status.ok()) << out.status.error().message;
    EXPECT_EQ(out.summary.pattern_errors, 0u);
  }
  EXPECT_TRUE(daemon.wait_all_free());
}

/// Two ranks of one group, on threads of their own: 12.5 MiB for their two requests.
std::vector<Outcome> run_ranks(const DaemonThread& daemon, bool corrupt_last) {
  std::vector<Outcome> outcomes(2);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      auto options = options_of("rank-" + std::to_string(rank));
      options.group = {3, 2, rank};
      options.ring = rank == 1;
      options.corrupt_once = corrupt_last && rank == 1;
      outcomes[rank] = run(daemon, options);
    });
  }
  for (auto& thread : threads) thread.join();
  return outcomes;
}

DaemonThread::Edit small_hbm_for_ranks() {
  return [](daemon::Config& config) {
    small_hbm(8)(config);
    config.dram = 32 * kMiB;
  };
}

// OrbitFlow's tensor parallelism: one plan for all ranks, and each streams its own layers.
TEST(Streaming, RanksOfAGroupStreamTogetherAndEveryByteIsTheByteWritten) {
  DaemonThread daemon(small_hbm_for_ranks());
  for (const Outcome& out : run_ranks(daemon, false)) {
    EXPECT_TRUE(out.status.ok()) << out.status.error().message;
    EXPECT_EQ(out.summary.pattern_errors, 0u);
    EXPECT_GT(out.summary.bytes_checked, 0u);
    EXPECT_GT(out.summary.streamed, 0u);
  }
  EXPECT_TRUE(daemon.wait_all_free());
}

TEST(Streaming, OneWrongByteIsFoundByTheRankThatHasIt) {
  DaemonThread daemon(small_hbm_for_ranks());
  const auto outcomes = run_ranks(daemon, true);
  EXPECT_EQ(outcomes[0].summary.pattern_errors, 0u);
  EXPECT_GT(outcomes[1].summary.pattern_errors, 0u);
}

// Its client goes in the middle of an iteration that streams. Nothing of it stays behind.
TEST(Streaming, AnEngineThatLeavesWhileLayersStreamLeavesNothingBehind) {
  DaemonThread daemon(small_hbm(4));
  kvd_client::Options how;
  how.endpoint = daemon.endpoint();
  how.engine_name = "leaves";
  how.shape = kShape;
  how.streams_layers = true;
  {
    auto client = kvd_client::Client::open(how);
    ASSERT_TRUE(client.ok());
    for (std::uint64_t id = 1; id <= 2; ++id) {
      ASSERT_TRUE(client->submit({id, 200, 200, {}, {}}, kPatience).ok());
    }
    std::vector<kvd_client::StepReport> reports;
    std::uint64_t finished = 0;
    bool streamed = false;
    const auto give_up = std::chrono::steady_clock::now() + kPatience;
    while (!streamed && std::chrono::steady_clock::now() < give_up) {
      const auto step = client->step(reports, finished, 0, kPatience);
      ASSERT_TRUE(step.ok()) << step.error().message;
      reports.clear();
      finished = step->iteration;
      for (const auto& entry : step->run) {
        streamed = streamed || entry.streamed;
        reports.push_back({entry.request, entry.tokens_present + entry.tokens, false});
      }
      if (step->run.empty()) {
        ASSERT_TRUE(client->wait_for_room(std::chrono::milliseconds(5)).ok());
      }
      for (std::uint32_t group = 0; !streamed && group < kShape.layers; ++group) {
        ASSERT_TRUE(client->layer_done(step->iteration, group).ok());
      }
    }
    ASSERT_TRUE(streamed);
  }
  EXPECT_TRUE(daemon.wait_all_free());
}

}  // namespace
}  // namespace kvd::test
