#include "kvd/sim/workload/random.hpp"

#include <cmath>

namespace kvd::sim {

double Random::inside() {
  double value = uniform();
  while (value == 0) value = uniform();
  return value;
}

double Random::normal() {
  for (;;) {
    const double x = 2 * uniform() - 1;
    const double y = 2 * uniform() - 1;
    const double square = x * x + y * y;
    if (square > 0 && square < 1) return x * std::sqrt(-2 * std::log(square) / square);
  }
}

double Random::gamma(double shape) {
  if (shape < 1) return gamma(shape + 1) * std::pow(inside(), 1 / shape);
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double z = normal();
    const double cube = std::pow(1 + c * z, 3);
    if (cube <= 0) continue;
    if (std::log(inside()) < 0.5 * z * z + d - d * cube + d * std::log(cube)) return d * cube;
  }
}

}  // namespace kvd::sim
