#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ipc/vocabulary/result.hpp"
#include "kernels/attention/kv_layout.hpp"

namespace kvd::kernels {

struct AttentionShape {
  KvLayout kv;
  std::uint32_t heads = 1;  ///< of queries; a multiple of kv.kv_heads
};

/// Consecutive tokens of one request in one layer. Arrays are row-major, one row a token.
struct AttentionRows {
  /// The slots that hold this layer, in token order: block b has tokens [b, b + 1) x block_tokens.
  /// They may stand anywhere.
  std::span<std::byte* const> slots;
  std::uint32_t layer_in_block = 0;
  std::uint64_t first = 0;  ///< position of row 0 in the request; all before it are in the slots
  std::uint32_t rows = 0;
  const float* queries = nullptr;  ///< rows x heads x head_dim
  const float* keys = nullptr;     ///< rows x kv_heads x head_dim, as are values
  const float* values = nullptr;
  float* out = nullptr;  ///< rows x heads x head_dim
};

/// Causal grouped-query attention over block tables; a device's kernel stands behind this
/// interface.
///
/// The result of a row depends on its query and on the keys and values before it, bit for bit, and
/// on nothing else: not on the batch, the chunking of a prompt, where blocks stand, or threads. So
/// an engine's logits are the same for every placement and rotation schedule.
/// Source: vLLM's paged attention, as two passes (scores, then values) in a fixed order of
/// summation.
/// Owner:  one thread at a time.
/// Errors: InvalidArgument when the slots do not cover the rows; nothing is written then.
class PagedAttention {
 public:
  virtual ~PagedAttention() = default;
  PagedAttention() = default;
  PagedAttention(const PagedAttention&) = delete;
  PagedAttention& operator=(const PagedAttention&) = delete;

  /// Puts the rows' keys and values into their slots.
  virtual Status store(std::span<const AttentionRows> batch) = 0;
  /// Each row attends to its own position and all before it, read from the slots.
  virtual Status attend(std::span<const AttentionRows> batch) = 0;
};

}  // namespace kvd::kernels
