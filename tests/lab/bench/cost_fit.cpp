#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "tests/lab/bench/engine_costs.hpp"

namespace kvd::bench {
namespace {

constexpr std::size_t kTerms = 3;
using Terms = std::array<double, kTerms>;

/// The factors of the terms, each divided by the time that was seen: the products should add up to
/// 1.
using Equation = Terms;

double error_of(std::span<const Equation> equations, const Terms& terms) {
  double sum = 0;
  for (const Equation& equation : equations) {
    double off = -1;
    for (std::size_t i = 0; i < kTerms; ++i) off += equation[i] * terms[i];
    sum += off * off;
  }
  return sum;
}

/// Gauss-Jordan on the normal equations, with the terms of `used` alone; the others are 0. The
/// result is infinite or not a number where the samples do not tell the terms apart.
Terms solved(std::span<const Equation> equations, unsigned used) {
  std::array<std::array<double, kTerms + 1>, kTerms> rows{};
  const auto is_used = [&](std::size_t i) { return (used >> i & 1U) != 0; };
  for (std::size_t i = 0; i < kTerms; ++i) {
    rows[i][i] = is_used(i) ? 0 : 1;
    if (!is_used(i)) continue;
    for (const Equation& equation : equations) {
      for (std::size_t j = 0; j < kTerms; ++j) {
        if (is_used(j)) rows[i][j] += equation[i] * equation[j];
      }
      rows[i][kTerms] += equation[i];
    }
  }
  for (std::size_t i = 0; i < kTerms; ++i) {
    const double pivot = rows[i][i];
    for (double& value : rows[i]) value /= pivot;
    for (std::size_t k = 0; k < kTerms; ++k) {
      const double factor = rows[k][i];
      if (k == i) continue;
      for (std::size_t j = 0; j <= kTerms; ++j) rows[k][j] -= factor * rows[i][j];
    }
  }
  return {rows[0][kTerms], rows[1][kTerms], rows[2][kTerms]};
}

/// Three terms allow seven choices of which are not 0. All are tried.
Terms best_terms(std::span<const Equation> equations) {
  Terms best{};
  double least = std::numeric_limits<double>::infinity();
  for (unsigned used = 1; used < 1U << kTerms; ++used) {
    const Terms terms = solved(equations, used);
    if (!std::all_of(terms.begin(), terms.end(), [](double t) { return t >= 0; })) continue;
    const double error = error_of(equations, terms);
    if (!(error < least)) continue;
    least = error;
    best = terms;
  }
  return best;
}

}  // namespace

sim::IterationModel fitted_model(const std::vector<CostSample>& samples) {
  std::vector<Equation> decodes, prefills;
  for (const CostSample& sample : samples) {
    const sim::Batch& batch = sample.batch;
    const auto over = [&](double value) { return value / sample.seconds; };
    if (batch.prompt_tokens > 0) {
      prefills.push_back(
          {over(1), over(static_cast<double>(batch.prompt_tokens)), over(batch.prompt_pairs)});
    } else {
      decodes.push_back({over(1), over(static_cast<double>(batch.context_tokens)),
                         over(static_cast<double>(batch.decoding))});
    }
  }
  const Terms decode = best_terms(decodes), prefill = best_terms(prefills);
  sim::IterationModel model;
  model.fitted = true;
  // A profile with less does not pass check().
  constexpr double kLeastFixed = 1e-9;
  model.fixed = sim::Seconds(std::max(decode[0], kLeastFixed));
  model.context_token = sim::Seconds(decode[1]);
  model.sequence = sim::Seconds(decode[2]);
  model.prefill_fixed = sim::Seconds(prefill[0]);
  // The device does one operation a second.
  model.flops = 1;
  model.flops_per_token = prefill[1];
  model.attention_flops_per_pair = prefill[2];
  return model;
}

}  // namespace kvd::bench
