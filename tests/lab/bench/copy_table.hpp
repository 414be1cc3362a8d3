#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/vocabulary/units.hpp"

namespace kvd::bench {

/// One measured cell of the matrix, bytes a second. Zero: not measured.
struct CopyCell {
  std::string direction;  ///< h2d, d2h, duplex; host
  std::uint32_t count = 0;
  Bytes segment;
  double engine = 0;   ///< one batch on the copy engine; host: non-temporal stores
  double loop = 0;     ///< one call a segment on the copy engine
  double kernels = 0;  ///< the slot kernels; host: memcpy
};

/// What the cells of one direction and count show. Zero: no measured segment is large enough.
struct Crossover {
  std::string direction;
  std::uint32_t count = 0;
  Bytes engine_from;  ///< from this segment on the copy engine is not slower than the kernel
  Bytes peak_from;    ///< from this segment on the engine reaches 85 % of the direction's peak
};

/// "Not slower" allows for 2 % of noise. The peak is the best engine cell of the direction.
[[nodiscard]] std::vector<Crossover> crossovers(const std::vector<CopyCell>& cells);

/// Where the cells come from.
struct CopyOrigin {
  std::string source;  ///< "cuda" or "host"
  std::string device;
  std::string uuid;
  int driver = 0;
};

/// The file that the daemon's `copy.table` names.
[[nodiscard]] std::string to_toml(const CopyOrigin& origin, const std::vector<Crossover>& rows);

/// Measures on the first GPU. Errors: a line on standard error and an empty list.
[[nodiscard]] std::vector<CopyCell> measure_gpu(CopyOrigin& origin);

}  // namespace kvd::bench
