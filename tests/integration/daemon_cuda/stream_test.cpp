// Waits of a stream for tickets that are on their way. The daemon's side is MiniDaemon, because the
// test decides here when a copy ends, or that it never does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "tests/integration/daemon_cuda/cuda_world.hpp"
#include "tests/unit/client_lib/mini_daemon.hpp"

namespace kvd::test {
namespace {

using kvd_client::Client;
using kvd_client::ErrorCode;

constexpr std::uint64_t kTicket = 7;

class CudaStream : public testing::Test {
 protected:
  CudaStream() {
    MiniDaemon::Script script;
    script.gpu = gpu_.uuid();
    daemon_.emplace(folder_, script);
  }

  /// An engine that has been told to wait for kTicket.
  Client told_to_wait() {
    kvd_client::Options options;
    options.endpoint = folder_.path("attach.sock");
    options.memory = kvd_client::kCudaMemory;
    options.shape = {4, 0, 0, 2048};
    Client client = std::move(Client::open(options)).value();
    EXPECT_TRUE(
        client.submit({.id = 42, .prompt_tokens = 20, .max_new_tokens = 4}, kPatience).ok());
    daemon_->run_next({42, 0, kTicket, 20, wire::kRunSwappedIn, 0, 0},
                      {SlotId(SlabIndex(3), 5), SlotId(SlabIndex(3), 6)});
    EXPECT_TRUE(client.step({}, 0, 0, kPatience).ok());
    return client;
  }

  bool becomes_idle() {
    return poll_until([&] { return gpu_.stream_is_idle(); });
  }

  TestGpu gpu_;
  TemporaryFolder folder_;
  std::optional<MiniDaemon> daemon_;
};

TEST_F(CudaStream, WaitsUntilTheFenceSaysSo) {
  Client client = told_to_wait();
  ASSERT_TRUE(client.wait_on_stream(kTicket, gpu_.stream()).ok());
  EXPECT_FALSE(gpu_.stream_is_idle());
  daemon_->page()->fence_h2d() = kTicket - 1;
  EXPECT_EQ(client.wait(kTicket, std::chrono::milliseconds(20)).code(),
            ErrorCode::kDeadlineExceeded);
  EXPECT_FALSE(gpu_.stream_is_idle());
  daemon_->page()->fence_h2d() = kTicket;
  EXPECT_TRUE(becomes_idle());
  EXPECT_TRUE(client.confirm().ok());
  ASSERT_TRUE(client.wait_on_stream(kTicket, gpu_.stream()).ok());
  EXPECT_TRUE(gpu_.stream_is_idle()) << "what has ended is not waited for";
}

TEST_F(CudaStream, WaitsOnlyForWhatAStepHasNamed) {
  Client client = told_to_wait();
  EXPECT_EQ(client.wait_on_stream(kTicket + 1, gpu_.stream()).code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(gpu_.stream_is_idle());
}

TEST_F(CudaStream, OfADeadDaemonGoesOnAndTheStepIsKnownToBeLost) {
  Client client = told_to_wait();
  ASSERT_TRUE(client.wait_on_stream(kTicket, gpu_.stream()).ok());
  EXPECT_FALSE(gpu_.stream_is_idle());
  daemon_.reset();
  EXPECT_TRUE(becomes_idle());
  EXPECT_EQ(client.confirm().code(), ErrorCode::kUnavailable) << "its bytes never came";
}

TEST_F(CudaStream, DoesNotOutliveTheClient) {
  {
    Client client = told_to_wait();
    ASSERT_TRUE(client.wait_on_stream(kTicket, gpu_.stream()).ok());
    EXPECT_FALSE(gpu_.stream_is_idle());
  }
  EXPECT_TRUE(gpu_.stream_is_idle());
}

// The engine holds device pointers of one GPU: those of another would be nonsense to it.
TEST_F(CudaStream, ADaemonOnAnotherGpuIsNotTakenForTheSame) {
  Client client = told_to_wait();
  daemon_.reset();
  ASSERT_TRUE(poll_until([&] { return client.confirm().code() == ErrorCode::kUnavailable; }));
  MiniDaemon::Script script;
  script.boot = 2;
  script.gpu = {0xab};
  daemon_.emplace(folder_, script);
  const auto refused = client.ping(kPatience);
  EXPECT_EQ(refused.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message,
              testing::AllOf(testing::HasSubstr("ab000000"),
                             testing::HasSubstr("the session before was on GPU")));
}

}  // namespace
}  // namespace kvd::test
