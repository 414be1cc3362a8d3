#include "tests/lab/bench/predict_figures.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

namespace kvd::bench {
namespace {

std::vector<double> ranks_of(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (std::size_t first = 0, next = 0; first < order.size(); first = next) {
    while (next < order.size() && values[order[next]] == values[order[first]]) ++next;
    const double mean = static_cast<double>(first + next - 1) / 2;
    for (std::size_t i = first; i < next; ++i) ranks[order[i]] = mean;
  }
  return ranks;
}

double correlation(const std::vector<double>& x, const std::vector<double>& y) {
  const auto count = static_cast<double>(x.size());
  const double mean_x = std::accumulate(x.begin(), x.end(), 0.0) / count;
  const double mean_y = std::accumulate(y.begin(), y.end(), 0.0) / count;
  double xx = 0, yy = 0, xy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - mean_x) * (x[i] - mean_x);
    yy += (y[i] - mean_y) * (y[i] - mean_y);
    xy += (x[i] - mean_x) * (y[i] - mean_y);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0;
}

}  // namespace

double error_quantile(std::span<const Prediction> predictions, double share) {
  std::vector<double> errors;
  for (const Prediction& one : predictions) errors.push_back(one.error());
  std::sort(errors.begin(), errors.end());
  const double rank = std::ceil(share * static_cast<double>(errors.size()));
  return errors[static_cast<std::size_t>(std::max(1.0, rank)) - 1];
}

double rank_correlation(std::span<const Prediction> predictions) {
  std::vector<double> predicted, measured;
  for (const Prediction& one : predictions) {
    predicted.push_back(one.predicted_s);
    measured.push_back(one.measured_s);
  }
  return correlation(ranks_of(predicted), ranks_of(measured));
}

}  // namespace kvd::bench
