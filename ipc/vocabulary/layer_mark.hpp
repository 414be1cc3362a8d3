#pragma once

#include <cstdint>

namespace kvd {

/// How far a session is in its iterations: `groups` layer groups of `iteration` done. Marks of
/// later iterations are greater, so one word counts both the engine's progress and the fetches of
/// its streamed layers (fence_layers of the client page). Units: groups at most 1,024
/// (wire::kMaxLayers); iterations below 2^48.
constexpr std::uint64_t layer_mark(std::uint64_t iteration, std::uint32_t groups) {
  return iteration << 16 | groups;
}

}  // namespace kvd
