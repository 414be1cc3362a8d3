// Primary contexts and which one is current on a thread.
#include <algorithm>
#include <string>

#include "tests/support/fakecuda/driver.hpp"
#include "tests/support/fakecuda/report.hpp"

using fakecuda::context_stack;
using fakecuda::current_context;
using fakecuda::driver;
using fakecuda::enter;
using fakecuda::Needs;

namespace {

// With driver().mutex.
CUctx_st* primary(CUdevice device) {
  const auto& contexts = driver().contexts;
  const auto index = static_cast<std::size_t>(device);
  return device >= 0 && index < contexts.size() ? contexts[index].get() : nullptr;
}

bool usable(CUcontext context) {
  const auto& contexts = driver().contexts;
  const bool ours = std::any_of(contexts.begin(), contexts.end(),
                                [&](const auto& item) { return item.get() == context; });
  return ours && context->retained > 0;
}

void destroy(CUcontext context) {
  fakecuda::Driver& d = driver();
  fakecuda::abandon_streams(context);
  const std::lock_guard lock(d.mutex);
  std::erase_if(d.events, [&](const auto& item) { return item.second->context == context; });
  d.host.remove_all_of(context);
  d.captures.forget(context);
  context->legacy = nullptr;
}

}  // namespace

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (const CUresult r = enter("cuDevicePrimaryCtxRetain", Needs::kInit)) return r;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(driver().mutex);
  CUctx_st* found = primary(device);
  if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  ++found->retained;
  *context = found;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device) {
  if (const CUresult r = enter("cuDevicePrimaryCtxRelease", Needs::kInit)) return r;
  CUctx_st* found = nullptr;
  {
    const std::lock_guard lock(driver().mutex);
    found = primary(device);
    if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (found->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--found->retained > 0) return CUDA_SUCCESS;
  }
  destroy(found);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) {
  if (const CUresult r = enter("cuCtxSetCurrent", Needs::kInit)) return r;
  const std::lock_guard lock(driver().mutex);
  if (context != nullptr && !usable(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context_stack().empty()) context_stack().pop_back();
  if (context != nullptr) context_stack().push_back(context);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext* context) {
  if (const CUresult r = enter("cuCtxGetCurrent", Needs::kInit)) return r;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = current_context();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext context) {
  if (const CUresult r = enter("cuCtxPushCurrent", Needs::kInit)) return r;
  const std::lock_guard lock(driver().mutex);
  if (context == nullptr || !usable(context)) return CUDA_ERROR_INVALID_CONTEXT;
  context_stack().push_back(context);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext* context) {
  if (const CUresult r = enter("cuCtxPopCurrent", Needs::kInit)) return r;
  if (context_stack().empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = current_context();
  context_stack().pop_back();
  return CUDA_SUCCESS;
}

namespace {

// With driver().mutex.
std::vector<std::shared_ptr<CUstream_st>> streams_of(CUcontext context) {
  std::vector<std::shared_ptr<CUstream_st>> streams;
  for (const auto& weak : driver().every_stream) {
    auto stream = weak.lock();
    if (stream && stream->context == context) streams.push_back(std::move(stream));
  }
  return streams;
}

void wait_for(const std::vector<std::shared_ptr<CUstream_st>>& streams) {
  for (const auto& stream : streams) {
    stream->wait(stream->submitted(), [&] { return stream->given_up(); });
  }
}

}  // namespace

void fakecuda::synchronize_if_told() {
  if (driver().config.synchronous) synchronize();
}

void fakecuda::synchronize() {
  const CUcontext context = current_context();
  if (context == nullptr) return;
  std::vector<std::shared_ptr<CUstream_st>> streams;
  {
    const std::lock_guard lock(driver().mutex);
    streams = streams_of(context);
  }
  wait_for(streams);
}

CUresult CUDAAPI cuCtxSynchronize(void) {
  if (const CUresult r = enter("cuCtxSynchronize", Needs::kContext)) return r;
  const CUcontext context = current_context();
  std::vector<std::shared_ptr<CUstream_st>> streams;
  {
    const std::lock_guard lock(driver().mutex);
    if (const CUresult r = driver().captures.refuse_in(context)) return r;
    streams = streams_of(context);
  }
  wait_for(streams);
  return context->latched;
}

// From 13.0 on the base name asks for this one.
CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext context) {
  if (context == nullptr) return cuCtxSynchronize();
  if (const CUresult r = cuCtxPushCurrent(context)) return r;
  const CUresult result = cuCtxSynchronize();
  CUcontext popped = nullptr;
  cuCtxPopCurrent(&popped);
  return result;
}
