// Blocks that an engine places itself in device memory: stored in DRAM, loaded into other blocks.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tests/integration/daemon_cuda/cuda_world.hpp"

namespace kvd::test {
namespace {

using kvd_client::ErrorCode;
using kvd_client::TicketState;

constexpr std::size_t kSlab = std::size_t{2} << 20;
constexpr std::size_t kBlock = 96 << 10;
constexpr std::size_t kFirst = 64 << 10;  ///< of a block's two pieces; they cross slabs

/// An engine with a region of two slabs on the GPU. The first pieces of all blocks stand in front
/// of the second ones, as keys and values do in vLLM.
class GpuEngine {
 public:
  GpuEngine(const KvdProcess& kvd, TestGpu& gpu)
      : gpu_(gpu), client(std::move(open_for_cuda(kvd)).value()) {
    region_ = client.allocate_region(2 * kSlab, kPatience).value();
    cache_ =
        client.caches()
            .open({"test",
                   16,
                   kBlock,
                   region_.id,
                   blocks(),
                   {{0, kFirst, kFirst}, {blocks() * kFirst, kBlock - kFirst, kBlock - kFirst}}},
                  kPatience)
            .value();
  }
  [[nodiscard]] static std::uint32_t blocks() { return 2 * kSlab / kBlock; }

  void fill(std::uint32_t block, int seed) {
    const std::vector<std::byte> bytes = content(seed);
    gpu_.write(first(block), {bytes.begin(), bytes.begin() + kFirst});
    gpu_.write(second(block), {bytes.begin() + kFirst, bytes.end()});
  }
  [[nodiscard]] bool holds(std::uint32_t block, int seed) {
    std::vector<std::byte> bytes = gpu_.read(first(block), kFirst);
    const std::vector<std::byte> rest = gpu_.read(second(block), kBlock - kFirst);
    bytes.insert(bytes.end(), rest.begin(), rest.end());
    return bytes == content(seed);
  }
  [[nodiscard]] std::byte* first(std::uint32_t block) const { return at(block * kFirst); }

  TicketState store(const std::vector<std::uint32_t>& numbers,
                    const std::vector<std::uint32_t>& from) {
    EXPECT_TRUE(
        client.caches().store(cache_, digests(numbers), from, false, kPatience, ticket_).ok());
    return ended();
  }
  TicketState load(const std::vector<std::uint32_t>& numbers,
                   const std::vector<std::uint32_t>& into) {
    EXPECT_TRUE(client.caches().load(cache_, digests(numbers), into, kPatience, ticket_).ok());
    return ended();
  }
  std::uint64_t leading(const std::vector<std::uint32_t>& numbers) {
    return client.caches().lookup(cache_, digests(numbers), kPatience).value();
  }

 private:
  TestGpu& gpu_;

 public:
  kvd_client::Client client;

 private:
  [[nodiscard]] std::byte* at(std::size_t offset) const {
    return static_cast<std::byte*>(region_.address) + offset;
  }
  [[nodiscard]] std::byte* second(std::uint32_t block) const {
    return at(blocks() * kFirst + block * (kBlock - kFirst));
  }
  static std::vector<std::byte> content(int seed) {
    std::vector<std::byte> bytes(kBlock);
    for (std::size_t i = 0; i < kBlock; ++i) {
      bytes[i] = static_cast<std::byte>(i / 4099 + static_cast<std::size_t>(seed) * 31);
    }
    return bytes;
  }
  static std::vector<kvd_client::Digest> digests(const std::vector<std::uint32_t>& numbers) {
    std::vector<kvd_client::Digest> made(numbers.size());
    for (std::size_t i = 0; i < made.size(); ++i) {
      std::memcpy(made[i].data(), &numbers[i], sizeof numbers[i]);
    }
    return made;
  }
  TicketState ended() {
    EXPECT_TRUE(client.caches().wait({&ticket_, 1}, kPatience).ok());
    return client.caches().poll({&ticket_, 1})[0];
  }

  kvd_client::Region region_;
  std::uint64_t cache_ = 0;
  std::uint64_t ticket_ = 0;
};

class CudaCaches : public testing::Test {
 protected:
  RuntimeFolder folder_;
  TestGpu gpu_;
};

TEST_F(CudaCaches, WhatOneEngineStoredAnotherLoadsIntoOtherBlocks) {
  const KvdProcess kvd(folder_, cuda_settings());
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  const std::uint32_t last = GpuEngine::blocks() - 1;
  {
    GpuEngine a(kvd, gpu_);
    a.fill(0, 1);
    a.fill(21, 2);  // its first piece crosses no slab, that of 31 does
    a.fill(31, 3);
    a.fill(last, 4);
    EXPECT_EQ(a.store({1, 2, 3, 4}, {0, 21, 31, last}), TicketState::kDone);
  }
  GpuEngine b(kvd, gpu_);
  EXPECT_EQ(b.leading({1, 2, 3, 4, 5}), 4u);
  EXPECT_FALSE(b.holds(31, 2)) << "the control: it is not there by itself";
  EXPECT_EQ(b.load({1, 2, 3, 4}, {last, 31, 0, 7}), TicketState::kDone);
  EXPECT_TRUE(b.holds(last, 1));
  EXPECT_TRUE(b.holds(31, 2));
  EXPECT_TRUE(b.holds(0, 3));
  EXPECT_TRUE(b.holds(7, 4));
}

// Stores as kvd_vllm does: it records an event behind all work of the step, and stores once that
// has passed. kvd copies on streams of its own, which know nothing of the engine's.
TEST_F(CudaCaches, AStoreBehindAnEventHasWhatTheStreamWrote) {
  const KvdProcess kvd(folder_, cuda_settings());
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  GpuEngine engine(kvd, gpu_);
  engine.fill(0, 1);
  HostWord word(gpu_);
  const cuda::ScopedCurrent current(gpu_.context());
  const cuda::Driver& driver = gpu_.context().driver();
  const auto stream = static_cast<CUstream>(gpu_.stream());
  gpu_.wait_for(word, 1);
  const std::vector<std::byte> late(kFirst, std::byte{0xab});
  ASSERT_EQ(driver.memcpy_htod_async(reinterpret_cast<CUdeviceptr>(engine.first(0)), late.data(),
                                     late.size(), stream),
            CUDA_SUCCESS);
  CUevent event = nullptr;
  ASSERT_EQ(driver.event_create(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(driver.event_record(event, stream), CUDA_SUCCESS);
  EXPECT_EQ(driver.event_query(event), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(engine.store({1}, {0}), TicketState::kDone) << "the control: before the event";
  word.set(1);
  ASSERT_TRUE(poll_until([&] { return driver.event_query(event) == CUDA_SUCCESS; }));
  EXPECT_EQ(engine.store({2}, {0}), TicketState::kDone);
  EXPECT_EQ(driver.event_destroy(event), CUDA_SUCCESS);
  EXPECT_EQ(engine.load({1, 2}, {1, 2}), TicketState::kDone);
  EXPECT_TRUE(engine.holds(1, 1)) << "it was too early for what the stream wrote";
  EXPECT_EQ(gpu_.read(engine.first(2), kFirst), late);
}

TEST_F(CudaCaches, WhatOnlyTheDiskHasComesToTheGpu) {
  const RuntimeFolder disk;
  KvdSettings settings = cuda_settings();
  settings.extra =
      "[disk]\npath = '" + disk.path() + "'\nsize = '32MiB'\nfloor = '1MiB'\ntouches = 1\n";
  {
    KvdProcess kvd(folder_, settings);
    ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
    GpuEngine engine(kvd, gpu_);
    engine.fill(3, 1);
    engine.fill(4, 2);
    // Again and again, as the files are being opened meanwhile.
    ASSERT_TRUE(poll_until([&] {
      EXPECT_EQ(engine.store({1, 2}, {3, 4}), TicketState::kDone);
      const auto cached = nlohmann::json::parse(kvd.get("/v1/cache").body)["cached_bytes"];
      return cached["disk"] == 2 * kBlock;
    })) << kvd.get("/v1/cache").body;
    kvd.signal(SIGKILL);
    (void)kvd.wait();
  }
  const KvdProcess kvd(folder_, settings);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  GpuEngine engine(kvd, gpu_);
  ASSERT_TRUE(poll_until([&] { return engine.leading({1, 2, 3}) == 2; })) << kvd.log();
  EXPECT_EQ(engine.load({2, 1}, {0, 1}), TicketState::kDone);
  EXPECT_TRUE(engine.holds(0, 2));
  EXPECT_TRUE(engine.holds(1, 1));
}

}  // namespace
}  // namespace kvd::test
