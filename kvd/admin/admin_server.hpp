#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "ipc/vocabulary/result.hpp"
#include "kvd/admin/admin_backend.hpp"

namespace kvd::admin {

/// Serves the admin interface over HTTP on a loopback address: http::Front reads, cpprestsdk
/// answers on two threads of its own.
/// Owner:  made and destroyed by one thread.
/// Errors: InvalidArgument for an address that is not loopback or port 0; Unavailable when the port
///         is taken; never throws.
/// Destruction refuses new requests, waits for those in flight and closes the port.
class AdminServer {
 public:
  struct Config {
    std::string address = "127.0.0.1";
    std::uint16_t port = 8470;
    std::size_t most_watchers = 8;  ///< clients that are sent events: see Watchers
    std::chrono::nanoseconds watch_interval = std::chrono::seconds(1);
  };

  /// `backend` outlives the server.
  [[nodiscard]] static Result<std::unique_ptr<AdminServer>> start(const Config& config,
                                                                  AdminBackend& backend);
  ~AdminServer();
  AdminServer(const AdminServer&) = delete;
  AdminServer& operator=(const AdminServer&) = delete;

 private:
  struct Impl;
  explicit AdminServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvd::admin
