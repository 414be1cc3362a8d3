#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "client_lib/engine/http/api_error.hpp"
#include "client_lib/engine/serve/completion.hpp"

namespace kvd::engine {

/// What a caller has to know about the model.
struct ModelCard {
  std::string name;
  bool has_vocabulary = false;  ///< with it prompts are token ids, otherwise text is bytes
};

/// Which of OpenAI's forms a request and its answer have.
enum class Form : std::uint8_t {
  kText,  ///< /v1/completions: a prompt
  kChat,  ///< /v1/chat/completions: messages
};

/// A body of POST /v1/completions or /v1/chat/completions.
struct CompletionCall {
  Completion completion;
  bool stream = false;
  bool usage_in_stream = false;
};

/// Reads a body as OpenAI's API defines it, and kvd's fields: kvd_ttft_s, kvd_tbt_s, kvd_gap_s
/// (seconds, 0: the default), kvd_digest (adds kvd_logits_digest to each token). Messages become
/// lines "ROLE: TEXT" and the beginning of the assistant's, so that a longer conversation begins as
/// the shorter one did. Unsupported fields that would change the answer are refused. Unknown fields
/// are ignored, except those that begin with kvd_. Errors: 400 naming the field; 404 for another
/// model.
[[nodiscard]] std::variant<CompletionCall, ApiError> parse_completion_call(const std::string& body,
                                                                           const ModelCard& model,
                                                                           Form form);

}  // namespace kvd::engine
