#include "kvd/sim/workload/lengths.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace kvd::sim {
namespace {

Tokens rounded(double tokens) { return Tokens(std::max<std::int64_t>(1, std::llround(tokens))); }

double below(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

/// Mean of exp(N(mu, sigma)) clipped to [low, high].
double clipped_mean(double mu, double sigma, double low, double high) {
  const double a = (std::log(low) - mu) / sigma;
  const double b = (std::log(high) - mu) / sigma;
  const double middle = std::exp(mu + sigma * sigma / 2) * (below(b - sigma) - below(a - sigma));
  return low * below(a) + middle + high * (1 - below(b));
}

}  // namespace

double QuantileLengths::at(double share) const {
  const auto above =
      std::find_if(quantiles_.begin() + 1, quantiles_.end() - 1,
                   [share](const Quantile& quantile) { return quantile.share > share; });
  const Quantile& high = *above;
  const Quantile& low = *(above - 1);
  const double part = (share - low.share) / (high.share - low.share);
  return std::exp(std::lerp(std::log(low.tokens), std::log(high.tokens), part));
}

Tokens QuantileLengths::draw(Random& random) const { return rounded(at(random.uniform())); }

ClippedLogNormal::ClippedLogNormal(double mean, double sigma, double low, double high)
    : sigma_(sigma), low_(low), high_(high) {
  // The mean grows with mu, so bisection finds it.
  double from = std::log(low) - 10 * sigma;
  double to = std::log(high) + 10 * sigma;
  for (int i = 0; i < 100; ++i) {
    const double middle = (from + to) / 2;
    (clipped_mean(middle, sigma, low, high) < mean ? from : to) = middle;
  }
  mu_ = (from + to) / 2;
}

Tokens ClippedLogNormal::draw(Random& random) const {
  return rounded(std::clamp(std::exp(mu_ + sigma_ * random.normal()), low_, high_));
}

}  // namespace kvd::sim
