// Gather and scatter against plain loops: on a GPU the compiled kernels run, under the fake driver
// the loops stand in for them and the launches are what is tested.
#include "kernels/copy/cuda/slot_kernels.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>

#include "kernels/copy/slot_copy.hpp"
#include "kernels/device/cuda/context.hpp"
#include "kernels/device/cuda/error.hpp"
#include "kernels/device/cuda/host_registration.hpp"
#include "kernels/device/cuda/stream.hpp"
#include "kernels/device/cuda/vmm.hpp"
#include "tests/support/fakecuda/fakecuda.h"
#include "tests/unit/kernels/device/cuda/fake_driver.hpp"

namespace kvd::kernels::cuda {
namespace {

template <class Function>
Function* fake(const char* name) {
  static void* const kLibrary = ::dlopen("libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<Function*>(::dlsym(kLibrary, name));
}

/// What the kernels do, on the memory behind device pointers.
template <bool kGather>
void reference(const FakecudaLaunch*, void** parameters) {
  auto* const access = fake<decltype(fakecuda_access)>("fakecuda_access");
  const auto packed = *static_cast<CUdeviceptr*>(parameters[0]);
  const auto list = *static_cast<CUdeviceptr*>(parameters[1]);
  const auto slot_bytes = *static_cast<unsigned long long*>(parameters[2]);
  const auto count = *static_cast<unsigned*>(parameters[3]);
  const Bytes size(static_cast<std::int64_t>(slot_bytes));
  const auto* addresses =
      static_cast<const CUdeviceptr*>(access(list, count * sizeof(CUdeviceptr), 0));
  auto* run = static_cast<std::byte*>(access(packed, count * slot_bytes, kGather));
  if (addresses == nullptr || run == nullptr) return;
  for (unsigned i = 0; i < count; ++i, run += slot_bytes) {
    const auto slot = reinterpret_cast<std::uintptr_t>(access(addresses[i], slot_bytes, !kGather));
    if (slot == 0) return;
    if (kGather) {
      gather_slots(run, {&slot, 1}, size);
    } else {
      scatter_slots({&slot, 1}, run, size);
    }
  }
}

void register_references() {
  auto* const add = fake<decltype(fakecuda_register_kernel)>("fakecuda_register_kernel");
  if (add == nullptr) return;  // a real driver
  const std::size_t sizes[] = {8, 8, 8, 4};
  add("kvd_gather_slots", reference<true>, sizes, 4);
  add("kvd_scatter_slots", reference<false>, sizes, 4);
}

/// Drivers and GPUs that the fatbin was not made for take the PTX, and those before sm_80 nothing.
TEST(SlotKernelsImage, IsTakenByOldDriversAndByGpusThatNobodyKnewYet) {
  if (fake<decltype(fakecuda_reset)>("fakecuda_reset") == nullptr) {
    GTEST_SKIP() << "a real driver has one version";
  }
  const auto load_on = [](const char* driver_version, const char* capability) {
    const FakeDriver world(std::string("FAKECUDA_DRIVER_VERSION=") + driver_version +
                           " FAKECUDA_COMPUTE_CAPABILITY=" + capability);
    register_references();
    const Driver& driver = *Driver::load().value();
    const auto context = PrimaryContext::retain(driver, find_device(driver, {}).value());
    const ScopedCurrent current(*context);
    const auto loaded = SlotKernels::load(driver);
    return loaded.ok() ? std::string() : loaded.error().to_string();
  };
  EXPECT_EQ(load_on("13000", "90"), "");
  EXPECT_EQ(load_on("12080", "120"), "");
  EXPECT_EQ(load_on("12000", "80"), "");
  EXPECT_NE(load_on("12000", "75").find("update the NVIDIA driver"), std::string::npos);
}

constexpr std::size_t kHostBytes = 8u << 20;

class SlotKernelsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto loaded = Driver::load();
    ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
    driver_ = *loaded;
    register_references();
    const auto device = find_device(*driver_, {});
    ASSERT_TRUE(device.ok());
    context_.emplace(PrimaryContext::retain(*driver_, *device).value());
    ASSERT_TRUE(check(*driver_, driver_->ctx_set_current(context_->get()), "context").ok());
    stream_.emplace(Stream::create(*driver_).value());
    data_ = static_cast<std::byte*>(
        ::mmap(nullptr, kHostBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(data_, MAP_FAILED);
    host_.emplace(
        HostRegistration::make(*driver_, reinterpret_cast<std::uintptr_t>(data_), Bytes(kHostBytes))
            .value());
    const Bytes grain = granularity(*driver_, device->handle).value();
    memory_.emplace(PhysicalMemory::create(*driver_, device->handle, grain).value());
    range_.emplace(AddressRange::reserve(*driver_, grain).value());
    mapping_.emplace(Mapping::map(range_->address(), *memory_).value());
    ASSERT_TRUE(
        grant_access(*driver_, range_->address(), grain, device->handle, Access::kReadWrite).ok());
    kernels_.emplace(SlotKernels::load(*driver_).value());
  }
  void TearDown() override {
    mapping_.reset();
    range_.reset();
    memory_.reset();
    host_.reset();
    ::munmap(data_, kHostBytes);
    stream_.reset();
    if (driver_ != nullptr) driver_->ctx_set_current(nullptr);
  }

  // Host memory: [slots of the pool][the list][a copy of the packed run].
  static constexpr std::size_t kList = 4u << 20, kPacked = 6u << 20;

  /// Slots of the pool in random order, their addresses in the list.
  std::vector<std::uintptr_t> choose(std::size_t slot_bytes, std::uint32_t count) {
    std::vector<std::uint32_t> order(kList / slot_bytes);
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), random_);
    std::vector<std::uintptr_t> slots;
    for (std::uint32_t i = 0; i < count; ++i) {
      slots.push_back(reinterpret_cast<std::uintptr_t>(data_) + order[i] * slot_bytes);
      const CUdeviceptr on_device = host_->device_address() + order[i] * slot_bytes;
      std::memcpy(data_ + kList + i * sizeof on_device, &on_device, sizeof on_device);
    }
    return slots;
  }
  SlotCopy copy_of(std::size_t slot_bytes, std::uint32_t count, unsigned blocks) {
    return {range_->address(), host_->device_address() + kList,
            Bytes(static_cast<std::int64_t>(slot_bytes)), count, blocks};
  }
  void fill(std::byte* at, std::size_t bytes) {
    std::generate_n(at, bytes, [&] { return static_cast<std::byte>(random_()); });
  }
  void drain() { ASSERT_EQ(stream_->drain(std::chrono::seconds(30)), CUDA_SUCCESS); }

  const unsigned seed_ = std::random_device{}();
  std::mt19937 random_{seed_};
  const Driver* driver_ = nullptr;
  std::optional<PrimaryContext> context_;
  std::optional<Stream> stream_;
  std::byte* data_ = nullptr;
  std::optional<HostRegistration> host_;
  std::optional<PhysicalMemory> memory_;
  std::optional<AddressRange> range_;
  std::optional<Mapping> mapping_;
  std::optional<SlotKernels> kernels_;
};

TEST_F(SlotKernelsTest, GatherAndScatterAreThePlainLoops) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  struct Case {
    std::size_t slot_bytes;
    std::uint32_t count;
    unsigned blocks;
  };
  // Slots below, at and above a chunk of 16 KiB, and not a multiple of it; one block and many.
  for (const Case c : {Case{16, 1, 1}, Case{16, 300, 7}, Case{4096, 64, 32}, Case{16384, 9, 4},
                       Case{16400, 20, 32}, Case{65536, 16, 3}, Case{262144, 4, 64}}) {
    SCOPED_TRACE(std::to_string(c.count) + " slots of " + std::to_string(c.slot_bytes));
    const std::size_t bytes = c.slot_bytes * c.count;
    fill(data_, kList);
    const auto slots = choose(c.slot_bytes, c.count);
    std::vector<std::byte> expected(bytes);
    gather_slots(expected.data(), slots, Bytes(static_cast<std::int64_t>(c.slot_bytes)));

    ASSERT_TRUE(kernels_->gather(stream_->get(), copy_of(c.slot_bytes, c.count, c.blocks)).ok());
    ASSERT_EQ(driver_->memcpy_dtoh_async(data_ + kPacked, range_->address(), bytes, stream_->get()),
              CUDA_SUCCESS);
    drain();
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), data_ + kPacked));
    data_[kPacked + bytes / 2] ^= std::byte{1};
    EXPECT_FALSE(std::equal(expected.begin(), expected.end(), data_ + kPacked)) << "control";

    fill(data_, kList);  // what was gathered goes back into other contents
    std::vector<std::byte> pool(data_, data_ + kList);
    for (std::uint32_t i = 0; i < c.count; ++i) {
      std::copy_n(expected.begin() + static_cast<std::ptrdiff_t>(i * c.slot_bytes), c.slot_bytes,
                  pool.begin() + static_cast<std::ptrdiff_t>(
                                     slots[i] - reinterpret_cast<std::uintptr_t>(data_)));
    }
    ASSERT_TRUE(kernels_->scatter(stream_->get(), copy_of(c.slot_bytes, c.count, c.blocks)).ok());
    drain();
    EXPECT_TRUE(std::equal(pool.begin(), pool.end(), data_)) << "slots and nothing beside them";
  }
}

TEST_F(SlotKernelsTest, RefusesWhatTheKernelsCannotDo) {
  const auto code = [&](SlotCopy copy) { return kernels_->gather(stream_->get(), copy).code(); };
  const SlotCopy good = copy_of(4096, 1, 1);
  SlotCopy bad = good;
  bad.slot_bytes = Bytes(4096 + 8);
  EXPECT_EQ(code(bad), ErrorCode::kInvalidArgument);
  bad = good;
  bad.slot_bytes = Bytes(0);
  EXPECT_EQ(code(bad), ErrorCode::kInvalidArgument);
  bad = good;
  bad.packed += 8;
  EXPECT_EQ(code(bad), ErrorCode::kInvalidArgument);
  bad = good;
  bad.slots += 4;
  EXPECT_EQ(code(bad), ErrorCode::kInvalidArgument);
  bad = good;
  bad.max_blocks = 0;
  EXPECT_EQ(code(bad), ErrorCode::kInvalidArgument);
  bad = good;
  bad.count = 0;
  EXPECT_EQ(code(bad), ErrorCode::kOk) << "nothing to do";
}

}  // namespace
}  // namespace kvd::kernels::cuda
