// Streams and events.
#include <algorithm>

#include "tests/support/fakecuda/driver.hpp"
#include "tests/support/fakecuda/report.hpp"

using fakecuda::current_context;
using fakecuda::Dependency;
using fakecuda::driver;
using fakecuda::enter;
using fakecuda::Needs;
using fakecuda::Operation;

namespace fakecuda {
namespace {

constexpr unsigned kStreamFlags = CU_STREAM_NON_BLOCKING;
constexpr unsigned kEventFlags =
    CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

bool blocking(const CUstream_st& stream) { return (stream.flags & CU_STREAM_NON_BLOCKING) == 0; }

// The legacy stream waits for all blocking streams of its context, and they for it.
std::vector<Dependency> legacy_rules(const std::shared_ptr<CUstream_st>& stream) {
  std::vector<Dependency> after;
  const auto& legacy = stream->context->legacy;
  if (stream != legacy) {
    if (legacy && blocking(*stream)) after.push_back({legacy, legacy->submitted()});
    return after;
  }
  for (const auto& weak : driver().every_stream) {
    const auto other = weak.lock();
    if (other && other != stream && other->context == stream->context && blocking(*other)) {
      after.push_back({other, other->submitted()});
    }
  }
  return after;
}

// Streams on one hardware queue: work waits for all that was queued there before it.
std::vector<Dependency> queue_rules(const std::shared_ptr<CUstream_st>& stream) {
  std::vector<Dependency> after;
  for (const auto& weak : driver().every_stream) {
    const auto other = weak.lock();
    if (other && other != stream && other->context == stream->context &&
        other->queue == stream->queue) {
      after.push_back({other, other->submitted()});
    }
  }
  return after;
}

}  // namespace

std::shared_ptr<CUstream_st> make_stream(CUcontext context, unsigned flags) {
  Driver& d = driver();
  const auto number = ++d.streams_made;
  const auto queue = static_cast<unsigned>(number % d.config.hardware_queues);
  auto stream =
      std::make_shared<CUstream_st>(context, flags, d.config.seed * 1'000'003 + number, queue);
  std::erase_if(d.every_stream, [](const auto& weak) { return weak.expired(); });
  d.every_stream.push_back(stream);
  stream->start();
  return stream;
}

CUresult find_stream(CUstream handle, std::shared_ptr<CUstream_st>& stream) {
  Driver& d = driver();
  const CUcontext context = current_context();
  const std::lock_guard lock(d.mutex);
  if (handle == CU_STREAM_PER_THREAD) return CUDA_ERROR_NOT_SUPPORTED;
  if (handle == nullptr || handle == CU_STREAM_LEGACY) {
    if (const CUresult r = d.captures.refuse_legacy(context)) return r;
    if (!context->legacy) context->legacy = make_stream(context, CU_STREAM_DEFAULT);
    stream = context->legacy;
    return CUDA_SUCCESS;
  }
  const auto found = d.streams.find(handle);
  if (found == d.streams.end() || found->second->context != context) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  stream = found->second;
  return d.captures.check(stream.get());
}

std::uint64_t enqueue(const std::shared_ptr<CUstream_st>& stream, Operation operation) {
  stream->wait_for_room();
  const std::lock_guard lock(driver().mutex);
  if (driver().captures.take(stream.get())) return stream->submitted();
  for (const auto& rules : {legacy_rules(stream), queue_rules(stream)}) {
    operation.after.insert(operation.after.end(), rules.begin(), rules.end());
  }
  return stream->submit(std::move(operation));
}

void abandon_streams(CUcontext context) {
  Driver& d = driver();
  std::vector<std::shared_ptr<CUstream_st>> ended;
  {
    const std::lock_guard lock(d.mutex);
    for (const auto& weak : d.every_stream) {
      const auto stream = weak.lock();
      if (stream && (context == nullptr || stream->context == context)) ended.push_back(stream);
    }
    std::erase_if(d.streams, [&](const auto& item) {
      return context == nullptr || item.second->context == context;
    });
  }
  for (const auto& stream : ended) {
    if (context != nullptr && !stream->done(stream->submitted())) {
      violation("context_destroyed_in_flight", "a stream had work left");
    }
    stream->abandon();
  }
  for (const auto& stream : ended) stream->join();
}

}  // namespace fakecuda

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int) {
  if (const CUresult r = enter("cuStreamCreateWithPriority", Needs::kContext)) return r;
  fakecuda::synchronize_if_told();
  if (stream == nullptr || (flags & ~fakecuda::kStreamFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(driver().mutex);
  const auto made = fakecuda::make_stream(current_context(), flags);
  driver().streams[made.get()] = made;
  *stream = made.get();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamDestroy(CUstream handle) {
  if (const CUresult r = enter("cuStreamDestroy", Needs::kContext)) return r;
  const std::lock_guard lock(driver().mutex);
  const auto found = driver().streams.find(handle);
  if (found == driver().streams.end()) return CUDA_ERROR_INVALID_HANDLE;
  found->second->close();
  driver().streams.erase(found);
  return CUDA_SUCCESS;
}

namespace {

// A stream whose work is being done, not captured.
CUresult find_working(CUstream handle, std::shared_ptr<CUstream_st>& stream) {
  if (const CUresult r = fakecuda::find_stream(handle, stream)) return r;
  const std::lock_guard lock(driver().mutex);
  return driver().captures.refuse_for(stream.get());
}

}  // namespace

CUresult CUDAAPI cuStreamQuery(CUstream handle) {
  if (const CUresult r = enter("cuStreamQuery", Needs::kContext)) return r;
  std::shared_ptr<CUstream_st> stream;
  if (const CUresult r = find_working(handle, stream)) return r;
  return stream->done(stream->submitted()) ? stream->context->latched.load() : CUDA_ERROR_NOT_READY;
}

CUresult CUDAAPI cuStreamSynchronize(CUstream handle) {
  if (const CUresult r = enter("cuStreamSynchronize", Needs::kContext)) return r;
  std::shared_ptr<CUstream_st> stream;
  if (const CUresult r = find_working(handle, stream)) return r;
  stream->wait(stream->submitted(), [&] { return stream->given_up(); });
  return stream->context->latched;
}

CUresult CUDAAPI cuEventCreate(CUevent* event, unsigned int flags) {
  if (const CUresult r = enter("cuEventCreate", Needs::kContext)) return r;
  const bool between_processes = (flags & CU_EVENT_INTERPROCESS) != 0;
  const bool untimed = (flags & CU_EVENT_DISABLE_TIMING) != 0;
  if (event == nullptr || (flags & ~fakecuda::kEventFlags) != 0 ||
      (between_processes && !untimed)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto made = std::make_unique<CUevent_st>();
  made->context = current_context();
  made->flags = flags;
  *event = made.get();
  const std::lock_guard lock(driver().mutex);
  driver().events[*event] = std::move(made);
  return CUDA_SUCCESS;
}

namespace {

// A copy of the event's state, so that the event may be destroyed while somebody waits.
CUresult find_event(CUevent handle, CUevent_st& event) {
  const std::lock_guard lock(driver().mutex);
  const auto found = driver().events.find(handle);
  if (found == driver().events.end()) return CUDA_ERROR_INVALID_HANDLE;
  event = *found->second;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult CUDAAPI cuEventDestroy(CUevent event) {
  if (const CUresult r = enter("cuEventDestroy", Needs::kContext)) return r;
  const std::lock_guard lock(driver().mutex);
  return driver().events.erase(event) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult CUDAAPI cuEventRecord(CUevent event, CUstream handle) {
  if (const CUresult r = enter("cuEventRecord", Needs::kContext)) return r;
  CUevent_st state;
  if (const CUresult r = find_event(event, state)) return r;
  std::shared_ptr<CUstream_st> stream;
  if (const CUresult r = fakecuda::find_stream(handle, stream)) return r;
  if (state.context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  const auto mark = std::make_shared<CUevent_st::Mark>();
  Operation stamp{.run = [mark](CUstream_st&) {
    mark->at = std::chrono::steady_clock::now();
    mark->reached = true;
    return CUDA_SUCCESS;
  }};
  stamp.even_if_latched = true;
  const std::uint64_t number = fakecuda::enqueue(stream, std::move(stamp));
  const std::lock_guard lock(driver().mutex);
  const auto found = driver().events.find(event);
  if (found == driver().events.end()) return CUDA_ERROR_INVALID_HANDLE;
  found->second->captured = {stream, number};
  found->second->mark = mark;
  found->second->in_capture =
      driver().captures.status(stream.get()) != CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventQuery(CUevent event) {
  if (const CUresult r = enter("cuEventQuery", Needs::kContext)) return r;
  CUevent_st state;
  if (const CUresult r = find_event(event, state)) return r;
  if (state.in_capture) return CUDA_ERROR_CAPTURED_EVENT;
  return !state.mark || state.mark->reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult CUDAAPI cuEventSynchronize(CUevent event) {
  if (const CUresult r = enter("cuEventSynchronize", Needs::kContext)) return r;
  CUevent_st state;
  if (const CUresult r = find_event(event, state)) return r;
  if (state.in_capture) return CUDA_ERROR_CAPTURED_EVENT;
  const auto& stream = state.captured.stream;
  if (stream) stream->wait(state.captured.number, [&] { return stream->given_up(); });
  return state.context->latched;
}

CUresult CUDAAPI cuEventElapsedTime(float* milliseconds, CUevent from, CUevent to) {
  if (const CUresult r = enter("cuEventElapsedTime", Needs::kContext)) return r;
  CUevent_st start, end;
  if (const CUresult r = find_event(from, start)) return r;
  if (const CUresult r = find_event(to, end)) return r;
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool timed = ((start.flags | end.flags) & CU_EVENT_DISABLE_TIMING) == 0;
  if (!timed || !start.mark || !end.mark) return CUDA_ERROR_INVALID_HANDLE;
  if (!start.mark->reached || !end.mark->reached) return CUDA_ERROR_NOT_READY;
  *milliseconds = std::chrono::duration<float, std::milli>(end.mark->at - start.mark->at).count();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int flags) {
  if (const CUresult r = enter("cuStreamWaitEvent", Needs::kContext)) return r;
  if (flags != CU_EVENT_WAIT_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  CUevent_st state;
  if (const CUresult r = find_event(event, state)) return r;
  std::shared_ptr<CUstream_st> stream;
  if (const CUresult r = fakecuda::find_stream(handle, stream)) return r;
  if (state.in_capture) return CUDA_ERROR_NOT_SUPPORTED;  // the stream would join the capture
  {
    const std::lock_guard lock(driver().mutex);
    const bool outside = state.mark != nullptr;  // the wait would then reach out of the graph
    if (outside && driver().captures.refuse_for(stream.get()) != CUDA_SUCCESS) {
      return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
  }
  if (!state.mark || state.captured.stream == stream) return CUDA_SUCCESS;
  Operation wait{.run = [](CUstream_st&) { return CUDA_SUCCESS; }};
  wait.after.push_back(state.captured);
  fakecuda::enqueue(stream, std::move(wait));
  return CUDA_SUCCESS;
}
