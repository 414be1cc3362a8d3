#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/device/device_backend.hpp"
#include "tests/gpu/lab.hpp"

namespace kvd::gpu {

/// What a lane copies, and how.
struct LaneShape {
  kernels::Direction direction = kernels::Direction::kHostToDevice;
  Bytes piece;
  std::size_t pieces = 0;  ///< a burst
  bool gated = false;      ///< each burst waits, on the device, until the one before is over
};

/// Copies bursts in one direction and has two of them queued at any time, which keeps the link busy
/// without kvd's own queue. With a gate, the second burst starts without the CPU, yet the copy
/// engine serves other processes between the two.
/// Owner: one thread; the Gpu and the page outlive it.
class Lane {
 public:
  /// `slot`: a number below 8 that no other lane with that page has.
  [[nodiscard]] static Result<std::unique_ptr<Lane>> make(const Gpu& gpu, const PinnedMemory& page,
                                                          unsigned slot, const LaneShape& shape);
  /// Each burst that is queued from now on waits for the other lane's last one.
  void follow(const Lane& other) { leader_ = &other; }

  /// Tops the queue up and takes notice of what is over.
  Status advance();
  Status drain();
  [[nodiscard]] double bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kQueued = 2;

  Lane(const Gpu& gpu, const LaneShape& shape, GpuSlab device, PinnedMemory host,
       std::array<cuda::Stream, 2> streams, std::vector<cuda::Event> events, CUdeviceptr gate)
      : gpu_(gpu),
        shape_(shape),
        device_(std::move(device)),
        host_(std::move(host)),
        streams_(std::move(streams)),
        events_(std::move(events)),
        gate_(gate) {}
  Status queue_burst();
  [[nodiscard]] kernels::cuda::CopyList next_pieces();

  const Gpu& gpu_;
  LaneShape shape_;
  GpuSlab device_;
  PinnedMemory host_;
  std::array<cuda::Stream, 2> streams_;  // copies, and what opens the gate
  std::vector<cuda::Event> events_;      // ends of bursts
  CUdeviceptr gate_;
  const Lane* leader_ = nullptr;
  std::uint64_t queued_ = 0, over_ = 0;
  std::size_t at_ = 0;
  double bytes_ = 0;
};

/// Runs them until `stop`; bytes a second of all together.
Result<double> run_lanes(const std::vector<Lane*>& lanes, const std::function<bool()>& stop);

}  // namespace kvd::gpu
