#include "client_lib/llama/driver/generation.hpp"

#include <algorithm>
#include <utility>

#include "client_lib/llama/driver/interrupt.hpp"

namespace kvd_llama {
namespace {

llama_context_params context_params(const Options& options) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = options.context_size;
  params.n_batch = std::max(options.prompt_tokens, 32U);
  params.n_ubatch = params.n_batch;
  params.n_threads = static_cast<std::int32_t>(options.threads);
  params.n_threads_batch = params.n_threads;
  params.abort_callback = [](void*) { return stop_requested(); };
  return params;
}

}  // namespace

Model load_model(const Options& options) {
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = options.gpu_layers;
  params.progress_callback = [](float, void*) { return !stop_requested(); };
  return Model(llama_model_load_from_file(options.model.c_str(), params));
}

Generation::Generation(llama_model* model, const Options& options, std::vector<llama_token> prompt)
    : context_(llama_init_from_model(model, context_params(options))),
      vocabulary_(llama_vocab_n_tokens(llama_model_get_vocab(model))),
      next_(std::move(prompt)) {}

bool Generation::step() {
  const auto count = static_cast<std::int32_t>(next_.size());
  if (llama_decode(context_.get(), llama_batch_get_one(next_.data(), count)) != 0) return false;
  const float* begin = logits();
  const float* best = std::max_element(begin, begin + vocabulary_);
  next_.assign(1, static_cast<llama_token>(best - begin));
  return true;
}

const float* Generation::logits() const { return llama_get_logits_ith(context_.get(), -1); }

}  // namespace kvd_llama
