#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

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

  /// Eq. 3.
  [[nodiscard]] Seconds prefill(Tokens tokens) const;
  /// Eq. 4 with KV heads: moving all layers but `retained` to DRAM.
  [[nodiscard]] Seconds offload(Tokens tokens, std::int32_t retained) const;
  /// The fewest layers kept in HBM so that offloading hides behind prefill.
  [[nodiscard]] std::int32_t retained_layers(Tokens tokens) const;
};

struct DecodingRequest {
  Seconds tpot_slo{0};
  std::int64_t n_past = 0;
  Seconds t_past{0};
  /// Tokens still to come, at least 1.
  std::int64_t n_future = 1;
  /// Time per token now.
  Seconds tpot{0};

  /// Eq. 1 and 2: how long this request can do without a decode step and still meet its SLO.
  [[nodiscard]] Seconds allowance() const;
};

struct AdmissionSnapshot {
  PrefillCosts costs;
  std::vector<DecodingRequest> decoding;
  /// Prompt lengths in order of arrival.
  std::vector<Tokens> queue;
};

/// Which prompts may prefill now: the first `admitted` of the queue. The vectors cover all of it.
struct AdmissionDecision {
  std::size_t admitted = 0;
  /// Nothing where nobody's SLO bounds prefill.
  std::optional<Seconds> allow_prefill;
  std::vector<Seconds> prefill;
  std::vector<std::int32_t> retained_layers;
  std::vector<Seconds> offload;
};

/// Decides who may prefill: a pure function of the snapshot.
class AdmissionPolicy {
 public:
  virtual ~AdmissionPolicy() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Errors: InvalidArgument for rates, sizes or times that are not finite and in range.
  [[nodiscard]] virtual Result<AdmissionDecision> decide(
      const AdmissionSnapshot& snapshot) const = 0;
};

/// LayerKV's SLO-aware admission: the longest prefix of the queue whose prefill time stays below
/// the least allowance of the decoding requests. Source: LayerKV Algorithm 1, eq. 1-4 (LK-1 to
/// LK-4).
class LayerKvPolicy final : public AdmissionPolicy {
 public:
  enum class Hopeless {
    /// As printed: one request past saving blocks every prefill until it ends.
    kCounts,
    /// It is left out of the minimum; waiting for it would save nobody.
    kLeftOut,
  };
  explicit LayerKvPolicy(Hopeless hopeless) : hopeless_(hopeless) {}
  [[nodiscard]] std::string_view name() const override {
    return hopeless_ == Hopeless::kLeftOut ? "layerkv" : "layerkv_literal";
  }
  [[nodiscard]] Result<AdmissionDecision> decide(const AdmissionSnapshot& snapshot) const override;

 private:
  [[nodiscard]] std::optional<Seconds> least_allowance(const AdmissionSnapshot& snapshot) const;
  Hopeless hopeless_;
};

/// Everybody may prefill whole.
class AdmitAllPolicy final : public AdmissionPolicy {
 public:
  [[nodiscard]] std::string_view name() const override { return "none"; }
  [[nodiscard]] Result<AdmissionDecision> decide(const AdmissionSnapshot& snapshot) const override;
};

}  // namespace kvd::planner
