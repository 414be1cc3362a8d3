#pragma once

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "kernels/device/cuda/bursts/gate.hpp"
#include "kernels/device/cuda/driver.hpp"
#include "kernels/device/cuda/stream.hpp"

namespace kvd::kernels::cuda {

/// What the copies of one direction have of the driver: two streams that the parts of bursts go to
/// in turn, and a third for what comes after copies. What it costs a copy engine to begin a copy is
/// hidden behind those of the other stream. The third waits for each part in order, writes fences,
/// and opens the gate behind which the next burst is queued; so no copy waits for another one that
/// is not of the burst before.
/// Everything that somebody waits for on the device is queued before the wait is: streams may share
/// a hardware queue, which works in the order of queueing, and never stand still for each other.
/// Owner:  as Stream; parts are numbered one after the other.
class BurstStreams {
 public:
  static constexpr std::size_t kParts = 12;  ///< on the device at once, at most

  [[nodiscard]] static Result<BurstStreams> create(const Driver& driver, bool with_gate);

  [[nodiscard]] bool has_gate() const { return gate_.has_value(); }
  /// Lets the burst begin once all parts that were ended before this call are done.
  [[nodiscard]] CUresult open_gate(std::uint64_t burst) const;
  /// Holds what is copied from here on until then. Precondition: open_gate(burst) succeeded.
  [[nodiscard]] CUresult wait_at_gate(std::uint64_t burst) const;

  [[nodiscard]] CUresult copy(std::uint64_t part, CopyList& list, CopyForm form) const;
  /// The part has all its copies.
  [[nodiscard]] CUresult end_part(std::uint64_t part) const;
  /// A value that is written once all parts that have ended are done: by default flags after their
  /// bytes for everybody who looks (system scope).
  [[nodiscard]] CUresult write(CUdeviceptr address, std::uint64_t value) const;
  /// The part has all the values that were to be written after it.
  [[nodiscard]] CUresult end_writes(std::uint64_t part) const;
  /// CUDA_SUCCESS once the part's copies are done, and with `writes` its values written;
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
