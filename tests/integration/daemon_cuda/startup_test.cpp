// Which backend a kvd takes, and which engines it lets in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/integration/daemon_cuda/cuda_world.hpp"

namespace kvd::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kNoDevice = "FAKECUDA_INIT=100";  // CUDA_ERROR_NO_DEVICE

std::size_t lines_with(const std::string& log, const std::string& text) {
  std::size_t count = 0;
  for (std::size_t at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) {
    ++count;
  }
  return count;
}

TEST(CudaStartup, TakesTheGpuWhereThereIsOneAndSaysWhich) {
  const RuntimeFolder folder;
  KvdSettings settings = cuda_settings();
  settings.backend = "auto";
  const KvdProcess kvd(folder, settings);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  const json status = json::parse(kvd.get("/v1/status").body);
  EXPECT_EQ(status["backend"], "cuda");
  EXPECT_EQ(status["gpu"]["uuid"].get<std::string>().size(), 36u);
  EXPECT_FALSE(status["gpu"]["name"].get<std::string>().empty());
  EXPECT_EQ(status["pools"][0]["pages"], "device");
  EXPECT_EQ(status["pools"][0]["slab_bytes"], 2 << 20);
  EXPECT_TRUE(kvd.metric("kvd_gpu_context_bytes").has_value());
  EXPECT_THAT(kvd.metrics(), HasSubstr(status["gpu"]["uuid"].get<std::string>()));
}

TEST(CudaStartup, AutomaticSlabsAreLargerOnAGpu) {
  const RuntimeFolder folder;
  KvdSettings settings = cuda_settings({"FAKECUDA_HBM_BYTES=2147483648"});
  settings.hbm = "1GiB";
  settings.dram = "256MiB";
  settings.slab = "auto";
  const KvdProcess kvd(folder, settings);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  const json status = json::parse(kvd.get("/v1/status").body);
  EXPECT_EQ(status["pools"][0]["slab_bytes"], 256 << 20);
}

TEST(CudaStartup, DramIsTheDriversOwnWhereThatIsAskedForAndThere) {
  constexpr const char* kLine = "cuda.dram auto: memfd, as there is no HOST_NUMA memory";
  for (const bool there : {true, false}) {
    const RuntimeFolder folder;
    KvdSettings settings = cuda_settings({there ? "FAKECUDA_HOST_NUMA=1" : "FAKECUDA_HOST_NUMA=0"});
    settings.environment.emplace_back("KVD_CUDA_DRAM=auto");
    const KvdProcess kvd(folder, settings);
    ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
    const json status = json::parse(kvd.get("/v1/status").body);
    EXPECT_EQ(status["pools"][1]["pages"] == "device", there) << status["pools"];
    EXPECT_EQ(lines_with(kvd.log(), kLine), there ? 0u : 1u) << kvd.log();
  }
}

TEST(CudaStartup, AutoFallsBackToHostMemoryWithOneLine) {
  const RuntimeFolder folder;
  KvdSettings settings = cuda_settings({kNoDevice});
  settings.backend = "auto";
  const KvdProcess kvd(folder, settings);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  EXPECT_EQ(lines_with(kvd.log(), "backend auto: host memory"), 1u) << kvd.log();
  const json status = json::parse(kvd.get("/v1/status").body);
  EXPECT_EQ(status["backend"], "host");
  EXPECT_TRUE(status["gpu"].is_null());
  EXPECT_EQ(kvd.metric("kvd_gpu_context_bytes"), 0.0);

  const auto refused = open_for_cuda(kvd);
  EXPECT_EQ(refused.code(), kvd_client::ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("--backend cuda"));
}

TEST(CudaStartup, MemoryThatOthersStillHoldIsWaitedForWhileKvdServes) {
  const RuntimeFolder folder;
  const KvdProcess kvd(folder, cuda_settings({"FAKECUDA_FAIL=cuMemCreate:4:2"}));
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  EXPECT_THAT(kvd.log(), AllOf(HasSubstr("slabs of hbm have no memory yet"),
                               testing::Not(HasSubstr("slabs of dram"))));
  EXPECT_TRUE(poll_until(
      [&] { return kvd.metric("kvd_pool_missing_bytes{tier=\"hbm\",device=\"0\"}") == 0.0; }));
  EXPECT_TRUE(poll_until([&] { return lines_with(kvd.log(), "all slabs have memory") == 1; }));
}

TEST(CudaStartup, APoolBeyondTheGpuIsRefusedWithBothNumbers) {
  const RuntimeFolder folder;
  KvdSettings settings = cuda_settings({"FAKECUDA_HBM_BYTES=67108864"});
  settings.hbm = "128MiB";
  KvdProcess kvd(folder, settings);
  EXPECT_EQ(kvd.wait(), 1);
  EXPECT_THAT(kvd.log(), HasSubstr("pool.hbm: 128 MiB exceeds the GPU's memory (64 MiB)"));
}

TEST(CudaStartup, CudaAskedForAndAbsentIsAnError) {
  const RuntimeFolder folder;
  const KvdRun run = run_kvd({"--backend", "cuda", "--paths.runtime_dir", folder.path()},
                             fake_driver({kNoDevice}));
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.output, AllOf(HasSubstr("backend cuda: "), HasSubstr("--backend host")));
}

TEST(CudaStartup, AnUnknownGpuIsAnErrorThatNamesThoseThatAreThere) {
  const RuntimeFolder folder;
  const KvdRun run =
      run_kvd({"--backend", "cuda", "--cuda.device", "7", "--paths.runtime_dir", folder.path()},
              fake_driver());
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.output, HasSubstr("backend cuda: "));
  const KvdRun nonsense = run_kvd(
      {"--cuda.device", "the big one", "--paths.runtime_dir", folder.path()}, fake_driver());
  EXPECT_EQ(nonsense.status, 2);
  EXPECT_THAT(nonsense.output, HasSubstr("cuda.device"));
}

TEST(CudaStartup, OneGpuUnderTwoNamesIsNotTwoDevices) {
  const RuntimeFolder folder;
  KvdSettings settings = cuda_settings();
  settings.extra = "[[device]]\n[[device]]\ngpu = '0'\n";
  KvdProcess kvd(folder, settings);
  EXPECT_NE(kvd.wait(), 0);
  EXPECT_THAT(kvd.log(), HasSubstr("device.1.gpu: is the GPU of device 0, too"));
}

TEST(CudaStartup, AnEngineThatCannotUseTheGpuIsTurnedAwayWithItsNameAndTheRemedy) {
  const RuntimeFolder folder;
  const KvdProcess kvd(folder, cuda_settings());
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  const std::string uuid =
      json::parse(kvd.get("/v1/status").body)["gpu"]["uuid"].get<std::string>();

  kvd_client::Options host_only;
  host_only.endpoint = kvd.endpoint();
  const auto refused = kvd_client::Client::open(host_only);
  EXPECT_EQ(refused.code(), kvd_client::ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, AllOf(HasSubstr(uuid), HasSubstr("--backend host")));

  ChildProcess blind(pattern_on_gpu(kvd, "blind", {}, {"FAKECUDA_DEVICES=0"}));
  EXPECT_EQ(blind.wait(), 1);
  EXPECT_THAT(blind.errors(),
              AllOf(HasSubstr("Unsupported"), HasSubstr(uuid), HasSubstr("CUDA_VISIBLE_DEVICES")));
  EXPECT_TRUE(poll_until([&] { return json::parse(kvd.get("/v1/status").body)["engines"] == 0; }));
  EXPECT_EQ(kvd.metric("kvd_engines_died_total"), 0.0) << "it left in order";
}

}  // namespace
}  // namespace kvd::test
