#include "client_lib/engine/http/answers.hpp"

#include <cpprest/json.h>

#include <cinttypes>
#include <cstdio>
#include <ctime>

namespace kvd::engine {
namespace {

using web::json::value;

value text(const std::string& characters) { return value::string(characters); }
value number(std::uint64_t count) { return value::number(count); }

/// Sent as text, because JSON numbers lose bits of 64.
value digest_value(std::uint64_t digest) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016" PRIx64, digest);
  return text(digits);
}

/// What a caller wrote comes back in messages, UTF-8 or not.
value readable(const std::string& characters) {
  Utf8Stream stream;
  const std::string whole = stream.feed(characters);
  return text(whole + stream.flush());
}

enum class Part : std::uint8_t { kChunk, kWhole };

value frame(Form form, Part part, const std::string& id, const std::string& model) {
  const std::string chat = part == Part::kChunk ? "chat.completion.chunk" : "chat.completion";
  value out = value::object();
  out["id"] = text(id);
  out["object"] = text(form == Form::kChat ? chat : "text_completion");
  out["created"] = value::number(static_cast<std::int64_t>(std::time(nullptr)));
  out["model"] = text(model);
  out["choices"] = value::array();
  return out;
}

value choice(Form form, Part part, const std::string& shown, const value& finish_reason) {
  value out = value::object();
  out["index"] = value::number(0);
  out["logprobs"] = value::null();
  out["finish_reason"] = finish_reason;
  if (form == Form::kText) {
    out["text"] = text(shown);
    return out;
  }
  value message = value::object();
  message["role"] = text("assistant");
  message["content"] = text(shown);
  out[part == Part::kChunk ? "delta" : "message"] = message;
  return out;
}

value reason_value(FinishReason reason) {
  return text(reason == FinishReason::kStop ? "stop" : "length");
}

value usage(std::uint64_t prompt, std::uint64_t cached, std::uint64_t made) {
  value details = value::object();
  details["cached_tokens"] = number(cached);
  value out = value::object();
  out["prompt_tokens"] = number(prompt);
  out["prompt_tokens_details"] = details;
  out["completion_tokens"] = number(made);
  out["total_tokens"] = number(prompt + made);
  return out;
}

}  // namespace

std::string ApiError::json() const {
  value error = value::object();
  error["message"] = readable(message);
  error["type"] = text(type);
  error["param"] = param.empty() ? value::null() : readable(param);
  error["code"] = code.empty() ? value::null() : text(code);
  value out = value::object();
  out["error"] = error;
  return out.serialize();
}

ApiError api_error(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
      return {.message = error.message};
    case ErrorCode::kOutOfMemory:
      return {.message = error.message, .code = "context_length_exceeded"};
    case ErrorCode::kQuotaExceeded:
      return {.status = 429,
              .message = error.message,
              .type = "rate_limit_error",
              .code = "rate_limit_exceeded"};
    case ErrorCode::kUnavailable:
      return {
          .status = 503, .message = error.message, .type = "server_error", .code = "unavailable"};
    case ErrorCode::kDraining:
      return {.status = 503, .message = error.message, .type = "server_error", .code = "draining"};
    default:
      return {.status = 500, .message = error.to_string(), .type = "server_error"};
  }
}

std::string AnswerWriter::token_chunk(const Piece& piece) {
  ++made_;
  value one = choice(form_, Part::kChunk, characters_.feed(piece.text), value::null());
  one["token_ids"] = value::array({number(piece.token)});
  if (piece.digest) one["kvd_logits_digest"] = digest_value(*piece.digest);
  value out = frame(form_, Part::kChunk, id_, model_);
  out["choices"][0] = one;
  return out.serialize();
}

std::string AnswerWriter::last_chunk(FinishReason reason, const std::string& tail) {
  value out = frame(form_, Part::kChunk, id_, model_);
  const std::string rest = characters_.feed(tail) + characters_.flush();
  out["choices"][0] = choice(form_, Part::kChunk, rest, reason_value(reason));
  return out.serialize();
}

std::string AnswerWriter::usage_chunk() const {
  value out = frame(form_, Part::kChunk, id_, model_);
  out["usage"] = usage(prompt_tokens_, cached_, made_);
  return out.serialize();
}

void AnswerWriter::take(const Piece& piece) {
  ++made_;
  text_ += characters_.feed(piece.text);
  pieces_.push_back(piece);
}

std::string AnswerWriter::whole(FinishReason reason, const std::string& tail) {
  text_ += characters_.feed(tail) + characters_.flush();
  value one = choice(form_, Part::kWhole, text_, reason_value(reason));
  std::vector<value> tokens, digests;
  for (const Piece& piece : pieces_) {
    tokens.push_back(number(piece.token));
    if (piece.digest) digests.push_back(digest_value(*piece.digest));
  }
  one["token_ids"] = value::array(tokens);
  if (!digests.empty()) one["kvd_logits_digest"] = value::array(digests);
  value out = frame(form_, Part::kWhole, id_, model_);
  out["choices"][0] = one;
  out["usage"] = usage(prompt_tokens_, cached_, made_);
  return out.serialize();
}

std::string models_json(const ModelCard& model) {
  value card = value::object();
  card["id"] = text(model.name);
  card["object"] = text("model");
  card["created"] = value::number(0);
  card["owned_by"] = text("kvd");
  value out = value::object();
  out["object"] = text("list");
  out["data"] = value::array({card});
  return out.serialize();
}

std::string health_json(const Health& health) {
  value out = value::object();
  out["status"] = text(health.attached ? "ok" : "kvd is away");
  out["open"] = number(health.open);
  out["running"] = number(health.running);
  out["iterations"] = number(health.iterations);
  out["tokens"] = number(health.tokens);
  out["restarts"] = number(health.restarts);
  out["waited"] = number(health.waited);
  out["waiting_s"] = value::number(to_seconds(health.waiting));
  out["iterating_s"] = value::number(to_seconds(health.iterating));
  return out.serialize();
}

}  // namespace kvd::engine
