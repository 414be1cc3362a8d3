#pragma once

#include "planner/policy/admission.hpp"

namespace kvd::planner {

/// LayerKV's SLO-aware admission: the longest prefix of the queue whose prefill time stays below
/// the least allowance of the decoding requests. With `memory` a prompt also needs room for the
/// layers it retains, which the forecast and the second stage of offloading provide; with `guard`
/// the predicted step stays below S_B and prefill comes in chunks.
/// Source: LayerKV Algorithm 1, eq. 1-5; the guard is kvd's.
class LayerKvPolicy final : public AdmissionPolicy {
 public:
  enum class Hopeless {
    /// As printed: one request past saving blocks every prefill until it ends.
    kCounts,
    /// It is left out of the minimum, because waiting for it would save no request.
    kLeftOut,
  };
  explicit LayerKvPolicy(Hopeless hopeless) : hopeless_(hopeless) {}
  [[nodiscard]] std::string_view name() const override {
    return hopeless_ == Hopeless::kLeftOut ? "layerkv" : "layerkv_literal";
  }
  [[nodiscard]] AdmissionTraits traits() const override { return {.prefills_layerwise = true}; }
  [[nodiscard]] Result<AdmissionDecision> decide(const AdmissionSnapshot& snapshot) const override;

 private:
  [[nodiscard]] std::optional<Seconds> least_allowance(const AdmissionSnapshot& snapshot) const;
  Hopeless hopeless_;
};

}  // namespace kvd::planner
