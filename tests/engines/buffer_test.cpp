/// The plugin inside this process, loaded by ggml as engines that hide their symbols load it: the
/// test is not linked with ggml and opens it RTLD_LOCAL, so nothing of it is in the global scope.
#include <dlfcn.h>
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "tests/engines/daemon_process.hpp"
#include "tests/support/patience.hpp"

namespace kvd::test {
namespace {

#define KVD_GGML_FUNCTION(name) decltype(&::name) name = look_up<decltype(&::name)>(#name)

/// The functions of the engine this test calls.
class Engine {
 private:
  void* library_ = dlopen(KVD_GGML_LIBRARY, RTLD_NOW | RTLD_LOCAL);

  template <class Function>
  Function look_up(const char* name) {
    return reinterpret_cast<Function>(dlsym(library_, name));
  }

 public:
  KVD_GGML_FUNCTION(ggml_init);
  KVD_GGML_FUNCTION(ggml_free);
  KVD_GGML_FUNCTION(ggml_new_tensor_1d);
  KVD_GGML_FUNCTION(ggml_set_name);
  KVD_GGML_FUNCTION(ggml_backend_alloc_ctx_tensors_from_buft);
  KVD_GGML_FUNCTION(ggml_backend_load_all_from_path);
  KVD_GGML_FUNCTION(ggml_backend_load);
  KVD_GGML_FUNCTION(ggml_backend_unload);
  KVD_GGML_FUNCTION(ggml_backend_reg_dev_count);
  KVD_GGML_FUNCTION(ggml_backend_reg_dev_get);
  KVD_GGML_FUNCTION(ggml_backend_dev_buffer_type);
  KVD_GGML_FUNCTION(ggml_backend_dev_by_type);
  KVD_GGML_FUNCTION(ggml_backend_dev_memory);
  KVD_GGML_FUNCTION(ggml_backend_buft_get_alignment);
  KVD_GGML_FUNCTION(ggml_backend_buft_is_host);
  KVD_GGML_FUNCTION(ggml_backend_buft_alloc_buffer);
  KVD_GGML_FUNCTION(ggml_backend_buffer_get_base);
  KVD_GGML_FUNCTION(ggml_backend_buffer_clear);
  KVD_GGML_FUNCTION(ggml_backend_buffer_free);
};

class Buffer : public ::testing::Test {
 protected:
  static constexpr int kSlabs = 2;
  static constexpr std::size_t kSlab = DaemonProcess::kSlabBytes;

  void SetUp() override {
    setenv("KVD_ENDPOINT", daemon_.endpoint().c_str(), 1);
    engine_.ggml_backend_load_all_from_path(KVD_LLAMA_BACKEND_DIR);
    registration_ = engine_.ggml_backend_load(KVD_PLUGIN_FILE);
    ASSERT_NE(registration_, nullptr);
    ASSERT_EQ(engine_.ggml_backend_reg_dev_count(registration_), 1U);
    type_ =
        engine_.ggml_backend_dev_buffer_type(engine_.ggml_backend_reg_dev_get(registration_, 0));
  }

  /// A buffer for one tensor, as llama.cpp makes one for a KV cache.
  ggml_backend_buffer_t allocate(std::size_t bytes, const char* tensor = "cache_k_l0") {
    ggml_context* context = engine_.ggml_init({4096, nullptr, true});
    engine_.ggml_set_name(
        engine_.ggml_new_tensor_1d(context, GGML_TYPE_I8, static_cast<std::int64_t>(bytes)),
        tensor);
    auto* buffer = engine_.ggml_backend_alloc_ctx_tensors_from_buft(context, type_);
    engine_.ggml_free(context);
    return buffer;
  }

  std::span<std::uint8_t> bytes_of(ggml_backend_buffer_t buffer, std::size_t bytes) {
    return {static_cast<std::uint8_t*>(engine_.ggml_backend_buffer_get_base(buffer)), bytes};
  }

  DaemonProcess daemon_{kSlabs};
  Engine engine_;
  ggml_backend_reg_t registration_ = nullptr;
  ggml_backend_buffer_type_t type_ = nullptr;
};

/// llama.cpp fits the context into a device's free memory; none at all makes it divide by zero.
TEST_F(Buffer, IsOfADeviceThatReportsTheMachinesMemory) {
  std::array<std::size_t, 2> free{};
  std::array<std::size_t, 2> total{};
  engine_.ggml_backend_dev_memory(engine_.ggml_backend_reg_dev_get(registration_, 0), &free[0],
                                  &total[0]);
  engine_.ggml_backend_dev_memory(engine_.ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU),
                                  &free[1], &total[1]);
  EXPECT_GT(free[0], 0U);
  EXPECT_EQ(free[0], free[1]);
  EXPECT_EQ(total[0], total[1]);
}

TEST_F(Buffer, IsAlignedAsClaimedAndHostMemory) {
  EXPECT_TRUE(engine_.ggml_backend_buft_is_host(type_));
  const std::size_t alignment = engine_.ggml_backend_buft_get_alignment(type_);
  EXPECT_GE(alignment, 4096U);
  for (const std::size_t bytes : {std::size_t{1}, kSlab - 1}) {
    ggml_backend_buffer_t sut = allocate(bytes);
    ASSERT_NE(sut, nullptr);
    const auto address = reinterpret_cast<std::uintptr_t>(bytes_of(sut, bytes).data());
    EXPECT_EQ(address % alignment, 0U);
    engine_.ggml_backend_buffer_free(sut);
  }
}

TEST_F(Buffer, SpansSlabsAndIsClearedToItsEnds) {
  constexpr std::size_t kBytes = kSlab + 4096;
  ggml_backend_buffer_t sut = allocate(kBytes);
  ASSERT_NE(sut, nullptr);
  const auto bytes = bytes_of(sut, kBytes);
  EXPECT_EQ(std::ranges::count(bytes, 0), static_cast<std::ptrdiff_t>(kBytes));
  engine_.ggml_backend_buffer_clear(sut, 0xA5);
  EXPECT_EQ(std::ranges::count(bytes, 0xA5), static_cast<std::ptrdiff_t>(kBytes));
  engine_.ggml_backend_buffer_free(sut);
}

TEST_F(Buffer, IsServedByTheDaemonAndComesBackEveryTime) {
  for (int round = 0; round < 5; ++round) {  // more than the pool holds, were one kept
    ggml_backend_buffer_t sut = allocate(kSlabs * kSlab);
    ASSERT_NE(sut, nullptr) << "round " << round;
    EXPECT_TRUE(daemon_.comes_to_serve(getpid(), kSlabs * kSlab));
    EXPECT_EQ(mapped_pool_bytes(getpid()), kSlabs * kSlab);
    engine_.ggml_backend_buffer_free(sut);
    EXPECT_TRUE(daemon_.comes_to_serve(getpid(), 0U));
    EXPECT_EQ(mapped_pool_bytes(getpid()), 0U);
  }
}

TEST_F(Buffer, IsNullWhereThePoolIsFull) {
  ggml_backend_buffer_t first = allocate(kSlabs * kSlab);
  ASSERT_NE(first, nullptr);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(allocate(1), nullptr);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::HasSubstr("kvd: no memory for a KV buffer of 4096 bytes"));
  engine_.ggml_backend_buffer_free(first);
  ggml_backend_buffer_t next = allocate(1);
  EXPECT_NE(next, nullptr);
  engine_.ggml_backend_buffer_free(next);
}

TEST_F(Buffer, OfSmallCachesSharesASlab) {
  std::vector<ggml_backend_buffer_t> small;
  for (int i = 0; i < 100; ++i) {
    small.push_back(allocate(16384));
    ASSERT_NE(small.back(), nullptr) << i;
    engine_.ggml_backend_buffer_clear(small.back(), static_cast<std::uint8_t>(i));
  }
  EXPECT_TRUE(daemon_.comes_to_serve(getpid(), kSlab));
  for (int i = 0; i < 100; ++i) {
    const auto bytes = bytes_of(small[static_cast<std::size_t>(i)], 16384);
    EXPECT_EQ(std::ranges::count(bytes, i), 16384) << "overwritten by a neighbour";
    engine_.ggml_backend_buffer_free(small[static_cast<std::size_t>(i)]);
  }
  EXPECT_TRUE(daemon_.comes_to_serve(getpid(), 0U));
}

TEST_F(Buffer, IsNeverPackedIntoARegionOfADaemonThatIsGone) {
  ggml_backend_buffer_t before = allocate(16384);
  ASSERT_NE(before, nullptr);
  EXPECT_TRUE(daemon_.comes_to_serve(getpid(), kSlab));
  engine_.ggml_backend_buffer_clear(before, 1);
  daemon_.restart();
  ASSERT_TRUE(daemon_.comes_to_know(getpid()));
  // The new one shows the engine a moment before the engine has heard of it.
  std::vector<ggml_backend_buffer_t> after;
  const auto is_served = [&] {
    after.push_back(allocate(4096));
    return daemon_.bytes_served_to(getpid()) == kSlab;
  };
  EXPECT_TRUE(poll_until(is_served));
  engine_.ggml_backend_buffer_clear(after.back(), 2);
  EXPECT_EQ(std::ranges::count(bytes_of(before, 16384), 1), 16384) << "kept until its buffer goes";
  for (ggml_backend_buffer_t each : after) engine_.ggml_backend_buffer_free(each);
  engine_.ggml_backend_buffer_free(before);
  EXPECT_TRUE(daemon_.comes_to_serve(getpid(), 0U));
}

TEST_F(Buffer, ThatIsNoCacheIsTheProcesssOwn) {
  ggml_backend_buffer_t weights = allocate(kSlab, "blk.0.attn_q.weight");
  ASSERT_NE(weights, nullptr);
  ggml_backend_buffer_t compute = engine_.ggml_backend_buft_alloc_buffer(type_, kSlab);
  ASSERT_NE(compute, nullptr);
  EXPECT_TRUE(daemon_.comes_to_serve(getpid(), 0U));
  engine_.ggml_backend_buffer_free(weights);
  engine_.ggml_backend_buffer_free(compute);
}

TEST_F(Buffer, OutlivesTheUnloadingOfTheBackend) {
  ggml_backend_buffer_t sut = allocate(kSlab);
  ASSERT_NE(sut, nullptr);
  engine_.ggml_backend_unload(registration_);
  engine_.ggml_backend_buffer_clear(sut, 1);
  EXPECT_EQ(std::ranges::count(bytes_of(sut, kSlab), 1), static_cast<std::ptrdiff_t>(kSlab));
  engine_.ggml_backend_buffer_free(sut);
  EXPECT_TRUE(daemon_.comes_to_serve(getpid(), 0U));
}

}  // namespace
}  // namespace kvd::test
