#include "client_lib/engine/http/completion_call.hpp"

#include <cpprest/json.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <exception>
#include <string_view>
#include <utility>

namespace kvd::engine {
namespace {

using web::json::value;

constexpr double kLongestSlo = 3600;  // kvd's limit
constexpr std::size_t kMostStops = 4;
constexpr std::size_t kLongestSalt = 1024;
constexpr std::size_t kLongestStop = 1024;
constexpr std::size_t kMostStopTokens = 64;
constexpr std::uint64_t kChatTokens = 256;

[[noreturn]] void refuse(const std::string& param, const std::string& why) {
  throw ApiError{.message = param + " " + why, .param = param};
}

/// The fields of a body; a missing one and null are the same. Throws ApiError.
class Fields {
 public:
  explicit Fields(const value& body) : body_(body) {}

  [[nodiscard]] const value* find(const std::string& name) const {
    if (!body_.has_field(name) || body_.at(name).is_null()) return nullptr;
    return &body_.at(name);
  }

  [[nodiscard]] bool flag(const std::string& name) const {
    const value* field = find(name);
    if (field == nullptr) return false;
    if (!field->is_boolean()) refuse(name, "must be true or false");
    return field->as_bool();
  }

  [[nodiscard]] std::string text(const std::string& name) const {
    const value* field = find(name);
    if (field == nullptr) return {};
    if (!field->is_string() || field->as_string().size() > kLongestSalt) {
      refuse(name, "must be a text of at most 1024 bytes");
    }
    return field->as_string();
  }

  [[nodiscard]] std::uint64_t count(const std::string& name, std::uint64_t otherwise) const {
    const value* field = find(name);
    if (field == nullptr) return otherwise;
    if (!field->is_integer() || !field->as_number().is_uint64()) {
      refuse(name, "must be a whole number that is not negative");
    }
    return field->as_number().to_uint64();
  }

  [[nodiscard]] Nanoseconds seconds(const std::string& name) const {
    const value* field = find(name);
    if (field == nullptr) return Nanoseconds(0);
    const double seconds = field->is_number() ? field->as_double() : -1;
    if (!(seconds >= 0 && seconds <= kLongestSlo)) refuse(name, "must be 0 to 3600 seconds");
    return Nanoseconds(std::llround(seconds * 1e9));
  }

  /// Refuses a number other than the one that changes nothing.
  void expect(const std::string& name, double neutral, const std::string& why) const {
    const value* field = find(name);
    if (field == nullptr) return;
    if (!field->is_number() || field->as_double() != neutral) refuse(name, why);
  }

  void expect_nothing(const std::string& name) const {
    const value* field = find(name);
    if (field == nullptr || (field->is_object() && field->size() == 0) ||
        (field->is_string() && field->as_string().empty())) {
      return;
    }
    refuse(name, "is not supported: leave it out");
  }

 private:
  const value& body_;
};

Token token_of(const value& entry, const std::string& field) {
  if (!entry.is_integer() || !entry.as_number().is_uint32()) refuse(field, "holds no token id");
  return entry.as_number().to_uint32();
}

std::vector<Token> bytes_of(const std::string& text, const ModelCard& model,
                            const std::string& field) {
  if (model.has_vocabulary) {
    refuse(
        field,
        "cannot be text: this model has a vocabulary, which kvd-engine does not read; send token "
        "ids as `prompt` to /v1/completions");
  }
  std::vector<Token> tokens;
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  return tokens;
}

std::vector<Token> read_prompt(const value* prompt, const ModelCard& model) {
  if (prompt == nullptr) refuse("prompt", "is missing");
  if (prompt->is_string()) return bytes_of(prompt->as_string(), model, "prompt");
  if (!prompt->is_array() || prompt->size() == 0) {
    refuse("prompt", "must be a text or an array of token ids, and not empty");
  }
  const value& first = prompt->at(0);
  if (first.is_string() || first.is_array()) {
    if (prompt->size() != 1) refuse("prompt", "holds several prompts: send one a request");
    return read_prompt(&first, model);
  }
  std::vector<Token> tokens;
  for (const value& entry : prompt->as_array()) tokens.push_back(token_of(entry, "prompt"));
  return tokens;
}

/// Reads a text, or an array of parts each of which is a text.
std::string read_content(const value& content) {
  if (content.is_string()) return content.as_string();
  if (!content.is_array()) refuse("messages", "need `content`, a text or an array of parts");
  std::string text;
  for (const value& part : content.as_array()) {
    const bool is_text = part.is_object() && part.has_string_field("type") &&
                         part.at("type").as_string() == "text" && part.has_string_field("text");
    if (!is_text) refuse("messages", "may have parts of the type \"text\" only");
    text += part.at("text").as_string();
  }
  return text;
}

std::vector<Token> read_messages(const value* messages, const ModelCard& model) {
  if (messages == nullptr) refuse("messages", "is missing");
  if (!messages->is_array() || messages->size() == 0) {
    refuse("messages", "must be an array of messages, and not empty");
  }
  std::string text;
  for (const value& message : messages->as_array()) {
    if (!message.is_object() || !message.has_string_field("role")) {
      refuse("messages", "must be objects with a `role`");
    }
    const bool has_content = message.has_field("content");
    text += message.at("role").as_string() + ": " +
            read_content(has_content ? message.at("content") : value::null()) + "\n";
  }
  return bytes_of(text + "assistant: ", model, "messages");
}

std::vector<std::string> read_stops(const value* stop, const ModelCard& model) {
  std::vector<std::string> stops;
  if (stop == nullptr) return stops;
  const auto add = [&](const value& entry) {
    if (!entry.is_string() || entry.as_string().empty()) refuse("stop", "must be texts, not empty");
    if (entry.as_string().size() > kLongestStop) refuse("stop", "is longer than 1024 bytes");
    stops.push_back(entry.as_string());
  };
  if (stop->is_array()) {
    if (stop->size() > kMostStops) refuse("stop", "may have 4 texts");
    for (const value& entry : stop->as_array()) add(entry);
  } else {
    add(*stop);
  }
  if (model.has_vocabulary && !stops.empty()) {
    refuse("stop", "needs text, and this model makes token ids: use stop_token_ids");
  }
  return stops;
}

std::vector<Token> read_stop_tokens(const value* stop) {
  std::vector<Token> tokens;
  if (stop == nullptr) return tokens;
  if (!stop->is_array() || stop->size() > kMostStopTokens) {
    refuse("stop_token_ids", "must be an array of at most 64 token ids");
  }
  for (const value& entry : stop->as_array()) tokens.push_back(token_of(entry, "stop_token_ids"));
  return tokens;
}

void refuse_unsupported(const Fields& fields, Form form) {
  fields.expect("n", 1, "must be 1: this engine makes one choice");
  fields.expect("best_of", 1, "must be 1: this engine makes one choice");
  fields.expect("temperature", 0, "must be 0: this engine decodes greedily");
  fields.expect("presence_penalty", 0, "must be 0: this engine decodes greedily");
  fields.expect("frequency_penalty", 0, "must be 0: this engine decodes greedily");
  fields.expect("repetition_penalty", 1, "must be 1: this engine decodes greedily");
  for (const char* name : {"logit_bias", "suffix", "tools", "functions"}) {
    fields.expect_nothing(name);
  }
  if (fields.flag("echo")) refuse("echo", "is not supported: leave it out");
  if (form == Form::kText) {
    fields.expect_nothing("logprobs");
  } else if (fields.flag("logprobs")) {
    refuse("logprobs", "is not supported: leave it out");
  }
  const value* wanted = fields.find("response_format");
  const bool is_text = wanted == nullptr || (wanted->has_string_field("type") &&
                                             wanted->at("type").as_string() == "text");
  if (!is_text) refuse("response_format", "must be of the type \"text\"");
}

/// A misspelt SLO must not pass for none.
void refuse_unknown_kvd_fields(const value& body) {
  constexpr std::array<std::string_view, 4> kKnown = {"kvd_ttft_s", "kvd_tbt_s", "kvd_gap_s",
                                                      "kvd_digest"};
  for (const auto& [name, field] : body.as_object()) {
    const bool known = std::find(kKnown.begin(), kKnown.end(), name) != kKnown.end();
    if (name.starts_with("kvd_") && !known) {
      refuse(name, "is no field of kvd: kvd_ttft_s, kvd_tbt_s, kvd_gap_s, kvd_digest");
    }
  }
}

void check_model(const Fields& fields, const ModelCard& model) {
  const value* name = fields.find("model");
  if (name == nullptr) return;
  if (!name->is_string()) refuse("model", "must be a text");
  if (name->as_string() == model.name) return;
  throw ApiError{.status = 404,
                 .message = "the model \"" + name->as_string() +
                            "\" is not here; this engine has \"" + model.name + "\"",
                 .param = "model",
                 .code = "model_not_found"};
}

/// Chat requests have a newer name for this field.
std::uint64_t read_max_tokens(const Fields& fields, Form form) {
  if (form == Form::kText) return fields.count("max_tokens", Completion{}.max_tokens);
  return fields.count("max_completion_tokens", fields.count("max_tokens", kChatTokens));
}

CompletionCall read_call(const value& body, const ModelCard& model, Form form) {
  if (!body.is_object()) throw ApiError{.message = "the body must be a JSON object"};
  const Fields fields(body);
  check_model(fields, model);
  refuse_unsupported(fields, form);
  refuse_unknown_kvd_fields(body);
  CompletionCall call;
  Completion& asked = call.completion;
  asked.prompt = form == Form::kChat ? read_messages(fields.find("messages"), model)
                                     : read_prompt(fields.find("prompt"), model);
  asked.max_tokens = read_max_tokens(fields, form);
  asked.stops = read_stops(fields.find("stop"), model);
  asked.stop_tokens = read_stop_tokens(fields.find("stop_token_ids"));
  asked.ignore_end = fields.flag("ignore_eos");
  asked.wants_digests = fields.flag("kvd_digest");
  asked.cache_salt = fields.text("cache_salt");
  asked.ttft_slo = fields.seconds("kvd_ttft_s");
  asked.tbt_slo = fields.seconds("kvd_tbt_s");
  asked.gap_slo = fields.seconds("kvd_gap_s");
  call.stream = fields.flag("stream");
  if (const value* options = fields.find("stream_options")) {
    if (!options->is_object()) refuse("stream_options", "must be an object");
    call.usage_in_stream = Fields(*options).flag("include_usage");
  }
  return call;
}

}  // namespace

std::variant<CompletionCall, ApiError> parse_completion_call(const std::string& body,
                                                             const ModelCard& model, Form form) {
  try {
    return read_call(value::parse(body), model, form);
  } catch (const ApiError& error) {
    return error;
  } catch (const std::exception& error) {  // of the JSON library
    return ApiError{.message = std::string("the body is no JSON: ") + error.what()};
  }
}

}  // namespace kvd::engine
