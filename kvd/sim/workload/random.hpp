#pragma once

#include <cstdint>
#include <random>

namespace kvd::sim {

/// Gives the same numbers for the same seed on every machine: the standard fixes this engine's
/// output, and the draws here use no library distribution. Owner: one thread.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  /// In [0, 1).
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  /// In (0, 1).
  double inside();
  /// Mean 0, variance 1 (Marsaglia's polar method).
  double normal();
  /// Mean `shape`, variance `shape` (Marsaglia and Tsang). Precondition: shape > 0.
  double gamma(double shape);

 private:
  std::mt19937_64 engine_;
};

}  // namespace kvd::sim
