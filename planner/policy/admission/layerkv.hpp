#pragma once

#include "planner/policy/admission/admission.hpp"

namespace kvd::planner {

/// LayerKV's SLO-aware admission: the longest prefix of the queue whose prefill time stays below
/// the least allowance of the decoding requests. With `memory` a prompt also needs room for the
/// layers it retains, which the forecast and the second stage of offloading provide; with `guard`
/// the predicted step stays below S_B and prefill comes in chunks.
/// Source: LayerKV Algorithm 1, eq. 1-5; the guard is kvd's.
class LayerKvPolicy : public AdmissionPolicy {
 public:
  [[nodiscard]] std::string_view name() const override { return "layerkv"; }
  [[nodiscard]] AdmissionTraits traits() const override { return {.prefills_layerwise = true}; }
  [[nodiscard]] Result<AdmissionDecision> decide(const AdmissionSnapshot& snapshot) const override;

 private:
  [[nodiscard]] std::optional<Seconds> least_allowance(const AdmissionSnapshot& snapshot) const;
  /// Whether an allowance bounds prefill. One below zero does not: waiting for a request that is
  /// past saving would save no request.
  [[nodiscard]] virtual bool counts(Seconds allowance) const { return allowance >= Seconds{0}; }
};

}  // namespace kvd::planner
