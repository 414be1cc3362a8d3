#pragma once

#include <array>
#include <functional>
#include <memory>

#include "ipc/vocabulary/clock.hpp"
#include "kernels/device/cuda/cuda_backend.hpp"

namespace kvd::gpu {

/// kvd's own copies at full load: a CudaBackend with a slab a tier, and batches of segments that
/// keep either direction, or both, busy.
/// Owner: one thread.
class Traffic {
 public:
  /// `half`: bytes of each tier that one direction works on.
  [[nodiscard]] static Result<std::unique_ptr<Traffic>> make(
      Bytes half, const kernels::CudaConfig& config = {});

  struct Rates {
    double h2d = 0, d2h = 0;  ///< bytes a second
  };
  /// Copies until `stop`, which is asked after every completion, then drains.
  Result<Rates> run(bool h2d, bool d2h, Bytes segment, const std::function<bool()>& stop);
  /// Zeroes `half` bytes of HBM as kvd scrubs; bytes a second.
  Result<double> scrub();

 private:
  Traffic() = default;
  Status submit(std::size_t direction, Bytes segment);
  Status reap(std::array<double, 2>* bytes);

  SteadyClock clock_;
  std::unique_ptr<kernels::CudaBackend> backend_;
  kernels::Slab hbm_, dram_;
  Bytes half_;
  std::array<Bytes, 2> at_;
  std::array<unsigned, 2> in_flight_{};
  std::uint64_t ticket_ = 0;
};

}  // namespace kvd::gpu
