#pragma once

#include <string>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kernels/device/cuda/copies/stream.hpp"
#include "kernels/device/cuda/driver/device.hpp"
#include "kernels/device/cuda/memory/slabs.hpp"

namespace kvd::kernels::cuda {

/// Whether to copy by batches: where they work (kAuto), or as told.
enum class CopyChoice : std::uint8_t { kAuto, kBatch, kSingle };

struct CopyDecision {
  CopyForm form = CopyForm::kBatch;
  std::string fallback;  ///< why copies go singly although batches would be better
};

/// What a trial of batches needs.
struct CopyTrial {
  const Driver& driver;
  const Stream& stream;
  const HbmSlab& device;
  const DramSlab& host;
  Nanoseconds limit;  ///< limit of one trial
};

/// Settles once how copies are handed to the driver, since a batch that the driver refuses later
/// fails the work it was for. kAuto sends a few blocks each way and looks at what arrives: a driver
/// may have batches and get them wrong (vllm#49276).
/// Precondition: a context is current; nothing uses the slabs, whose bytes are lost.
/// Errors: Unsupported for kBatch where the driver has no batches or where they would need
/// addresses that the device does not know; DeviceError where the device does not copy at all.
[[nodiscard]] Result<CopyDecision> settle_copies(CopyChoice choice,
                                                 const Capabilities& capabilities,
                                                 const CopyTrial& trial);

}  // namespace kvd::kernels::cuda
