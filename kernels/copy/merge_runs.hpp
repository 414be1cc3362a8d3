#pragma once

#include <vector>

#include "kernels/copy/copy_extent.hpp"

namespace kvd::kernels {

/// The same bytes in the fewest extents: sorted by destination, neighbours joined where both ends
/// continue each other (or both write zeros). Longer runs are what makes copy engines fast: below
/// 64 KiB their rate falls off a cliff.
/// Precondition: extents do not overlap. Slabs are never adjacent in address space (see Slab), so a
/// run never crosses from one slab into another.
/// Source: SuperInfer (block-first transfers) and kvd design section 4, eager rotation.
/// Cost:   O(n log n); works in the vector it is given.
[[nodiscard]] std::vector<CopyExtent> merge_runs(std::vector<CopyExtent> extents);

}  // namespace kvd::kernels
