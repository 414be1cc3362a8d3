#pragma once

#include "planner/policy/admission/admission.hpp"
#include "planner/policy/admission/layerkv.hpp"

namespace kvd::planner {

/// A prompt enters when the blocks of all its layers are free and a hundredth of memory stays free
/// beyond them. The first that does not fit stops the rest.
/// Source: vLLM's block manager (can_allocate with its watermark), LayerKV's baseline.
class WholeRequestPolicy final : public AdmissionPolicy {
 public:
  static constexpr double kWatermark = 0.01;
  [[nodiscard]] std::string_view name() const override { return "whole_request"; }
  [[nodiscard]] AdmissionTraits traits() const override { return {.counts_evictable = true}; }
  [[nodiscard]] Result<AdmissionDecision> decide(const AdmissionSnapshot& snapshot) const override;
};

/// A prompt enters while the memory that all need at the worst moment to come stays within
/// capacity. With the requests sorted by tokens still to come, the most first, that memory is the
/// largest of remaining_i * i + tokens held by the first i.
/// Source: LightLLM's past-future scheduler (Gong et al. 2025). Lengths come with the snapshot.
class PastFuturePolicy final : public AdmissionPolicy {
 public:
  [[nodiscard]] std::string_view name() const override { return "past_future"; }
  [[nodiscard]] Result<AdmissionDecision> decide(const AdmissionSnapshot& snapshot) const override;
};

/// LayerKV as printed: one request past saving blocks every prefill until it ends.
/// Source: LayerKV Algorithm 1.
class LayerKvLiteralPolicy final : public LayerKvPolicy {
 public:
  [[nodiscard]] std::string_view name() const override { return "layerkv_literal"; }

 private:
  [[nodiscard]] bool counts(Seconds /*allowance*/) const override { return true; }
};

}  // namespace kvd::planner
