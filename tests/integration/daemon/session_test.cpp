// The daemon in this process, its clients on threads of this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "client_lib/examples/pattern_engine.hpp"
#include "tests/support/daemon_thread.hpp"

namespace kvd::test {
namespace {

using kvd_client::Client;
using kvd_client::ErrorCode;

Client opened(DaemonThread& daemon, const std::string& name,
              const kvd_client::ModelShape& shape = {}) {
  kvd_client::Options options;
  options.endpoint = daemon.endpoint();
  options.engine_name = name;
  options.shape = shape;
  auto client = Client::open(options);
  KVD_CHECK(client.ok(), client.ok() ? "" : client.error().message.c_str());
  return std::move(*client);
}

TEST(DaemonSession, ServesARequestFromSubmitToFinish) {
  DaemonThread daemon;
  Client client = opened(daemon, "one", {4, 0, 0, 1024});
  const auto session = client.session();
  ASSERT_TRUE(session.ok());
  EXPECT_EQ(session->layer_groups, 1u);
  EXPECT_EQ(session->block_bytes, 4u * 16 * 1024);

  ASSERT_TRUE(client.submit({1, 20, 2, {}, {}}, kPatience).ok());
  std::vector<kvd_client::StepReport> reports;
  std::vector<std::uint64_t> processed;
  std::uint64_t iteration = 0;
  ASSERT_TRUE(poll_until([&] {
    const auto step = client.step(reports, iteration, 0, kPatience);
    EXPECT_TRUE(step.ok());
    reports.clear();
    iteration = step->iteration;
    for (const auto& run : step->run) {
      const auto address = client.block_address(run.row, 0, 1);
      EXPECT_TRUE(address.ok());
      if (address.ok()) **address = std::byte{1};
      processed.push_back(run.tokens);
      const std::uint64_t tokens = run.tokens_present + run.tokens;
      reports.push_back({run.request, tokens, tokens == 22});
    }
    return step->run.empty() && step->hold.empty();
  }));
  EXPECT_THAT(processed, testing::ElementsAre(20, 1, 1));
  const auto status = daemon.status();
  EXPECT_EQ(status.counters.requests_finished, 1u);
  EXPECT_EQ(status.counters.tokens, 22u);
  EXPECT_TRUE(daemon.wait_all_free());
}

TEST(DaemonSession, LendsARegionAndTakesItBackZeroed) {
  DaemonThread daemon;
  Client first = opened(daemon, "first");
  const auto region = first.allocate_region(16 << 20, kPatience);
  ASSERT_TRUE(region.ok()) << region.error().message;
  std::fill_n(region->address, region->bytes, std::byte{0x5A});
  EXPECT_EQ(engine_named(daemon.status(), "first")->region, 16 * kMiB);
  ASSERT_TRUE(first.free_region(region->id, kPatience).ok());

  Client second = opened(daemon, "second");
  const auto again = second.allocate_region(16 << 20, kPatience);
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_TRUE(std::all_of(again->address, again->address + again->bytes,
                          [](std::byte b) { return b == std::byte{0}; }));
}

TEST(DaemonSession, ARegionWaitsForMemoryThatIsBeingZeroed) {
  DaemonThread daemon;
  Client holder = opened(daemon, "holder");
  const auto region = holder.allocate_region(16 << 20, kPatience);
  ASSERT_TRUE(region.ok());
  Client other = opened(daemon, "other");
  // All of it is pinned, so no wait is needed.
  EXPECT_EQ(other.allocate_region(2 << 20, kPatience).code(), ErrorCode::kOutOfMemory);
  ASSERT_TRUE(holder.free_region(region->id, kPatience).ok());
  // What was freed is zeroed first, and that is worth waiting for.
  EXPECT_TRUE(other.allocate_region(2 << 20, kPatience).ok());
}

kvd_pattern::PatternOptions pattern(const std::string& name, kvd_client::ModelShape shape,
                                    std::uint64_t seed) {
  kvd_pattern::PatternOptions options;
  options.name = name;
  options.requests = 8;
  options.prompt = 48;
  options.new_tokens = 48;
  options.shape = shape;
  options.seed = seed;
  options.json = true;
  return options;
}

TEST(DaemonSession, TwoModelsShareOnePoolAndRotate) {
  // Together 8 x 6 x 64 KiB + 8 x 6 x 96 KiB: more than the 4 MiB of HBM.
  DaemonThread daemon([](daemon::Config& config) {
    config.hbm = 4 * kMiB;
    config.tuning.slo["default"].ttft = std::chrono::milliseconds(2);
    config.tuning.slo["default"].tbt = std::chrono::milliseconds(1);
  });
  const kvd_client::ModelShape shapes[] = {{4, 0, 0, 1024}, {6, 0, 0, 1024}};
  kvd_pattern::Summary summaries[2];
  kvd_client::Status results[2] = {std::monostate(), std::monostate()};
  std::thread engines[2];
  for (std::size_t i = 0; i < 2; ++i) {
    engines[i] = std::thread([&, i] {
      const auto options = pattern("model-" + std::to_string(i), shapes[i], i + 1);
      kvd_pattern::PatternEngine engine(opened(daemon, options.name, shapes[i]), options);
      results[i] = engine.run();
      summaries[i] = engine.summary();
    });
  }
  for (std::thread& engine : engines) engine.join();
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(results[i].ok()) << results[i].error().message;
    EXPECT_EQ(summaries[i].requests, 8u);
    EXPECT_EQ(summaries[i].pattern_errors, 0u);
    EXPECT_GT(summaries[i].bytes_checked, 0u);
  }
  EXPECT_GT(daemon.status().counters.rotations_out, 0u);
  EXPECT_TRUE(daemon.wait_all_free());
}

TEST(DaemonSession, StopTellsEveryClientAndPoisonsItsPage) {
  auto daemon = std::make_unique<DaemonThread>();
  Client client = opened(*daemon, "told", {4, 0, 0, 1024});
  ASSERT_TRUE(client.submit({1, 20, 20, {}, {}}, kPatience).ok());
  daemon.reset();
  const auto step = client.step({}, 0, 0, kPatience);
  EXPECT_EQ(step.code(), ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace kvd::test
