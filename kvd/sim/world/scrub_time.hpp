#pragma once

#include "kvd/sim/world/arrival.hpp"

namespace kvd::sim {

/// How long zeroing takes, at the device's speed: a figure of ours.
[[nodiscard]] inline Nanoseconds scrub_time(Bytes bytes) {
  constexpr double kBytesPerSecond = 1e11;
  return whole(Seconds(static_cast<double>(bytes.value) / kBytesPerSecond));
}

}  // namespace kvd::sim
