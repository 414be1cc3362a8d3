#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client_lib/engine/http/completion_call.hpp"
#include "client_lib/engine/serve/scheduler.hpp"
#include "client_lib/engine/text/utf8_stream.hpp"

namespace kvd::engine {

/// Writes the answers to one completion request: its chunks or its whole, in OpenAI's form with
/// token_ids (and kvd_logits_digest where asked for) added to each choice.
class AnswerWriter {
 public:
  AnswerWriter(Form form, std::string id, std::string model, std::uint64_t prompt_tokens)
      : form_(form), id_(std::move(id)), model_(std::move(model)), prompt_tokens_(prompt_tokens) {}

  /// Sets how many tokens of the prompt did not have to be computed.
  void found(std::uint64_t tokens) { cached_ = tokens; }

  /// A chunk with one token.
  [[nodiscard]] std::string token_chunk(const Piece& piece);
  /// The chunk that ends a stream, with the rest of the text and why it ended.
  [[nodiscard]] std::string last_chunk(FinishReason reason, const std::string& tail);
  /// A chunk without choices.
  [[nodiscard]] std::string usage_chunk() const;

  /// Writes an answer that does not stream: take every piece first, then write.
  void take(const Piece& piece);
  [[nodiscard]] std::string whole(FinishReason reason, const std::string& tail);

 private:
  const Form form_;
  const std::string id_, model_;
  const std::uint64_t prompt_tokens_;
  std::uint64_t made_ = 0;
  std::uint64_t cached_ = 0;
  Utf8Stream characters_;
  std::string text_;
  std::vector<Piece> pieces_;
};

[[nodiscard]] std::string models_json(const ModelCard& model);
[[nodiscard]] std::string health_json(const Health& health);

}  // namespace kvd::engine
