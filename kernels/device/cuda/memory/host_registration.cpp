#include "kernels/device/cuda/memory/host_registration.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/device/cuda/driver/error.hpp"

namespace kvd::kernels::cuda {

namespace {

// The driver's kernel module pins the pages itself, whatever the limits on locked memory. If that
// fails, the result is INVALID_VALUE (os-mlock.c of NVIDIA's open kernel modules).
Error cannot_pin(const Driver& driver, CUresult result, Bytes size) {
  const std::string what = "registering " + std::to_string(size.value) + " bytes of host memory";
  Error error = error_of(driver, result, what);
  if (result == CUDA_ERROR_INVALID_VALUE) {
    error.message += ": the driver could not pin them; free memory on this machine";
  }
  return error;
}

}  // namespace

HostRegistration::Pinned::~Pinned() {
  driver.mem_host_unregister(reinterpret_cast<void*>(address));
}

Result<std::shared_ptr<HostRegistration::Pinned>> HostRegistration::pin(const Driver& driver,
                                                                        std::uintptr_t address,
                                                                        Bytes size) {
  static std::mutex mutex;
  static std::map<std::uintptr_t, std::weak_ptr<Pinned>> known;
  const std::lock_guard lock(mutex);
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  const auto found = known.find(address);
  if (found != known.end()) {
    std::shared_ptr<Pinned> shared = found->second.lock();
    if (shared && shared->size == size) return shared;
  }
  const CUresult registered =
      driver.mem_host_register(reinterpret_cast<void*>(address), size.size(),
                               CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  if (registered != CUDA_SUCCESS) return cannot_pin(driver, registered, size);
  auto made = std::make_shared<Pinned>(driver, address, size);
  known[address] = made;
  return made;
}

Result<HostRegistration> HostRegistration::make(const Driver& driver, std::uintptr_t address,
                                                Bytes size) {
  HostRegistration registration;
  KVD_ASSIGN_OR_RETURN(registration.pinned_, pin(driver, address, size));
  void* start = reinterpret_cast<void*>(address);
  KVD_TRY(check(driver, driver.mem_host_get_device_pointer(&registration.device_address_, start, 0),
                "asking for the device address of host memory"));
  return registration;
}

Result<ChunkedRegistration> ChunkedRegistration::make(const Driver& driver, std::uintptr_t address,
                                                      Bytes size, Bytes span) {
  ChunkedRegistration all;
  for (const std::uintptr_t end = address + size.size(); address < end;) {
    const std::uintptr_t boundary = (address / span.size() + 1) * span.size();
    const std::uintptr_t next = std::min(boundary, end);
    KVD_ASSIGN_OR_RETURN(
        HostRegistration chunk,
        HostRegistration::make(driver, address, Bytes(static_cast<std::int64_t>(next - address))));
    all.chunks_.push_back(std::move(chunk));
    address = next;
  }
  return all;
}

ChunkedRegistration::~ChunkedRegistration() {
  while (!chunks_.empty()) chunks_.pop_back();
}

}  // namespace kvd::kernels::cuda
