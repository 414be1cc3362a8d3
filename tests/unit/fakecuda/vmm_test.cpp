#include <fcntl.h>
#include <unistd.h>

#include "tests/unit/fakecuda/fake_world.hpp"

namespace kvd::tests {
namespace {

using VmmTest = FakeCuda;
using VmmDeathTest = FakeCuda;

CUresult create_with(const CUmemAllocationProp& prop, std::size_t size = kGranule,
                     unsigned long long flags = 0) {
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = ::cuMemCreate(&handle, size, &prop, flags);
  if (result == CUDA_SUCCESS) ::cuMemRelease(handle);
  return result;
}

TEST_F(VmmTest, AContextTakesMemoryToo) {
  start({{"FAKECUDA_CONTEXT_BYTES", std::to_string(60 * kGranule)}});
  std::size_t free = 0, total = 0;
  ASSERT_OK(::cuMemGetInfo(&free, &total));
  EXPECT_EQ(total - free, 60 * kGranule);
  const auto wanted = prop();
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_CUDA(CUDA_ERROR_OUT_OF_MEMORY, ::cuMemCreate(&handle, 5 * kGranule, &wanted, 0));
  EXPECT_CUDA(CUDA_SUCCESS, ::cuMemCreate(&handle, 4 * kGranule, &wanted, 0));
}

TEST_F(VmmTest, SizesAreMultiplesOfTheGranularity) {
  std::size_t granularity = 0;
  const auto wanted = prop();
  ASSERT_OK(
      ::cuMemGetAllocationGranularity(&granularity, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  EXPECT_EQ(granularity, kGranule);
  EXPECT_CUDA(CUDA_SUCCESS, create_with(wanted, 2 * kGranule));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, create_with(wanted, kGranule + 4096));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, create_with(wanted, 0));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, create_with(wanted, kGranule, 1));
  CUdeviceptr at = 0;
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemAddressReserve(&at, kGranule + 4096, 0, 0, 0));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemAddressReserve(&at, kGranule, 3, 0, 0));
}

TEST_F(VmmTest, ReservationsHonourTheirAlignment) {
  constexpr std::size_t kAlign = 16 * kGranule;
  CUdeviceptr at = 0;
  ASSERT_OK(::cuMemAddressReserve(&at, kGranule, kAlign, 0, 0));
  EXPECT_EQ(at % kAlign, 0u);
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemAddressFree(at, 2 * kGranule));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemAddressFree(at + kGranule, kGranule));
  EXPECT_CUDA(CUDA_SUCCESS, ::cuMemAddressFree(at, kGranule));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemAddressFree(at, kGranule));
}

TEST_F(VmmTest, LocationsThatCannotBeMadeOrShared) {
  using enum CUmemAllocationHandleType_enum;
  const auto fd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, none = CU_MEM_HANDLE_TYPE_NONE;
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, create_with(prop(CU_MEM_LOCATION_TYPE_HOST, fd)));
  EXPECT_CUDA(CUDA_SUCCESS, create_with(prop(CU_MEM_LOCATION_TYPE_HOST, none)));
  EXPECT_CUDA(CUDA_SUCCESS, create_with(prop(CU_MEM_LOCATION_TYPE_HOST_NUMA, fd)));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE,
              create_with(prop(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, none)));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, create_with(prop(CU_MEM_LOCATION_TYPE_INVALID)));
  auto elsewhere = prop();
  elsewhere.location.id = 1;
  EXPECT_CUDA(CUDA_ERROR_INVALID_DEVICE, create_with(elsewhere));
  EXPECT_CUDA(CUDA_ERROR_NOT_SUPPORTED,
              create_with(prop(CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_HANDLE_TYPE_FABRIC)));
}

TEST_F(VmmTest, OnlyWholeHandlesAreMappedAtOffsetZeroAndNeverTwiceInOnePlace) {
  const auto big = create(2 * kGranule), small = create();
  const auto at = reserve(4 * kGranule);
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemMap(at, kGranule, 0, big, 0)) << "part of a handle";
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemMap(at, 2 * kGranule, kGranule, big, 0)) << "offset";
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemMap(at + 4096, kGranule, 0, small, 0));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemMap(at + 3 * kGranule, 2 * kGranule, 0, big, 0));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemMap(at, kGranule, 0, small + 1, 0)) << "no handle";
  EXPECT_CUDA(CUDA_ERROR_NOT_SUPPORTED, ::cuMemMap(at, 2 * kGranule, 0, small, 0)) << "too much";
  ASSERT_OK(::cuMemMap(at + kGranule, kGranule, 0, small, 0));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemMap(at, 2 * kGranule, 0, big, 0)) << "overlap";
  ASSERT_OK(::cuMemUnmap(at + kGranule, kGranule));
  ASSERT_OK(::cuMemMap(at, 2 * kGranule, 0, big, 0));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemMap(at + kGranule, kGranule, 0, small, 0));
  ASSERT_OK(::cuMemMap(at + 2 * kGranule, kGranule, 0, small, 0));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemUnmap(at, kGranule)) << "part of a mapping";
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemUnmap(at, 4 * kGranule)) << "more than is mapped";
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemAddressFree(at, 4 * kGranule)) << "still mapped";
  EXPECT_EQ(::fakecuda_violations("address_free_while_mapped"), 1u);
  EXPECT_CUDA(CUDA_SUCCESS, ::cuMemUnmap(at, 3 * kGranule)) << "several whole ones";
  EXPECT_CUDA(CUDA_SUCCESS, ::cuMemAddressFree(at, 4 * kGranule));
}

TEST_F(VmmTest, AccessIsGrantedToWholeMappingsAndGoesWithThem) {
  const auto memory = device_memory(2 * kGranule);
  const auto none = access(CU_MEM_ACCESS_FLAGS_PROT_NONE),
             read_only = access(CU_MEM_ACCESS_FLAGS_PROT_READ);
  const CUmemLocation here = none.location;
  unsigned long long flags = 9;
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemSetAccess(memory.at, kGranule, &none, 1));
  const auto on_cpu = access(CU_MEM_ACCESS_FLAGS_PROT_READ, CU_MEM_LOCATION_TYPE_HOST_NUMA);
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemSetAccess(memory.at, memory.size, &on_cpu, 1));
  ASSERT_OK(::cuMemSetAccess(memory.at, memory.size, &read_only, 1));
  ASSERT_OK(::cuMemGetAccess(&flags, &here, memory.at));
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READ);
  ASSERT_OK(::cuMemUnmap(memory.at, memory.size));
  ASSERT_OK(::cuMemMap(memory.at, memory.size, 0, memory.handle, 0));
  ASSERT_OK(::cuMemGetAccess(&flags, &here, memory.at));
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

TEST_F(VmmTest, HandlesAreCountedAndMemoryLivesWhileItIsMapped) {
  const auto memory = device_memory();
  const HostMemory out(kGranule);
  pin(out);
  ASSERT_OK(::cuMemRelease(memory.handle));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemRelease(memory.handle));
  EXPECT_EQ(::fakecuda_violations("release_unknown_handle"), 1u);
  read(memory.at, out);
  EXPECT_TRUE(out.all(std::byte{0xA5})) << "fresh memory is poisoned";

  CUmemGenericAllocationHandle again = 0;
  ASSERT_OK(::cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(memory.at + 5)));
  EXPECT_EQ(again, memory.handle);
  ASSERT_OK(::cuMemUnmap(memory.at, memory.size));
  CUmemAllocationProp found{};
  EXPECT_CUDA(CUDA_SUCCESS, ::cuMemGetAllocationPropertiesFromHandle(&found, again));
  EXPECT_CUDA(CUDA_SUCCESS, ::cuMemRelease(again));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemGetAllocationPropertiesFromHandle(&found, again));
}

TEST_F(VmmTest, CapacityIsTakenUntilHandlesMappingsAndDescriptorsAreGone) {
  std::size_t free = 0, total = 0;
  const auto free_now = [&] {
    EXPECT_CUDA(CUDA_SUCCESS, ::cuMemGetInfo(&free, &total));
    return free;
  };
  const auto memory = device_memory(48 * kGranule);
  EXPECT_CUDA(CUDA_ERROR_OUT_OF_MEMORY, create_with(prop(), 32 * kGranule));
  int fd = -1;
  ASSERT_OK(::cuMemExportToShareableHandle(&fd, memory.handle,
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  EXPECT_EQ(free_now(), 16 * kGranule);
  drop(memory);
  EXPECT_EQ(free_now(), 16 * kGranule) << "the descriptor still holds it";
  EXPECT_NE(report().find("\"exported_fds\":1"), std::string::npos) << report();
  ::close(fd);
  EXPECT_EQ(free_now(), total);
  EXPECT_CUDA(CUDA_SUCCESS, create_with(prop(), 32 * kGranule));
}

// Starts as a daemon does that is handed what the one before has left.
TEST_F(VmmTest, WhatAProcessHasOnlyADescriptorOfTakesMemoryAndKeepsItsBytes) {
  const auto fd_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const auto before = device_memory(32 * kGranule);
  ASSERT_OK(::cuMemsetD8Async(before.at, 0x5c, before.size, stream_));
  ASSERT_OK(sync());
  int fd = -1;
  ASSERT_OK(::cuMemExportToShareableHandle(&fd, before.handle, fd_type, 0));
  start({});  // the driver takes it for another process
  EXPECT_CUDA(CUDA_ERROR_OUT_OF_MEMORY, create_with(prop(), 33 * kGranule));
  EXPECT_CUDA(CUDA_SUCCESS, create_with(prop(), 32 * kGranule));

  DeviceMemory again{0, reserve(before.size), before.size};
  ASSERT_OK(::cuMemImportFromShareableHandle(
      &again.handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), fd_type));
  ::close(fd);
  const auto read_only = access(CU_MEM_ACCESS_FLAGS_PROT_READ);
  ASSERT_OK(::cuMemMap(again.at, again.size, 0, again.handle, 0));
  ASSERT_OK(::cuMemSetAccess(again.at, again.size, &read_only, 1));
  const HostMemory out(again.size);
  pin(out);
  read(again.at, out);
  EXPECT_TRUE(out.all(std::byte{0x5c}));
  EXPECT_CUDA(CUDA_ERROR_OUT_OF_MEMORY, create_with(prop(), 33 * kGranule));
  drop(again);
  EXPECT_CUDA(CUDA_SUCCESS, create_with(prop(), 64 * kGranule));
}

TEST_F(VmmTest, OnlyWhatWasMadeForItIsExportedAndOnlyExportsAreImported) {
  const auto fd_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const auto silent = prop(CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_HANDLE_TYPE_NONE);
  CUmemGenericAllocationHandle unshared = 0, imported = 0;
  ASSERT_OK(::cuMemCreate(&unshared, kGranule, &silent, 0));
  int fd = -1;
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuMemExportToShareableHandle(&fd, unshared, fd_type, 0));
  const auto import = [&](int from) {
    return ::cuMemImportFromShareableHandle(
        &imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(from)), fd_type);
  };
  const int stranger = ::memfd_create("stranger", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(stranger, 2 * kGranule), 0);
  EXPECT_CUDA(CUDA_ERROR_UNKNOWN, import(stranger));
  EXPECT_CUDA(CUDA_ERROR_UNKNOWN, import(-1));
  const std::uint64_t size = 2 * kGranule - 4096;  // as the last page of an export says it
  ASSERT_EQ(::pwrite(stranger, &size, sizeof size, static_cast<off_t>(size) + 16), 8);
  EXPECT_CUDA(CUDA_ERROR_UNKNOWN, import(stranger));
  ::close(stranger);

  ASSERT_OK(::cuMemExportToShareableHandle(&fd, create(), fd_type, 0));
  EXPECT_EQ(::fcntl(fd, F_GETFD), 0) << "close-on-exec is for the caller to set";
  ASSERT_OK(import(fd));
  EXPECT_EQ(::fcntl(fd, F_GETFD), 0) << "an import leaves the descriptor to its owner";
  EXPECT_EQ(::close(fd), 0);
}

TEST_F(VmmTest, AnImportIsTheSameMemory) {
  const auto memory = device_memory();
  int fd = -1;
  ASSERT_OK(::cuMemExportToShareableHandle(&fd, memory.handle,
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CUmemGenericAllocationHandle imported = 0;
  ASSERT_OK(::cuMemImportFromShareableHandle(
      &imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  ::close(fd);
  const auto at = reserve(kGranule);
  const auto desc = access();
  ASSERT_OK(::cuMemMap(at, kGranule, 0, imported, 0));
  ASSERT_OK(::cuMemSetAccess(at, kGranule, &desc, 1));
  ASSERT_OK(::cuMemsetD8Async(memory.at, 3, kGranule, stream_));
  const HostMemory out(kGranule);
  pin(out);
  read(at, out);
  EXPECT_TRUE(out.all(std::byte{3}));
}

TEST_F(VmmTest, HostMemoryOfTheDriverIsTheCpusOnlyOnceGranted) {
  const auto wanted = prop(CU_MEM_LOCATION_TYPE_HOST_NUMA);
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_OK(::cuMemCreate(&handle, kGranule, &wanted, 0));
  const auto at = reserve(kGranule);
  ASSERT_OK(::cuMemMap(at, kGranule, 0, handle, 0));
  const CUmemAccessDesc both[] = {
      access(), access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_LOCATION_TYPE_HOST_NUMA)};
  ASSERT_OK(::cuMemSetAccess(at, kGranule, both, 2));
  ASSERT_OK(::cuMemsetD8Async(at, 4, kGranule, stream_));
  ASSERT_OK(sync());
  EXPECT_EQ(*reinterpret_cast<const unsigned char*>(at), 4);
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST_F(VmmDeathTest, TheCpuCannotTouchDeviceMemory) {
  const auto memory = device_memory();
  EXPECT_EXIT(*reinterpret_cast<volatile char*>(memory.at) = 1, testing::KilledBySignal(SIGSEGV),
              "");
}
#endif

}  // namespace
}  // namespace kvd::tests
