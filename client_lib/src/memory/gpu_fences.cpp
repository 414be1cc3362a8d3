#include "client_lib/src/memory/gpu_fences.hpp"

#include <string>
#include <thread>

#include "client_lib/src/memory/driver_wait.hpp"
#include "ipc/vocabulary/keep.hpp"
#include "kernels/device/cuda/driver/error.hpp"

namespace kvd::client {
namespace {

namespace cuda = kernels::cuda;

constexpr std::chrono::seconds kLongestWait{1};
constexpr std::chrono::microseconds kNextLook{200};

Error no_memory_operations(const char* what, const char* instead) {
  return make_error(ErrorCode::kUnsupported, std::string("this driver's streams cannot ") + what +
                                                 " memory: use " + instead);
}

Status refuse_captured(const cuda::Driver& driver, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  KVD_TRY(cuda::check(driver, driver.stream_is_capturing(stream, &status), "cuStreamIsCapturing"));
  if (status == CU_STREAM_CAPTURE_STATUS_NONE) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "the stream is being captured, and what it waits for or tells changes with "
                    "every step: do it before or after the graph");
}

}  // namespace

Result<GpuFences::Mark> GpuFences::Mark::make(const cuda::Driver& driver) {
  Mark mark(driver);
  KVD_TRY(cuda::check(driver, driver.event_create(&mark.event_, CU_EVENT_DISABLE_TIMING),
                      "cuEventCreate"));
  return mark;
}

GpuFences::Mark::~Mark() {
  if (event_ != nullptr) (void)driver_.event_destroy(event_);
}

Status GpuFences::Mark::record(CUstream stream) {
  return cuda::check(driver_, driver_.event_record(event_, stream), "cuEventRecord");
}

bool GpuFences::Mark::passed() const {
  const CUresult result = driver_.event_query(event_);
  return result != CUDA_ERROR_NOT_READY && !cuda::is_about_capture(result);
}

Result<std::unique_ptr<StreamFences>> GpuFences::make(std::shared_ptr<const void> gpu,
                                                      const cuda::PrimaryContext& context,
                                                      void* page, Bytes size, Gpu::Told told) {
  const cuda::ScopedCurrent current(context);
  KVD_TRY(current.status());
  KVD_ASSIGN_OR_RETURN(
      auto registration,
      cuda::HostRegistration::make(context.driver(), reinterpret_cast<std::uintptr_t>(page), size));
  KVD_ASSIGN_OR_RETURN(auto tellers, cuda::Stream::create(context.driver()));
  return std::unique_ptr<StreamFences>(new GpuFences(
      std::move(gpu), context, std::move(registration), std::move(tellers), std::move(told)));
}

GpuFences::GpuFences(std::shared_ptr<const void> gpu, const cuda::PrimaryContext& context,
                     cuda::HostRegistration page, cuda::Stream tellers, Gpu::Told told)
    : gpu_(std::move(gpu)),
      context_(context),
      page_(std::make_unique<cuda::HostRegistration>(std::move(page))),
      tellers_(std::make_unique<cuda::Stream>(std::move(tellers))) {
  listener_->told = std::move(told);
}

bool GpuFences::close() {
  const std::lock_guard closing(mutex_);
  if (page_ == nullptr) return true;
  const cuda::ScopedCurrent current(context_);
  {
    const std::lock_guard lock(listener_->mutex);
    listener_->told = nullptr;
  }
  if (!wait_for_streams()) {
    keep_for_ever(std::move(page_));
    keep_for_ever(std::move(tellers_));
    marks_.clear();
    return false;
  }
  marks_.clear();
  tellers_.reset();
  return unregister();
}

// The driver waits here for all streams of the process, even for those that wait for something else
// and will go on waiting (H200 with driver 580, deploy/gpu-reports, E18).
bool GpuFences::unregister() {
  return ended_within(kLongestWait,
                      [gpu = gpu_, &context = context_, page = std::move(page_)]() mutable {
                        const cuda::ScopedCurrent current(context);
                        page.reset();
                      });
}

template <class Operation>
Status GpuFences::enqueue(void* stream, const char* name, std::optional<std::uint64_t> tell,
                          Operation operation) {
  const std::lock_guard lock(mutex_);
  const cuda::ScopedCurrent current(context_);
  KVD_TRY(current.status());
  const auto queue = static_cast<CUstream>(stream);
  KVD_TRY(refuse_captured(context_.driver(), queue));
  KVD_ASSIGN_OR_RETURN(Mark * after, mark_of(queue));
  KVD_TRY(cuda::check(context_.driver(), operation(queue), name));
  KVD_TRY(after->record(queue));
  return tell ? tell_after(*after, *tell) : Status();
}

Status GpuFences::wait(void* stream, const std::atomic<std::uint64_t>& word, std::uint64_t value) {
  const cuda::Driver& driver = context_.driver();
  if (driver.stream_wait_value64 == nullptr) {
    return no_memory_operations("wait on", "kvd_wait or kvd_wait_layer");
  }
  return enqueue(stream, "cuStreamWaitValue64", std::nullopt, [&](CUstream queue) {
    return driver.stream_wait_value64(queue, address_of(word), value, CU_STREAM_WAIT_VALUE_GEQ);
  });
}

Status GpuFences::write(void* stream, const std::atomic<std::uint64_t>& word, std::uint64_t value) {
  const cuda::Driver& driver = context_.driver();
  if (driver.stream_write_value64 == nullptr) {
    return no_memory_operations("write", "kvd_layer_done");
  }
  // By default the write comes after everything that the stream did before, and the whole system
  // sees it.
  return enqueue(stream, "cuStreamWriteValue64", value, [&](CUstream queue) {
    return driver.stream_write_value64(queue, address_of(word), value,
                                       CU_STREAM_WRITE_VALUE_DEFAULT);
  });
}

CUdeviceptr GpuFences::address_of(const std::atomic<std::uint64_t>& word) const {
  return page_->device_address() + (reinterpret_cast<std::uintptr_t>(&word) - page_->address());
}

Result<GpuFences::Mark*> GpuFences::mark_of(CUstream stream) {
  const auto known = marks_.find(stream);
  if (known != marks_.end()) return &known->second;
  KVD_ASSIGN_OR_RETURN(auto mark, Mark::make(context_.driver()));
  return &marks_.emplace(stream, std::move(mark)).first->second;
}

// The call runs in a stream of its own: the engine's stream would stand still until the CPU has
// answered.
Status GpuFences::tell_after(const Mark& mark, std::uint64_t value) {
  const cuda::Driver& driver = context_.driver();
  told_ = true;
  KVD_TRY(cuda::check(driver, driver.stream_wait_event(tellers_->get(), mark.get(), 0),
                      "cuStreamWaitEvent"));
  auto call = std::make_unique<Call>(Call{listener_, value});
  KVD_TRY(cuda::check(driver, driver.launch_host_func(tellers_->get(), &GpuFences::run, call.get()),
                      "cuLaunchHostFunc"));
  (void)call.release();  // run() owns it
  return {};
}

void GpuFences::run(void* call) {
  const std::unique_ptr<Call> owned(static_cast<Call*>(call));
  const std::lock_guard lock(owned->listener->mutex);
  if (owned->listener->told) owned->listener->told(owned->value);
}

bool GpuFences::wait_for_streams() {
  const auto until = std::chrono::steady_clock::now() + kLongestWait;
  for (const auto& [stream, mark] : marks_) {
    while (!mark.passed()) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(kNextLook);
    }
  }
  return !told_ || tellers_->drain(kLongestWait) != CUDA_ERROR_NOT_READY;
}

}  // namespace kvd::client
