#include "kernels/attention/cpu_paged_attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace kvd::kernels {

Status CpuPagedAttention::check(std::span<const AttentionRows> batch) const {
  for (const AttentionRows& rows : batch) {
    const std::uint64_t covered = std::uint64_t{rows.slots.size()} * shape_.kv.block_tokens;
    if (rows.first <= covered && rows.rows <= covered - rows.first &&
        rows.layer_in_block < shape_.kv.layers_per_block) {
      continue;
    }
    return make_error(ErrorCode::kInvalidArgument,
                      "tokens " + std::to_string(rows.first) + " to " +
                          std::to_string(rows.first + rows.rows) + " do not fit into " +
                          std::to_string(covered) +
                          " tokens of blocks: take the blocks of the step that runs them");
  }
  return {};
}

const float* CpuPagedAttention::kv_row(const AttentionRows& rows, KvPart part,
                                       std::uint64_t position) const {
  const std::byte* slot = rows.slots[position / shape_.kv.block_tokens];
  const auto token = static_cast<std::uint32_t>(position % shape_.kv.block_tokens);
  return reinterpret_cast<const float*>(slot) + shape_.kv.offset(rows.layer_in_block, part, token);
}

Status CpuPagedAttention::store(std::span<const AttentionRows> batch) {
  KVD_TRY(check(batch));
  const std::size_t width = shape_.kv.row();
  for (const AttentionRows& rows : batch) {
    for (std::uint32_t row = 0; row < rows.rows; ++row) {
      const auto put = [&](KvPart part, const float* from) {
        auto* to = const_cast<float*>(kv_row(rows, part, rows.first + row));
        std::memcpy(to, from + row * width, width * sizeof(float));
      };
      put(KvPart::kKey, rows.keys);
      put(KvPart::kValue, rows.values);
    }
  }
  return {};
}

/// softmax(query . keys / sqrt(head_dim)) . values, summed from the first position to the last.
void CpuPagedAttention::attend_head(const AttentionRows& rows, std::uint32_t row,
                                    std::uint32_t head, std::span<float> scores) const {
  const std::size_t dim = shape_.kv.head_dim;
  const std::size_t kv_offset = head / (shape_.heads / shape_.kv.kv_heads) * dim;
  const std::size_t at = (std::size_t{row} * shape_.heads + head) * dim;
  const std::uint64_t count = rows.first + row + 1;
  const float scale = 1.0F / std::sqrt(static_cast<float>(dim));

  float highest = -INFINITY;
  for (std::uint64_t i = 0; i < count; ++i) {
    const float* key = kv_row(rows, KvPart::kKey, i) + kv_offset;
    scores[i] = math_.dot(rows.queries + at, key, dim) * scale;
    highest = std::max(highest, scores[i]);
  }
  float* out = rows.out + at;
  std::fill_n(out, dim, 0.0F);
  float weights = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const float weight = std::exp(scores[i] - highest);
    weights += weight;
    math_.add_scaled(out, kv_row(rows, KvPart::kValue, i) + kv_offset, weight, dim);
  }
  for (std::size_t d = 0; d < dim; ++d) out[d] /= weights;
}

Status CpuPagedAttention::attend(std::span<const AttentionRows> batch) {
  KVD_TRY(check(batch));
  for (const AttentionRows& rows : batch) {
    constexpr std::uint64_t kWorthAThread = 1 << 15;  // multiplications, about 10 us
    const std::uint64_t reach = rows.first + rows.rows;
    const std::uint64_t grain = kWorthAThread / (reach * shape_.kv.head_dim + 1) + 1;
    workers_.run(std::size_t{rows.rows} * shape_.heads, grain,
                 [&](std::size_t begin, std::size_t end) {
                   std::vector<float> scores(reach);
                   for (std::size_t i = begin; i < end; ++i) {
                     attend_head(rows, static_cast<std::uint32_t>(i / shape_.heads),
                                 static_cast<std::uint32_t>(i % shape_.heads), scores);
                   }
                 });
  }
  return {};
}

}  // namespace kvd::kernels
