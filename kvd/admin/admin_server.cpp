#include "kvd/admin/admin_server.hpp"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "ipc/http/rest_listener.hpp"
#include "kvd/admin/admin_service.hpp"
#include "kvd/admin/watchers.hpp"

namespace kvd::admin {
namespace {

using web::http::http_request;
using web::http::http_response;

constexpr std::size_t kThreads = 2;
/// The console is files of this server alone: nothing inline, nothing from elsewhere, in no frame.
constexpr const char* kContentPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Counts requests in work, and refuses more once closed.
class Gate {
 public:
  [[nodiscard]] bool enter() {
    const std::lock_guard lock(mutex_);
    if (closed_) return false;
    ++inside_;
    return true;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    --inside_;
    empty_.notify_all();
  }
  void close() {
    std::unique_lock lock(mutex_);
    closed_ = true;
    empty_.wait(lock, [&] { return inside_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable empty_;
  std::size_t inside_ = 0;
  bool closed_ = false;
};

/// Outlives the server while late callbacks of the library hold it.
struct Shared {
  Shared(AdminBackend& backend, const AdminServer::Config& config)
      : service(backend), watchers(service, {config.most_watchers, config.watch_interval}) {}
  AdminService service;
  Watchers watchers;
  Gate gate;
};
using SharedPtr = std::shared_ptr<Shared>;

std::string header(const http_request& request, const char* name) {
  const auto& headers = request.headers();
  const auto found = headers.find(name);
  return found == headers.end() ? std::string() : found->second;
}

HttpRequest translate(const http_request& request, std::string body) {
  return {.method = request.method(),
          .path = web::uri::decode(request.request_uri().path()),
          .authorization = header(request, "Authorization"),
          .if_match = header(request, "If-Match"),
          .body = std::move(body),
          .accept = header(request, "Accept")};
}

http_response translate(const HttpResponse& answer) {
  http_response response(static_cast<web::http::status_code>(answer.status));
  response.set_body(answer.body, answer.type);
  response.headers().add("Cache-Control", "no-store");
  response.headers().add("X-Content-Type-Options", "nosniff");
  response.headers().add("Content-Security-Policy", kContentPolicy);
  response.headers().add("Referrer-Policy", "no-referrer");
  if (!answer.etag.empty()) response.headers().add("ETag", answer.etag);
  if (!answer.allow.empty()) response.headers().add("Allow", answer.allow);
  if (answer.challenge) response.headers().add("WWW-Authenticate", "Bearer");
  return response;
}

/// A client that went away before its answer is not worth a line.
void send(const http_request& request, const HttpResponse& answer) {
  request.reply(translate(answer)).then([](const pplx::task<void>& sent) {
    try {
      sent.get();
    } catch (const std::exception&) {
    }
  });
}

/// Without a value, other code answers the client from now on.
std::optional<HttpResponse> watch(Shared& shared, const http_request& request, HttpRequest asked) {
  HttpResponse first = shared.service.handle(asked);
  if (first.status != 200) return first;
  if (shared.watchers.add(request, std::move(asked))) return std::nullopt;
  return AdminService::refusal(503, ErrorCode::kUnavailable,
                               "as many streams are open as may be: close one, or ask again and "
                               "again without \"Accept: text/event-stream\"");
}

std::optional<HttpResponse> answer(Shared& shared, const http_request& request, std::string body) {
  if (!shared.gate.enter()) {
    return AdminService::refusal(503, ErrorCode::kUnavailable, "the daemon is shutting down");
  }
  std::optional<HttpResponse> response;
  try {
    HttpRequest asked = translate(request, std::move(body));
    response = AdminService::wants_stream(asked) ? watch(shared, request, std::move(asked))
                                                 : shared.service.handle(asked);
  } catch (const std::exception& error) {
    response = AdminService::refusal(400, ErrorCode::kInvalidArgument, error.what());
  }
  shared.gate.leave();
  return response;
}

/// Called by the front; the library's threads do the work.
void receive(const SharedPtr& shared, const http_request& request) {
  request.extract_vector().then(
      [shared, request](const pplx::task<std::vector<std::uint8_t>>& body) {
        try {
          const auto bytes = body.get();
          const auto said = answer(*shared, request, std::string(bytes.begin(), bytes.end()));
          if (said) send(request, *said);
        } catch (const std::exception&) {  // the client went away
        }
      });
}

std::string refusal(int status, const std::string& message) {
  const bool denied = status == 403;
  return AdminService::refusal(
             status, denied ? ErrorCode::kPermissionDenied : ErrorCode::kInvalidArgument, message)
      .body;
}

}  // namespace

struct AdminServer::Impl {
  ~Impl() {
    shared->watchers.stop();
    shared->gate.close();
  }
  SharedPtr shared;
  std::unique_ptr<http::RestListener> listener{};
};

Result<std::unique_ptr<AdminServer>> AdminServer::start(const Config& config,
                                                        AdminBackend& backend) {
  auto shared = std::make_shared<Shared>(backend, config);
  auto listener = http::RestListener::open(
      {.address = config.address, .port = config.port, .refusal = refusal}, kThreads,
      [shared](const http_request& request) { receive(shared, request); });
  if (!listener.ok()) {
    const Error& error = listener.error();
    return make_error(error.code, "cannot serve the admin interface at " +
                                      http::Front::authority(config.address, config.port) + ": " +
                                      error.message +
                                      "; choose another port (admin.port), or stop the process "
                                      "that listens there");
  }
  std::unique_ptr<Impl> impl(new Impl{std::move(shared), std::move(*listener)});
  return std::unique_ptr<AdminServer>(new AdminServer(std::move(impl)));
}

AdminServer::AdminServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AdminServer::~AdminServer() = default;

}  // namespace kvd::admin
