#include "client_lib/engine/http/http_server.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "client_lib/engine/http/completion_sinks.hpp"
#include "ipc/http/rest_listener.hpp"

namespace kvd::engine {
namespace {

using web::http::http_request;

constexpr std::size_t kThreads = 2;
/// A client that does not read is not waited for any longer when the engine stops.
constexpr std::chrono::seconds kSendTimeout{1};
/// --max-requests is at most 1024; the others send, or ask for /health.
constexpr http::Front::Limits kLimits{.request = {.header = 16 * kKiB, .body = 4 * kMiB},
                                      .readers = 32,
                                      .connections = 1024 + 64,
                                      .backlog = 8 * kMiB};

/// The number of a request that is being submitted while its client may hang up already.
class Ticket {
 public:
  /// Returns whether the client had gone already.
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

  /// After this call nothing reaches the scheduler. It waits until the answers that the scheduler
  /// gave are sent.
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
    const bool chat = path == "/v1/chat/completions";
    const bool post = chat || path == "/v1/completions";
    if (!post && path != "/v1/models" && path != "/health") {
      return reply_error(request, {.status = 404,
                                   .message = "there is no " + path +
                                              "; see /v1/chat/completions, /v1/completions, "
                                              "/v1/models, /health",
                                   .code = "not_found"});
    }
    if (request.method() != (post ? "POST" : "GET")) {
      return reply_error(request, {.status = 405,
                                   .message = path + " takes " + (post ? "POST" : "GET"),
                                   .code = "method_not_allowed"});
    }
    if (post) return complete(request, body, chat ? Form::kChat : Form::kText);
    if (path == "/v1/models") return reply_json(request, 200, models_json(model_));
    reply_health(request);
  }

 private:
  void complete(const http_request& request, const std::string& body, Form form) {
    auto parsed = parse_completion_call(body, model_, form);
    if (const auto* error = std::get_if<ApiError>(&parsed)) return reply_error(request, *error);
    auto& call = std::get<CompletionCall>(parsed);
    const std::string kind = form == Form::kChat ? "chatcmpl-" : "cmpl-";
    AnswerWriter writer(form, kind + std::to_string(++answers_), model_.name,
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

  /// This counts an exchange until its last copy is gone.
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
  // The answers have a mutex of their own, because the last copy of an answer may be destroyed
  // under any lock of the scheduler.
  std::mutex answers_mutex_;
  std::condition_variable all_sent_;
  std::size_t open_answers_ = 0;
  std::atomic<std::uint64_t> answers_{0};
};
using SharedPtr = std::shared_ptr<Shared>;

/// Called by the front; the library's threads do the work.
void receive(const SharedPtr& shared, const http_request& request) {
  request.extract_vector().then(
      [shared, request](const pplx::task<std::vector<std::uint8_t>>& body) {
        try {
          const auto bytes = body.get();
          shared->answer(request, std::string(bytes.begin(), bytes.end()));
        } catch (const std::exception& error) {
          reply_error(request, {.status = 400, .message = error.what()});
        }
      });
}

std::string refusal(int status, const std::string& message) {
  return ApiError{.status = status, .message = message}.json();
}

Error cannot_serve(std::uint16_t port, const Error& error) {
  return make_error(error.code, "cannot serve at 127.0.0.1:" + std::to_string(port) + ": " +
                                    error.message +
                                    "; choose another port (--port), or stop the process that "
                                    "listens there");
}

}  // namespace

struct HttpServer::Impl {
  ~Impl() { shared->close(); }
  SharedPtr shared;
  std::unique_ptr<http::RestListener> listener{};
};

Result<std::unique_ptr<HttpServer>> HttpServer::start(std::uint16_t port, ModelCard model,
                                                      Scheduler& scheduler) {
  auto shared = std::make_shared<Shared>(std::move(model), scheduler);
  auto listener = http::RestListener::open(
      {.address = "127.0.0.1", .port = port, .limits = kLimits, .refusal = refusal}, kThreads,
      [shared](const http_request& request) { receive(shared, request); });
  if (!listener.ok()) return cannot_serve(port, listener.error());
  std::unique_ptr<Impl> impl(new Impl{std::move(shared), std::move(*listener)});
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

}  // namespace kvd::engine
