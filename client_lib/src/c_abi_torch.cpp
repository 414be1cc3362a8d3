#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "client_lib/include/kvd.h"
#include "kvd_client/client.hpp"

namespace {

namespace kc = kvd_client;

/// The client behind PyTorch's allocator functions, which have no handle to carry around.
/// Owner: thread-safe; lives until the process ends, as tensors may.
class TorchAllocator {
 public:
  static TorchAllocator& instance() {
    static auto* allocator = new TorchAllocator;  // never destroyed: PyTorch frees at exit
    return *allocator;
  }

  void* allocate(std::uint64_t bytes, int device) {
    const std::lock_guard lock(mutex_);
    if (!attach() || !check_device(device)) return nullptr;
    const auto region = client_->allocate_region(bytes, kTimeout);
    if (!region.ok()) return complain("no memory for a tensor", region.error());
    regions_.emplace(region->address, region->id);
    return region->address;
  }

  void free(void* address) {
    const std::lock_guard lock(mutex_);
    const auto region = regions_.find(address);
    if (region == regions_.end()) return;
    const auto status = client_->free_region(region->second, kTimeout);
    if (!status.ok()) complain("memory of a tensor was not returned", status.error());
    regions_.erase(region);
  }

 private:
  /// A large region may have to wait for requests to rotate out and for zeroing.
  static constexpr std::chrono::seconds kTimeout{30};

  bool attach() {
    if (client_) return true;
    kc::Options options;
    options.memory = kc::kCudaMemory;
    auto client = kc::Client::open(options);
    if (!client.ok()) return complain("cannot attach to the daemon", client.error()) != nullptr;
    client_.emplace(std::move(client).value());
    return true;
  }

  bool check_device(int device) {
    const auto session = client_->session();
    if (session.ok() && session->device == device) return true;
    const kc::Error error =
        session.ok()
            ? kc::Error{kc::ErrorCode::kInvalidArgument,
                        "PyTorch asks for cuda:" + std::to_string(device) +
                            ", this kvd lends memory of cuda:" + std::to_string(session->device)}
            : session.error();
    return complain("no memory for a tensor", error) != nullptr;
  }

  static void* complain(const char* what, const kc::Error& error) {
    std::fprintf(stderr, "kvd: %s: %s: %s\n", what, kc::name(error.code).data(),
                 error.message.c_str());
    return nullptr;
  }

  std::mutex mutex_;
  std::optional<kc::Client> client_;
  std::map<void*, std::uint64_t> regions_;
};

}  // namespace

void* kvd_torch_malloc(ptrdiff_t bytes, int device, void* /*custream*/) {
  if (bytes <= 0) return nullptr;  // PyTorch asks for nothing now and then
  return TorchAllocator::instance().allocate(static_cast<std::uint64_t>(bytes), device);
}

void kvd_torch_free(void* address, ptrdiff_t /*bytes*/, int /*device*/, void* /*custream*/) {
  if (address != nullptr) TorchAllocator::instance().free(address);
}
