#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ipc/vocabulary/result.hpp"
#include "metrics/catalogue/sample.hpp"

namespace kvd::metrics {

/// Serves the catalogue's families at http://ADDRESS:PORT/metrics, filled by a collector at every
/// scrape, so that a series ends with the engine it speaks of.
/// Owner:   made and destroyed by one thread; the collector runs on the exporter's own.
/// Errors:  InvalidArgument for an address that is no literal; Unavailable when the port is taken;
///          never throws.
/// Cost:    destruction takes up to 2 s: the web server below polls before it ends.
class Exporter {
 public:
  struct Config {
    std::string address = "127.0.0.1";
    std::uint16_t port = 9470;  ///< 0: any free one
  };

  [[nodiscard]] static Result<std::unique_ptr<Exporter>> start(const Config& config,
                                                               Collector collector);
  ~Exporter();
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;

  [[nodiscard]] std::uint16_t port() const;

 private:
  struct Impl;
  explicit Exporter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvd::metrics
