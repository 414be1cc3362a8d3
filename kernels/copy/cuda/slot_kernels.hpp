#pragma once

#include <cuda.h>

#include <cstdint>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kernels/device/cuda/driver.hpp"

namespace kvd::kernels::cuda {

/// Many slots between one packed run and their places, by SMs instead of copy engines; for slots
/// too small for those (`kvd-bench copy --matrix` says below which size).
///   packed      device pointer, 16-byte aligned, count * slot_bytes
///   slots       device pointer to `count` addresses, 8 bytes each, of slots aligned to 16 bytes;
///               device or registered host memory, readable until the launch has finished
///   slot_bytes  a multiple of 16
///   max_blocks  thread blocks at most: what the launch may take of the GPU
struct SlotCopy {
  CUdeviceptr packed = 0;
  CUdeviceptr slots = 0;
  Bytes slot_bytes;
  std::uint32_t count = 0;
  unsigned max_blocks = 32;
};

/// The gather and scatter kernels, for sm_80 and newer (slot_copy.hpp is what they mean).
/// Runs inside an engine's process, on a stream of the engine's: kernels of another process would
/// take turns with its own, a millisecond each.
/// Source: kvd/DESIGN.md "Safety rules"; the CUDA driver API's modules and launches.
/// Owner:  belongs to the context that was current in load() and needs it current in every call;
///         thread-safe. The code stays loaded as long as that context lives.
/// Errors: InvalidArgument for a copy that breaks SlotCopy's rules; those of the driver.
class SlotKernels {
 public:
  [[nodiscard]] static Result<SlotKernels> load(const Driver& driver);

  /// Both return once the work is queued on `stream`. Nothing to do is allowed.
  [[nodiscard]] Status gather(CUstream stream, const SlotCopy& copy) const;
  [[nodiscard]] Status scatter(CUstream stream, const SlotCopy& copy) const;

 private:
  SlotKernels(const Driver& driver, CUfunction gather, CUfunction scatter)
      : driver_(&driver), gather_(gather), scatter_(scatter) {}
  [[nodiscard]] Status launch(CUfunction kernel, CUstream stream, const SlotCopy& copy) const;

  const Driver* driver_;
  CUfunction gather_;
  CUfunction scatter_;
};

}  // namespace kvd::kernels::cuda
