#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ipc/vocabulary/units.hpp"
#include "planner/model/seconds.hpp"

namespace kvd::sim {

using planner::Seconds;

/// The virtual clock counts whole nanoseconds.
[[nodiscard]] inline Nanoseconds whole(Seconds s) { return std::chrono::round<Nanoseconds>(s); }

/// One request of a workload.
struct Arrival {
  Seconds time{0};  ///< since the start of the run
  Tokens prompt;    ///< at least 1
  Tokens output;    ///< tokens that it will really make, at least 1
  std::uint32_t engine = 0;
  /// The longest answer that it announces; none: exactly what it makes. Never below `output`.
  std::optional<Tokens> announced;
  /// Latency goals; none: those of the setting.
  std::optional<Seconds> ttft_slo;
  std::optional<Seconds> tbt_slo;
  std::optional<Seconds> tpot_slo;
  /// The length that a predictor foresees for its answer; none: the Controller learns from answers
  /// that ended.
  std::optional<Tokens> predicted;
  /// Ids of the leading blocks of its prompt (Mooncake's hash_ids), each of kPrefixTokens; equal
  /// ids are equal prefixes.
  std::vector<std::uint64_t> prefix;
};

/// Tokens that one id of a prefix stands for. Source: Mooncake's published traces.
inline constexpr Tokens kPrefixTokens{512};

/// Sorted by time; equal times keep their order.
using Workload = std::vector<Arrival>;

}  // namespace kvd::sim
