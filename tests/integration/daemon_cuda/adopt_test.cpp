// What DRAM cached outlives a kvd on a GPU: another one registers the same memory.
#include <gtest/gtest.h>

#include "tests/bench/store_node.hpp"
#include "tests/integration/daemon_cuda/cuda_world.hpp"

namespace kvd::test {
namespace {

using bench::StoreNode;

constexpr std::uint64_t kBlocks = 60;
constexpr std::uint64_t kTokens = kBlocks * StoreNode::kBlockTokens + 1;

TEST(CudaAdopting, WhatDramCachedIsFoundAfterAKill) {
  TestGpu gpu;
  KvdSettings settings = cuda_settings();
  settings.environment.emplace_back("KVD_CUDA_DRAM=memfd");
  settings.under = {built_program("kvd-holder"), "--"};
  StoreNode node(settings, {.write =
                                [&](std::byte* to, std::span<const std::byte> from) {
                                  gpu.write(to, {from.begin(), from.end()});
                                },
                            .read =
                                [&](std::span<std::byte> to, const std::byte* from) {
                                  const std::vector<std::byte> got = gpu.read(from, to.size());
                                  std::copy(got.begin(), got.end(), to.begin());
                                }});
  EXPECT_EQ(node.run(1, kTokens), 0u);
  const auto in_dram = [&] {
    return node.daemon().metric("kvd_cache_bytes{tier=\"dram\"}").value_or(0) >= kBlocks << 14;
  };
  std::uint64_t found = 0;
  for (int kills = 0; kills < 20 && found < kTokens - 1; ++kills) {
    ASSERT_TRUE(poll_until(in_dram)) << node.daemon().log();
    node.replace_held();
    node.attach_again();
    found = node.run(1, kTokens);
  }
  EXPECT_EQ(found, kTokens - 1) << node.daemon().log();
  EXPECT_EQ(node.daemon().metric("kvd_kept_blocks{tier=\"hbm\"}"), 0.0);
}

}  // namespace
}  // namespace kvd::test
