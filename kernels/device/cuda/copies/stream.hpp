#pragma once

#include <cuda.h>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kernels/device/cuda/copies/extent_cursor.hpp"
#include "kernels/device/cuda/driver/driver.hpp"

namespace kvd::kernels::cuda {

/// How several copies are handed to the driver: in one call, or in one call each.
enum class CopyForm : std::uint8_t { kBatch, kSingle };

/// A queue of the device, independent of the legacy default stream. It belongs to the context that
/// is current when it is made, which must be current again at destruction. Precondition of
/// destruction: its work is done.
class Stream {
 public:
  [[nodiscard]] static Result<Stream> create(const Driver& driver);
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&&) = delete;
  ~Stream();

  [[nodiscard]] CUstream get() const { return stream_; }
  /// Queues the copies, which have no order among themselves. A batch names registered memory by
  /// addresses that the device knows; a single copy may use any. A driver without batches gets
  /// single copies. Beside a batch, copies that form rows go as one: a copy engine moves small rows
  /// at the full rate of the link (H200: deploy/gpu-reports, E5). Sources are read in stream order:
  /// reading them early has corrupted stores elsewhere, and helps only for host data that nothing
  /// queued before can write. After an error any number of them may be queued.
  [[nodiscard]] CUresult copy(CopyList& list, CopyForm form = CopyForm::kBatch) const;
  /// Whether the driver has batches.
  [[nodiscard]] static bool can_batch(const Driver& driver);
  /// Waits until all work is done. CUDA_ERROR_NOT_READY when that takes longer than `limit`.
  [[nodiscard]] CUresult drain(Nanoseconds limit) const;

 private:
  Stream(const Driver& driver, CUstream stream) : driver_(&driver), stream_(stream) {}
  [[nodiscard]] CUresult copy_batch(CopyList& list) const;
  [[nodiscard]] CUresult copy_rows(const CopyList& list, std::size_t first, std::size_t rows) const;

  const Driver* driver_;
  CUstream stream_;
};

/// A mark in a stream. It has no timing, which would cost something at each record.
class Event {
 public:
  [[nodiscard]] static Result<Event> create(const Driver& driver);
  Event(Event&& other) noexcept;
  Event& operator=(Event&&) = delete;
  ~Event();

  [[nodiscard]] CUresult record(const Stream& stream) const;
  /// CUDA_SUCCESS once the stream has passed the mark, CUDA_ERROR_NOT_READY before.
  [[nodiscard]] CUresult query() const;
  [[nodiscard]] CUevent get() const { return event_; }

 private:
  Event(const Driver& driver, CUevent event) : driver_(&driver), event_(event) {}

  const Driver* driver_;
  CUevent event_;
};

}  // namespace kvd::kernels::cuda
