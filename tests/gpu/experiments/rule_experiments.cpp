// E22: what the driver answers to mistakes, beside what the fake driver was told to answer.
#include <sys/mman.h>

#include "tests/gpu/experiments/experiments.hpp"
#include "tests/gpu/lab.hpp"
#include "tests/gpu/slots.hpp"

namespace kvd::gpu {
namespace {

CUresult import(const Gpu& gpu, int fd) {
  CUmemGenericAllocationHandle handle = 0;
  return gpu.driver().mem_import(&handle,
                                 reinterpret_cast<void*>(static_cast<std::intptr_t>(
                                     fd)),  // NOLINT(performance-no-int-to-ptr): as cuda.h asks
                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

Result<CUresult> import_of_a_file(const Gpu& gpu) {
  const UniqueFd fd(::memfd_create("kvd-gpu-report", MFD_CLOEXEC));
  return import(gpu, fd.get());
}

Result<CUresult> import_of_nothing(const Gpu& gpu) { return import(gpu, -1); }

Result<CUresult> map_more_than_there_is(const Gpu& gpu) {
  KVD_ASSIGN_OR_RETURN(const GpuSlab slab, GpuSlab::make(gpu, gpu.grain()));
  KVD_ASSIGN_OR_RETURN(const auto range,
                       cuda::AddressRange::reserve(gpu.driver(), gpu.grain() * 2));
  const CUresult result =
      gpu.driver().mem_map(range.address(), gpu.grain().size() * 2, 0, slab.memory().handle(), 0);
  if (result == CUDA_SUCCESS) gpu.driver().mem_unmap(range.address(), gpu.grain().size() * 2);
  return result;
}

Result<CUresult> map_over_a_mapping(const Gpu& gpu) {
  KVD_ASSIGN_OR_RETURN(const GpuSlab slab, GpuSlab::make(gpu, gpu.grain()));
  KVD_ASSIGN_OR_RETURN(
      const cuda::PhysicalMemory other,
      cuda::PhysicalMemory::create(gpu.driver(), gpu.device().handle, gpu.grain()));
  return gpu.driver().mem_map(slab.address(), gpu.grain().size(), 0, other.handle(), 0);
}

Result<CUresult> unmap_a_half(const Gpu& gpu) {
  KVD_ASSIGN_OR_RETURN(const GpuSlab slab, GpuSlab::make(gpu, gpu.grain() * 2));
  return gpu.driver().mem_unmap(slab.address(), gpu.grain().size());
}

Result<CUresult> register_twice(const Gpu& gpu) {
  KVD_ASSIGN_OR_RETURN(const PinnedMemory page, PinnedMemory::make(gpu, Bytes(4096)));
  return gpu.driver().mem_host_register(page.data(), 4096, CU_MEMHOSTREGISTER_PORTABLE);
}

Result<CUresult> copy_over_two_registrations(const Gpu& gpu) {
  const UniqueFd fd(::memfd_create("kvd-gpu-report", MFD_CLOEXEC));
  if (!fd.valid() || ::ftruncate(fd.get(), 8192) != 0) {
    return make_error(ErrorCode::kOutOfMemory, "no shared memory");
  }
  void* at = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (at == MAP_FAILED) return make_error(ErrorCode::kOutOfMemory, "no shared memory");
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  CUresult result = CUDA_SUCCESS;
  {
    KVD_ASSIGN_OR_RETURN(const auto both, cuda::ChunkedRegistration::make(
                                              gpu.driver(), address, Bytes(8192), Bytes(4096)));
    KVD_ASSIGN_OR_RETURN(const GpuSlab slab, GpuSlab::make(gpu, gpu.grain()));
    result = gpu.driver().memcpy_async(slab.address(), address, 8192, gpu.stream().get());
    KVD_TRY(gpu.finish());
  }
  ::munmap(at, 8192);
  return result;
}

Result<CUresult> reserve_aligned_to_a_gibibyte(const Gpu& gpu) {
  CUdeviceptr at = 0;
  const CUresult result = gpu.driver().mem_address_reserve(&at, kGiB.size(), kGiB.size(), 0, 0);
  if (result != CUDA_SUCCESS) return result;
  gpu.driver().mem_address_free(at, kGiB.size());
  if (at % kGiB.size() == 0) return result;
  return make_error(ErrorCode::kDeviceError, "the driver reserved addresses of another alignment");
}

bool can_write_values(const cuda::Driver& driver) { return driver.stream_write_value64 != nullptr; }

Result<CUresult> value_on_the_legacy_stream(const Gpu& gpu) {
  KVD_ASSIGN_OR_RETURN(const PinnedMemory page, PinnedMemory::make(gpu, Bytes(4096)));
  const CUresult result = gpu.driver().stream_write_value64(
      nullptr, slot_address(page, Slot::kSignal), 1, CU_STREAM_WRITE_VALUE_DEFAULT);
  KVD_TRY(gpu.finish(nullptr));
  return result;
}

Result<CUresult> batch_on_the_legacy_stream(const Gpu& gpu) {
  KVD_ASSIGN_OR_RETURN(const PinnedMemory page, PinnedMemory::make(gpu, Bytes(4096)));
  KVD_ASSIGN_OR_RETURN(const GpuSlab slab, GpuSlab::make(gpu, gpu.grain()));
  CUdeviceptr to = slab.address(), from = page.address();
  std::size_t bytes = 4096, first = 0, failed = 0;
  CUmemcpyAttributes all{};
  all.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  const cuda::Driver& driver = gpu.driver();
  const CUresult result =
      driver.memcpy_batch_async != nullptr
          ? driver.memcpy_batch_async(&to, &from, &bytes, 1, &all, &first, 1, nullptr)
          : driver.memcpy_batch_async_12080(&to, &from, &bytes, 1, &all, &first, 1, &failed,
                                            nullptr);
  KVD_TRY(gpu.finish(nullptr));
  return result;
}

struct Rule {
  const char* name;
  CUresult fake;  ///< what the fake driver answers; 0: it is no mistake
  Result<CUresult> (*break_it)(const Gpu&);
  bool (*can)(const cuda::Driver&) = nullptr;  ///< whether the driver has the call; null: always
};
constexpr Rule kRules[] = {
    {"import of a descriptor of another kind", CUDA_ERROR_UNKNOWN, import_of_a_file},
    {"import of no descriptor", CUDA_ERROR_UNKNOWN, import_of_nothing},
    {"mapping more than there is", CUDA_ERROR_NOT_SUPPORTED, map_more_than_there_is},
    {"mapping over a mapping", CUDA_ERROR_INVALID_VALUE, map_over_a_mapping},
    {"unmapping half of a mapping", CUDA_ERROR_INVALID_VALUE, unmap_a_half},
    {"registering twice", CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, register_twice},
    {"a copy over two registrations", CUDA_ERROR_INVALID_VALUE, copy_over_two_registrations},
    {"reserving addresses aligned to 1 GiB", CUDA_SUCCESS, reserve_aligned_to_a_gibibyte},
    {"writing a value on the legacy stream", CUDA_SUCCESS, value_on_the_legacy_stream,
     can_write_values},
    {"a batch on the legacy stream", CUDA_ERROR_INVALID_VALUE, batch_on_the_legacy_stream,
     cuda::Stream::can_batch}};

}  // namespace

Status broken_rules(const Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto gpu, Gpu::open());
  for (const Rule& rule : kRules) {
    if (rule.can != nullptr && !rule.can(gpu->driver())) {
      lab.out.note(std::string(rule.name) + " was not tried: this driver has no such call");
      continue;
    }
    KVD_ASSIGN_OR_RETURN(const CUresult result, rule.break_it(*gpu));
    const std::string what =
        std::string(rule.name) + " (fake: " + std::to_string(static_cast<int>(rule.fake)) + ")";
    lab.out.figure(what, static_cast<double>(result), "CUresult");
    if (lab.fake) lab.out.require(what + " is what this table says", result == rule.fake);
    if (result != rule.fake)
      lab.out.note(std::string(rule.name) + " is answered otherwise than by the fake");
  }
  KVD_ASSIGN_OR_RETURN(const Bytes left, gpu->free_memory());
  lab.out.require("the context works on after all of them", left > Bytes(0));
  return {};
}

}  // namespace kvd::gpu
