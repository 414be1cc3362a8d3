#include "metrics/exporter/exposition.hpp"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <limits>

namespace kvd::metrics {
namespace {

prometheus::ClientMetric::Histogram histogram(const Metric& metric, const Family::Series& series) {
  prometheus::ClientMetric::Histogram out;
  for (std::size_t i = 0; i < series.counts.size(); ++i) {
    out.sample_count += series.counts[i];
    const bool last = i == metric.bounds.size();
    out.bucket.push_back(
        {out.sample_count, last ? std::numeric_limits<double>::infinity() : metric.bounds[i]});
  }
  out.sample_sum = series.value;
  return out;
}

prometheus::MetricType type_of(const Metric& metric) {
  switch (metric.type) {
    case MetricType::kCounter:
      return prometheus::MetricType::Counter;
    case MetricType::kGauge:
      return prometheus::MetricType::Gauge;
    case MetricType::kHistogram:
      return prometheus::MetricType::Histogram;
  }
  return prometheus::MetricType::Untyped;
}

prometheus::ClientMetric translate(const Metric& metric, const Family::Series& series) {
  prometheus::ClientMetric out;
  const auto labels = metric.labels();
  for (std::size_t i = 0; i < labels.size(); ++i) {
    out.label.push_back({std::string(labels[i].name), series.labels[i]});
  }
  if (metric.type == MetricType::kHistogram) {
    out.histogram = histogram(metric, series);
  } else {
    (metric.type == MetricType::kCounter ? out.counter.value : out.gauge.value) = series.value;
  }
  return out;
}

prometheus::MetricFamily translate(const Family& family) {
  prometheus::MetricFamily out;
  out.name = family.metric->name;
  out.help = family.metric->help;
  out.type = type_of(*family.metric);
  for (const auto& series : family.series) out.metric.push_back(translate(*family.metric, series));
  return out;
}

}  // namespace

std::string exposition(const std::vector<Sample>& samples) {
  std::vector<prometheus::MetricFamily> all;
  for (const Family& family : families(samples)) all.push_back(translate(family));
  return prometheus::TextSerializer().Serialize(all);
}

}  // namespace kvd::metrics
