// Level 1 on a GPU: regions, tensors of them, PyTorch's allocator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "client_lib/include/kvd.h"
#include "tests/integration/daemon_cuda/cuda_world.hpp"

namespace kvd::test {
namespace {

using kvd_client::ErrorCode;
using nlohmann::json;

constexpr std::size_t kSlab = std::size_t{2} << 20;

json hbm_of(const KvdProcess& kvd) { return json::parse(kvd.get("/v1/status").body)["pools"][0]; }

/// What kvd shows is up to a tenth of a second old.
bool comes_to_lend(const KvdProcess& kvd, std::uint64_t bytes) {
  return poll_until([&] { return hbm_of(kvd)["region_bytes"] == bytes; });
}

bool all_returned(const KvdProcess& kvd) {
  return poll_until([&] { return hbm_of(kvd)["free_bytes"] == hbm_of(kvd)["capacity_bytes"]; });
}

class CudaRegions : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(kvd_.wait_ready()) << kvd_.log(); }

  RuntimeFolder folder_;
  KvdProcess kvd_{folder_, cuda_settings()};
  TestGpu gpu_;
};

TEST_F(CudaRegions, AreSlabsBackToBackOnTheGpuAndZeroed) {
  auto client = open_for_cuda(kvd_);
  ASSERT_TRUE(client.ok()) << client.error().message;
  const auto session = client->session();
  ASSERT_TRUE(session.ok());
  EXPECT_EQ(session->memory, kvd_client::MemoryKind::kCuda);
  EXPECT_EQ(session->device, 0);
  const auto region = client->allocate_region(3 * kSlab, kPatience);
  ASSERT_TRUE(region.ok()) << region.error().message;
  EXPECT_EQ(region->bytes, 3 * kSlab);
  EXPECT_EQ(region->device, 0);
  EXPECT_EQ(gpu_.read(region->address, region->bytes), std::vector<std::byte>(region->bytes));

  std::vector<std::byte> pattern(region->bytes);
  for (std::size_t i = 0; i < pattern.size(); ++i) pattern[i] = static_cast<std::byte>(i / 4099);
  gpu_.write(region->address, pattern);  // one copy across both seams
  EXPECT_EQ(gpu_.read(region->address, region->bytes), pattern);
  EXPECT_TRUE(comes_to_lend(kvd_, 3 * kSlab));

  EXPECT_TRUE(client->free_region(region->id, kPatience).ok());
  EXPECT_TRUE(all_returned(kvd_));
  const auto again = client->allocate_region(8 * kSlab, kPatience);
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(gpu_.read(again->address, again->bytes), std::vector<std::byte>(again->bytes))
      << "what one tenant wrote the next one must not read";
}

TEST_F(CudaRegions, GrowAndShrinkWhereTheyAreAskedTo) {
  auto client = open_for_cuda(kvd_);
  ASSERT_TRUE(client.ok()) << client.error().message;
  const auto region = client->reserve_region(6 * kSlab, kPatience);
  ASSERT_TRUE(region.ok()) << region.error().message;
  EXPECT_EQ(region->device, 0);
  const std::vector<std::uint32_t> upper{5, 2}, lower{0};
  const auto part = client->grow_region(region->id, upper, kPatience);
  ASSERT_TRUE(part.ok()) << part.error().message;
  ASSERT_TRUE(client->grow_region(region->id, lower, kPatience).ok());
  EXPECT_TRUE(comes_to_lend(kvd_, 3 * kSlab));
  const auto at = [&](std::uint32_t position) { return region->address + position * kSlab; };
  EXPECT_EQ(gpu_.read(at(5), kSlab), std::vector<std::byte>(kSlab));
  for (const std::uint32_t position : {5u, 2u, 0u}) {
    gpu_.write(at(position), std::vector<std::byte>(kSlab, static_cast<std::byte>(position + 1)));
  }
  EXPECT_EQ(gpu_.read(at(2), kSlab), std::vector<std::byte>(kSlab, std::byte{3}));
  ASSERT_TRUE(client->shrink_region(region->id, *part, kPatience).ok());
  EXPECT_TRUE(comes_to_lend(kvd_, kSlab));
  EXPECT_EQ(gpu_.read(at(0), kSlab), std::vector<std::byte>(kSlab, std::byte{1}));
  ASSERT_TRUE(client->grow_region(region->id, upper, kPatience).ok());
  EXPECT_EQ(gpu_.read(at(2), kSlab), std::vector<std::byte>(kSlab)) << "it is zeroed";
  EXPECT_TRUE(client->free_region(region->id, kPatience).ok());
  EXPECT_TRUE(all_returned(kvd_));
}

// Writes as vLLM's warm-up does, which uses blocks that nobody has granted. A hole there would end
// the context (700).
TEST_F(CudaRegions, StrayAccessesToWhatHasNoMemoryHarmNobody) {
  auto client = open_for_cuda(kvd_);
  ASSERT_TRUE(client.ok()) << client.error().message;
  const auto region = client->reserve_region(6 * kSlab, kPatience);
  ASSERT_TRUE(region.ok()) << region.error().message;
  const auto at = [&](std::uint32_t position) { return region->address + position * kSlab; };
  EXPECT_EQ(gpu_.read(at(4), kSlab), std::vector<std::byte>(kSlab));
  const std::vector<std::uint32_t> one{2};
  const auto part = client->grow_region(region->id, one, kPatience);
  ASSERT_TRUE(part.ok()) << part.error().message;
  EXPECT_TRUE(comes_to_lend(kvd_, kSlab)) << "it is none of kvd's";
  const std::vector<std::byte> mark(kSlab, std::byte{9});
  gpu_.write(at(2), mark);
  for (const std::uint32_t stray : {1u, 3u}) {
    gpu_.write(at(stray), std::vector<std::byte>(kSlab, std::byte{7}));
  }
  EXPECT_EQ(gpu_.read(at(2), kSlab), mark);
  ASSERT_TRUE(client->shrink_region(region->id, *part, kPatience).ok());
  gpu_.write(at(2), mark);
  ASSERT_TRUE(client->grow_region(region->id, one, kPatience).ok());
  EXPECT_EQ(gpu_.read(at(2), kSlab), std::vector<std::byte>(kSlab)) << "it is zeroed";
  EXPECT_TRUE(client->free_region(region->id, kPatience).ok());
  EXPECT_TRUE(all_returned(kvd_));
}

TEST_F(CudaRegions, GrowByMemoryOfTheProcessOnceTheirDaemonIsGone) {
  auto client = open_for_cuda(kvd_);
  ASSERT_TRUE(client.ok()) << client.error().message;
  const auto region = client->reserve_region(4 * kSlab, kPatience);
  ASSERT_TRUE(region.ok()) << region.error().message;
  const auto at = [&](std::uint32_t position) { return region->address + position * kSlab; };
  const std::vector<std::uint32_t> lent{0}, own{1, 3};
  ASSERT_TRUE(client->grow_region(region->id, lent, kPatience).ok());
  gpu_.write(at(0), std::vector<std::byte>(kSlab, std::byte{5}));
  EXPECT_EQ(client->back_region(region->id, own, kPatience).code(), ErrorCode::kInvalidArgument);
  kvd_.signal(SIGKILL);
  ASSERT_TRUE(kvd_.wait());
  ASSERT_TRUE(poll_until([&] { return client->back_region(region->id, own, kPatience).ok(); }));
  EXPECT_EQ(gpu_.read(at(3), kSlab), std::vector<std::byte>(kSlab));
  gpu_.write(at(1), std::vector<std::byte>(kSlab, std::byte{6}));
  EXPECT_EQ(gpu_.read(at(0), kSlab), std::vector<std::byte>(kSlab, std::byte{5}));
  EXPECT_EQ(gpu_.read(at(1), kSlab), std::vector<std::byte>(kSlab, std::byte{6}));
  EXPECT_TRUE(client->free_region(region->id, kPatience).ok());
}

// The caller has seen the end of all work that used the part. Other work goes on, even a capture.
TEST_F(CudaRegions, AnIdlePartGoesWithoutWaitingForTheGpu) {
  auto client = open_for_cuda(kvd_);
  ASSERT_TRUE(client.ok()) << client.error().message;
  const auto region = client->reserve_region(4 * kSlab, kPatience);
  ASSERT_TRUE(region.ok()) << region.error().message;
  const std::vector<std::uint32_t> first{0}, second{1};
  const auto busy = client->grow_region(region->id, first, kPatience);
  const auto idle = client->grow_region(region->id, second, kPatience);
  ASSERT_TRUE(busy.ok() && idle.ok());
  gpu_.begin_capture();
  EXPECT_TRUE(client->shrink_region(region->id, *idle, kPatience, true).ok());
  EXPECT_TRUE(gpu_.end_capture());
  HostWord word(gpu_);
  gpu_.wait_for(word, 1);
  EXPECT_EQ(client->shrink_region(region->id, *busy, std::chrono::milliseconds(50)).code(),
            ErrorCode::kDeadlineExceeded);
  EXPECT_TRUE(client->shrink_region(region->id, *busy, kPatience, true).ok());
  EXPECT_TRUE(comes_to_lend(kvd_, 0));
  word.set(1);
  EXPECT_TRUE(client->free_region(region->id, kPatience).ok());
}

TEST_F(CudaRegions, ATensorKeepsItsRegion) {
  kvd_open_options options{};
  options.struct_size = sizeof options;
  options.endpoint = kvd_.endpoint().c_str();
  options.memory = KVD_MEMORY_CUDA;
  kvd_handle* handle = nullptr;
  ASSERT_EQ(kvd_open(&options, &handle), KVD_OK) << kvd_last_error();
  constexpr std::uint64_t kTimeout = 30'000'000'000;
  kvd_region region{};
  region.struct_size = sizeof region;
  ASSERT_EQ(kvd_region_allocate(handle, kSlab, kTimeout, &region), KVD_OK) << kvd_last_error();
  EXPECT_EQ(region.device, 0);

  kvd_dl_managed_tensor* tensor = nullptr;
  ASSERT_EQ(kvd_region_dlpack(handle, region.id, kTimeout, &tensor), KVD_OK) << kvd_last_error();
  EXPECT_EQ(tensor->dl_tensor.data, region.address);
  EXPECT_EQ(tensor->dl_tensor.device.device_type, 2);
  EXPECT_EQ(tensor->dl_tensor.device.device_id, 0);
  ASSERT_EQ(tensor->dl_tensor.ndim, 1);
  EXPECT_EQ(tensor->dl_tensor.shape[0], static_cast<std::int64_t>(kSlab));
  EXPECT_EQ(tensor->dl_tensor.dtype.bits, 8);
  ASSERT_NE(tensor->dl_tensor.strides, nullptr);
  EXPECT_EQ(tensor->dl_tensor.strides[0], 1);

  EXPECT_EQ(kvd_region_free(handle, region.id, kTimeout), KVD_WOULD_BLOCK);
  tensor->deleter(tensor);
  EXPECT_EQ(kvd_region_free(handle, region.id, kTimeout), KVD_OK) << kvd_last_error();
  EXPECT_EQ(kvd_region_dlpack(handle, region.id, kTimeout, &tensor), KVD_NOT_FOUND);
  kvd_close(handle);
  EXPECT_TRUE(all_returned(kvd_));
}

// The daemon must not take memory back while this process maps it, whatever was closed.
TEST_F(CudaRegions, ATensorThatOutlivesItsHandleHoldsTheMemoryBack) {
  kvd_client::RegionView view;
  {
    auto client = open_for_cuda(kvd_);
    ASSERT_TRUE(client.ok()) << client.error().message;
    const auto region = client->allocate_region(kSlab, kPatience);
    ASSERT_TRUE(region.ok()) << region.error().message;
    auto lent = client->view_region(region->id, kPatience);
    ASSERT_TRUE(lent.ok()) << lent.error().message;
    view = *lent;
  }
  EXPECT_TRUE(poll_until([&] { return hbm_of(kvd_)["quarantined_bytes"] == kSlab; }));
  gpu_.write(view.address, std::vector<std::byte>(64, std::byte{7}));
  EXPECT_EQ(gpu_.read(view.address, 64), std::vector<std::byte>(64, std::byte{7}));
}

// kvd has not been told of this capture. The driver gives no better answer for such a one.
TEST_F(CudaRegions, AreNotUnmappedWhereAGraphIsBeingCaptured) {
  auto client = open_for_cuda(kvd_);
  ASSERT_TRUE(client.ok()) << client.error().message;
  const auto region = client->allocate_region(kSlab, kPatience);
  ASSERT_TRUE(region.ok()) << region.error().message;
  gpu_.begin_capture();
  const auto refused = client->free_region(region->id, kPatience);
  EXPECT_EQ(refused.code(), ErrorCode::kWouldBlock);
  EXPECT_THAT(refused.error().message, testing::HasSubstr("kvd_hold_mappings"));
  EXPECT_FALSE(gpu_.end_capture());
  gpu_.write(region->address, std::vector<std::byte>(64));
  EXPECT_TRUE(client->free_region(region->id, kPatience).ok());
  EXPECT_TRUE(all_returned(kvd_));
}

TEST_F(CudaRegions, StayAsTheyAreWhileMappingsAreHeld) {
  auto client = open_for_cuda(kvd_);
  ASSERT_TRUE(client.ok()) << client.error().message;
  const auto region = client->allocate_region(kSlab, kPatience);
  ASSERT_TRUE(region.ok()) << region.error().message;
  ASSERT_EQ(kvd_hold_mappings(1'000'000'000), KVD_OK) << kvd_last_error();
  gpu_.begin_capture();
  EXPECT_EQ(client->free_region(region->id, kPatience).code(), ErrorCode::kWouldBlock);
  EXPECT_EQ(client->allocate_region(kSlab, kPatience).code(), ErrorCode::kWouldBlock);
  EXPECT_TRUE(gpu_.end_capture());
  kvd_release_mappings();
  EXPECT_TRUE(client->free_region(region->id, kPatience).ok());
  EXPECT_TRUE(all_returned(kvd_));
}

/// PyTorch's allocator has one client a process, so its tests share one kvd.
class CudaTensors : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    world_ = std::make_unique<World>();
    ASSERT_TRUE(kvd().wait_ready()) << kvd().log();
    ::setenv("KVD_ENDPOINT", kvd().endpoint().c_str(), 1);
  }
  static void TearDownTestSuite() { world_.reset(); }
  static KvdProcess& kvd() { return world_->kvd; }
  static TestGpu& gpu() { return world_->gpu; }

 private:
  struct World {
    RuntimeFolder folder;
    KvdProcess kvd{folder, cuda_settings()};
    TestGpu gpu;
  };
  static inline std::unique_ptr<World> world_;
};

TEST_F(CudaTensors, OfPyTorchGoOnceMappingsAreNoLongerHeld) {
  void* const tensor = kvd_torch_malloc(kSlab, 0, gpu().stream());
  void* const another = kvd_torch_malloc(kSlab, 0, gpu().stream());
  ASSERT_TRUE(tensor != nullptr && another != nullptr);
  ASSERT_EQ(kvd_hold_mappings(1'000'000'000), KVD_OK) << kvd_last_error();
  gpu().begin_capture();
  kvd_torch_free(tensor, kSlab, 0, nullptr);
  EXPECT_TRUE(gpu().end_capture());
  EXPECT_TRUE(comes_to_lend(kvd(), 2 * kSlab));
  kvd_release_mappings();
  EXPECT_TRUE(comes_to_lend(kvd(), kSlab));
  // The mappings are not held here, but the tensor's stream tells of the capture, in PyTorch's
  // context.
  const cuda::ScopedCurrent current(gpu().context());
  gpu().begin_capture();
  kvd_torch_free(another, kSlab, 0, gpu().stream());
  EXPECT_TRUE(gpu().end_capture());
  EXPECT_TRUE(comes_to_lend(kvd(), kSlab));
  kvd_torch_free(kvd_torch_malloc(100, 0, gpu().stream()), 100, 0, gpu().stream());
  EXPECT_TRUE(all_returned(kvd()));
}

TEST_F(CudaTensors, AreTakenAndGivenBackByPyTorchsAllocator) {
  EXPECT_EQ(kvd_torch_malloc(kSlab, 5, nullptr), nullptr) << "there is no GPU 5";
  void* const first = kvd_torch_malloc(kSlab + 1, 0, nullptr);
  ASSERT_NE(first, nullptr);
  gpu().write(first, std::vector<std::byte>(kSlab + 1, std::byte{3}));
  void* const second = kvd_torch_malloc(100, 0, nullptr);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(kvd_torch_malloc(64 * kSlab, 0, nullptr), nullptr) << "more than there is";
  EXPECT_THROW((void)kvd_torch_malloc_or_throw(64 * kSlab, 0, nullptr), std::bad_alloc)
      << "outside a pool PyTorch takes a null for an address";
  EXPECT_EQ(kvd_torch_malloc_or_throw(0, 0, nullptr), nullptr);
  EXPECT_TRUE(comes_to_lend(kvd(), 3 * kSlab));
  kvd_torch_free(first, kSlab + 1, 0, nullptr);
  kvd_torch_free(second, 100, 0, nullptr);
  kvd_torch_free(nullptr, 0, 0, nullptr);
  EXPECT_TRUE(all_returned(kvd()));
}

}  // namespace
}  // namespace kvd::test
