#pragma once

#include "planner/policy/admission/admission.hpp"

namespace kvd::planner {

/// Every prompt may prefill whole. Source: kvd.
class AdmitAllPolicy final : public AdmissionPolicy {
 public:
  [[nodiscard]] std::string_view name() const override { return "none"; }
  [[nodiscard]] Result<AdmissionDecision> decide(const AdmissionSnapshot& snapshot) const override {
    KVD_TRY(check(snapshot));
    auto decision = begin_admission(snapshot, all_layers(snapshot));
    decision.admitted = snapshot.queue.size();
    return decision;
  }
};

}  // namespace kvd::planner
