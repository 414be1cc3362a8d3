#pragma once

#include <cuda.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/support/fakecuda/fakecuda.h"

namespace kvd::tests {

constexpr std::size_t kGranule = std::size_t{64} << 10;

#define EXPECT_CUDA(code, call) EXPECT_EQ(static_cast<CUresult>(code), (call))
#define ASSERT_OK(call) ASSERT_EQ(CUDA_SUCCESS, (call))

/// Device memory made and mapped in one go; readable and writable by device 0.
struct DeviceMemory {
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr at = 0;
  std::size_t size = 0;
};

/// Host memory, page aligned; registered on demand.
class HostMemory {
 public:
  explicit HostMemory(std::size_t size, std::byte fill = std::byte{0})
      : size_(size),
        data_(static_cast<std::byte*>(
            ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    std::memset(data_, static_cast<int>(fill), size);
  }
  ~HostMemory() { ::munmap(data_, size_); }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  CUdeviceptr address() const { return reinterpret_cast<CUdeviceptr>(data_); }
  bool all(std::byte value) const { return count(value) == size_; }
  std::size_t count(std::byte value) const {
    std::size_t n = 0;
    for (std::size_t i = 0; i < size_; ++i) n += data_[i] == value ? 1 : 0;
    return n;
  }

 private:
  std::size_t size_;
  std::byte* data_;
};

/// A fresh driver for each test, with the environment the test names.
class FakeCuda : public ::testing::Test {
 protected:
  using Environment = std::map<std::string, std::string>;

  void SetUp() override { start({}); }
  void TearDown() override {
    start({});
    for (const auto& [name, value] : set_) ::unsetenv(name.c_str());
  }

  /// Starts the driver anew, initialised, with device 0's context current and one stream.
  void start(Environment environment) {
    environment.try_emplace("FAKECUDA_GRANULARITY", std::to_string(kGranule));
    environment.try_emplace("FAKECUDA_HBM_BYTES", std::to_string(64 * kGranule));
    for (const auto& [name, value] : set_) ::unsetenv(name.c_str());
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    set_ = std::move(environment);
    ::fakecuda_reset();
    init_ = ::cuInit(0);
    if (init_ != CUDA_SUCCESS) return;
    ASSERT_OK(::cuDevicePrimaryCtxRetain(&context_, 0));
    ASSERT_OK(::cuCtxSetCurrent(context_));
    ASSERT_OK(::cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0));
  }

  static CUmemAllocationProp prop(
      CUmemLocationType type = CU_MEM_LOCATION_TYPE_DEVICE,
      CUmemAllocationHandleType types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    CUmemAllocationProp wanted{};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.requestedHandleTypes = types;
    wanted.location = {type, 0};
    return wanted;
  }
  static CUmemAccessDesc access(CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                                CUmemLocationType type = CU_MEM_LOCATION_TYPE_DEVICE) {
    return {{type, 0}, flags};
  }
  static CUmemGenericAllocationHandle create(std::size_t size = kGranule) {
    const auto wanted = prop();
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_CUDA(CUDA_SUCCESS, ::cuMemCreate(&handle, size, &wanted, 0));
    return handle;
  }
  static CUdeviceptr reserve(std::size_t size) {
    CUdeviceptr at = 0;
    EXPECT_CUDA(CUDA_SUCCESS, ::cuMemAddressReserve(&at, size, 0, 0, 0));
    return at;
  }
  static DeviceMemory device_memory(std::size_t size = kGranule) {
    DeviceMemory made{create(size), reserve(size), size};
    const auto desc = access();
    EXPECT_CUDA(CUDA_SUCCESS, ::cuMemMap(made.at, size, 0, made.handle, 0));
    EXPECT_CUDA(CUDA_SUCCESS, ::cuMemSetAccess(made.at, size, &desc, 1));
    return made;
  }
  static void drop(const DeviceMemory& memory) {
    EXPECT_CUDA(CUDA_SUCCESS, ::cuMemUnmap(memory.at, memory.size));
    EXPECT_CUDA(CUDA_SUCCESS, ::cuMemAddressFree(memory.at, memory.size));
    EXPECT_CUDA(CUDA_SUCCESS, ::cuMemRelease(memory.handle));
  }
  static void pin(const HostMemory& memory) {
    constexpr unsigned kFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    EXPECT_CUDA(CUDA_SUCCESS, ::cuMemHostRegister(memory.data(), memory.size(), kFlags));
  }
  static CUdeviceptr device_pointer(const HostMemory& memory) {
    CUdeviceptr pointer = 0;
    EXPECT_CUDA(CUDA_SUCCESS, ::cuMemHostGetDevicePointer(&pointer, memory.data(), 0));
    return pointer;
  }
  CUresult sync() const { return ::cuStreamSynchronize(stream_); }
  /// The bytes of device memory, by a copy that has ended.
  void read(CUdeviceptr from, const HostMemory& into) const {
    EXPECT_CUDA(CUDA_SUCCESS, ::cuMemcpyDtoHAsync(into.data(), from, into.size(), stream_));
    EXPECT_CUDA(CUDA_SUCCESS, sync());
  }
  static std::string report() {
    std::vector<char> text(::fakecuda_report(nullptr, 0) + 1);
    ::fakecuda_report(text.data(), text.size());
    return text.data();
  }

  CUresult init_ = CUDA_SUCCESS;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;

 private:
  Environment set_;
};

}  // namespace kvd::tests
