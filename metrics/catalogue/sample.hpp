#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "metrics/catalogue/catalogue.hpp"

namespace kvd::metrics {

/// One value of one metric at the time of a scrape.
struct Sample {
  std::string_view metric;              ///< a name of the catalogue; must outlive the sample
  std::vector<std::string> labels;      ///< values in the catalogue's order
  double value = 0;                     ///< for a histogram: the sum of the observed values
  std::vector<std::uint64_t> counts{};  ///< of a histogram: by bucket, not cumulative
};

/// All series of one metric.
struct Family {
  struct Series {
    std::vector<std::string> labels;
    double value = 0;
    std::vector<std::uint64_t> counts{};  ///< of a histogram: one more than it has bounds
  };
  const Metric* metric = nullptr;
  std::vector<Series> series;
};

/// Sorts samples into one family for each row of the catalogue, in its order. Every combination of
/// known label values is there, at zero where no sample speaks of it, so that a rate is right from
/// the first event on; a metric with an open label has the series its samples name.
/// A sample of an unknown metric, with other labels or buckets than the catalogue says, or given
/// twice is a bug and aborts.
[[nodiscard]] std::vector<Family> families(const std::vector<Sample>& samples);

}  // namespace kvd::metrics
