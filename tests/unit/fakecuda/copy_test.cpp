#include <array>
#include <atomic>
#include <thread>

#include "tests/unit/fakecuda/fake_world.hpp"

namespace kvd::tests {
namespace {

constexpr std::size_t kPage = 4096;

class CopyTest : public FakeCuda {
 protected:
  static CUmemcpyAttributes order(CUmemcpySrcAccessOrder wanted) {
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = wanted;
    return attributes;
  }
  /// A batch under one set of attributes.
  CUresult batch(std::vector<CUdeviceptr> to, std::vector<CUdeviceptr> from, std::size_t size,
                 CUmemcpySrcAccessOrder wanted = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM) const {
    std::vector<std::size_t> sizes(to.size(), size);
    CUmemcpyAttributes attributes = order(wanted);
    std::size_t first = 0;
    return ::cuMemcpyBatchAsync(to.data(), from.data(), sizes.data(), to.size(), &attributes,
                                &first, 1, stream_);
  }
  /// Blocks `stream_` until open() is called.
  void close_gate() {
    pin(gate_);
    ASSERT_OK(::cuStreamWaitValue64(stream_, device_pointer(gate_), 1, 0));
  }
  void open_gate() {
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(gate_.data()), 1, __ATOMIC_RELEASE);
  }

 private:
  const HostMemory gate_{kPage};
};

TEST_F(CopyTest, ABatchNamesNoHostAddressesWhereTheDeviceDoesNotKnowThem) {
  start({{"FAKECUDA_HOST_ADDRESSES", "0"}});
  const auto device = device_memory();
  const HostMemory host(kGranule, std::byte{9}), out(kGranule);
  pin(host), pin(out);
  ASSERT_OK(::cuMemcpyAsync(device.at, host.address(), kGranule, stream_)) << "translated";
  CUdeviceptr to = device.at, from = device_pointer(host);
  std::size_t size = kGranule, first = 0;
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  const auto batch = [&] {
    return ::cuMemcpyBatchAsync(&to, &from, &size, 1, &attributes, &first, 1, stream_);
  };
  ASSERT_OK(batch());
  read(device.at, out);
  EXPECT_TRUE(out.all(std::byte{9}));
  from = host.address();
  ASSERT_OK(batch());
  EXPECT_CUDA(CUDA_ERROR_ILLEGAL_ADDRESS, sync());
}

TEST_F(CopyTest, BytesGoInAndComeBack) {
  const auto device = device_memory();
  const HostMemory in(kGranule, std::byte{7}), out(kGranule);
  pin(in), pin(out);
  ASSERT_OK(::cuMemcpyHtoDAsync(device.at, in.data(), kGranule, stream_));
  read(device.at, out);
  EXPECT_TRUE(out.all(std::byte{7}));
  EXPECT_EQ(::fakecuda_violations(nullptr), 0u) << report();
}

TEST_F(CopyTest, TheSourceIsReadInStreamOrderAndNotWhenTheCallIsMade) {
  const auto device = device_memory();
  const HostMemory in(kGranule, std::byte{1}), out(kGranule);
  pin(in), pin(out);
  close_gate();
  ASSERT_OK(::cuMemcpyHtoDAsync(device.at, in.data(), kGranule, stream_));
  ASSERT_OK(batch({device.at}, {in.address()}, kGranule));
  EXPECT_CUDA(CUDA_ERROR_NOT_READY, ::cuStreamQuery(stream_));
  std::memset(in.data(), 2, in.size());
  open_gate();
  read(device.at, out);
  EXPECT_TRUE(out.all(std::byte{2}));
}

TEST_F(CopyTest, OrderAnyReadsEarlyOrLateAndDuringTheCallOnlyEarly) {
  constexpr std::size_t kCopies = 64, kSize = 512;
  const auto device = device_memory();
  const HostMemory in(kGranule, std::byte{1}), out(kCopies * kSize);
  pin(in), pin(out);
  std::vector<CUdeviceptr> to, from;
  for (std::size_t i = 0; i < kCopies; ++i) {
    to.push_back(device.at + i * kSize), from.push_back(in.address() + i * kSize);
  }
  close_gate();
  ASSERT_OK(batch(to, from, kSize, CU_MEMCPY_SRC_ACCESS_ORDER_ANY));
  std::memset(in.data(), 2, in.size());
  open_gate();
  read(device.at, out);
  const std::size_t early = out.count(std::byte{1});
  EXPECT_GT(early, 0u);
  EXPECT_LT(early, out.size());
  EXPECT_EQ(early + out.count(std::byte{2}), out.size());
}

TEST_F(CopyTest, OrderDuringTheCallReadsBeforeItReturns) {
  const auto device = device_memory();
  const HostMemory in(kGranule, std::byte{1}), out(kGranule);
  pin(in), pin(out);
  close_gate();
  ASSERT_OK(
      batch({device.at}, {in.address()}, kGranule, CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL));
  std::memset(in.data(), 2, in.size());
  open_gate();
  read(device.at, out);
  EXPECT_TRUE(out.all(std::byte{1}));
}

TEST_F(CopyTest, BatchArgumentsAreChecked) {
  const auto device = device_memory();
  const HostMemory in(kGranule);
  pin(in);
  std::array<CUdeviceptr, 2> to{device.at, device.at + 512}, from{in.address(), in.address() + 512};
  std::array<std::size_t, 2> sizes{512, 512}, first{0, 1};
  std::array<CUmemcpyAttributes, 2> attributes{order(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM),
                                               order(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)};
  const auto call = [&](std::size_t count, std::size_t kinds, CUstream stream) {
    return ::cuMemcpyBatchAsync(to.data(), from.data(), sizes.data(), count, attributes.data(),
                                first.data(), kinds, stream);
  };
  EXPECT_CUDA(CUDA_SUCCESS, call(2, 1, stream_));
  EXPECT_CUDA(CUDA_SUCCESS, call(2, 2, stream_));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, call(2, 1, nullptr)) << "the legacy stream";
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, call(2, 1, CU_STREAM_LEGACY));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, call(0, 1, stream_));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, call(2, 0, stream_));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, call(1, 2, stream_)) << "more attributes than copies";
  first[0] = 1;
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, call(2, 1, stream_)) << "the first index is not 0";
  first = {0, 0};
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, call(2, 2, stream_)) << "indices do not rise";
  first = {0, 2};
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, call(2, 2, stream_)) << "index past the copies";
  first = {0, 1};
  attributes[1] = CUmemcpyAttributes{};
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, call(2, 2, stream_)) << "no access order";
  attributes[1] = attributes[0];
  sizes[1] = 0;
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, call(2, 1, stream_)) << "nothing to copy";
  EXPECT_CUDA(CUDA_SUCCESS, sync());
}

TEST_F(CopyTest, CopiesOfABatchMustNotDependOnEachOther) {
  const auto device = device_memory();
  const HostMemory in(kGranule);
  pin(in);
  ASSERT_OK(batch({device.at, device.at + 512}, {in.address(), in.address()}, 512));
  EXPECT_EQ(::fakecuda_violations("batch_copies_overlap"), 0u) << "sharing a source is fine";
  ASSERT_OK(batch({device.at, device.at + 511}, {in.address(), in.address() + 512}, 512));
  EXPECT_EQ(::fakecuda_violations("batch_copies_overlap"), 1u);
  ASSERT_OK(batch({device.at, device.at + 1024}, {in.address(), device.at}, 512));
  EXPECT_EQ(::fakecuda_violations("batch_copies_overlap"), 2u);
  EXPECT_CUDA(CUDA_SUCCESS, sync());
}

TEST_F(CopyTest, ACopyLiesWithinOneRegistration) {
  const auto device = device_memory(2 * kGranule);
  const HostMemory host(2 * kGranule);
  ASSERT_OK(::cuMemHostRegister(host.data(), kGranule, 0));
  const auto copy = [&](std::size_t from, std::size_t size) {
    return ::cuMemcpyHtoDAsync(device.at, host.data() + from, size, stream_);
  };
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, copy(kGranule - 512, 1024)) << "half of it registered";
  ASSERT_OK(::cuMemHostRegister(host.data() + kGranule, kGranule, 0));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, copy(kGranule - 512, 1024)) << "two registrations";
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE,
              batch({device.at}, {host.address() + kGranule - 512}, 1024));
  EXPECT_CUDA(CUDA_SUCCESS, copy(kGranule - 512, 512));
  EXPECT_CUDA(CUDA_SUCCESS, sync());
}

TEST_F(CopyTest, PageableMemoryIsStagedAndNotForBatches) {
  const auto device = device_memory();
  const HostMemory in(kGranule, std::byte{5}), out(kGranule);
  ASSERT_OK(::cuMemcpyHtoDAsync(device.at, in.data(), kGranule, stream_));
  std::memset(in.data(), 6, in.size());
  ASSERT_OK(::cuMemcpyDtoHAsync(out.data(), device.at, kGranule, stream_));
  EXPECT_TRUE(out.all(std::byte{5})) << "complete when the call returns";
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, batch({device.at}, {in.address()}, kGranule));
  EXPECT_NE(report().find("\"pageable_copies\":2"), std::string::npos) << report();
}

TEST_F(CopyTest, MemoryWithoutAccessFaultsAndTheFaultSticks) {
  const auto handle = create();
  const auto at = reserve(kGranule);
  ASSERT_OK(::cuMemMap(at, kGranule, 0, handle, 0));
  const HostMemory in(kGranule);
  pin(in);
  ASSERT_OK(::cuMemcpyHtoDAsync(at, in.data(), kGranule, stream_)) << "found by the device alone";
  EXPECT_CUDA(CUDA_ERROR_ILLEGAL_ADDRESS, sync());
  EXPECT_CUDA(CUDA_ERROR_ILLEGAL_ADDRESS, ::cuMemcpyHtoDAsync(at, in.data(), 1, stream_));
  EXPECT_CUDA(CUDA_ERROR_ILLEGAL_ADDRESS, ::cuCtxSynchronize());
  EXPECT_CUDA(CUDA_ERROR_ILLEGAL_ADDRESS, ::cuMemRelease(handle));
  EXPECT_EQ(::fakecuda_violations("illegal_access"), 1u);
}

TEST_F(CopyTest, ReadOnlyMemoryIsNotWritten) {
  const auto memory = device_memory();
  const auto read_only = access(CU_MEM_ACCESS_FLAGS_PROT_READ);
  ASSERT_OK(::cuMemSetAccess(memory.at, memory.size, &read_only, 1));
  const HostMemory host(kGranule);
  pin(host);
  read(memory.at, host);
  EXPECT_TRUE(host.all(std::byte{0xA5}));
  ASSERT_OK(::cuMemsetD8Async(memory.at, 0, kGranule, stream_));
  EXPECT_CUDA(CUDA_ERROR_ILLEGAL_ADDRESS, sync());
}

TEST_F(CopyTest, MemoryStaysUntilTheWorkOnItIsDone) {
  const auto memory = device_memory();
  const HostMemory host(kGranule);
  pin(host);
  close_gate();
  ASSERT_OK(::cuMemcpyHtoDAsync(memory.at, host.data(), kGranule, stream_));
  ASSERT_OK(::cuMemUnmap(memory.at, memory.size));
  EXPECT_EQ(::fakecuda_violations("unmap_in_flight"), 1u);
  open_gate();
  EXPECT_CUDA(CUDA_ERROR_ILLEGAL_ADDRESS, sync());
}

TEST_F(CopyTest, UnregisteringWaitsAlsoForWorkOnOtherMemory) {
  const auto memory = device_memory();
  const HostMemory host(kGranule), other(kPage);
  pin(host), pin(other);
  close_gate();
  ASSERT_OK(::cuMemcpyHtoDAsync(memory.at, host.data(), kGranule, stream_));
  std::atomic<bool> calling{false}, opened{false};
  std::thread opener([&] {
    while (!calling) std::this_thread::yield();
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    opened = true;
    open_gate();
  });
  calling = true;
  ASSERT_OK(::cuMemHostUnregister(other.data()));
  EXPECT_TRUE(opened);
  opener.join();
  EXPECT_EQ(::fakecuda_violations("unregister_in_flight"), 0u);
  ASSERT_OK(::cuMemHostUnregister(host.data()));
  EXPECT_EQ(::fakecuda_violations("unregister_in_flight"), 0u) << "the copy has ended";
}

TEST_F(CopyTest, UnregisteringWhatACopyIsOnIsAMistake) {
  const auto memory = device_memory();
  const HostMemory host(kGranule);
  pin(host);
  close_gate();
  ASSERT_OK(::cuMemcpyHtoDAsync(memory.at, host.data(), kGranule, stream_));
  std::thread opener([&] {
    while (::fakecuda_violations("unregister_in_flight") == 0) std::this_thread::yield();
    open_gate();
  });
  ASSERT_OK(::cuMemHostUnregister(host.data()));
  opener.join();
  EXPECT_EQ(::fakecuda_violations("unregister_in_flight"), 1u);
}

TEST_F(CopyTest, RowsAndFillsTouchWhatTheySay) {
  const auto device = device_memory();
  const HostMemory in(1024, std::byte{1}), out(1024);
  pin(in), pin(out);
  ASSERT_OK(::cuMemsetD32Async(device.at, 0x04030201, 256, stream_));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemsetD32Async(device.at + 2, 0, 1, stream_));
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = CU_MEMORYTYPE_HOST, rows.srcHost = in.data(), rows.srcPitch = 64;
  rows.dstMemoryType = CU_MEMORYTYPE_DEVICE, rows.dstDevice = device.at, rows.dstPitch = 128;
  rows.WidthInBytes = 16, rows.Height = 8;
  ASSERT_OK(::cuMemcpy2DAsync(&rows, stream_));
  read(device.at, out);
  EXPECT_EQ(out.count(std::byte{1}), 8u * 16 + (1024 - 8 * 16) / 4);
  EXPECT_EQ(out.data()[16], std::byte{1});
  EXPECT_EQ(out.data()[17], std::byte{2});
  rows.dstPitch = 8;
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemcpy2DAsync(&rows, stream_));
  rows.dstPitch = kGranule;
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemcpy2DAsync(&rows, stream_)) << "beyond its memory";
  rows.Height = 1, rows.dstPitch = std::size_t{1} << 31;
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemcpy2DAsync(&rows, stream_)) << "attribute 11";
  rows.dstPitch -= 1;
  EXPECT_CUDA(CUDA_SUCCESS, ::cuMemcpy2DAsync(&rows, stream_));
  EXPECT_CUDA(CUDA_SUCCESS, sync());
}

TEST_F(CopyTest, ACopyMayCrossMappingsThatLieSideBySide) {
  const auto at = reserve(2 * kGranule);
  const auto desc = access();
  ASSERT_OK(::cuMemMap(at, kGranule, 0, create(), 0));
  ASSERT_OK(::cuMemMap(at + kGranule, kGranule, 0, create(), 0));
  ASSERT_OK(::cuMemSetAccess(at, 2 * kGranule, &desc, 1));
  const HostMemory in(kGranule), out(kGranule);
  for (std::size_t i = 0; i < in.size(); ++i) in.data()[i] = static_cast<std::byte>(i * 7 % 251);
  pin(in), pin(out);
  ASSERT_OK(::cuMemcpyAsync(at + kGranule / 2, in.address(), kGranule, stream_));
  ASSERT_OK(::cuMemcpyAsync(out.address(), at + kGranule / 2, kGranule, stream_));
  ASSERT_OK(sync());
  EXPECT_EQ(std::memcmp(in.data(), out.data(), kGranule), 0);
}

TEST_F(CopyTest, HostMemoryIsRegisteredOnceAndHasAnAddressOfItsOwnOnTheDevice) {
  const HostMemory host(4 * kPage);
  constexpr unsigned kMap = CU_MEMHOSTREGISTER_DEVICEMAP;
  CUdeviceptr pointer = 0;
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemHostRegister(host.data(), 0, kMap));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemHostGetDevicePointer(&pointer, host.data(), 0));
  ASSERT_OK(::cuMemHostRegister(host.data(), 2 * kPage, kMap));
  EXPECT_CUDA(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
              ::cuMemHostRegister(host.data() + kPage, 2 * kPage, kMap));
  ASSERT_OK(::cuMemHostRegister(host.data() + 2 * kPage, kPage, CU_MEMHOSTREGISTER_PORTABLE));
  ASSERT_OK(::cuMemHostGetDevicePointer(&pointer, host.data() + 8, 0));
  EXPECT_NE(pointer, host.address() + 8);
  EXPECT_EQ(pointer % kPage, 8u);
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE,
              ::cuMemHostGetDevicePointer(&pointer, host.data() + 2 * kPage, 0))
      << "not registered with DEVICEMAP";
  EXPECT_CUDA(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, ::cuMemHostUnregister(host.data() + 8));
  EXPECT_CUDA(CUDA_SUCCESS, ::cuMemHostUnregister(host.data()));
  EXPECT_CUDA(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, ::cuMemHostUnregister(host.data()));
  CUdeviceptr nowhere = 0;
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE,
              ::cuPointerGetAttribute(&nowhere, CU_POINTER_ATTRIBUTE_HOST_POINTER, host.address()));
}

TEST_F(CopyTest, MemoryThatIsNotThereIsNotRegistered) {
  // An address at which no process maps anything (vm.mmap_min_addr): a page that was unmapped may
  // become another's.
  auto* const nowhere = reinterpret_cast<void*>(4096);  // NOLINT(performance-no-int-to-ptr)
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemHostRegister(nowhere, 4096, 0));
}

}  // namespace
}  // namespace kvd::tests
