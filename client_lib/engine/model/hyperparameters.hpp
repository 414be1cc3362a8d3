#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "client_lib/engine/model/gguf.hpp"
#include "ipc/vocabulary/result.hpp"
#include "kernels/attention/paged_attention.hpp"

namespace kvd::engine {

using Token = std::uint32_t;

/// The numbers that make a LLaMA-shaped model.
struct Hyperparameters {
  std::uint32_t layers = 4;
  std::uint32_t hidden = 256;
  std::uint32_t feed_forward = 768;
  std::uint32_t heads = 8;
  std::uint32_t kv_heads = 4;
  std::uint32_t head_dim = 32;
  std::uint32_t rope_dim = 32;  ///< leading dimensions of a head that are rotated
  std::uint32_t vocabulary = 256;
  std::uint32_t context = 8192;  ///< most tokens of a request, prompt and answer
  float norm_epsilon = 1e-5F;
  double rope_base = 10000;
  double rope_scale = 1;  ///< positions are divided by it

  /// Layout of this model's KV in blocks of the given kind.
  [[nodiscard]] kernels::KvLayout layout(std::uint32_t layers_per_block,
                                         std::uint32_t block_tokens) const {
    return {layers_per_block, block_tokens, kv_heads, head_dim};
  }
};

/// Refuses what would overflow, not fit kvd's limits, or not be a model. Errors: InvalidArgument
/// naming the number.
[[nodiscard]] Status check(const Hyperparameters& model);

/// Reads them from a model file. Errors: Unsupported for another architecture or a feature this
/// engine lacks.
[[nodiscard]] Result<Hyperparameters> read_hyperparameters(const Gguf& file);

/// From "layers=4,hidden=256,heads=8,kv_heads=4,ff=768,vocab=256,context=8192"; what is left out
/// has its default (head_dim = hidden / heads). `seed` is taken too and returned beside.
struct RandomModel {
  Hyperparameters model;
  std::uint64_t seed = 1;
};
[[nodiscard]] Result<RandomModel> parse_random_model(const std::string& text);

}  // namespace kvd::engine
