#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client_lib/engine/model/transformer.hpp"
#include "kernels/attention/cpu_paged_attention.hpp"

namespace kvd::engine {

/// A model of a few thousand weights and what it takes to run it.
class SmallModel {
 public:
  explicit SmallModel(std::uint32_t layers_per_block = 2, std::uint32_t block_tokens = 8,
                      std::uint32_t threads = 1)
      : weights_(random_weights(
            *parse_random_model("layers=3,hidden=48,heads=6,kv_heads=2,ff=80,context=512"))),
        layout_(weights_.model.layout(layers_per_block, block_tokens)),
        workers_(threads),
        attention_({layout_, weights_.model.heads}, workers_),
        transformer_(weights_, layers_per_block, attention_, workers_) {}

  [[nodiscard]] const Weights& weights() const { return weights_; }
  [[nodiscard]] const kernels::KvLayout& layout() const { return layout_; }
  [[nodiscard]] Transformer& transformer() { return transformer_; }

 private:
  const Weights weights_;
  const kernels::KvLayout layout_;
  kernels::Workers workers_;
  kernels::CpuPagedAttention attention_;
  Transformer transformer_;
};

/// Memory for the KV of one request.
class RequestMemory {
 public:
  RequestMemory(const kernels::KvLayout& layout, std::uint32_t layers, std::uint32_t tokens) {
    const std::uint32_t groups = (layers + layout.layers_per_block - 1) / layout.layers_per_block;
    blocks_ = (tokens + layout.block_tokens - 1) / layout.block_tokens;
    for (std::uint32_t i = 0; i < groups * blocks_; ++i) {
      memory_.push_back(std::make_unique<std::byte[]>(layout.slot_bytes()));
      slots_.push_back(memory_.back().get());
    }
  }
  [[nodiscard]] Sequence sequence(std::span<const Token> tokens, std::uint64_t first) const {
    return {tokens, first, slots_, blocks_, true};
  }

 private:
  std::uint32_t blocks_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<std::byte*> slots_;
};

inline Status allow(std::uint32_t) { return {}; }
inline const GroupGate kAlwaysReady{allow, allow};

}  // namespace kvd::engine
