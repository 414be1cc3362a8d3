#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "client_lib/engine/model/weights.hpp"
#include "kernels/attention/cpu_paged_attention.hpp"
#include "kernels/attention/workers.hpp"

namespace kvd::engine {

/// What an iteration computes of one request.
struct Sequence {
  std::span<const Token> tokens;  ///< consecutive ones, at least one
  std::uint64_t first = 0;        ///< position of the first; KV of all before it is in the slots
  /// Slot of block b in layer group g: slots[g * blocks + b].
  std::span<std::byte* const> slots;
  std::uint32_t blocks = 0;
  bool wants_logits = false;  ///< of its last token
};

/// Called around each layer group. Its slots are touched only between the two calls. A result that
/// is not Ok ends the iteration.
struct GroupGate {
  std::function<Status(std::uint32_t group)> enter;
  std::function<Status(std::uint32_t group)> leave;  ///< all sequences have passed
};

/// A LLaMA: RMSNorm, RoPE on interleaved pairs, grouped-query attention, SwiGLU.
///
/// Logits of a token depend on the tokens before it, bit for bit, and on nothing else: every number
/// is computed for its row alone, in an order that batch, chunking and threads do not change.
/// Owner:  one thread at a time.
/// Errors: those of the gate and of PagedAttention; InvalidArgument for a token outside the
///         vocabulary. KV in the slots is incomplete then.
class Transformer {
 public:
  /// `weights`, `attention` and `workers` outlive it. `groups`: layers of a slot.
  Transformer(const Weights& weights, std::uint32_t layers_per_block,
              kernels::PagedAttention& attention, kernels::Workers& workers);

  /// Writes the sequences' KV and returns the logits of those that want them, one row each.
  Result<std::vector<std::vector<float>>> forward(std::span<const Sequence> batch,
                                                  const GroupGate& gate);

 private:
  /// Some consecutive rows of the batch, worked through a whole layer at a time so that buffers
  /// stay small whatever a prompt's length.
  struct Tile {
    std::size_t sequence = 0;
    std::size_t begin = 0;  ///< row in the whole batch
    std::uint32_t rows = 0;
    std::uint32_t skip = 0;  ///< rows of its sequence before it
  };
  struct Buffers {
    std::vector<float> normed, queries, keys, values, attended, projected, gate, up;
  };

  Status embed(std::span<const Sequence> batch);
  void plan_tiles(std::span<const Sequence> batch);
  Status attention(const LayerWeights& layer, std::uint32_t index, const Sequence& sequence,
                   const Tile& tile);
  void feed_forward(const LayerWeights& layer, const Tile& tile);
  [[nodiscard]] std::vector<float> logits_of(std::size_t row);

  void normalise(const float* rows, std::size_t count, const std::vector<float>& weight);
  void multiply(const Matrix& matrix, const float* in, std::size_t rows, float* out);
  void add_projected(float* rows, std::size_t count) const;
  void rotate(float* rows, std::size_t count, std::uint32_t heads, std::uint64_t first) const;

  const Weights& weights_;
  const std::uint32_t layers_per_block_;
  kernels::PagedAttention& attention_;
  kernels::Workers& workers_;
  const kernels::VectorMath& math_ = kernels::vector_math();
  std::vector<double> frequencies_;  ///< the frequencies of RoPE, one for each pair
  std::vector<float> hidden_;        ///< rows x hidden, of the whole batch
  std::vector<Tile> tiles_;
  Buffers buffers_;
};

/// The likeliest token; of equal ones the first. Precondition: not empty.
[[nodiscard]] Token greedy(std::span<const float> logits);

/// A number that differs if any bit of any logit does (but for chance, 1 in 2^64): FNV-1a by words.
[[nodiscard]] std::uint64_t digest(std::span<const float> logits);

}  // namespace kvd::engine
