#pragma once

#include <cstdint>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "planner/model/seconds.hpp"

namespace kvd::planner {

/// What prefilling and offloading cost, after LayerKV eq. 3 and 4. alpha and beta, which the paper
/// does not give, absorb what the formulas leave out; measure them.
struct PrefillCosts {
  std::int32_t layers = 1;
  double alpha = 1;
  double beta = 1;
  double flops_per_s = 1;
  BytesPerSecond link;
  double params = 0;
  double hidden = 0;
  std::int32_t kv_heads = 1;
  std::int32_t head_dim = 1;
  std::int32_t precision_bytes = 2;
  /// Share of the link that others use, 0..1 (all-reduce without NVLink): offloading gets the rest.
  double link_busy = 0;

  /// Eq. 3.
  [[nodiscard]] Seconds prefill(Tokens tokens) const;
  /// The time for the next `tokens` of a prompt that has `done` behind it.
  [[nodiscard]] Seconds prefill_part(Tokens done, Tokens tokens) const;
  /// The most further tokens of a prompt, up to `most`, that prefill within `time`.
  [[nodiscard]] Tokens tokens_within(Seconds time, Tokens done, Tokens most) const;
  /// Eq. 4 with KV heads: moving all layers but `retained` to DRAM.
  [[nodiscard]] Seconds offload(Tokens tokens, std::int32_t retained) const;
  /// The fewest layers kept in HBM so that offloading hides behind prefill.
  [[nodiscard]] std::int32_t retained_layers(Tokens tokens) const;
};

/// Errors: InvalidArgument naming the rate or size that is out of range.
[[nodiscard]] Status check(const PrefillCosts& costs);

}  // namespace kvd::planner
