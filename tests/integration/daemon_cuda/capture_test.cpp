// An engine captures graphs while kvd maps and unmaps in the same process.
#include <gtest/gtest.h>

#include "tests/integration/daemon_cuda/told_engine.hpp"
#include "tests/unit/kernels/device/cuda/fake_driver.hpp"

namespace kvd::test {
namespace {

using kvd_client::Client;
using kvd_client::ErrorCode;

class CudaCapture : public ToldEngine {};

TEST_F(CudaCapture, IsNotDisturbedBySlabsThatComeAndGo) {
  const Client client = told_to_wait();
  gpu_.begin_capture();
  lend_slab(3);
  daemon_->ask_unmap(3);
  EXPECT_TRUE(daemon_->wait_until([](const auto& seen) { return seen.slabs_unmapped == 1; }));
  EXPECT_TRUE(gpu_.end_capture());
}

TEST_F(CudaCapture, IsNotDisturbedByAttachingWaitingAndLeaving) {
  const TestGpu another;
  another.begin_capture();
  {
    Client client = told_to_wait();
    ASSERT_TRUE(client.wait_on_stream(kTicket, gpu_.stream()).ok());
    ASSERT_TRUE(client.layer_done_on_stream(iteration_, 0, gpu_.stream()).ok());
  }
  EXPECT_TRUE(another.end_capture());
  EXPECT_TRUE(becomes_idle());
}

TEST_F(CudaCapture, TakesNoWaitIntoItsGraph) {
  Client client = told_to_wait();
  gpu_.begin_capture();
  EXPECT_EQ(client.wait_on_stream(kTicket, gpu_.stream()).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(client.layer_done_on_stream(iteration_, 0, gpu_.stream()).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_TRUE(gpu_.end_capture());
  EXPECT_TRUE(client.wait_on_stream(kTicket, gpu_.stream()).ok());
}

TEST_F(CudaCapture, HoldsMappingsAndTheDaemonWaitsForThem) {
  const Client client = told_to_wait();
  ASSERT_TRUE(Client::hold_mappings(kPatience).ok());
  ASSERT_TRUE(Client::hold_mappings(kPatience).ok());
  daemon_->send_slab(3, gpu_.make_memory(MiniDaemon::kSlabBytes));
  Client::release_mappings();
  const auto page = daemon_->page();
  const auto beats = page->heartbeat();
  EXPECT_TRUE(poll_until([&] { return page->heartbeat() > beats + 2; })) << "the keeper goes on";
  EXPECT_EQ(daemon_->seen().slabs_acknowledged, 0u) << "there was another hold";
  Client::release_mappings();
  EXPECT_TRUE(daemon_->wait_until([](const auto& seen) { return seen.slabs_acknowledged == 1; }));
}

TEST_F(CudaCapture, ThatHoldsMappingsStillHearsOfADeadDaemon) {
  const Client client = told_to_wait();
  ASSERT_TRUE(Client::hold_mappings(kPatience).ok());
  const auto page = daemon_->page();
  daemon_.reset();
  EXPECT_TRUE(poll_until([&] { return page->poisoned(); }));
  Client::release_mappings();
}

/// A GPU, or a container, on which streams cannot wait on memory.
class CudaWithoutStreams : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Reasons, CudaWithoutStreams,
                         testing::Values("FAKECUDA_FAIL=cuMemHostRegister:1:801",
                                         "FAKECUDA_STREAM_MEMORY_OPERATIONS=0"));

TEST_P(CudaWithoutStreams, TheCpuWaitsInstead) {
  const cuda::FakeDriver fake(GetParam());
  const TestGpu gpu;
  const TemporaryFolder folder;
  MiniDaemon::Script script;
  script.gpu = gpu.uuid();
  const MiniDaemon daemon(folder, script);
  kvd_client::Options options;
  options.endpoint = folder.path("attach.sock");
  options.memory = kvd_client::kCudaMemory;
  options.shape = {4, 0, 0, 2048};
  auto client = Client::open(options);
  ASSERT_TRUE(client.ok()) << client.error().message;
  const auto refused = client->wait_on_stream(0, gpu.stream());
  EXPECT_EQ(refused.code(), ErrorCode::kUnsupported);
  EXPECT_NE(refused.error().message.find("use kvd_wait"), std::string::npos);
  EXPECT_TRUE(client->wait(0, kPatience).ok());
}

}  // namespace
}  // namespace kvd::test
