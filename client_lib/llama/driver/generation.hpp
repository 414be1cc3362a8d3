#pragma once

#include <llama.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "client_lib/llama/driver/options.hpp"

namespace kvd_llama {

struct LlamaDeleter {
  void operator()(llama_model* model) const { llama_model_free(model); }
  void operator()(llama_context* context) const { llama_free(context); }
};
using Model = std::unique_ptr<llama_model, LlamaDeleter>;

/// All devices, every layer: where the KV cache goes is decided by what the engine has loaded.
Model load_model(const Options& options);

/// One context and the sequence in it: prefill, then one greedy token per step.
/// Fixed for every run, so that runs can be compared bit for bit: one thread, flash attention on.
class Generation {
 public:
  /// Check ok(): llama.cpp has said on stderr why a context could not be made.
  Generation(llama_model* model, const Options& options, std::vector<llama_token> prompt);
  [[nodiscard]] bool ok() const { return context_ != nullptr; }

  /// Computes the next token; false: the engine failed or was told to stop.
  bool step();
  [[nodiscard]] llama_token token() const { return next_.front(); }
  /// The logits token() was chosen from; valid until the next step.
  [[nodiscard]] const float* logits() const;

 private:
  std::unique_ptr<llama_context, LlamaDeleter> context_;
  std::int32_t vocabulary_;
  std::vector<llama_token> next_;  // what the next step feeds: the prompt, then the last token
};

}  // namespace kvd_llama
