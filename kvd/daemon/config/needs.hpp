#pragma once

#include <cstdint>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/daemon/config/config.hpp"

/// What kvd needs of the machine with a configuration. One account serves all: the unit that is
/// printed, the check of a configuration, the start, and each slab that is made.
namespace kvd::daemon {

/// Pools that are memory of the host.
[[nodiscard]] Bytes host_pools(const Config& config);
/// What the kernel takes beside this many bytes of host memory in its smallest pages.
[[nodiscard]] Bytes page_overhead(Bytes memory);
/// What kvd, kvd-admin and the driver take beside the pools, and what engines can make kvd keep.
[[nodiscard]] Bytes memory_beside(const Config& config);
/// Both.
[[nodiscard]] Bytes memory_at_most(const Config& config);
/// What no slab may take, since kvd will need it. `held`: how much of it kvd has taken already.
[[nodiscard]] Bytes kept_free(Bytes held);

/// Descriptors that kvd has open once all engines are attached, and a reserve.
[[nodiscard]] std::uint64_t descriptors_needed(const Config& config);
/// Errors: Unavailable with both numbers and the remedy where the limit is lower.
[[nodiscard]] Status check_descriptors(const Config& config, std::uint64_t limit);

}  // namespace kvd::daemon
