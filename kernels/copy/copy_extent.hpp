#pragma once

#include <cstdint>

#include "ipc/vocabulary/units.hpp"

namespace kvd::kernels {

/// `length` bytes from `source` to `destination`. Source 0 writes zeros (scrubbing).
struct CopyExtent {
  std::uintptr_t destination = 0;
  std::uintptr_t source = 0;
  Bytes length;
  friend constexpr bool operator==(const CopyExtent&, const CopyExtent&) = default;
};

}  // namespace kvd::kernels
