#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ipc/vocabulary/units.hpp"

namespace kvd::kernels {

/// What the gather and scatter kernels do, in plain loops: the meaning of both, and the work itself
/// where slots lie in host memory. `slots` are addresses of slots of `slot_bytes` each.
/// Precondition: `packed` has room for all slots; nothing overlaps.

/// Slots one after the other into `packed`.
void gather_slots(std::byte* packed, std::span<const std::uintptr_t> slots, Bytes slot_bytes);
/// `packed` cut into slots. A slot named twice ends with either content.
void scatter_slots(std::span<const std::uintptr_t> slots, const std::byte* packed,
                   Bytes slot_bytes);

}  // namespace kvd::kernels
