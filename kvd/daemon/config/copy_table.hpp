#pragma once

#include <string>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/core/door/events.hpp"

namespace kvd::daemon {

/// The sizes from which on copies are fast.
struct CopySizes {
  Bytes good_slot = 256 * kKiB;  ///< slots aim at this: near the link's peak
  Bytes engine_from;             ///< below, SM kernels move slots faster; zero: not known
};

/// What kvd-bench copy --matrix wrote.
struct CopyTable {
  std::string source;  ///< "cuda" or "host": the kind of backend that it was measured on
  std::string device;
  CopySizes sizes;
};

/// Reads the file that `copy.table` names. Both sizes are those of the slower of H2D and D2H, at
/// the largest count that was measured that far.
/// Source: kvd/DESIGN.md "Words" (layers_per_block: the size of a slot).
/// Errors: InvalidArgument naming file, line and remedy.
[[nodiscard]] Result<CopyTable> read_copy_table(const std::string& file);

/// layers_per_block of a model that names none: the smallest divisor of its layers that makes a
/// slot of `good_slot`, or the largest whose slot fits into a slab. At least 1, fitting or not.
[[nodiscard]] std::uint32_t default_group(std::uint32_t layers, Bytes per_layer, Bytes slab,
                                          Bytes good_slot);

/// What to tell about an engine's slots that the copy engine moves slowly; empty when there is
/// nothing to tell.
[[nodiscard]] std::string slot_advice(const core::ModelClass& shape, const CopySizes& sizes);

}  // namespace kvd::daemon
