// Deaths while layers stream: of the engine, which must leave nothing behind, and of the daemon,
// after which no wrong byte may be read.
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/support/daemon_process.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/pattern_command.hpp"

namespace kvd::test {
namespace {

using nlohmann::json;

/// Two requests of 400 tokens take 6.25 MiB; over a slow link the iterations that stream are long.
const KvdSettings kStreaming{
    .hbm = "4MiB",
    .dram = "16MiB",
    .bandwidth = "1GiB/s",
    .extra =
        "[placement]\npolicy = 'orbitflow'\n"
        "[rotation]\npolicy = 'fcfs'\n[slo.default]\nttft = '20s'\ntbt = '5s'\n"};

bool streams(const KvdProcess& kvd) {
  return poll_until([&] { return kvd.metric("kvd_layer_fetches_total").value_or(0) > 0; });
}

void expect_no_wrong_byte(ChildProcess& engine) {
  const auto line = engine.wait_for_line("{");
  ASSERT_TRUE(line) << engine.errors();
  EXPECT_EQ(engine.wait(), 0) << engine.errors();
  const json summary = json::parse(*line);
  EXPECT_EQ(summary["pattern_errors"], 0);
  EXPECT_EQ(summary["requests"], 2);
}

TEST(StreamingFault, AKilledEngineGivesItsMemoryBackAndTheNextOneStreams) {
  const RuntimeFolder folder;
  const KvdProcess kvd(folder, kStreaming);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  const auto free = kvd.metric(R"(kvd_pool_free_bytes{tier="hbm",device="0"})");
  ASSERT_TRUE(free);
  for (int i = 0; i < 5; ++i) {
    const double before = kvd.metric("kvd_layer_fetches_total").value_or(0);
    ChildProcess victim(streaming_command(kvd, "victim"));
    ASSERT_TRUE(poll_until([&] {
      return kvd.metric("kvd_layer_fetches_total").value_or(0) > before + i;
    })) << victim.errors();
    victim.signal(SIGKILL);
    ASSERT_TRUE(poll_until(
        [&] { return kvd.metric(R"(kvd_pool_free_bytes{tier="hbm",device="0"})") == free; }));
  }
  ChildProcess engine(streaming_command(kvd, "next"));
  expect_no_wrong_byte(engine);
}

TEST(StreamingFault, AKilledDaemonMakesNoEngineReadAWrongByte) {
  const RuntimeFolder folder;
  std::optional<KvdProcess> kvd(std::in_place, folder, kStreaming);
  ASSERT_TRUE(kvd->wait_ready()) << kvd->log();
  ChildProcess engine(streaming_command(*kvd, "survivor"));
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(streams(*kvd)) << engine.errors();
    kvd->signal(SIGKILL);
    ASSERT_EQ(kvd->wait(), 128 + SIGKILL);
    kvd.emplace(folder, kStreaming);
    ASSERT_TRUE(kvd->wait_ready()) << kvd->log();
  }
  expect_no_wrong_byte(engine);
}

}  // namespace
}  // namespace kvd::test
