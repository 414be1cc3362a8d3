// Tests who goes away, and what a stream that waits then does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/integration/daemon_cuda/cuda_world.hpp"

namespace kvd::test {
namespace {

using kvd_client::Client;
using kvd_client::ErrorCode;
using nlohmann::json;
using testing::HasSubstr;

constexpr int kDeviceLost = 3;

class CudaLoss : public testing::Test {
 protected:
  void start(const KvdSettings& settings) {
    kvd_.emplace(folder_, settings);
    ASSERT_TRUE(kvd_->wait_ready()) << kvd_->log();
  }

  /// An engine with one request of which one iteration has been made.
  Client running() {
    Client client = std::move(open_for_cuda(*kvd_, true)).value();
    EXPECT_TRUE(client.submit({.id = 1, .prompt_tokens = 20, .max_new_tokens = 9}, kPatience).ok());
    EXPECT_TRUE(poll_until([&] { return step(client) && !run_.empty(); }));
    tokens_ = 20;
    EXPECT_TRUE(step(client));
    return client;
  }

  /// Reports what was done, once.
  bool step(Client& client) {
    std::vector<kvd_client::StepReport> reports;
    if (tokens_ > 0) reports.push_back({1, tokens_, false});
    const auto next = client.step(reports, iteration_, 0, kPatience);
    if (!next.ok()) return false;
    iteration_ = next->iteration;
    run_ = next->run;
    return true;
  }

  /// Waits until the request is in DRAM.
  void rotate_out(Client& client) {
    EXPECT_TRUE(client.rotate(1, kvd_client::RotateDirection::kOut, kPatience).ok());
    EXPECT_TRUE(poll_until([&] {
      return step(client) && json::parse(kvd_->get("/v1/status").body)["requests"]["rotary"] == 1;
    }));
  }

  RuntimeFolder folder_;
  std::optional<KvdProcess> kvd_;
  TestGpu gpu_;
  std::uint64_t iteration_ = 0;
  std::uint64_t tokens_ = 0;
  std::vector<kvd_client::RunEntry> run_;
};

TEST_F(CudaLoss, AStreamMayWaitForWhatCameBack) {
  start(cuda_settings());
  Client client = running();
  rotate_out(client);
  EXPECT_TRUE(client.rotate(1, kvd_client::RotateDirection::kIn, kPatience).ok());
  ASSERT_TRUE(poll_until([&] { return step(client) && !run_.empty() && run_[0].ticket != 0; }));
  ASSERT_TRUE(client.wait_on_stream(run_[0].ticket, gpu_.stream()).ok());
  EXPECT_TRUE(poll_until([&] { return gpu_.stream_is_idle(); }));
  EXPECT_TRUE(client.confirm().ok());
}

TEST_F(CudaLoss, AKilledDaemonIsNoticed) {
  start(cuda_settings());
  Client client = running();
  ASSERT_TRUE(client.confirm().ok());
  kvd_->signal(SIGKILL);
  EXPECT_TRUE(poll_until([&] { return client.confirm().code() == ErrorCode::kUnavailable; }));
}

TEST_F(CudaLoss, ALostDevicePoisonsEveryoneAndEndsTheDaemonWithItsOwnStatus) {
  // The trial of copies at the start makes two batches. The third one must be the copy that is
  // asked for, not one made ahead.
  start(cuda_settings({"FAKECUDA_STICKY=cuMemcpyBatchAsync:3:719", "KVD_ROTATION_EAGER=false"}));
  Client bystander = std::move(open_for_cuda(*kvd_)).value();
  Client client = running();
  (void)client.rotate(1, kvd_client::RotateDirection::kOut, kPatience);
  (void)step(client);
  EXPECT_EQ(kvd_->wait(), kDeviceLost) << kvd_->log();
  EXPECT_THAT(kvd_->log(), HasSubstr("the device is lost and kvd ends, to be started again"));
  EXPECT_TRUE(poll_until([&] { return client.confirm().code() == ErrorCode::kUnavailable; }));
  EXPECT_EQ(bystander.ping(std::chrono::milliseconds(50)).code(), ErrorCode::kUnavailable);
}

TEST_F(CudaLoss, ACopyThatStandsStillIsALostDevice) {
  // The trial of copies at the start moves 256 KiB.
  KvdSettings settings = cuda_settings({"FAKECUDA_STALL=h2d", "FAKECUDA_STALL_AFTER=262144"});
  settings.extra = "[cuda]\nwatchdog = \"300ms\"\n";
  start(settings);
  Client client = running();
  rotate_out(client);
  (void)client.rotate(1, kvd_client::RotateDirection::kIn, kPatience);
  (void)step(client);
  EXPECT_EQ(kvd_->wait(), kDeviceLost) << kvd_->log();
  EXPECT_THAT(kvd_->log(), HasSubstr("have not moved for 300 ms"));
  EXPECT_TRUE(poll_until([&] { return client.confirm().code() == ErrorCode::kUnavailable; }));
}

TEST_F(CudaLoss, AFailedCopyEndsTheSessionItWasForAndNoOther) {
  // The fault comes after the trial's two batches. A copy made ahead may fail without harm, because
  // nobody waits for it.
  start(cuda_settings({"FAKECUDA_FAIL=cuMemcpyBatchAsync:3:1", "KVD_ROTATION_EAGER=false"}));
  Client bystander = std::move(open_for_cuda(*kvd_)).value();
  Client client = running();
  (void)client.rotate(1, kvd_client::RotateDirection::kOut, kPatience);
  (void)step(client);
  EXPECT_TRUE(poll_until([&] { return client.confirm().code() == ErrorCode::kUnavailable; }))
      << kvd_->log();
  // The engine hears of it in shared memory, before the line is written.
  EXPECT_TRUE(poll_until([&] {
    return kvd_->log().find("a copy of its blocks failed") != std::string::npos;
  })) << kvd_->log();
  EXPECT_TRUE(bystander.ping(kPatience).ok());
}

}  // namespace
}  // namespace kvd::test
