#pragma once

#include "kernels/attention/paged_attention.hpp"
#include "kernels/attention/vector_math.hpp"
#include "kernels/attention/workers.hpp"

namespace kvd::kernels {

/// The reference: on the CPU, over slots in this process's memory.
class CpuPagedAttention final : public PagedAttention {
 public:
  /// `workers` outlives it. Precondition: shape.heads is a multiple of shape.kv.kv_heads.
  CpuPagedAttention(const AttentionShape& shape, Workers& workers)
      : shape_(shape), workers_(workers) {}

  Status store(std::span<const AttentionRows> batch) override;
  Status attend(std::span<const AttentionRows> batch) override;

 private:
  [[nodiscard]] Status check(std::span<const AttentionRows> batch) const;
  [[nodiscard]] const float* kv_row(const AttentionRows& rows, KvPart part,
                                    std::uint64_t position) const;
  void attend_head(const AttentionRows& rows, std::uint32_t row, std::uint32_t head,
                   std::span<float> scores) const;

  const AttentionShape shape_;
  Workers& workers_;
  const VectorMath& math_ = vector_math();
};

}  // namespace kvd::kernels
