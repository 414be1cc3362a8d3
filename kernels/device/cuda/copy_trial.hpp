#pragma once

#include <string>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kernels/device/cuda/device.hpp"
#include "kernels/device/cuda/slabs.hpp"
#include "kernels/device/cuda/stream.hpp"

namespace kvd::kernels::cuda {

/// What to do about batches of copies: use them where they work, or as told.
enum class CopyChoice : std::uint8_t { kAuto, kBatch, kSingle };

struct CopyDecision {
  CopyForm form = CopyForm::kBatch;
  std::string fallback;  ///< why single copies, where batches would have been better
};

/// What batches are tried out with.
struct CopyTrial {
  const Driver& driver;
  const Stream& stream;
  const HbmSlab& device;
  const DramSlab& host;
  Nanoseconds limit;  ///< of one try
};

/// Settles how copies are handed to the driver, once, since a batch that is refused later fails
/// what it was for. kAuto sends a few blocks each way and looks at what arrives: a driver may have
/// batches and get them wrong (vllm#49276).
/// Precondition: a context is current; nothing uses the slabs, whose bytes are lost.
/// Errors: Unsupported for kBatch where there are none or where they would need addresses that the
///         device does not know; DeviceError where the device does not copy at all.
[[nodiscard]] Result<CopyDecision> settle_copies(CopyChoice choice,
                                                 const Capabilities& capabilities,
                                                 const CopyTrial& trial);

}  // namespace kvd::kernels::cuda
