#include "client_lib/engine/http/http_server.hpp"

#include <arpa/inet.h>
#include <cpprest/http_listener.h>
#include <pplx/threadpool.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "client_lib/engine/http/completion_sinks.hpp"
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

namespace kvd::engine {
namespace {

using web::http::http_request;
using web::http::experimental::listener::http_listener;

constexpr std::size_t kThreads = 2;
/// A client that does not read is not waited for any longer when the engine stops.
constexpr std::chrono::seconds kSendTimeout{1};
constexpr std::uint64_t kMostBody = std::uint64_t{4} << 20U;

/// The library would start 40 threads. Whoever asked first wins; a second call throws.
void limit_threads() {
  static std::once_flag once;
  std::call_once(once, [] {
    try {
      crossplat::threadpool::initialize_with_threads(kThreads);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "kvd-engine: thread count not set: %s\n", error.what());
    }
  });
}

std::string header(const http_request& request, const char* name) {
  const auto& headers = request.headers();
  const auto found = headers.find(name);
  return found == headers.end() ? std::string() : found->second;
}

/// The number of a request that is being submitted while its client may hang up already.
class Ticket {
 public:
  /// Returns whether the client has gone before.
  bool set(std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    id_ = id;
    return gone_;
  }
  std::optional<std::uint64_t> go() {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    return id_;
  }

 private:
  std::mutex mutex_;
  std::optional<std::uint64_t> id_;
  bool gone_ = false;
};

/// Outlives the server while late callbacks of the library hold it.
class Shared : public std::enable_shared_from_this<Shared> {
 public:
  Shared(ModelCard model, Scheduler& scheduler)
      : model_(std::move(model)), scheduler_(&scheduler) {}

  /// Nothing reaches the scheduler after this. Waits until the answers it gave are sent.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      scheduler_ = nullptr;
    }
    std::unique_lock lock(answers_mutex_);
    all_sent_.wait_for(lock, kSendTimeout, [&] { return open_answers_ == 0; });
  }

  void answer(const http_request& request, const std::string& body) {
    const std::string path = web::uri::decode(request.request_uri().path());
    const bool post = path == "/v1/completions";
    if (!post && path != "/v1/models" && path != "/health") {
      return reply_error(
          request, {.status = 404,
                    .message = "there is no " + path + "; see /v1/completions, /v1/models, /health",
                    .code = "not_found"});
    }
    if (request.method() != (post ? "POST" : "GET")) {
      return reply_error(request, {.status = 405,
                                   .message = path + " takes " + (post ? "POST" : "GET"),
                                   .code = "method_not_allowed"});
    }
    if (post) return complete(request, body);
    if (path == "/v1/models") return reply_json(request, 200, models_json(model_));
    reply_health(request);
  }

 private:
  void complete(const http_request& request, const std::string& body) {
    auto parsed = parse_completion_call(body, model_);
    if (const auto* error = std::get_if<ApiError>(&parsed)) return reply_error(request, *error);
    auto& call = std::get<CompletionCall>(parsed);
    AnswerWriter writer("cmpl-" + std::to_string(++answers_), model_.name,
                        call.completion.prompt.size());
    const auto ticket = std::make_shared<Ticket>();
    const OpenAnswer open = open_answer();
    std::shared_ptr<TokenSink> sink;
    if (call.stream) {
      const auto on_gone = [self = shared_from_this(), ticket] {
        if (const auto id = ticket->go()) self->abort(*id);
      };
      sink = std::make_shared<StreamSink>(request, std::move(writer), call.usage_in_stream, open,
                                          on_gone);
    } else {
      sink = std::make_shared<WholeSink>(request, std::move(writer), open);
    }
    const auto id = submit(std::move(call.completion), std::move(sink));
    if (!id.ok()) return reply_error(request, api_error(id.error()));
    if (ticket->set(*id)) abort(*id);
  }

  /// Counted until the last copy of it is gone.
  OpenAnswer open_answer() {
    const std::lock_guard lock(answers_mutex_);
    ++open_answers_;
    return {this, [self = shared_from_this()](void*) {
              const std::lock_guard closing(self->answers_mutex_);
              if (--self->open_answers_ == 0) self->all_sent_.notify_all();
            }};
  }

  Result<std::uint64_t> submit(Completion completion, std::shared_ptr<TokenSink> sink) {
    const std::lock_guard lock(mutex_);
    if (scheduler_ == nullptr) return make_error(ErrorCode::kUnavailable, "the engine is stopping");
    return scheduler_->submit(std::move(completion), std::move(sink));
  }

  void abort(std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    if (scheduler_ != nullptr) scheduler_->abort(id);
  }

  void reply_health(const http_request& request) {
    Health health;
    health.attached = false;
    {
      const std::lock_guard lock(mutex_);
      if (scheduler_ != nullptr) health = scheduler_->health();
    }
    reply_json(request, health.attached ? 200 : 503, health_json(health));
  }

  const ModelCard model_;
  std::mutex mutex_;
  Scheduler* scheduler_;
  // Of its own, as the last copy of an answer may go under any lock of the scheduler.
  std::mutex answers_mutex_;
  std::condition_variable all_sent_;
  std::size_t open_answers_ = 0;
  std::atomic<std::uint64_t> answers_{0};
};
using SharedPtr = std::shared_ptr<Shared>;

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

void refuse_body(const http_request& request, const ApiError& error) {
  discard(request.body(), std::make_shared<std::vector<std::uint8_t>>(1 << 16));
  reply_error(request, error);
}

/// A web page that had its own name resolved to 127.0.0.1 still names itself here.
bool is_local(const std::string& host) {
  const std::string name = host.substr(0, host.rfind(':'));
  return host.empty() || name == "127.0.0.1" || name == "localhost";
}

/// Refuses bodies that the library would keep beyond the limit; takes the rest off its threads
/// until the body is there, so that a slow client holds a connection but no thread. Headers,
/// connections and their time the library bounds by nothing: see SECURITY.md.
void receive(const SharedPtr& shared, const http_request& request) {
  if (!is_local(header(request, "Host"))) {
    return refuse_body(request, {.status = 403, .message = "this address is for local programs"});
  }
  if (!header(request, "Transfer-Encoding").empty()) {
    return refuse_body(request, {.status = 411, .message = "send the body with a Content-Length"});
  }
  if (request.headers().content_length() > kMostBody) {
    return refuse_body(request, {.status = 413, .message = "the body may have at most 4 MiB"});
  }
  http_request(request).extract_vector().then(
      [shared, request](const pplx::task<std::vector<std::uint8_t>>& body) {
        try {
          const auto bytes = body.get();
          shared->answer(request, std::string(bytes.begin(), bytes.end()));
        } catch (const std::exception&) {  // the client went away
        }
      });
}

Error cannot_serve(std::uint16_t port, const std::string& why) {
  return make_error(ErrorCode::kUnavailable, "cannot serve at 127.0.0.1:" + std::to_string(port) +
                                                 ": " + why +
                                                 "; choose another port (--port), or stop the "
                                                 "process that listens there");
}

/// Whether the port can be had. The library fails too, but a listener that failed to open takes a
/// working one of the same process down with it.
Status probe(std::uint16_t port) {
  if (port == 0) return make_error(ErrorCode::kInvalidArgument, "name a port other than 0");
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    return {};
  }
  return cannot_serve(port, std::strerror(errno));
}

}  // namespace

struct HttpServer::Impl {
  Impl(std::uint16_t port, SharedPtr shared_state)
      : shared(std::move(shared_state)), listener("http://127.0.0.1:" + std::to_string(port)) {
    const auto handler = [state = shared](const http_request& request) { receive(state, request); };
    listener.support(handler);
    listener.support("OPTIONS", handler);
    listener.support("TRACE", handler);
    listener.open().wait();
  }
  ~Impl() {
    shared->close();
    try {
      listener.close().wait();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "kvd-engine: port not closed in order: %s\n", error.what());
    }
  }
  SharedPtr shared;
  http_listener listener;
};

Result<std::unique_ptr<HttpServer>> HttpServer::start(std::uint16_t port, ModelCard model,
                                                      Scheduler& scheduler) {
  KVD_TRY(probe(port));
  limit_threads();
  auto shared = std::make_shared<Shared>(std::move(model), scheduler);
  try {
    auto impl = std::make_unique<Impl>(port, std::move(shared));
    return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
  } catch (const std::exception& error) {
    return cannot_serve(port, error.what());
  }
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

}  // namespace kvd::engine
