#pragma once

#include <memory>
#include <string>
#include <utility>

#include "planner/policy/catalogue.hpp"

namespace kvd::planner {

/// Another rotation policy with the guard of steps beside it (RotationTraits::guards_steps):
/// prompts are held back, and prefill comes in chunks, so that a step stays within the goal between
/// tokens. It decides as the other does. For comparisons: the guard is no paper's idea, so a
/// baseline may have it as well as `unified`. Source: kvd; MODEL.md "Who may prefill" (guard).
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

}  // namespace kvd::planner
