#include "metrics/catalogue/sample.hpp"

#include <algorithm>
#include <iterator>

#include "ipc/vocabulary/check.hpp"

namespace kvd::metrics {
namespace {

using Series = Family::Series;

bool is_known(const Label& label, const std::string& value) {
  return label.open() ||
         std::find(label.values.begin(), label.values.end(), value) != label.values.end();
}

std::size_t buckets(const Metric& metric) {
  return metric.type == MetricType::kHistogram ? metric.bounds.size() + 1 : 0;
}

void check(const Metric& metric, const Sample& sample) {
  const auto labels = metric.labels();
  KVD_CHECK(sample.labels.size() == labels.size(), "a sample has other labels than its metric");
  KVD_CHECK(sample.counts.size() == buckets(metric), "a sample has other buckets than its metric");
  for (std::size_t i = 0; i < labels.size(); ++i) {
    KVD_CHECK(is_known(labels[i], sample.labels[i]), "a label value the catalogue does not know");
  }
}

/// All combinations of the known label values, at zero; none when a label is open.
std::vector<Series> zeros(const Metric& metric) {
  std::vector<Series> all = {{{}, 0, std::vector<std::uint64_t>(buckets(metric))}};
  for (const Label& label : metric.labels()) {
    std::vector<Series> longer;
    for (const Series& prefix : all) {
      for (const auto value : label.values) {
        longer.push_back(prefix);
        longer.back().labels.emplace_back(value);
      }
    }
    all = std::move(longer);
  }
  return all;
}

bool by_labels(const Series& a, const Series& b) { return a.labels < b.labels; }

/// Adds zeros for series without a sample.
void merge(std::vector<Series>& series, std::vector<Series> defaults) {
  std::sort(series.begin(), series.end(), by_labels);
  const auto same = [](const Series& a, const Series& b) { return a.labels == b.labels; };
  KVD_CHECK(std::adjacent_find(series.begin(), series.end(), same) == series.end(),
            "two samples of one series");
  std::erase_if(defaults, [&](const Series& zero) {
    return std::binary_search(series.begin(), series.end(), zero, by_labels);
  });
  std::move(defaults.begin(), defaults.end(), std::back_inserter(series));
}

}  // namespace

std::vector<Family> families(const std::vector<Sample>& samples) {
  const auto rows = catalogue();
  std::vector<Family> all(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) all[i].metric = &rows[i];
  for (const Sample& sample : samples) {
    const Metric* metric = find(sample.metric);
    KVD_CHECK(metric != nullptr, "a sample of a metric that is not in the catalogue");
    check(*metric, sample);
    const auto row = static_cast<std::size_t>(metric - rows.data());
    all[row].series.push_back({sample.labels, sample.value, sample.counts});
  }
  for (Family& family : all) merge(family.series, zeros(*family.metric));
  return all;
}

}  // namespace kvd::metrics
