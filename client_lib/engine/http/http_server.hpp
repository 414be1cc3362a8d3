#pragma once

#include <cstdint>
#include <memory>

#include "client_lib/engine/http/completion_call.hpp"
#include "client_lib/engine/serve/scheduler.hpp"
#include "ipc/vocabulary/result.hpp"

namespace kvd::engine {

/// Serves OpenAI's completions over HTTP on 127.0.0.1: POST /v1/completions and
/// /v1/chat/completions (streaming or whole), GET /v1/models, GET /health. A streaming client that
/// hangs up has its request aborted. Where a client waits for a whole answer, its end shows only
/// when the answer is sent, as the HTTP library watches no idle connection.
/// Owner:  made and destroyed by one thread; two threads of its own.
/// Errors: InvalidArgument for port 0; Unavailable when the port is taken; never throws.
class HttpServer {
 public:
  /// `scheduler` outlives the server. It has no open request left when the server is destroyed.
  [[nodiscard]] static Result<std::unique_ptr<HttpServer>> start(std::uint16_t port,
                                                                 ModelCard model,
                                                                 Scheduler& scheduler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvd::engine
