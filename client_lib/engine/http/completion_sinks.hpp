#pragma once

#include <cpprest/http_msg.h>
#include <cpprest/producerconsumerstream.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "client_lib/engine/http/answers.hpp"
#include "client_lib/engine/serve/completion.hpp"

namespace kvd::engine {

/// Held by an answer until the library has sent it, so that a server knows when all are out.
using OpenAnswer = std::shared_ptr<void>;

/// Answers `request` as JSON. Nothing is said where the client went away before.
void reply_json(const web::http::http_request& request, int status, const std::string& body,
                const OpenAnswer& open = nullptr);
void reply_error(const web::http::http_request& request, const ApiError& error,
                 const OpenAnswer& open = nullptr);

/// Writes tokens as server-sent events as they come. `on_gone` is called, once and by a thread of
/// the HTTP library, when the client has hung up before the end.
class StreamSink final : public TokenSink {
 public:
  StreamSink(const web::http::http_request& request, AnswerWriter writer, bool usage_at_end,
             OpenAnswer open, std::function<void()> on_gone);

  void accepted() override;
  void found(std::uint64_t tokens) override { writer_.found(tokens); }
  void token(const Piece& piece) override;
  void ended(FinishReason reason, const std::string& tail) override;
  void failed(const Error& error) override;
  void idle() override;

 private:
  void send(const std::string& data);
  void write(const std::string& bytes);

  const web::http::http_request request_;
  AnswerWriter writer_;
  const bool usage_at_end_;
  const OpenAnswer open_;
  const std::function<void()> on_gone_;
  concurrency::streams::producer_consumer_buffer<std::uint8_t> buffer_;
  bool started_ = false;
};

/// Sends one answer, when all tokens are there.
class WholeSink final : public TokenSink {
 public:
  WholeSink(const web::http::http_request& request, AnswerWriter writer, OpenAnswer open)
      : request_(request), writer_(std::move(writer)), open_(std::move(open)) {}

  void accepted() override {}
  void found(std::uint64_t tokens) override { writer_.found(tokens); }
  void token(const Piece& piece) override { writer_.take(piece); }
  void ended(FinishReason reason, const std::string& tail) override;
  void failed(const Error& error) override { reply_error(request_, api_error(error), open_); }
  void idle() override {}

 private:
  const web::http::http_request request_;
  AnswerWriter writer_;
  const OpenAnswer open_;
};

}  // namespace kvd::engine
