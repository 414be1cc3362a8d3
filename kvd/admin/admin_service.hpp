#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kvd/admin/admin_backend.hpp"
#include "kvd/admin/console/resources.hpp"
#include "kvd/admin/documents.hpp"

namespace kvd::admin {

/// What the admin interface needs of an HTTP request. Header values are "" where absent.
struct HttpRequest {
  std::string method;
  std::string path;  ///< decoded, without query
  std::string authorization;
  std::string if_match;
  std::string body;
  std::string accept{};
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string type = "application/json";
  std::string etag;        ///< "" : none
  std::string allow;       ///< methods, with 405
  bool challenge = false;  ///< 401: ask for a bearer token
};

/// Answers the admin interface's requests: who may ask, which document answers, what a change does.
/// Knows neither sockets nor the token: kvd says what a token is worth.
/// Source: kvd/DESIGN.md "What operators see and change".
/// Owner:  thread-safe.
class AdminService {
 public:
  /// `backend` outlives the service.
  explicit AdminService(AdminBackend& backend) : backend_(backend) {}

  [[nodiscard]] HttpResponse handle(const HttpRequest& request);

  static constexpr std::string_view kEventStream = "text/event-stream";
  /// Whether the answer is to be repeated, as server-sent events.
  [[nodiscard]] static bool wants_stream(const HttpRequest& request);

  /// Whether the request carries the token.
  [[nodiscard]] bool bears_token(const HttpRequest& request);

  /// An answer in the form of every refusal, for what the HTTP shell itself refuses.
  [[nodiscard]] static HttpResponse refusal(int status, ErrorCode code, std::string message);

 private:
  struct Route;
  static std::span<const Route> routes();
  [[nodiscard]] static HttpResponse answer(const Resource& resource, const HttpRequest& request);
  [[nodiscard]] static HttpResponse unknown_path(const std::string& path);

  [[nodiscard]] HttpResponse dispatch(const Route& route, const HttpRequest& request);
  [[nodiscard]] HttpResponse readiness();
  [[nodiscard]] HttpResponse read(const Route& route, const HttpRequest& request);
  [[nodiscard]] HttpResponse change(const Route& route, const HttpRequest& request);
  [[nodiscard]] HttpResponse clear(const Route& route, const HttpRequest& request);
  /// The refusal of a request without the token.
  [[nodiscard]] std::optional<HttpResponse> check_token(const HttpRequest& request);

  AdminBackend& backend_;
};

}  // namespace kvd::admin
