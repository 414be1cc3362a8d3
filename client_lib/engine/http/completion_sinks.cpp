#include "client_lib/engine/http/completion_sinks.hpp"

#include <exception>
#include <utility>

namespace kvd::engine {

using web::http::http_request;
using web::http::http_response;

void reply_json(const http_request& request, int status, const std::string& body,
                const OpenAnswer& open) {
  http_response response(static_cast<web::http::status_code>(status));
  response.set_body(body, "application/json");
  response.headers().add("Cache-Control", "no-store");
  if (status == 429 || status == 503) response.headers().add("Retry-After", "1");
  request.reply(response).then([open](const pplx::task<void>& sent) {
    try {
      sent.get();
    } catch (const std::exception&) {
    }
  });
}

void reply_error(const http_request& request, const ApiError& error, const OpenAnswer& open) {
  reply_json(request, error.status, error.json(), open);
}

StreamSink::StreamSink(const http_request& request, AnswerWriter writer, bool usage_at_end,
                       OpenAnswer open, std::function<void()> on_gone)
    : request_(request),
      writer_(std::move(writer)),
      usage_at_end_(usage_at_end),
      open_(std::move(open)),
      on_gone_(std::move(on_gone)) {}

void StreamSink::accepted() {
  started_ = true;
  http_response response(web::http::status_codes::OK);
  response.set_body(buffer_.create_istream(), "text/event-stream");
  response.headers().add("Cache-Control", "no-store");
  request_.reply(response).then([gone = on_gone_, open = open_](const pplx::task<void>& sent) {
    try {
      sent.get();
    } catch (const std::exception&) {
      gone();
    }
  });
}

void StreamSink::write(const std::string& bytes) {
  // The buffer takes everything at once; the library sends it when it is synced.
  (void)buffer_.putn_nocopy(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  (void)buffer_.sync();
}

void StreamSink::send(const std::string& data) { write("data: " + data + "\n\n"); }

void StreamSink::token(const Piece& piece) { send(writer_.token_chunk(piece)); }

void StreamSink::ended(FinishReason reason, const std::string& tail) {
  send(writer_.last_chunk(reason, tail));
  if (usage_at_end_) send(writer_.usage_chunk());
  send("[DONE]");
  (void)buffer_.close(std::ios_base::out);
}

void StreamSink::failed(const Error& error) {
  if (!started_) {
    reply_error(request_, api_error(error), open_);
    return;
  }
  send(api_error(error).json());
  (void)buffer_.close(std::ios_base::out);
}

/// A comment, which readers of events skip: writing is how a hang-up is noticed.
void StreamSink::idle() {
  if (started_) write(": waiting\n\n");
}

void WholeSink::ended(FinishReason reason, const std::string& tail) {
  reply_json(request_, 200, writer_.whole(reason, tail), open_);
}

}  // namespace kvd::engine
