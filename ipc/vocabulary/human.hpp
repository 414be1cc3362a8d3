#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "ipc/vocabulary/units.hpp"

namespace kvd {

/// Formats a size for people, rounded down: "21.3 GiB".
inline std::string human_size(Bytes size) {
  constexpr std::pair<std::int64_t, const char*> kUnits[] = {
      {50, "PiB"}, {40, "TiB"}, {30, "GiB"}, {20, "MiB"}, {10, "KiB"}};
  for (const auto& [shift, unit] : kUnits) {
    const std::int64_t one = std::int64_t{1} << shift;
    if (size.value < one) continue;
    const std::int64_t tenths = size.value % one * 10 / one;
    const std::string whole = std::to_string(size.value / one);
    return whole + (tenths > 0 ? "." + std::to_string(tenths) : "") + " " + unit;
  }
  return std::to_string(size.value) + " B";
}

/// Formats a time for people: "80 ms", "5.2 s", "90 s".
inline std::string human_time(Nanoseconds time) {
  const double seconds = to_seconds(time);
  char text[32];
  if (seconds > 0 && seconds < 1) {
    std::snprintf(text, sizeof text, "%.3g ms", seconds * 1000);
  } else {
    std::snprintf(text, sizeof text, seconds < 10 ? "%.2g s" : "%.0f s", seconds);
  }
  return text;
}

}  // namespace kvd
