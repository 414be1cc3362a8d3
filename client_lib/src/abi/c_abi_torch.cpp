#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client_lib/include/kvd.h"
#include "client_lib/src/abi/c_handle.hpp"
#include "client_lib/src/memory/gpu.hpp"
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

  void* allocate(std::uint64_t bytes, int device, void* stream) {
    const std::lock_guard lock(mutex_);
    free_doomed(stream);
    if (!attach() || !check_device(device)) return nullptr;
    const auto region = client_->allocate_region(bytes, kTimeout);
    if (!region.ok()) return complain("no memory for a tensor", region.error());
    regions_.emplace(region->address, region->id);
    return region->address;
  }

  void free(void* address, void* stream) {
    const std::lock_guard lock(mutex_);
    const auto region = regions_.find(address);
    if (region == regions_.end()) return;
    doomed_.push_back(region->second);
    regions_.erase(region);
    free_doomed(stream);
  }

  /// What could not be freed while mappings were held.
  void free_doomed() {
    const std::lock_guard lock(mutex_);
    free_all_doomed();
  }

 private:
  /// A large region may have to wait for requests to rotate out and for zeroing.
  static constexpr std::chrono::seconds kTimeout{30};

  // PyTorch does not say who captures, but often it is the stream that the memory was used in.
  void free_doomed(void* stream) {
    if (!doomed_.empty() && !kvd::client::Gpu::is_captured(stream)) free_all_doomed();
  }

  void free_all_doomed() {
    std::vector<std::uint64_t> later;
    for (const std::uint64_t id : doomed_) {
      const auto status = client_->free_region(id, kTimeout);
      const bool may_pass = status.code() == kc::ErrorCode::kWouldBlock;
      if (may_pass) later.push_back(id);
      if (!may_pass && !status.ok())
        complain("memory of a tensor was not returned", status.error());
    }
    doomed_ = std::move(later);
  }

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
  std::vector<std::uint64_t> doomed_;  ///< freed by PyTorch, still mapped
};

}  // namespace

void* kvd_torch_malloc(ptrdiff_t bytes, int device, void* custream) {
  if (bytes <= 0) return nullptr;  // PyTorch asks for nothing now and then
  return TorchAllocator::instance().allocate(static_cast<std::uint64_t>(bytes), device, custream);
}

void* kvd_torch_malloc_or_throw(ptrdiff_t bytes, int device, void* custream) {
  void* const memory = kvd_torch_malloc(bytes, device, custream);
  if (memory == nullptr && bytes > 0) throw std::bad_alloc();
  return memory;
}

void kvd_torch_free(void* address, ptrdiff_t /*bytes*/, int /*device*/, void* custream) {
  if (address != nullptr) TorchAllocator::instance().free(address, custream);
}

kvd_status kvd_hold_mappings(uint64_t timeout_ns) {
  return kvd::client::c::done(kc::Client::hold_mappings(kvd::client::c::duration(timeout_ns)));
}

void kvd_release_mappings(void) {
  kc::Client::release_mappings();
  TorchAllocator::instance().free_doomed();
}
