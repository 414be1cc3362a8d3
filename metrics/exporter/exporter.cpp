#include "metrics/exporter/exporter.hpp"

#include <arpa/inet.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include <exception>
#include <limits>
#include <mutex>
#include <utility>

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

/// What prometheus-cpp asks at each scrape.
class Scrape final : public prometheus::Collectable {
 public:
  explicit Scrape(Collector collector) : collector_(std::move(collector)) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    std::vector<prometheus::MetricFamily> out;
    for (const Family& family : families(samples())) out.push_back(translate(family));
    return out;
  }

 private:
  std::vector<Sample> samples() const {
    const std::lock_guard lock(mutex_);
    std::vector<Sample> samples;
    collector_(samples);
    return samples;
  }

  mutable std::mutex mutex_;  // one collection at a time, as Collector promises
  Collector collector_;
};

/// "127.0.0.1:9470", "[::1]:9470". A literal only: the web server would read "," and "r" in it as
/// more listeners and as a redirection.
Result<std::string> bind_address(const Exporter::Config& config) {
  unsigned char parsed[sizeof(in6_addr)];
  const std::string port = ":" + std::to_string(config.port);
  if (inet_pton(AF_INET, config.address.c_str(), parsed) == 1) return config.address + port;
  if (inet_pton(AF_INET6, config.address.c_str(), parsed) == 1) {
    return "[" + config.address + "]" + port;
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "metrics address \"" + config.address +
                        "\" is no IP address; use 127.0.0.1 or another address of this machine");
}

}  // namespace

struct Exporter::Impl {
  Impl(const std::string& address, Collector collector)
      : scrape(std::make_shared<Scrape>(std::move(collector))), exposer(address) {
    exposer.RegisterCollectable(scrape);
  }
  std::shared_ptr<Scrape> scrape;
  prometheus::Exposer exposer;  // below scrape, so that its threads end first
};

Result<std::unique_ptr<Exporter>> Exporter::start(const Config& config, Collector collector) {
  KVD_ASSIGN_OR_RETURN(const std::string address, bind_address(config));
  try {
    auto impl = std::make_unique<Impl>(address, std::move(collector));
    return std::unique_ptr<Exporter>(new Exporter(std::move(impl)));
  } catch (const std::exception&) {
    // What it throws says nothing ("null context when constructing CivetServer").
    return make_error(ErrorCode::kUnavailable,
                      "cannot serve metrics at " + address +
                          ": the port is taken or the address is not of this machine; choose "
                          "another port, or stop the process that listens there");
  }
}

Exporter::Exporter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Exporter::~Exporter() = default;

std::uint16_t Exporter::port() const {
  return static_cast<std::uint16_t>(impl_->exposer.GetListeningPorts().at(0));
}

}  // namespace kvd::metrics
