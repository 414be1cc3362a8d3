// A kvd with two devices, and engines on one or on both: each a process of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>

#include "kvd_client/client.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/pattern_command.hpp"

namespace kvd::test {
namespace {

using kvd_client::ErrorCode;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::uint64_t kMib = 1 << 20;
constexpr std::uint64_t kDeviceBytes = 4 * kMib;

class TwoDevicesTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(kvd.wait_ready()) << kvd.log(); }

  /// 12 requests: more than HBM of one device holds.
  [[nodiscard]] ChildCommand pattern(const std::string& name, std::uint32_t device,
                                     std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--device", std::to_string(device)});
    return pattern_command(kvd, name, more);
  }
  /// On the device of its number.
  [[nodiscard]] ChildCommand rank(std::uint32_t number, std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--ranks", "2", "--rank", std::to_string(number), "--group", "5"});
    return pattern("rank-" + std::to_string(number), number, more);
  }
  [[nodiscard]] kvd_client::Options options(std::uint32_t device) const {
    kvd_client::Options options;
    options.endpoint = kvd.endpoint();
    options.engine_name = "on-" + std::to_string(device);
    options.device = device;
    return options;
  }
  /// A series of HBM.
  [[nodiscard]] double hbm(const std::string& metric, std::uint32_t device) const {
    return kvd.metric(metric + R"({tier="hbm",device=")" + std::to_string(device) + R"("})")
        .value_or(-1);
  }
  [[nodiscard]] double copied_out(std::uint32_t device) const {
    const std::string labels = R"({direction="d2h",device=")" + std::to_string(device) + R"("})";
    return kvd.metric("kvd_link_rate_bytes_per_second" + labels).value_or(-1);
  }
  [[nodiscard]] bool all_free() const {
    return poll_until([&] {
      return hbm("kvd_pool_free_bytes", 0) == kDeviceBytes &&
             hbm("kvd_pool_free_bytes", 1) == kDeviceBytes;
    });
  }

  const RuntimeFolder folder;
  const KvdProcess kvd{folder,
                       {.hbm = "4MiB", .dram = "32MiB", .extra = "[[device]]\n[[device]]\n"}};
};

void expect_every_byte(ChildProcess& engine) {
  const json summary = summary_of(engine);
  EXPECT_EQ(engine.wait(), 0) << engine.errors();
  EXPECT_EQ(summary["pattern_errors"], 0);
  EXPECT_EQ(summary["requests"], 12);
  EXPECT_GT(summary["bytes_checked"], 0);
}

TEST_F(TwoDevicesTest, EnginesOfBothRotateAndEveryByteIsTheByteWritten) {
  ChildProcess first(pattern("a", 0));
  ChildProcess second(pattern("bb", 1));
  expect_every_byte(first);
  expect_every_byte(second);
  EXPECT_GT(copied_out(0), 0);
  EXPECT_GT(copied_out(1), 0);
  EXPECT_TRUE(all_free()) << kvd.metrics();
  ChildProcess control(pattern("control", 1, {"--corrupt-once"}));
  EXPECT_GT(summary_of(control)["pattern_errors"], 0);
  EXPECT_EQ(control.wait(), 1);
}

TEST_F(TwoDevicesTest, AGroupHasARankOnEachAndEveryByteIsTheByteWritten) {
  {
    ChildProcess first(rank(0));
    ChildProcess second(rank(1));
    expect_every_byte(first);
    expect_every_byte(second);
  }
  EXPECT_GT(kvd.metric(R"(kvd_rotations_total{direction="out"})").value_or(0), 0);
  EXPECT_GT(copied_out(0), 0);
  EXPECT_GT(copied_out(1), 0);
  EXPECT_TRUE(all_free()) << kvd.metrics();
  ChildProcess honest(rank(0));
  ChildProcess control(rank(1, {"--corrupt-once"}));
  EXPECT_GT(summary_of(control)["pattern_errors"], 0);
  EXPECT_EQ(control.wait(), 1);
  EXPECT_EQ(summary_of(honest)["pattern_errors"], 0) << "its bytes are of another device";
  EXPECT_EQ(honest.wait(), 0) << honest.errors();
}

/// Two requests of 3 MiB a rank. Each device holds one of them and a bit, so their layers stream.
class StreamingGroupTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(kvd.wait_ready()) << kvd.log(); }
  [[nodiscard]] ChildCommand rank(std::uint32_t number,
                                  const std::vector<std::string>& more = {}) const {
    const std::string own = std::to_string(number);
    std::vector<std::string> all{"--ranks", "2", "--rank", own, "--group", "5", "--device", own};
    all.insert(all.end(), {"--tbt-slo-ms", "5000", "--ttft-slo-ms", "20000"});
    all.insert(all.end(), more.begin(), more.end());
    return streaming_command(kvd, "rank-" + own, all);
  }
  [[nodiscard]] bool all_free() const {
    return poll_until([&] {
      const auto free = [&](const char* device) {
        return kvd.metric(std::string(R"(kvd_pool_free_bytes{tier="hbm",device=")") + device +
                          R"("})");
      };
      return free("0") == kDeviceBytes && free("1") == kDeviceBytes;
    });
  }

  const RuntimeFolder folder;
  const KvdProcess kvd{folder,
                       {.hbm = "4MiB",
                        .dram = "32MiB",
                        .extra = "[placement]\npolicy = \"orbitflow\"\n[rotation]\npolicy = "
                                 "\"fcfs\"\n[[device]]\n[[device]]\n"}};
};

TEST_F(StreamingGroupTest, ARankOnEachStreamsAndEveryByteIsTheByteWritten) {
  {
    ChildProcess first(rank(0));
    ChildProcess second(rank(1));
    for (ChildProcess* engine : {&first, &second}) {
      const json summary = summary_of(*engine);
      EXPECT_EQ(engine->wait(), 0) << engine->errors();
      EXPECT_EQ(summary["pattern_errors"], 0);
      EXPECT_GT(summary["bytes_checked"], 0);
      EXPECT_GT(summary["streamed"], 0);
    }
  }
  EXPECT_TRUE(all_free()) << kvd.metrics();
  ChildProcess honest(rank(0));
  ChildProcess control(rank(1, {"--corrupt-once"}));
  EXPECT_GT(summary_of(control)["pattern_errors"], 0);
  EXPECT_EQ(control.wait(), 1);
  EXPECT_EQ(summary_of(honest)["pattern_errors"], 0);
}

// The other rank waits for layers that will not come: it is told, and nothing is left.
TEST_F(StreamingGroupTest, ARankThatDiesWhileLayersStreamLeavesNothingBehind) {
  {
    ChildProcess first(rank(0, {"--step-ms", "2"}));
    ChildProcess second(rank(1, {"--step-ms", "2"}));
    ASSERT_TRUE(poll_until([&] { return kvd.metric("kvd_layer_fetches_total").value_or(0) > 20; }))
        << kvd.metrics();
    const auto attached = [&] { return kvd.metric("kvd_engines_attached_total").value_or(0); };
    EXPECT_EQ(attached(), 1);
    second.signal(SIGKILL);
    EXPECT_EQ(second.wait(), 128 + SIGKILL);
    EXPECT_TRUE(poll_until([&] { return attached() == 2; }))
        << "it begins anew: " << first.errors();
    first.signal(SIGKILL);
    (void)first.wait();
  }
  EXPECT_TRUE(all_free()) << kvd.metrics();
}

TEST_F(TwoDevicesTest, WhatIsRentedIsOfTheDeviceThatWasNamed) {
  auto first = kvd_client::Client::open(options(0));
  auto second = kvd_client::Client::open(options(1));
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_TRUE(second->allocate_region(kDeviceBytes, kPatience).ok());
  EXPECT_TRUE(poll_until([&] { return hbm("kvd_pool_region_bytes", 1) == kDeviceBytes; }));
  EXPECT_EQ(hbm("kvd_pool_region_bytes", 0), 0);
  EXPECT_EQ(second->allocate_region(kMib, kPatience).code(), ErrorCode::kOutOfMemory);
  EXPECT_TRUE(first->allocate_region(kDeviceBytes, kPatience).ok());
  const json engines = json::parse(kvd.get("/v1/engines").body)["engines"];
  ASSERT_EQ(engines.size(), 2u);
  EXPECT_EQ(engines[0]["devices"], json::array({0}));
  EXPECT_EQ(engines[1]["devices"], json::array({1}));
}

TEST_F(TwoDevicesTest, AFullOneDelaysNobodyOnTheOther) {
  auto renter = kvd_client::Client::open(options(0));
  ASSERT_TRUE(renter.ok());
  ASSERT_TRUE(renter->allocate_region(kDeviceBytes, kPatience).ok());
  kvd_client::Options options_of_waiter = options(0);
  options_of_waiter.shape = {4, 2, 16, 1024};
  auto waiter = kvd_client::Client::open(options_of_waiter);
  ASSERT_TRUE(waiter.ok());
  ASSERT_TRUE(waiter->submit({1, 48, 48, {}, {}}, kPatience).ok());
  ChildProcess free(pattern("free", 1));
  const auto step = waiter->step({}, 0, 0, kPatience);
  ASSERT_TRUE(step.ok());
  EXPECT_TRUE(step->run.empty());
  expect_every_byte(free);
}

TEST_F(TwoDevicesTest, OneThatIsNotThereIsRefusedWithTheRemedy) {
  const auto missing = kvd_client::Client::open(options(2));
  ASSERT_EQ(missing.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(missing.error().message, AllOf(HasSubstr("device 2"), HasSubstr("[[device]]")));
  kvd_client::Options rank = options(1);
  rank.shape = {4, 2, 16, 1024};
  rank.group = {5, 2, 0};
  const auto first = kvd_client::Client::open(rank);
  ASSERT_TRUE(first.ok());
  rank.group.rank = 1;
  rank.device = 7;
  EXPECT_EQ(kvd_client::Client::open(rank).code(), ErrorCode::kInvalidArgument);
}

TEST_F(TwoDevicesTest, WhatADeadEngineLeavesIsZeroedOnItsDevice) {
  {
    ChildProcess engine(pattern("dies", 1, {"--step-ms", "5"}));
    ASSERT_TRUE(poll_until([&] {
      const double free = hbm("kvd_pool_free_bytes", 1);
      return free >= 0 && free < kDeviceBytes;
    })) << engine.errors();
    engine.signal(SIGKILL);
    EXPECT_EQ(engine.wait(), 128 + SIGKILL);
  }
  EXPECT_TRUE(all_free()) << kvd.metrics();
  auto next = kvd_client::Client::open(options(1));
  ASSERT_TRUE(next.ok());
  const auto region = next->allocate_region(kDeviceBytes, kPatience);
  ASSERT_TRUE(region.ok()) << region.error().message;
  EXPECT_TRUE(std::all_of(region->address, region->address + region->bytes,
                          [](std::byte byte) { return byte == std::byte{0}; }));
}

}  // namespace
}  // namespace kvd::test
