#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "ipc/vocabulary/units.hpp"

namespace kvd::mover {

/// How long the runs are into which copies of slots merge.
struct RunLengths {
  static constexpr std::array<std::int64_t, 10> kBounds = {
      64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20,
      2 << 20,  4 << 20,   8 << 20,   16 << 20,  64 << 20};
  std::array<std::uint64_t, kBounds.size() + 1> counts{};  ///< the last: longer than all bounds
  Bytes sum;

  void add(Bytes length) {
    const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), length.value);
    ++counts[static_cast<std::size_t>(bound - kBounds.begin())];
    sum += length;
  }
  RunLengths& operator+=(const RunLengths& other) {
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += other.counts[i];
    sum += other.sum;
    return *this;
  }
};

/// What the mover has done since it was made.
struct MoverCounters {
  std::array<RunLengths, 2> runs;         ///< by kernels::Direction: h2d, d2h
  std::uint64_t layer_fetches = 0;        ///< layer groups brought into staging
  std::uint64_t layer_fetch_retries = 0;  ///< bursts of them that failed and were tried again
  Bytes layer_bytes;
  Nanoseconds layer_busy{0};  ///< time the device's queue worked on them

  MoverCounters& operator+=(const MoverCounters& other) {
    for (std::size_t i = 0; i < runs.size(); ++i) runs[i] += other.runs[i];
    layer_fetches += other.layer_fetches;
    layer_fetch_retries += other.layer_fetch_retries;
    layer_bytes += other.layer_bytes;
    layer_busy += other.layer_busy;
    return *this;
  }
};

}  // namespace kvd::mover
