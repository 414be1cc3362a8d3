// Stream capture: the entry points, and the calls that are forbidden meanwhile.
#include "tests/support/fakecuda/streams/capture.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "tests/support/fakecuda/driver.hpp"

namespace fakecuda {
namespace {

// Known to be refused: registration (NCCL wraps it in RELAXED), event queries (pytorch#159594) and
// what allocates or loads. The VMM calls: cuda.h is silent, so nothing may count on them (choice).
constexpr std::array<std::string_view, 15> kUnsafe = {
    "cuMemHostRegister",  "cuMemHostUnregister", "cuEventQuery",
    "cuEventSynchronize", "cuModuleLoadData",    "cuModuleUnload",
    "cuMemGetInfo",       "cuMemCreate",         "cuMemRelease",
    "cuMemMap",           "cuMemUnmap",          "cuMemSetAccess",
    "cuMemAddressFree",   "cuMemAddressReserve", "cuMemImportFromShareableHandle"};

bool is_blocking(const CUstream_st& stream) { return (stream.flags & CU_STREAM_NON_BLOCKING) == 0; }

}  // namespace

bool is_unsafe_in_capture(const std::string& entry) {
  return std::find(kUnsafe.begin(), kUnsafe.end(), entry) != kUnsafe.end();
}

CUstreamCaptureMode& thread_capture_mode() {
  thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  return mode;
}

CUresult Captures::begin(const std::shared_ptr<CUstream_st>& stream, CUstreamCaptureMode mode) {
  if (stream == stream->context->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const Capture capture{stream, mode, std::this_thread::get_id()};
  return captures_.emplace(stream.get(), capture).second ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}

CUresult Captures::end(const CUstream_st* stream, std::unique_ptr<CUgraph_st>& graph) {
  const auto found = captures_.find(stream);
  if (found == captures_.end()) return CUDA_ERROR_ILLEGAL_STATE;
  const Capture capture = found->second;
  if (capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture.by != std::this_thread::get_id()) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  captures_.erase(found);
  if (capture.ended) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  graph = std::make_unique<CUgraph_st>(CUgraph_st{capture.nodes});
  return CUDA_SUCCESS;
}

CUstreamCaptureStatus Captures::status(const CUstream_st* stream) const {
  const auto found = captures_.find(stream);
  if (found == captures_.end()) return CU_STREAM_CAPTURE_STATUS_NONE;
  return found->second.ended ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                             : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

bool Captures::take(const CUstream_st* stream) {
  const auto found = captures_.find(stream);
  if (found == captures_.end()) return false;
  ++found->second.nodes;
  return true;
}

CUresult Captures::check(const CUstream_st* stream) const {
  const auto found = captures_.find(stream);
  return found != captures_.end() && found->second.ended ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                                                         : CUDA_SUCCESS;
}

template <class Meant>
CUresult Captures::refuse(CUresult code, Meant meant) {
  bool any = false;
  for (auto& [stream, capture] : captures_) {
    if (!meant(capture)) continue;
    any = true;
    capture.ended = true;
  }
  return any ? code : CUDA_SUCCESS;
}

CUresult Captures::refuse_for(const CUstream_st* stream) {
  return refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                [&](const Capture& capture) { return capture.stream.get() == stream; });
}

CUresult Captures::refuse_legacy(CUcontext context) {
  return refuse(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, [&](const Capture& capture) {
    return capture.stream->context == context && is_blocking(*capture.stream);
  });
}

bool Captures::blocks_legacy(CUcontext context) const {
  return std::any_of(captures_.begin(), captures_.end(), [&](const auto& item) {
    return item.second.stream->context == context && is_blocking(*item.second.stream);
  });
}

CUresult Captures::refuse_in(CUcontext context) {
  return refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                [&](const Capture& capture) { return capture.stream->context == context; });
}

CUresult Captures::refuse_unsafe() {
  const CUstreamCaptureMode mine = thread_capture_mode();
  if (mine == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  return refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, [&](const Capture& capture) {
    if (capture.by == std::this_thread::get_id()) {
      return capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    }
    return mine == CU_STREAM_CAPTURE_MODE_GLOBAL && capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
  });
}

void Captures::forget(CUcontext context) {
  std::erase_if(captures_, [&](const auto& item) {
    return context == nullptr || item.second.stream->context == context;
  });
}

}  // namespace fakecuda

using fakecuda::driver;
using fakecuda::enter;
using fakecuda::Needs;

CUresult CUDAAPI cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
  if (const CUresult r = enter("cuStreamBeginCapture", Needs::kContext)) return r;
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::shared_ptr<CUstream_st> stream;
  if (const CUresult r = fakecuda::find_stream(handle, stream)) return r;
  const std::lock_guard lock(driver().mutex);
  return driver().captures.begin(stream, mode);
}

CUresult CUDAAPI cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  if (const CUresult r = enter("cuStreamEndCapture", Needs::kContext)) return r;
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *graph = nullptr;
  std::unique_ptr<CUgraph_st> made;
  const std::lock_guard lock(driver().mutex);
  const CUresult result = driver().captures.end(handle, made);
  if (result != CUDA_SUCCESS) return result;
  *graph = made.get();
  driver().graphs[*graph] = std::move(made);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  if (const CUresult r = enter("cuStreamIsCapturing", Needs::kContext)) return r;
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (handle == nullptr || handle == CU_STREAM_LEGACY) {
    const std::lock_guard lock(driver().mutex);
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    const bool blocked = driver().captures.blocks_legacy(fakecuda::current_context());
    return blocked ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
  }
  std::shared_ptr<CUstream_st> stream;
  const CUresult found = fakecuda::find_stream(handle, stream);
  const bool ended = found == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (found != CUDA_SUCCESS && !ended) return found;
  const std::lock_guard lock(driver().mutex);
  *status = driver().captures.status(handle);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (const CUresult r = enter("cuThreadExchangeStreamCaptureMode", Needs::kInit)) return r;
  if (mode == nullptr || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL ||
      *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::swap(*mode, fakecuda::thread_capture_mode());
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphDestroy(CUgraph graph) {
  if (const CUresult r = enter("cuGraphDestroy", Needs::kInit)) return r;
  const std::lock_guard lock(driver().mutex);
  return driver().graphs.erase(graph) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
