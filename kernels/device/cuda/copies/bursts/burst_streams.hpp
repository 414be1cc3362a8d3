#pragma once

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "kernels/device/cuda/copies/bursts/gate.hpp"
#include "kernels/device/cuda/copies/stream.hpp"
#include "kernels/device/cuda/driver/driver.hpp"

namespace kvd::kernels::cuda {

/// What the copies of one direction need of the driver: two streams that the parts of bursts go to
/// in turn, and a third for what comes after copies. While a copy engine begins a copy of one
/// stream, it works on copies of the other, which hides the cost of beginning. The third stream
/// waits for each part in order, writes fences, and opens the gate behind which the next burst is
/// queued. So a copy waits only for copies of the burst before. A wait on the device is queued only
/// after everything it waits for: streams may share a hardware queue, which works in the order of
/// queueing, and this way they never stand still for each other.
/// Owner:  as Stream; parts are numbered one after the other.
class BurstStreams {
 public:
  static constexpr std::size_t kParts = 12;  ///< the most on the device at once

  [[nodiscard]] static Result<BurstStreams> create(const Driver& driver, bool with_gate);

  /// Lets the burst begin once all parts that were ended before this call are done.
  [[nodiscard]] CUresult open_gate(std::uint64_t burst) const;
  /// Holds back what is copied from here on until the gate opens. Precondition: open_gate(burst)
  /// succeeded.
  [[nodiscard]] CUresult wait_at_gate(std::uint64_t burst) const;

  [[nodiscard]] CUresult copy(std::uint64_t part, CopyList& list, CopyForm form) const;
  /// All copies of the part are queued.
  [[nodiscard]] CUresult end_part(std::uint64_t part) const;
  /// Writes a value once all parts that have ended are done. By default it is visible only after
  /// their bytes, to every observer (system scope).
  [[nodiscard]] CUresult write(CUdeviceptr address, std::uint64_t value) const;
  /// All values to be written after the part are queued.
  [[nodiscard]] CUresult end_writes(std::uint64_t part) const;
  /// CUDA_SUCCESS once the part's copies are done and, with `writes`, its values are written;
  /// CUDA_ERROR_NOT_READY before.
  [[nodiscard]] CUresult query(std::uint64_t part, bool writes) const;

 private:
  static constexpr std::size_t kCopying = 2;

  BurstStreams(const Driver& driver, std::vector<Stream> streams, std::vector<Event> events,
               std::optional<Gate> gate)
      : driver_(&driver),
        streams_(std::move(streams)),
        events_(std::move(events)),
        gate_(std::move(gate)) {}

  [[nodiscard]] const Stream& copying(std::uint64_t part) const {
    return streams_[part % kCopying];
  }
  [[nodiscard]] const Stream& following() const { return streams_[kCopying]; }
  [[nodiscard]] const Event& copied(std::uint64_t part) const { return events_[part % kParts]; }
  [[nodiscard]] const Event& written(std::uint64_t part) const {
    return events_[kParts + part % kParts];
  }

  const Driver* driver_;
  std::vector<Stream> streams_;
  std::vector<Event> events_;
  std::optional<Gate> gate_;
};

}  // namespace kvd::kernels::cuda
