#include "kernels/device/cuda/memory/vmm.hpp"

#include <fcntl.h>

#include <string>
#include <utility>

#include "kernels/device/cuda/driver/error.hpp"

namespace kvd::kernels::cuda {
namespace {

constexpr CUmemAllocationHandleType kFdHandle = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

CUmemAllocationProp properties(const Place& place) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = kFdHandle;  // it cannot be asked for later
  prop.location = place.location;
  prop.allocFlags.gpuDirectRDMACapable = place.gpu_direct_rdma ? 1 : 0;
  return prop;
}

std::string bytes_text(Bytes size) { return std::to_string(size.value) + " bytes"; }

std::string text(const Place& place) {
  if (place.location.type == CU_MEM_LOCATION_TYPE_DEVICE) return "device memory";
  return "memory of NUMA node " + std::to_string(place.location.id);
}

}  // namespace

Result<Bytes> granularity(const Driver& driver, const Place& place) {
  const CUmemAllocationProp prop = properties(place);
  std::size_t grain = 0;
  KVD_TRY(
      check(driver,
            driver.mem_get_allocation_granularity(&grain, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            "asking for the allocation granularity"));
  if (grain == 0) return make_error(ErrorCode::kDeviceError, "the allocation granularity is zero");
  return Bytes(static_cast<std::int64_t>(grain));
}

Result<PhysicalMemory> PhysicalMemory::create(const Driver& driver, const Place& place,
                                              Bytes size) {
  const CUmemAllocationProp prop = properties(place);
  CUmemGenericAllocationHandle handle = 0;
  KVD_TRY(check(driver, driver.mem_create(&handle, size.size(), &prop, 0),
                "allocating " + bytes_text(size) + " of " + text(place)));
  return PhysicalMemory(driver, handle, size);
}

Result<PhysicalMemory> PhysicalMemory::import_fd(const Driver& driver, int fd, Bytes size) {
  CUmemGenericAllocationHandle handle = 0;
  auto* value = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));  // a number, not a pointer
  const CUresult result = driver.mem_import(&handle, value, kFdHandle);
  if (result == CUDA_SUCCESS) return PhysicalMemory(driver, handle, size);
  Error error = error_of(driver, result, "importing device memory from a descriptor");
  // Driver 580 answers CUDA_ERROR_UNKNOWN (999) to a descriptor of anything else; that does no
  // harm.
  if (result == CUDA_ERROR_UNKNOWN) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the descriptor is none of this GPU's memory (" + error.message + ")");
  }
  return error;
}

PhysicalMemory::PhysicalMemory(PhysicalMemory&& other) noexcept
    : driver_(std::exchange(other.driver_, nullptr)), handle_(other.handle_), size_(other.size_) {}

PhysicalMemory::~PhysicalMemory() {
  if (driver_ != nullptr) driver_->mem_release(handle_);
}

Result<UniqueFd> PhysicalMemory::export_fd() const {
  int fd = -1;
  KVD_TRY(
      check(*driver_, driver_->mem_export(&fd, handle_, kFdHandle, 0), "exporting device memory"));
  UniqueFd owned(fd);
  // A descriptor that leaks into a child pins the memory for as long as the child lives.
  if (::fcntl(fd, F_SETFD, FD_CLOEXEC) == 0) return owned;
  return make_error(ErrorCode::kDeviceError, "the driver exported no usable descriptor");
}

Result<AddressRange> AddressRange::reserve(const Driver& driver, Bytes size, Bytes alignment) {
  CUdeviceptr address = 0;
  KVD_TRY(check(driver, driver.mem_address_reserve(&address, size.size(), alignment.size(), 0, 0),
                "reserving addresses for " + bytes_text(size)));
  return AddressRange(driver, address, size);
}

AddressRange::AddressRange(AddressRange&& other) noexcept
    : driver_(std::exchange(other.driver_, nullptr)),
      address_(other.address_),
      size_(other.size_) {}

AddressRange::~AddressRange() {
  if (driver_ != nullptr) driver_->mem_address_free(address_, size_.size());
}

Result<Mapping> Mapping::map(CUdeviceptr address, const PhysicalMemory& memory) {
  const Driver& driver = memory.driver();
  KVD_TRY(check(driver, driver.mem_map(address, memory.size().size(), 0, memory.handle(), 0),
                "mapping " + bytes_text(memory.size()) + " of device memory"));
  return Mapping(driver, address, memory.size());
}

Mapping::Mapping(Mapping&& other) noexcept
    : driver_(std::exchange(other.driver_, nullptr)),
      address_(other.address_),
      size_(other.size_) {}

Mapping::~Mapping() {
  if (driver_ != nullptr) driver_->mem_unmap(address_, size_.size());
}

Status grant_access(const Driver& driver, CUdeviceptr address, Bytes size, const Place& who,
                    Access access) {
  CUmemAccessDesc description{};
  description.location = who.location;
  description.flags =
      access == Access::kRead ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return check(driver, driver.mem_set_access(address, size.size(), &description, 1),
               "granting access to " + bytes_text(size) + " to " + text(who));
}

}  // namespace kvd::kernels::cuda
