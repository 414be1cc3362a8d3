#pragma once

#include <ggml-backend-impl.h>
#include <ggml.h>

#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

/// What llama.cpp's names say about a tensor. The KV cache of layer 7 is cache_k_l7 and cache_v_l7,
/// recurrent state cache_r_l7 and cache_s_l7; the weights of the layer begin with "blk.7.".
namespace kvd::llama {

/// The tensor whose memory `tensor` is a view of, or itself.
inline const ggml_tensor& storage_of(const ggml_tensor& tensor) {
  return tensor.view_src != nullptr ? *tensor.view_src : tensor;
}

inline bool is_cache(const ggml_tensor& tensor) {
  return std::strncmp(tensor.name, "cache_", 6) == 0;
}

/// The number that `text` begins with.
inline std::optional<unsigned> leading_number(std::string_view text) {
  unsigned number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc{}) return std::nullopt;
  return number;
}

/// The layer of a KV cache tensor.
inline std::optional<unsigned> layer_of_cache(const ggml_tensor& tensor) {
  const std::string_view name = tensor.name;
  const auto mark = name.rfind("_l");
  if (!is_cache(tensor) || mark == std::string_view::npos) return std::nullopt;
  return leading_number(name.substr(mark + 2));
}

/// The layer of a weight; nothing where it belongs to none, as the output matrix.
inline std::optional<unsigned> layer_of_weight(const ggml_tensor& tensor) {
  const std::string_view name = tensor.name;
  if (!name.starts_with("blk.")) return std::nullopt;
  return leading_number(name.substr(4));
}

}  // namespace kvd::llama
