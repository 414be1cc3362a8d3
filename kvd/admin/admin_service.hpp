#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "kvd/admin/admin_backend.hpp"
#include "kvd/admin/documents.hpp"

namespace kvd::admin {

/// Who may read: anyone who reaches the port, or the bearer of the token. Changes always need it.
enum class ReadPolicy : std::uint8_t { kOpen, kToken };

/// What the admin interface needs of an HTTP request. Header values are "" where absent.
struct HttpRequest {
  std::string method;
  std::string path;  ///< decoded, without query
  std::string host;
  std::string authorization;
  std::string if_match;
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string etag;        ///< "" : none
  std::string allow;       ///< methods, with 405
  bool challenge = false;  ///< 401: ask for a bearer token
};

/// Answers the admin interface's requests: who may, which document, what a change does. Knows no
/// sockets.
/// Source: kvd/DESIGN.md "What operators see and change".
/// Owner:  thread-safe; changes are made one at a time.
class AdminService {
 public:
  struct Config {
    std::string token;  ///< "": nobody may change anything
    ReadPolicy read = ReadPolicy::kOpen;
    Nanoseconds timeout{std::chrono::seconds(1)};  ///< for the control thread's answer
  };

  /// `backend` outlives the service.
  AdminService(Config config, AdminBackend& backend)
      : config_(std::move(config)), backend_(backend) {}

  [[nodiscard]] HttpResponse handle(const HttpRequest& request);

  /// An answer in the form of every refusal, for what the HTTP shell itself refuses.
  [[nodiscard]] static HttpResponse refusal(int status, ErrorCode code, std::string message);

 private:
  struct Route;
  static std::span<const Route> routes();
  [[nodiscard]] static std::string openapi();
  [[nodiscard]] static HttpResponse unknown_path(const std::string& path);

  [[nodiscard]] bool bears_token(const HttpRequest& request) const;
  [[nodiscard]] HttpResponse dispatch(const Route& route, const HttpRequest& request);
  [[nodiscard]] HttpResponse health(const HttpRequest& request);
  [[nodiscard]] HttpResponse readiness(const HttpRequest& request);
  [[nodiscard]] HttpResponse config(const HttpRequest& request);
  [[nodiscard]] HttpResponse description(const HttpRequest& request);
  [[nodiscard]] HttpResponse status(const HttpRequest& request);
  [[nodiscard]] HttpResponse pools(const HttpRequest& request);
  [[nodiscard]] HttpResponse engines(const HttpRequest& request);
  [[nodiscard]] HttpResponse requests(const HttpRequest& request);
  [[nodiscard]] HttpResponse plan(const HttpRequest& request);
  [[nodiscard]] HttpResponse snapshots(const HttpRequest& request);
  [[nodiscard]] HttpResponse events(const HttpRequest& request);
  [[nodiscard]] HttpResponse policy(const HttpRequest& request);
  [[nodiscard]] HttpResponse slo(const HttpRequest& request);

  struct Tunable;
  [[nodiscard]] HttpResponse tunable(const HttpRequest& request, const Tunable& part);
  [[nodiscard]] HttpResponse change(const HttpRequest& request, const Tunable& part,
                                    core::Tuning tuning);

  const Config config_;
  AdminBackend& backend_;
  std::mutex changing_;  // a change reads, patches and writes back
};

}  // namespace kvd::admin
