// Waits of a stream for tickets that are on their way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/daemon_cuda/told_engine.hpp"

namespace kvd::test {
namespace {

using kvd_client::Client;
using kvd_client::ErrorCode;

class CudaStream : public ToldEngine {};

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

// What the client maps goes once the device is idle, and the stream would be idle only afterwards.
TEST_F(CudaStream, DoesNotHoldUpAClientThatMapsWhatItWaitsFor) {
  {
    Client client = told_to_wait();
    lend_slab(3);
    ASSERT_TRUE(client.wait_on_stream(kTicket, gpu_.stream()).ok());
  }
  EXPECT_TRUE(gpu_.stream_is_idle()) << "it still waited when its memory went";
  EXPECT_TRUE(daemon_->wait_until([](const auto& seen) { return seen.goodbyes == 1; }));
}

// The page stays, registered as it is, so the next session's page stands elsewhere.
TEST_F(CudaStream, ThatComesToItsWaitMuchLaterDoesNotSpoilTheNextSession) {
  HostWord word(gpu_);
  {
    Client client = told_to_wait();
    gpu_.wait_for(word, 1);
    ASSERT_TRUE(client.wait_on_stream(kTicket, gpu_.stream()).ok());
  }
  EXPECT_FALSE(gpu_.stream_is_idle());
  {
    Client next = told_to_wait();
    daemon_->page()->fence_h2d() = 0;
    EXPECT_TRUE(next.wait_on_stream(kTicket, gpu_.stream()).ok());
    word.set(1);
  }
  EXPECT_TRUE(becomes_idle());
}

// Memory that a kernel may still use stays mapped, and the daemon is not told otherwise.
TEST_F(CudaStream, ThatNeverEndsKeepsTheMemoryOfAClientThatCloses) {
  HostWord word(gpu_);
  {
    Client client = told_to_wait();
    lend_slab(3);
    gpu_.wait_for(word, 1);
  }
  EXPECT_FALSE(gpu_.stream_is_idle());
  EXPECT_EQ(daemon_->seen().goodbyes, 0u);
  word.set(1);
  EXPECT_TRUE(becomes_idle());
}

// Goes through the layer groups in order, without the CPU: wait for a group's blocks, use them,
// tell that they may be overwritten.
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
