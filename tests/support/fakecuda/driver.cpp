#include "tests/support/fakecuda/driver.hpp"

#include <pthread.h>

#include <algorithm>

#include "tests/support/fakecuda/report.hpp"

namespace fakecuda {
namespace {

std::atomic<bool> forked{false};

Driver*& instance() {
  static Driver* driver = [] {
    pthread_atfork(nullptr, nullptr, [] { forked = true; });
    return new Driver(read_config());  // never destroyed: streams outlive main
  }();
  return driver;
}

std::optional<CUresult> injected(const std::string& entry) {
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  const unsigned call = ++d.calls[entry];
  for (const Fault& fault : d.config.faults) {
    if (fault.entry != entry || fault.call != call) continue;
    if (fault.sticky && current_context() != nullptr) latch(current_context(), fault.code);
    return fault.code;
  }
  return std::nullopt;
}

}  // namespace

Driver::Driver(Config from_environment)
    : config(std::move(from_environment)), engines(static_cast<std::size_t>(config.devices)) {
  violations().set_strict(config.strict);
  for (int device = 0; device < config.devices; ++device) {
    contexts.push_back(std::make_unique<CUctx_st>(device));
  }
}

Driver& driver() { return *instance(); }

std::vector<CUcontext>& context_stack() {
  thread_local std::vector<CUcontext> stack;
  return stack;
}

CUcontext current_context() { return context_stack().empty() ? nullptr : context_stack().back(); }

CUstream_st*& running_stream() {
  thread_local CUstream_st* stream = nullptr;
  return stream;
}

bool& in_host_function() {
  thread_local bool inside = false;
  return inside;
}

void latch(CUcontext context, CUresult code) {
  CUresult none = CUDA_SUCCESS;
  context->latched.compare_exchange_strong(none, code);
}

CUresult enter(const char* entry, Needs needs) {
  if (forked) return CUDA_ERROR_NOT_INITIALIZED;
  if (in_host_function() && needs != Needs::kNothing) {
    violation("call_in_host_function", entry);
    return CUDA_ERROR_NOT_PERMITTED;
  }
  if (const auto code = injected(base_name(entry))) return *code;
  if (needs == Needs::kNothing) return CUDA_SUCCESS;
  const CUcontext context = current_context();
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  if (!d.initialized) return CUDA_ERROR_NOT_INITIALIZED;
  if (needs == Needs::kInit) return CUDA_SUCCESS;
  if (context == nullptr) {
    return needs == Needs::kContext ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
  }
  if (context->retained == 0) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (context->latched != CUDA_SUCCESS) return context->latched;
  return is_unsafe_in_capture(base_name(entry)) ? d.captures.refuse_unsafe() : CUDA_SUCCESS;
}

Space classify(CUdeviceptr pointer, std::size_t size) {
  const Driver& d = driver();
  if (d.vmm.reserved(pointer, size)) {
    const Vmm::Mapping* mapping = d.vmm.at(pointer);
    const bool host = mapping != nullptr && !mapping->memory->on_device();
    return host ? Space::kHost : Space::kDevice;
  }
  if (d.host.host_address(pointer, size) != 0) return Space::kHost;
  const bool partly = d.host.touches(pointer, size) || d.vmm.touches_reservation(pointer, size);
  return partly ? Space::kBroken : Space::kPageable;
}

std::vector<Segment> touch(int device, CUdeviceptr pointer, std::size_t size, bool write) {
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  if (const CUdeviceptr host = d.host.host_address(pointer, size); host != 0) {
    return {{reinterpret_cast<std::byte*>(host), size, nullptr}};
  }
  auto segments = d.vmm.access(device, pointer, size, write);
  if (segments.empty()) {
    violation("illegal_access", std::string(write ? "write of " : "read of ") +
                                    std::to_string(size) + " bytes at " + hex(pointer));
  }
  return segments;
}

bool in_flight(CUdeviceptr pointer, std::size_t size) {
  const auto& streams = driver().every_stream;
  return std::any_of(streams.begin(), streams.end(), [&](const auto& weak) {
    const auto stream = weak.lock();
    return stream && stream->touches(pointer, size);
  });
}

bool Engine::acquire(const CUstream_st& stream) {
  std::unique_lock lock(mutex_);
  while (busy_) {
    if (stream.given_up()) return false;
    freed_.wait_for(lock, std::chrono::milliseconds(5));
  }
  return busy_ = true;
}

void Engine::release() {
  const std::lock_guard lock(mutex_);
  busy_ = false;
  freed_.notify_one();
}

}  // namespace fakecuda

// Ends what runs and starts anew. The old driver is kept for handles that a stream still holds.
void fakecuda_reset(void) {
  using namespace fakecuda;
  abandon_streams(nullptr);
  delete instance();
  violations().clear();
  context_stack().clear();
  instance() = new Driver(read_config());
}
