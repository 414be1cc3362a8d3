#pragma once

#include <filesystem>
#include <istream>
#include <string>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "kvd/sim/world/arrival.hpp"

namespace kvd::sim {

/// A file with a larger share of rows that make no sense is a file of another kind, and is refused.
inline constexpr double kMalformedShare = 0.01;

/// A trace as recorded: times start at 0, lengths are unchanged.
struct Trace {
  Workload requests;
  std::size_t rows = 0;
  std::vector<std::size_t> malformed;  ///< line numbers, from 1, of rows left out

  /// "3 of 19366 rows left out, the first at line 12"; empty where there are none.
  [[nodiscard]] std::string complaint() const;
};

/// Reads Azure's CSV (TIMESTAMP,ContextTokens,GeneratedTokens), lengths CSV
/// (arrival_time_ns,input_toks,output_toks) or Mooncake's JSON lines (timestamp in ms,
/// input_length, output_length, hash_ids); the first line tells which it is. Mooncake's times lie
/// on a grid of 3 s: each is moved by up to that much, by `seed`. Errors: InvalidArgument for
/// another format, more malformed rows than kMalformedShare (with count and first line), or no rows
/// at all.
[[nodiscard]] Result<Trace> read_trace(std::istream& in, const std::string& name,
                                       std::uint64_t seed);

/// Opens `file`, or a file of that name in the folder $KVD_TRACES (default ../shared/traces).
/// Errors: NotFound besides those above.
[[nodiscard]] Result<Trace> read_trace_file(const std::filesystem::path& file, std::uint64_t seed);

///
/// Source: Mooncake's published trace, which notes times every 3 s.
inline constexpr Seconds kMooncakeGrid{3};

}  // namespace kvd::sim
