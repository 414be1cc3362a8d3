#include "ipc/http/rest_listener.hpp"

#include <cpprest/details/http_server.h>
#include <cpprest/details/http_server_api.h>
#include <cpprest/http_listener.h>
#include <pplx/threadpool.h>

#include <cstdio>
#include <exception>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "ipc/http/reason.hpp"

#ifdef __SANITIZE_ADDRESS__
/// Tasks that the library's threads have not finished when the process ends are no leak of ours.
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

namespace kvd::http {
namespace {

using web::http::http_request;
using web::http::http_response;
using web::http::experimental::details::http_server;
using web::http::experimental::details::http_server_api;
using web::http::experimental::listener::http_listener;
using web::http::experimental::listener::details::http_listener_impl;

/// The library would start 40 threads. Whoever asked first wins; a second call throws.
void limit_threads(std::size_t threads) {
  static std::once_flag once;
  std::call_once(once, [&] {
    try {
      crossplat::threadpool::initialize_with_threads(threads);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "kvd: thread count of the HTTP library not set: %s\n", error.what());
    }
  });
}

/// What the library keeps with a request until its response exists.
struct Context final : web::http::details::_http_server_context {
  explicit Context(std::shared_ptr<Exchange> one) : exchange(std::move(one)) {}
  std::shared_ptr<Exchange> exchange;
};

std::string head_of(http_response& response, bool chunked) {
  std::string text = "HTTP/1.1 " + std::to_string(response.status_code()) + " " +
                     std::string(reason_of(response.status_code())) + "\r\n";
  for (const auto& [name, value] : response.headers()) {
    text.append(name).append(": ").append(value).append("\r\n");
  }
  if (chunked) text += "Transfer-Encoding: chunked\r\n";
  return text + "Connection: close\r\n\r\n";
}

/// Sends a response's body as it is made.
class Pump : public std::enable_shared_from_this<Pump> {
 public:
  Pump(const http_response& response, std::shared_ptr<Exchange> exchange, bool chunked)
      : body_(response.body()), exchange_(std::move(exchange)), chunked_(chunked) {}

  void next() {
    body_.streambuf()
        .getn(bytes_.data(), bytes_.size())
        .then([self = shared_from_this()](const pplx::task<std::size_t>& read) {
          try {
            self->send(read.get());
          } catch (const std::exception&) {
            self->exchange_.reset();  // hangs up: the client sees that the answer is cut off
          }
        });
  }

 private:
  void send(std::size_t count) {
    if (count == 0) return exchange_->write(chunked_ ? "0\r\n\r\n" : "", true);
    std::string piece(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(count));
    if (chunked_) {
      char size[24];
      std::snprintf(size, sizeof size, "%zx\r\n", count);
      piece = size + piece + "\r\n";
    }
    exchange_->write(std::move(piece), false);
    next();
  }

  const concurrency::streams::istream body_;
  std::shared_ptr<Exchange> exchange_;
  const bool chunked_;
  std::vector<std::uint8_t> bytes_ = std::vector<std::uint8_t>(std::size_t{64} << 10);
};

void hand_over(http_listener_impl& listener, Request asked,
               const std::shared_ptr<Exchange>& exchange) {
  http_request request = http_request::_create_request(std::make_unique<Context>(exchange));
  request.set_method(asked.method);
  request.set_request_uri(web::uri(asked.target));
  for (const Header& header : asked.headers) request.headers().add(header.name, header.value);
  request.set_body(std::vector<std::uint8_t>(asked.body.begin(), asked.body.end()));
  listener.handle_request(request);
}

/// What the library takes for its HTTP server.
class Door final : public http_server {
 public:
  /// Sets the options of the listener that is opened next. If it cannot be opened, `fault` has the
  /// reason. It outlives the door, which the library may drop before anybody has read the reason.
  void announce(Front::Options options, std::shared_ptr<std::optional<Error>> fault) {
    announced_ = std::move(options);
    fault_ = std::move(fault);
  }

  pplx::task<void> start() override { return pplx::task_from_result(); }
  pplx::task<void> stop() override { return pplx::task_from_result(); }

  pplx::task<void> register_listener(http_listener_impl* listener) override {
    const auto refusal = announced_.refusal;
    auto front =
        Front::start(announced_, [=](Request asked, const std::shared_ptr<Exchange>& exchange) {
          try {
            hand_over(*listener, std::move(asked), exchange);
          } catch (const web::uri_exception& error) {
            exchange->answer(400, refusal != nullptr ? refusal(400, error.what()) : "");
          }
        });
    if (!front.ok()) {
      *fault_ = front.error();
      return pplx::task_from_exception<void>(std::runtime_error(front.error().message));
    }
    fronts_[listener] = std::move(*front);
    return pplx::task_from_result();
  }
  pplx::task<void> unregister_listener(http_listener_impl* listener) override {
    fronts_.erase(listener);
    return pplx::task_from_result();
  }

  pplx::task<void> respond(http_response response) override {
    const auto exchange = static_cast<Context*>(response._get_server_context())->exchange;
    const pplx::task_completion_event<void> ended;
    exchange->on_end([ended](bool sent) {
      sent ? (void)ended.set() : (void)ended.set_exception(std::runtime_error("the client left"));
    });
    const bool has_body = response.body().is_valid();
    const bool chunked =
        has_body && exchange->may_be_chunked() && !response.headers().has("Content-Length");
    if (!has_body) response.headers().set_content_length(0);
    exchange->write(head_of(response, chunked), !has_body);
    if (has_body) std::make_shared<Pump>(response, exchange, chunked)->next();
    return pplx::create_task(ended);
  }

 private:
  Front::Options announced_;
  std::shared_ptr<std::optional<Error>> fault_;
  std::map<http_listener_impl*, std::unique_ptr<Front>> fronts_;
};

/// The library drops its server with the last listener.
Door& door() {
  if (auto* there = dynamic_cast<Door*>(http_server_api::server_api())) return *there;
  auto made = std::make_unique<Door>();
  Door& out = *made;
  http_server_api::register_server_api(std::move(made));
  return out;
}

}  // namespace

std::shared_ptr<const Outcome> outcome_of(const http_request& request) {
  return static_cast<Context*>(request._get_server_context())->exchange->outcome();
}

struct RestListener::Impl {
  explicit Impl(const std::string& url) : listener(url) {}
  http_listener listener;
};

Result<std::unique_ptr<RestListener>> RestListener::open(Front::Options options,
                                                         std::size_t threads,
                                                         const Handler& handler) {
  KVD_TRY(Front::check(options.address, options.port));
  static std::mutex mutex;  // one listener opens at a time
  const std::lock_guard lock(mutex);
  limit_threads(threads);
  const std::string url = "http://" + Front::authority(options.address, options.port);
  try {
    const auto fault = std::make_shared<std::optional<Error>>();
    door().announce(std::move(options), fault);
    auto impl = std::make_unique<Impl>(url);
    impl->listener.support(handler);
    // The library answers these by itself unless told otherwise; TRACE would echo the token.
    impl->listener.support("OPTIONS", handler);
    impl->listener.support("TRACE", handler);
    try {
      impl->listener.open().wait();
    } catch (const std::exception&) {
      if (*fault) return **fault;
      throw;
    }
    return std::unique_ptr<RestListener>(new RestListener(std::move(impl)));
  } catch (const std::exception& error) {
    return make_error(ErrorCode::kUnavailable, error.what());
  }
}

RestListener::RestListener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

RestListener::~RestListener() {
  try {
    impl_->listener.close().wait();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvd: port not closed in order: %s\n", error.what());
  }
}

}  // namespace kvd::http
