#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "client_lib/engine/model/weights.hpp"

namespace kvd::engine {

/// Writes a GGUF file, right or wrong, into memory.
class GgufBytes {
 public:
  template <class T>
  GgufBytes& put(T value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    out_.insert(out_.end(), bytes, bytes + sizeof value);
    return *this;
  }
  GgufBytes& put_text(const std::string& text) {
    put<std::uint64_t>(text.size());
    for (const char c : text) out_.push_back(static_cast<std::byte>(c));
    return *this;
  }
  GgufBytes& header(std::uint64_t tensors, std::uint64_t values, std::uint32_t version = 3) {
    return put<std::uint32_t>(0x46554747).put(version).put(tensors).put(values);
  }
  GgufBytes& number(const std::string& key, std::uint32_t value) {
    return put_text(key).put<std::uint32_t>(4).put(value);
  }
  GgufBytes& text(const std::string& key, const std::string& value) {
    return put_text(key).put<std::uint32_t>(8).put_text(value);
  }
  GgufBytes& tensor(const std::string& name, const std::vector<std::uint64_t>& dims,
                    std::uint32_t type, std::uint64_t offset) {
    put_text(name).put(static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t size : dims) put(size);
    return put(type).put(offset);
  }
  GgufBytes& align() {
    while (out_.size() % 32 != 0) out_.push_back(std::byte{0});
    return *this;
  }
  GgufBytes& floats(const std::vector<float>& values) {
    for (const float value : values) put(value);
    return *this;
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return out_; }

 private:
  std::vector<std::byte> out_;
};

/// A model as the file that load_weights() reads.
inline GgufBytes model_file(const Weights& weights) {
  struct Entry {
    std::string name;
    std::vector<std::uint64_t> dims;
    const std::vector<float>* values;
  };
  std::vector<Entry> entries;
  const auto vector = [&](const std::string& name, const std::vector<float>& values) {
    entries.push_back({name, {values.size()}, &values});
  };
  const auto matrix = [&](const std::string& name, const Matrix& values) {
    entries.push_back({name, {values.columns, values.rows}, &values.values});
  };
  matrix("token_embd.weight", weights.embedding);
  for (std::size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& layer = weights.layers[i];
    const std::string prefix = "blk." + std::to_string(i) + ".";
    vector(prefix + "attn_norm.weight", layer.attention_norm);
    vector(prefix + "ffn_norm.weight", layer.feed_forward_norm);
    matrix(prefix + "attn_q.weight", layer.query);
    matrix(prefix + "attn_k.weight", layer.key);
    matrix(prefix + "attn_v.weight", layer.value);
    matrix(prefix + "attn_output.weight", layer.attention_out);
    matrix(prefix + "ffn_gate.weight", layer.gate);
    matrix(prefix + "ffn_up.weight", layer.up);
    matrix(prefix + "ffn_down.weight", layer.down);
  }
  vector("output_norm.weight", weights.norm);
  matrix("output.weight", weights.output);

  const Hyperparameters& model = weights.model;
  GgufBytes out;
  out.header(entries.size(), 9);
  out.text("general.architecture", "llama");
  out.number("llama.block_count", model.layers).number("llama.embedding_length", model.hidden);
  out.number("llama.feed_forward_length", model.feed_forward);
  out.number("llama.context_length", model.context).number("llama.vocab_size", model.vocabulary);
  out.number("llama.attention.head_count", model.heads);
  out.number("llama.attention.head_count_kv", model.kv_heads);
  out.text("tokenizer.ggml.model", "no_vocab");
  std::uint64_t offset = 0;
  for (const Entry& entry : entries) {
    out.tensor(entry.name, entry.dims, 0, offset);
    offset += (entry.values->size() * sizeof(float) + 31) / 32 * 32;
  }
  for (const Entry& entry : entries) out.align().floats(*entry.values);
  return out;
}

}  // namespace kvd::engine
