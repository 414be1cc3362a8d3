#pragma once

#include <cstddef>
#include <cstring>

namespace kvd::bench {

/// Floor of scrubbing: memset(0).
inline void zero_fill(void* to, std::size_t n) { std::memset(to, 0, n); }

}  // namespace kvd::bench
