// Blocks that DRAM cached outlive a kvd on a GPU: the next one registers the same memory. Blocks
// that HBM alone cached do, too: the next one copies them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "tests/fault/adopting.hpp"
#include "tests/integration/daemon_cuda/cuda_world.hpp"
#include "tests/support/store_node.hpp"

namespace kvd::test {
namespace {

using bench::StoreNode;

constexpr std::uint64_t kBlocks = 60;
constexpr std::uint64_t tokens_of(std::uint64_t blocks) {
  return blocks * StoreNode::kBlockTokens + 1;
}
constexpr std::uint64_t kTokens = tokens_of(kBlocks);
constexpr const char* kMemfds = "KVD_CUDA_DRAM=memfd";
constexpr const char* kHbmAlone = "[rotation]\neager = false\n";

/// How an engine of this process reaches its blocks.
StoreNode::Gpu access_by(TestGpu& gpu) {
  return {.write =
              [&](std::byte* to, std::span<const std::byte> from) {
                gpu.write(to, {from.begin(), from.end()});
              },
          .read =
              [&](std::span<std::byte> to, const std::byte* from) {
                const std::vector<std::byte> got = gpu.read(from, to.size());
                std::copy(got.begin(), got.end(), to.begin());
              }};
}

KvdSettings held_settings() {
  KvdSettings settings = cuda_settings();
  settings.environment.emplace_back(kMemfds);
  settings.under = {built_program("kvd-holder"), "--"};
  return settings;
}

TEST(CudaAdopting, WhatDramCachedIsFoundAfterAKill) {
  TestGpu gpu;
  StoreNode node(held_settings(), access_by(gpu));
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

/// How many slots of HBM the holder's records name.
std::size_t written_for(pid_t holder) {
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(holder) + "/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry, gone).string().find("kvd-state") ==
        std::string::npos) {
      continue;
    }
    const UniqueFd state(::open(entry.path().c_str(), O_RDWR | O_CLOEXEC));
    if (state.valid()) return Records(state).whole(Tier::kHbm);
  }
  return 0;
}

// The earlier kvd's engine maps the old memory until it attaches again.
TEST(CudaAdopting, WhatHbmAloneCachedIsFoundAfterAKillAndAnUpgrade) {
  TestGpu gpu;
  KvdSettings settings = held_settings();
  settings.extra = kHbmAlone;
  StoreNode node(settings, access_by(gpu));
  EXPECT_EQ(node.run(1, kTokens), 0u);
  ASSERT_TRUE(poll_until([&] { return written_for(node.daemon().pid()) == kBlocks; }))
      << node.daemon().log();
  for (const auto end :
       {StoreNode::End::kKilled, StoreNode::End::kKilled, StoreNode::End::kUpgraded}) {
    node.replace_held(end);
    node.attach_again();
    EXPECT_EQ(node.run(1, kTokens), kTokens - 1) << node.daemon().log();
  }
  EXPECT_EQ(node.daemon().metric("kvd_kept_blocks{tier=\"dram\"}"), 0.0);
}

class CudaAdoptingHbm : public AdoptingWorld {
 protected:
  CudaAdoptingHbm() {
    settings_.backend = "cuda";
    settings_.extra += kHbmAlone;
    gpu_ = access_by(device_);
    environment_ = fake_driver({kMemfds});
  }

  /// A kvd that has cached a prompt of this many blocks in HBM and was killed.
  void leave_a_prompt(std::uint64_t blocks = kBlocks) {
    ASSERT_NO_FATAL_FAILURE(start());
    EXPECT_EQ(run(1, tokens_of(blocks)), 0u);
    ASSERT_TRUE(written(blocks, Tier::kHbm)) << records() << kvd_->log();
    EXPECT_EQ(records(Tier::kDram), 0u);
    kill();
  }
  [[nodiscard]] bool log_has(const char* text) const {
    return kvd_->log().find(text) != std::string::npos;
  }

  TestGpu device_;
};

TEST_F(CudaAdoptingHbm, EveryByteIsThereAfterEachKill) {
  ASSERT_NO_FATAL_FAILURE(leave_a_prompt());
  for (int i = 0; i < 3; ++i) {
    ASSERT_NO_FATAL_FAILURE(start());
    EXPECT_EQ(kept(Tier::kHbm), double{kBlocks}) << kvd_->log();
    EXPECT_EQ(metric("kvd_kept_bytes{tier=\"hbm\"}"), double{kBlocks << 14});
    if (!on_real_driver()) {  // processes whose contexts take memory, including this one
      EXPECT_EQ(metric("kvd_gpu_context_bytes"), 0.0) << "what was left is none of the context's";
    }
    EXPECT_EQ(run(1, kTokens), kTokens - 1) << "and every byte of it is right";
    EXPECT_EQ(records(Tier::kHbm), kBlocks);
    EXPECT_TRUE(poll_until([&] { return store_.size() == 25; }))
        << store_.size() << ", not 16 and 8 slabs and what is written down";
    kill();
  }
}

// Slabs of 72 MiB on a GPU, and of 64 MiB where kvd has not looked yet whether there is one.
TEST_F(CudaAdoptingHbm, WhereKvdChoosesBackendAndSlabsItIsTheSame) {
  settings_.backend = "auto";
  settings_.slab = "auto";
  settings_.hbm = "288MiB";
  settings_.dram = "144MiB";
  ASSERT_NO_FATAL_FAILURE(leave_a_prompt());
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_TRUE(log_has("hbm: 4 slabs of 72 MiB on device pages")) << kvd_->log();
  EXPECT_EQ(kept(Tier::kHbm), double{kBlocks}) << kvd_->log();
  EXPECT_EQ(run(1, kTokens), kTokens - 1) << "and every byte of it is right";
  EXPECT_TRUE(poll_until([&] { return store_.size() == 7; }))
      << store_.size() << ", not 4 and 2 slabs and what is written down";
}

TEST_F(CudaAdoptingHbm, AByteThatSomebodyAlteredBeforeTheStartIsAMiss) {
  ASSERT_NO_FATAL_FAILURE(leave_a_prompt());
  ASSERT_NO_FATAL_FAILURE(alter(40));
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_EQ(kept(Tier::kHbm), 40.0);
  EXPECT_EQ(dropped("altered"), 1.0);
  EXPECT_EQ(dropped("parent"), double{kBlocks - 41});
  EXPECT_EQ(run(1, kTokens), 40 * StoreNode::kBlockTokens);
}

TEST_F(CudaAdoptingHbm, WhoeverStillHasTheOldMemoryKeepsItAndWritesToNobodys) {
  ASSERT_NO_FATAL_FAILURE(leave_a_prompt());
  const UniqueFd old = store_.find("kvd-hbm-0");
  ASSERT_TRUE(old.valid());
  const std::vector<char> before = bytes_of(old);
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_TRUE(bytes_of(old) == before) << "it is not this kvd's to touch";
  const std::vector<char> garbage(kSlabBytes, 'x');
  ASSERT_EQ(::pwrite(old.get(), garbage.data(), garbage.size(), 0), std::ssize(garbage));
  EXPECT_EQ(run(1, kTokens), kTokens - 1) << "and every byte of it is right";
}

// Three slabs, all in use, and the zeros of kvd's own are all that the GPU has.
TEST_F(CudaAdoptingHbm, WhereThereIsNoRoomForOneSlabMoreTheLastOneMakesIt) {
  constexpr std::uint64_t kThreeSlabs = 300;
  settings_.hbm = "6MiB";
  environment_.push_back("FAKECUDA_HBM_BYTES=" + std::to_string((kMiB * 8).value));
  ASSERT_NO_FATAL_FAILURE(leave_a_prompt(kThreeSlabs));
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_TRUE(log_has("there is no room for one slab more")) << kvd_->log();
  EXPECT_EQ(kept(Tier::kHbm), 256.0) << kvd_->log();
  EXPECT_EQ(dropped("misfit"), double{kThreeSlabs - 256});
  EXPECT_EQ(run(1, tokens_of(kThreeSlabs)), 256 * StoreNode::kBlockTokens);
}

// The driver is asked for the zeros first, then for a slab, and for the same one again.
TEST_F(CudaAdoptingHbm, WhereThatIsNotEnoughAllGoAndTheStartGoesOn) {
  constexpr std::uint64_t kThreeSlabs = 300;
  ASSERT_NO_FATAL_FAILURE(leave_a_prompt(kThreeSlabs));
  environment_.emplace_back("FAKECUDA_FAIL=cuMemCreate:2:2,cuMemCreate:3:2");
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_TRUE(log_has("slab 2 of HBM of the kvd before is left behind")) << kvd_->log();
  EXPECT_TRUE(log_has("slab 1 of HBM of the kvd before is left behind")) << kvd_->log();
  EXPECT_EQ(kept(), 0.0);
  EXPECT_EQ(dropped("misfit"), double{kThreeSlabs});
  EXPECT_EQ(run(1, kTokens), 0u);
}

TEST_F(CudaAdoptingHbm, WhatCannotBeImportedIsAMissThatTheLogTells) {
  environment_.emplace_back("FAKECUDA_FAIL=cuMemImportFromShareableHandle:1:1");
  ASSERT_NO_FATAL_FAILURE(leave_a_prompt());
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_TRUE(log_has("is left behind: importing device memory")) << kvd_->log();
  EXPECT_EQ(kept(), 0.0);
  EXPECT_EQ(dropped("misfit"), double{kBlocks});
  EXPECT_EQ(run(1, kTokens), 0u);
  ASSERT_TRUE(written(kBlocks, Tier::kHbm));
}

// kvd is restarted, and the slab that made it fail is no longer kept.
TEST_F(CudaAdoptingHbm, ADeviceThatIsLostOverOldMemoryIsNotLostOverItAgain) {
  ASSERT_NO_FATAL_FAILURE(leave_a_prompt());
  const std::vector<std::string> healthy = environment_;
  environment_.emplace_back("FAKECUDA_STICKY=cuMemcpyAsync:1:719");
  launch();
  EXPECT_NE(kvd_->wait().value_or(0), 0) << kvd_->log();
  EXPECT_TRUE(log_has("copying device memory of an earlier process")) << kvd_->log();
  environment_ = healthy;
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_EQ(kept(), 0.0) << kvd_->log();
  EXPECT_EQ(run(1, kTokens), 0u);
}

}  // namespace
}  // namespace kvd::test
