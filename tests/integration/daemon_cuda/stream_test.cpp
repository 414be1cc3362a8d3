// Waits of a stream for tickets that are on their way. The daemon's side is MiniDaemon, because the
// test decides here when a copy ends, or that it never does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "ipc/vocabulary/layer_mark.hpp"
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

  /// An engine that has been told to wait for kTicket, and for streamed layers.
  Client told_to_wait() {
    kvd_client::Options options;
    options.endpoint = folder_.path("attach.sock");
    options.memory = kvd_client::kCudaMemory;
    options.shape = {4, 0, 0, 2048};
    Client client = std::move(Client::open(options)).value();
    EXPECT_TRUE(
        client.submit({.id = 42, .prompt_tokens = 20, .max_new_tokens = 4}, kPatience).ok());
    daemon_->run_next({42, 0, kTicket, 20, wire::kRunSwappedIn | wire::kRunStreamed, 1, 0},
                      {SlotId(SlabIndex(3), 5), SlotId(SlabIndex(3), 6)});
    const auto step = client.step({}, 0, 0, kPatience);
    EXPECT_TRUE(step.ok());
    iteration_ = step->iteration;
    return client;
  }

  bool becomes_idle() {
    return poll_until([&] { return gpu_.stream_is_idle(); });
  }

  /// The page's word for the first `groups` layer groups of the iteration.
  [[nodiscard]] std::uint64_t mark(std::uint32_t groups) const {
    return layer_mark(iteration_, groups);
  }

  TestGpu gpu_;
  TemporaryFolder folder_;
  std::optional<MiniDaemon> daemon_;
  std::uint64_t iteration_ = 0;
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

// One layer group after the other, without the CPU: wait for its blocks, use them, tell that they
// may be overwritten.
TEST_F(CudaStream, TakesTurnsWithTheFetchesOfStreamedLayers) {
  Client client = told_to_wait();
  const auto page = daemon_->page();
  for (std::uint32_t group = 0; group < MiniDaemon::kGroups; ++group) {
    ASSERT_TRUE(client.wait_layer_on_stream(iteration_, group, gpu_.stream()).ok());
    ASSERT_TRUE(client.layer_done_on_stream(iteration_, group, gpu_.stream()).ok());
  }
  EXPECT_FALSE(gpu_.stream_is_idle());
  EXPECT_EQ(page->progress(), 0) << "no group has come";
  page->fence_layers() = mark(1);
  EXPECT_TRUE(poll_until([&] { return page->progress() == mark(1); }));
  EXPECT_FALSE(gpu_.stream_is_idle());
  page->fence_layers() = mark(2);
  EXPECT_TRUE(poll_until([&] { return page->progress() == mark(2); }));
  EXPECT_TRUE(becomes_idle());
  EXPECT_TRUE(client.confirm().ok());
}

TEST_F(CudaStream, WakesADaemonThatSleepsUntilALayerIsDone) {
  Client client = told_to_wait();
  const auto page = daemon_->page();
  page->progress_wanted() = mark(2);
  ASSERT_TRUE(client.layer_done_on_stream(iteration_, 0, gpu_.stream()).ok());
  ASSERT_TRUE(client.wait_layer_on_stream(iteration_, 1, gpu_.stream()).ok());
  ASSERT_TRUE(client.layer_done_on_stream(iteration_, 1, gpu_.stream()).ok());
  EXPECT_TRUE(poll_until([&] { return page->progress() == mark(1); }));
  EXPECT_FALSE(daemon_->rung()) << "it sleeps until the second group, which has not come";
  page->fence_layers() = mark(2);
  EXPECT_TRUE(poll_until([&] { return daemon_->rung(); }));
  EXPECT_EQ(page->progress_wanted(), 0) << "the ring is taken once";
  EXPECT_EQ(page->progress(), mark(2)) << "before the ring, not after it";
}

TEST_F(CudaStream, WaitsForNoLayersThatNobodyStreams) {
  Client client = told_to_wait();
  const auto code = [&](std::uint64_t iteration, std::uint32_t group) {
    return client.wait_layer_on_stream(iteration, group, gpu_.stream()).code();
  };
  EXPECT_EQ(code(iteration_ + 1, 0), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(iteration_, MiniDaemon::kGroups), ErrorCode::kInvalidArgument);
  EXPECT_EQ(client.layer_done_on_stream(iteration_, MiniDaemon::kGroups, gpu_.stream()).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_TRUE(gpu_.stream_is_idle());
}

TEST_F(CudaStream, OfADeadDaemonGoesOnPastLayersThatNeverCame) {
  Client client = told_to_wait();
  ASSERT_TRUE(client.wait_layer_on_stream(iteration_, 0, gpu_.stream()).ok());
  ASSERT_TRUE(client.layer_done_on_stream(iteration_, 0, gpu_.stream()).ok());
  EXPECT_FALSE(gpu_.stream_is_idle());
  daemon_.reset();
  EXPECT_TRUE(becomes_idle());
  EXPECT_EQ(client.confirm().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(client.layer_done_on_stream(iteration_, 1, gpu_.stream()).code(),
            ErrorCode::kUnavailable);
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
