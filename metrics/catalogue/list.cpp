// Prints the catalogue, one metric a line, tabs between: name, type, unit, labels (by commas), row
// of the dashboard, help. deploy/grafana/dashboard.py reads it.
#include <iostream>

#include "metrics/catalogue/catalogue.hpp"

namespace {

const char* name_of(kvd::metrics::MetricType type) {
  switch (type) {
    case kvd::metrics::MetricType::kCounter:
      return "counter";
    case kvd::metrics::MetricType::kGauge:
      return "gauge";
    case kvd::metrics::MetricType::kHistogram:
      return "histogram";
  }
  return "";
}

}  // namespace

int main() {
  for (const kvd::metrics::Metric& metric : kvd::metrics::catalogue()) {
    std::cout << metric.name << '\t' << name_of(metric.type) << '\t' << metric.unit << '\t';
    const char* separator = "";
    for (const kvd::metrics::Label& label : metric.labels()) {
      std::cout << separator << label.name;
      separator = ",";
    }
    std::cout << '\t' << metric.panel << '\t' << metric.help << '\n';
  }
  return std::cout.flush() ? 0 : 1;
}
