// Level 3 on a GPU: engines in processes of their own, rotated and killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/integration/daemon_cuda/cuda_world.hpp"
#include "tests/support/pattern_command.hpp"

namespace kvd::test {
namespace {

using nlohmann::json;

json status_of(const KvdProcess& kvd) { return json::parse(kvd.get("/v1/status").body); }

/// Less than two engines want at a time.
KvdSettings tight_pool() {
  KvdSettings settings = cuda_settings();
  settings.hbm = "4MiB";
  settings.dram = "16MiB";
  return settings;
}

/// What a DRAM slab is: see cuda.dram.
class RotationThrough : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(CudaEngines, RotationThrough, testing::Values("memfd", "host_numa"),
                         [](const auto& name) { return std::string(name.param); });

TEST_P(RotationThrough, TwoRotateAndEveryByteIsTheByteWritten) {
  const RuntimeFolder folder;
  KvdSettings settings = tight_pool();
  settings.environment.push_back(std::string("KVD_CUDA_DRAM=") + GetParam());
  const KvdProcess kvd(folder, settings);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  ChildProcess first(pattern_on_gpu(kvd, "a"));
  ChildProcess second(pattern_on_gpu(kvd, "bb"));
  std::uint64_t swapped_in = 0;
  for (ChildProcess* engine : {&first, &second}) {
    const json summary = summary_of(*engine);
    EXPECT_EQ(engine->wait(), 0) << engine->errors();
    EXPECT_EQ(summary["pattern_errors"], 0);
    EXPECT_EQ(summary["requests"], 6);
    EXPECT_GT(summary["bytes_checked"], 0);
    swapped_in += summary["rotations_in"].get<std::uint64_t>();
  }
  EXPECT_GT(swapped_in, 0u) << "no stream had anything to wait for";
  EXPECT_EQ(status_of(kvd)["counters"]["engines_died"], 0);
  EXPECT_EQ(status_of(kvd)["counters"]["copy_failures"], 0);
}

TEST(CudaEngines, ACorruptedByteIsFound) {
  const RuntimeFolder folder;
  const KvdProcess kvd(folder, tight_pool());
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  ChildProcess engine(pattern_on_gpu(kvd, "control", {"--corrupt-once"}));
  EXPECT_GT(summary_of(engine)["pattern_errors"], 0);
  EXPECT_EQ(engine.wait(), 1);
}

TEST(CudaEngines, AKilledOneGivesItsHbmBack) {
  const RuntimeFolder folder;
  const KvdProcess kvd(folder, cuda_settings());
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  ChildProcess engine(pattern_on_gpu(kvd, "victim", {"--step-ms", "200"}));
  const auto hbm = [&] { return status_of(kvd)["pools"][0]; };
  ASSERT_TRUE(poll_until([&] { return hbm()["slots"]["sealed"] > 0; })) << engine.errors();
  engine.signal(SIGKILL);
  EXPECT_EQ(engine.wait(), 128 + SIGKILL);
  EXPECT_TRUE(poll_until([&] {
    const json now = hbm();
    return now["free_bytes"] == now["capacity_bytes"] && now["quarantined_bytes"] == 0;
  })) << hbm().dump();
  EXPECT_EQ(status_of(kvd)["counters"]["engines_died"], 1);
  EXPECT_EQ(status_of(kvd)["backend"], "cuda");
  ChildProcess next(pattern_on_gpu(kvd, "next"));
  EXPECT_EQ(next.wait(), 0) << next.errors();
}

}  // namespace
}  // namespace kvd::test
