#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "planner/policy/admission/admission_guards.hpp"
#include "planner/policy/rotation.hpp"

namespace kvd::planner {

/// "lvf+guards": the rotation policy asks for the guard of steps; "none+guards": the admission
/// policy keeps it. All policies of these two decisions have such a second name.
[[nodiscard]] std::string with_guards(std::string_view policy);
/// The name without "+guards", or unchanged where it has none.
[[nodiscard]] std::string_view without_guards(std::string_view policy);

/// Keeps the guard for a policy that does not know it: fewer prompts are admitted where a step
/// would outlast S_B, and prefill comes in chunks. Without a guard in the snapshot nothing changes.
void keep_guard(const AdmissionSnapshot& snapshot, AdmissionDecision& decision);

/// Another rotation policy together with the guard of steps (RotationTraits::guards_steps): prompts
/// are held back, and prefill comes in chunks, so that a step stays within the goal between tokens.
/// It decides as the other policy does. It serves comparisons: the guard comes from no paper, so a
/// baseline may have it as well as `unified`.
/// Source: kvd; MODEL.md "Who may prefill" (guard).
class GuardedPolicy final : public RotationPolicy {
 public:
  explicit GuardedPolicy(std::unique_ptr<RotationPolicy> bare)
      : bare_(std::move(bare)), name_(with_guards(bare_->name())) {}

  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] RotationTraits traits() const override {
    RotationTraits traits = bare_->traits();
    traits.guards_steps = true;
    return traits;
  }
  [[nodiscard]] const RotationDecision& decide(const RotationSnapshot& snapshot, Seconds now,
                                               const RotationConfig& config) override {
    return bare_->decide(snapshot, now, config);
  }

 private:
  std::unique_ptr<RotationPolicy> bare_;
  std::string name_;
};

/// Another admission policy that keeps the guard it is given (AdmissionSnapshot::guard), which all
/// but layerkv ignore: fewer prompts enter where a step would outlast the goal between tokens.
class GuardedAdmission final : public AdmissionPolicy {
 public:
  explicit GuardedAdmission(std::unique_ptr<AdmissionPolicy> bare)
      : bare_(std::move(bare)), name_(with_guards(bare_->name())) {}

  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] AdmissionTraits traits() const override { return bare_->traits(); }
  [[nodiscard]] Result<AdmissionDecision> decide(const AdmissionSnapshot& snapshot) const override {
    KVD_ASSIGN_OR_RETURN(auto decision, bare_->decide(snapshot));
    keep_guard(snapshot, decision);
    return decision;
  }

 private:
  std::unique_ptr<AdmissionPolicy> bare_;
  std::string name_;
};

}  // namespace kvd::planner
