#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ipc/vocabulary/result.hpp"
#include "kvd/admin/admin_backend.hpp"

namespace kvd::http {
class Front;
}

namespace kvd::admin {

/// Serves the metrics at http://ADDRESS:PORT/metrics.
/// Owner:  made and destroyed by one thread; a thread of its own answers.
/// Errors: InvalidArgument for an address that is not loopback or port 0; Unavailable when the port
///         is taken; never throws.
class MetricsServer {
 public:
  /// `backend` outlives the server.
  [[nodiscard]] static Result<std::unique_ptr<MetricsServer>> start(const std::string& address,
                                                                    std::uint16_t port,
                                                                    AdminBackend& backend);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

 private:
  explicit MetricsServer(AdminBackend& backend);
  /// What a scrape reads; "" while there is nothing to say yet.
  [[nodiscard]] std::string text();

  AdminBackend& backend_;
  std::shared_ptr<const Snapshot> last_;
  std::unique_ptr<http::Front> front_;
};

}  // namespace kvd::admin
