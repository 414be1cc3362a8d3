#include "kvd/admin/admin_server.hpp"

#include <arpa/inet.h>
#include <cpprest/http_listener.h>
#include <pplx/threadpool.h>
#include <sys/socket.h>

#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "ipc/vocabulary/unique_fd.hpp"

#ifdef __SANITIZE_ADDRESS__
/// Tasks the library's threads have not finished when the process ends are no leak of ours.
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions() {
  return "leak:libcpprest.so\n";
}
#endif
#ifdef __SANITIZE_THREAD__
/// The library is not built for tsan, which therefore misses its hand-overs between threads.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions() {
  return "race:libcpprest.so\n";
}
#endif

namespace kvd::admin {
namespace {

using web::http::http_request;
using web::http::http_response;
using web::http::experimental::listener::http_listener;

constexpr std::size_t kThreads = 2;

/// The library would start 40 threads. Whoever asked first wins; a second call throws.
void limit_threads() {
  static std::once_flag once;
  std::call_once(once, [] {
    try {
      crossplat::threadpool::initialize_with_threads(kThreads);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "kvd: admin thread count not set: %s\n", error.what());
    }
  });
}

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
  Shared(AdminService::Config config, AdminBackend& backend, Bytes body)
      : service(std::move(config), backend), max_body(body) {}
  AdminService service;
  const Bytes max_body;
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
          .host = header(request, "Host"),
          .authorization = header(request, "Authorization"),
          .if_match = header(request, "If-Match"),
          .body = std::move(body)};
}

http_response translate(const HttpResponse& answer) {
  http_response response(static_cast<web::http::status_code>(answer.status));
  response.set_body(answer.body, "application/json");
  response.headers().add("Cache-Control", "no-store");
  if (!answer.etag.empty()) response.headers().add("ETag", answer.etag);
  if (!answer.allow.empty()) response.headers().add("Allow", answer.allow);
  if (answer.challenge) response.headers().add("WWW-Authenticate", "Bearer");
  return response;
}

/// A client that went away before its answer is no news.
void send(const http_request& request, const HttpResponse& answer) {
  request.reply(translate(answer)).then([](const pplx::task<void>& sent) {
    try {
      sent.get();
    } catch (const std::exception&) {
    }
  });
}

HttpResponse answer(Shared& shared, const http_request& request, std::string body) {
  if (!shared.gate.enter()) {
    return AdminService::refusal(503, ErrorCode::kUnavailable, "the daemon is shutting down");
  }
  HttpResponse response;
  try {
    response = shared.service.handle(translate(request, std::move(body)));
  } catch (const std::exception& error) {
    response = AdminService::refusal(400, ErrorCode::kInvalidArgument, error.what());
  }
  shared.gate.leave();
  return response;
}

using Sink = std::shared_ptr<std::vector<std::uint8_t>>;

/// Reads a body to its end without keeping it: the library answers only after the whole request,
/// and would otherwise collect it in memory.
void discard(const concurrency::streams::istream& body, const Sink& sink) {
  body.streambuf().getn(sink->data(), sink->size()).then([=](const pplx::task<size_t>& read) {
    try {
      if (read.get() > 0) discard(body, sink);
    } catch (const std::exception&) {  // the client went away
    }
  });
}

void refuse_body(const http_request& request, const HttpResponse& answer) {
  discard(request.body(), std::make_shared<std::vector<std::uint8_t>>(kMiB.size() / 16));
  send(request, answer);
}

/// Refuses bodies that the library would keep beyond the limit; takes the rest off its threads
/// until the body is there, so that a slow client holds a connection but no thread. Headers,
/// connections and their time the library bounds by nothing: see SECURITY.md.
void receive(const SharedPtr& shared, http_request request) {
  if (!header(request, "Transfer-Encoding").empty()) {
    return refuse_body(request, AdminService::refusal(411, ErrorCode::kInvalidArgument,
                                                      "send the body with a Content-Length"));
  }
  const auto limit = shared->max_body.value;
  if (request.headers().content_length() > static_cast<std::uint64_t>(limit)) {
    return refuse_body(request, AdminService::refusal(413, ErrorCode::kInvalidArgument,
                                                      "the body may have at most " +
                                                          std::to_string(limit) + " bytes"));
  }
  request.extract_vector().then([shared, request](const pplx::task<std::vector<uint8_t>>& body) {
    try {
      const auto bytes = body.get();
      send(request, answer(*shared, request, std::string(bytes.begin(), bytes.end())));
    } catch (const std::exception&) {  // the client went away
    }
  });
}

/// The socket address of a loopback literal, for IPv4 or IPv6.
struct Loopback {
  sockaddr_storage storage{};
  socklen_t size = 0;
  std::string authority;  ///< "127.0.0.1:8470", "[::1]:8470"
};

Result<Loopback> parse(const AdminServer::Config& config) {
  Loopback out;
  const std::string port = ":" + std::to_string(config.port);
  auto* v4 = reinterpret_cast<sockaddr_in*>(&out.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&out.storage);
  if (config.port == 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "admin port 0 is not supported: name a port, such as 8470");
  }
  if (config.address == "::1") {
    v6->sin6_family = AF_INET6, v6->sin6_port = htons(config.port),
    v6->sin6_addr = in6addr_loopback;
    out.size = sizeof *v6, out.authority = "[::1]" + port;
    return out;
  }
  in_addr parsed{};
  if (inet_pton(AF_INET, config.address.c_str(), &parsed) != 1 ||
      (ntohl(parsed.s_addr) >> 24) != 127) {
    return make_error(ErrorCode::kInvalidArgument,
                      "admin address \"" + config.address +
                          "\" is not loopback: use 127.0.0.1 or ::1, and a proxy with TLS in "
                          "front to reach it from elsewhere");
  }
  v4->sin_family = AF_INET, v4->sin_port = htons(config.port), v4->sin_addr = parsed;
  out.size = sizeof *v4, out.authority = config.address + port;
  return out;
}

Error cannot_serve(const std::string& where, const std::string& why) {
  return make_error(ErrorCode::kUnavailable,
                    "cannot serve the admin interface at " + where + ": " + why +
                        "; choose another port (admin.port), or stop the process that listens "
                        "there");
}

/// Whether the port can be had. The library fails too, but a listener that failed to open takes a
/// working one of the same process down with it.
Status probe(const Loopback& where) {
  const UniqueFd socket(::socket(where.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&where.storage), where.size) == 0) {
    return {};
  }
  return cannot_serve(where.authority, std::strerror(errno));
}

}  // namespace

struct AdminServer::Impl {
  Impl(const std::string& url, SharedPtr shared_state)
      : shared(std::move(shared_state)), listener(url) {
    const auto handler = [state = shared](const http_request& request) { receive(state, request); };
    listener.support(handler);
    // The library answers these by itself unless told otherwise; TRACE would echo the token.
    listener.support("OPTIONS", handler);
    listener.support("TRACE", handler);
    listener.open().wait();
  }
  ~Impl() {
    shared->gate.close();
    try {
      listener.close().wait();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "kvd: admin port not closed in order: %s\n", error.what());
    }
  }
  SharedPtr shared;
  http_listener listener;
};

Result<std::unique_ptr<AdminServer>> AdminServer::start(Config config, AdminBackend& backend) {
  KVD_ASSIGN_OR_RETURN(const Loopback where, parse(config));
  KVD_TRY(probe(where));
  limit_threads();
  auto shared = std::make_shared<Shared>(std::move(config.service), backend, config.max_body);
  try {
    auto impl = std::make_unique<Impl>("http://" + where.authority, std::move(shared));
    return std::unique_ptr<AdminServer>(new AdminServer(std::move(impl)));
  } catch (const std::exception& error) {
    return cannot_serve(where.authority, error.what());
  }
}

AdminServer::AdminServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AdminServer::~AdminServer() = default;

}  // namespace kvd::admin
