#include "kvd/admin/metrics_server.hpp"

#include <utility>

#include "ipc/http/front.hpp"
#include "metrics/exporter/exposition.hpp"

namespace kvd::admin {
namespace {

constexpr const char* kText = "text/plain; version=0.0.4; charset=utf-8";

std::string refusal_text(int, const std::string& message) { return "\"" + message + "\"\n"; }

bool is_metrics(const std::string& target) {
  return target == "/metrics" || target.starts_with("/metrics?");
}

}  // namespace

Result<std::unique_ptr<MetricsServer>> MetricsServer::start(const std::string& address,
                                                            std::uint16_t port,
                                                            AdminBackend& backend) {
  std::unique_ptr<MetricsServer> server(new MetricsServer(backend));
  auto front =
      http::Front::start({.address = address, .port = port, .refusal = refusal_text},
                         [&self = *server](const http::Request& request,
                                           const std::shared_ptr<http::Exchange>& exchange) {
                           if (!is_metrics(request.target))
                             return exchange->answer(404, "see /metrics\n", kText);
                           if (request.method != "GET")
                             return exchange->answer(405, "only GET\n", kText);
                           const std::string text = self.text();
                           exchange->answer(text.empty() ? 503 : 200, text, kText);
                         });
  if (!front.ok()) {
    return make_error(front.error().code,
                      "cannot serve metrics at " + http::Front::authority(address, port) + ": " +
                          front.error().message +
                          "; choose another port (metrics.port), or stop the process that "
                          "listens there");
  }
  server->front_ = std::move(*front);
  return server;
}

MetricsServer::MetricsServer(AdminBackend& backend) : backend_(backend) {}
MetricsServer::~MetricsServer() = default;

// A scrape that kvd has no time for repeats the previous one, as zeros would look like a restart.
std::string MetricsServer::text() {
  auto snapshot = backend_.snapshot();
  if (snapshot.ok()) last_ = *std::move(snapshot);
  return last_ == nullptr ? "" : metrics::exposition(last_->samples);
}

}  // namespace kvd::admin
