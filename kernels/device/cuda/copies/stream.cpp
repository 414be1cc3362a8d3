#include "kernels/device/cuda/copies/stream.hpp"

#include <chrono>
#include <thread>
#include <utility>

#include "kernels/device/cuda/driver/error.hpp"

namespace kvd::kernels::cuda {
namespace {

constexpr Nanoseconds kLook = std::chrono::microseconds(50);

// One set of attributes for all copies of a call. The hint keeps copies off the SMs, where they
// would take time slices from the engines' kernels.
CUmemcpyAttributes attributes() {
  CUmemcpyAttributes result{};
  result.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  result.flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
  return result;
}

CUresult copy_one_by_one(const Driver& driver, const CopyList& list, CUstream stream) {
  for (std::size_t i = 0; i < list.lengths.size(); ++i) {
    const CUresult result = driver.memcpy_async(list.to[i], list.from[i], list.lengths[i], stream);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace

Result<Stream> Stream::create(const Driver& driver) {
  CUstream stream = nullptr;
  KVD_TRY(check(driver, driver.stream_create_with_priority(&stream, CU_STREAM_NON_BLOCKING, 0),
                "making a stream"));
  return Stream(driver, stream);
}

Stream::Stream(Stream&& other) noexcept
    : driver_(other.driver_), stream_(std::exchange(other.stream_, nullptr)) {}

Stream::~Stream() {
  if (stream_ != nullptr) driver_->stream_destroy(stream_);
}

bool Stream::can_batch(const Driver& driver) {
  return driver.memcpy_batch_async != nullptr || driver.memcpy_batch_async_12080 != nullptr;
}

CUresult Stream::copy(CopyList& list, CopyForm form) const {
  if (list.empty()) return CUDA_SUCCESS;
  if (form == CopyForm::kSingle || !can_batch(*driver_))
    return copy_one_by_one(*driver_, list, stream_);
  CopyList rest;
  for (std::size_t i = 0, rows = 0; i < list.lengths.size(); i += rows) {
    rows = list.rows_from(i);
    if (rows == 1) {
      rest.add(list.to[i], list.from[i], list.lengths[i], 0);
    } else if (const CUresult result = copy_rows(list, i, rows); result != CUDA_SUCCESS) {
      return result;
    }
  }
  return rest.empty() ? CUDA_SUCCESS : copy_batch(rest);
}

CUresult Stream::copy_rows(const CopyList& list, std::size_t first, std::size_t rows) const {
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.srcDevice = list.from[first];
  copy.srcPitch = list.from[first + 1] - list.from[first];
  copy.dstDevice = list.to[first];
  copy.dstPitch = list.to[first + 1] - list.to[first];
  copy.WidthInBytes = list.lengths[first];
  copy.Height = rows;
  return driver_->memcpy_2d_async(&copy, stream_);
}

CUresult Stream::copy_batch(CopyList& list) const {
  CUmemcpyAttributes all = attributes();
  std::size_t first = 0, failed = 0;
  const std::size_t count = list.lengths.size();
  if (driver_->memcpy_batch_async != nullptr) {
    return driver_->memcpy_batch_async(list.to.data(), list.from.data(), list.lengths.data(), count,
                                       &all, &first, 1, stream_);
  }
  return driver_->memcpy_batch_async_12080(list.to.data(), list.from.data(), list.lengths.data(),
                                           count, &all, &first, 1, &failed, stream_);
}

CUresult Stream::drain(Nanoseconds limit) const {
  for (Nanoseconds waited{0};; waited += kLook) {
    const CUresult result = driver_->stream_query(stream_);
    if (result != CUDA_ERROR_NOT_READY || waited >= limit) return result;
    std::this_thread::sleep_for(kLook);
  }
}

Result<Event> Event::create(const Driver& driver) {
  CUevent event = nullptr;
  KVD_TRY(check(driver, driver.event_create(&event, CU_EVENT_DISABLE_TIMING), "making an event"));
  return Event(driver, event);
}

Event::Event(Event&& other) noexcept
    : driver_(other.driver_), event_(std::exchange(other.event_, nullptr)) {}

Event::~Event() {
  if (event_ != nullptr) driver_->event_destroy(event_);
}

CUresult Event::record(const Stream& stream) const {
  return driver_->event_record(event_, stream.get());
}

CUresult Event::query() const { return driver_->event_query(event_); }

}  // namespace kvd::kernels::cuda
