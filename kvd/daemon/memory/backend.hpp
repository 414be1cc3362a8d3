#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/result.hpp"
#include "kernels/device/device_backend.hpp"
#include "kvd/admin/link/snapshot.hpp"
#include "kvd/daemon/config/config.hpp"

namespace kvd::daemon {

/// By device.
using Backends = std::vector<std::shared_ptr<kernels::DeviceBackend>>;

/// The device backends that the configuration asks for. `auto` takes CUDA where the driver and all
/// devices are there, else host memory after one line in the log that says why; config.backend
/// becomes what was taken. No memory is taken yet.
/// Errors: where `cuda` is asked for: Unsupported, NotFound, DeviceError with the reason;
///         InvalidArgument for a GPU's name that names nothing.
[[nodiscard]] Result<Backends> open_backends(Config& config, const Clock& clock);

/// What a person asks about the GPU behind the backend, once its pools are there; none on the host
/// backend. Logs what is wrong with the GPU. `kept`: how much of its memory the earlier daemon's
/// slabs took, which does not count as the context's.
[[nodiscard]] std::optional<admin::GpuInfo> gpu_facts(const kernels::DeviceBackend& backend,
                                                      Bytes kept);

}  // namespace kvd::daemon
