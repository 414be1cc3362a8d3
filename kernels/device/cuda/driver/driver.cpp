#include "kernels/device/cuda/driver/driver.hpp"

#include <dlfcn.h>

#include <type_traits>

#include "kernels/device/cuda/driver/error.hpp"

namespace kvd::kernels::cuda {
namespace {

// Each version picks the ABI that cuda.h declares. Its macros turn the plain name into the name of
// that ABI (cuMemHostRegister is cuMemHostRegister_v2).
#define KVD_CUDA_SAME_ABI(member, entry, version, required)                   \
  static_assert(std::is_same_v<PFN_##entry##_v##version, decltype(&::entry)>, \
                #entry " of version " #version " is not what this cuda.h declares");
KVD_CUDA_ENTRIES(KVD_CUDA_SAME_ABI)
#undef KVD_CUDA_SAME_ABI
static_assert(std::is_same_v<PFN_cuGetProcAddress_v12000, decltype(&::cuGetProcAddress)>);

Error unsupported(const std::string& why) { return make_error(ErrorCode::kUnsupported, why); }

/// Looks up entry points by name and version; null where the driver is older than that or has no
/// such entry.
class Finder {
 public:
  explicit Finder(const Driver& driver) : driver_(driver) {}

  template <class Function>
  Status find(Function& function, const char* name, int version, bool required) const {
    void* address = nullptr;
    // An older driver may answer anything, so it is safest not to ask.
    if (version > driver_.version() && !required) return {};
    const CUresult result = driver_.get_proc_address(name, &address, version,
                                                     CU_GET_PROC_ADDRESS_LEGACY_STREAM, nullptr);
    if (result == CUDA_ERROR_STUB_LIBRARY) return error_of(driver_, result, name);
    if (result == CUDA_SUCCESS) function = reinterpret_cast<Function>(address);
    if (function != nullptr || !required) return {};
    return unsupported("the NVIDIA driver lacks " + std::string(name) + " of CUDA " +
                       std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10) +
                       ": update it to one for CUDA 12.0 or newer");
  }

 private:
  const Driver& driver_;
};

}  // namespace

Result<const Driver*> Driver::load() {
  // Never destroyed: threads that outlive main may still use it.
  static const auto* const kDriver =
      new Result<std::unique_ptr<const Driver>>(open("libcuda.so.1"));
  if (!kDriver->ok()) return kDriver->error();
  return kDriver->value().get();
}

Result<std::unique_ptr<const Driver>> Driver::open(const std::string& library) {
  std::unique_ptr<Driver> driver(new Driver());
  KVD_TRY(driver->resolve(library));
  KVD_TRY(driver->start());
  return std::unique_ptr<const Driver>(std::move(driver));
}

Status Driver::resolve(const std::string& library) {
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* why = ::dlerror();
    return unsupported(std::string("no NVIDIA driver here (") + (why != nullptr ? why : library) +
                       "): install one, give the container its GPUs, or use --backend host");
  }
  get_proc_address =
      reinterpret_cast<PFN_cuGetProcAddress_v12000>(::dlsym(handle, "cuGetProcAddress_v2"));
  if (get_proc_address == nullptr) {
    return unsupported(library +
                       " lacks cuGetProcAddress_v2: update the NVIDIA driver to one for "
                       "CUDA 12.0 or newer");
  }
  const auto tell_version =
      reinterpret_cast<PFN_cuDriverGetVersion_v2020>(::dlsym(handle, "cuDriverGetVersion"));
  // The toolkit's stub refuses this call, or lacks it. Its answers to the other calls say why.
  if (tell_version != nullptr) (void)tell_version(&version_);
  const Finder finder(*this);
#define KVD_CUDA_FIND(member, entry, version, required) \
  KVD_TRY(finder.find(member, #entry, version, required));
  KVD_CUDA_ENTRIES(KVD_CUDA_FIND)
#undef KVD_CUDA_FIND
  if (memcpy_batch_async != nullptr) return {};
  return finder.find(memcpy_batch_async_12080, "cuMemcpyBatchAsync", 12080, false);
}

Status Driver::start() {
  KVD_TRY(check(*this, init(0), "starting CUDA"));
  return check(*this, driver_get_version(&version_), "asking the driver's version");
}

}  // namespace kvd::kernels::cuda
