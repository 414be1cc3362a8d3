#include "planner/baselines/all_policies.hpp"

#include "planner/baselines/admission_baselines.hpp"
#include "planner/baselines/guarded.hpp"
#include "planner/baselines/length_policy.hpp"
#include "planner/baselines/queue_policy.hpp"
#include "planner/baselines/uniform_placement.hpp"

namespace kvd::planner {
namespace {

void add_rotations(Catalogue& all) {
  const auto queue = [&](std::string_view name, QueueRule rule) {
    all.add_rotation(name, [=] { return std::make_unique<QueuePolicy>(name, rule); });
  };
  const auto by_length = [&](std::string_view name, LengthRule rule) {
    all.add_rotation(name, [=] { return std::make_unique<LengthPolicy>(name, rule); });
  };
  queue("si_code", QueueRule::kSiCode);
  queue("waiting_first", QueueRule::kWaitingFirst);
  queue("swapped_first", QueueRule::kSwappedFirst);
  by_length("srtf", LengthRule::kSrtf);
  by_length("ltr", LengthRule::kLtr);
  by_length(kOraclePolicy, LengthRule::kSjfOracle);
}

void add_placements(Catalogue& all) {
  const auto uniform = [&](std::string_view name, UniformRule rule) {
    all.add_placement(name, [=] { return std::make_unique<UniformPlacementPolicy>(name, rule); });
  };
  uniform("deepspeed", UniformRule::kDeepSpeed);
  uniform("flexgen", UniformRule::kFlexGen);
  uniform("flexgen_plus", UniformRule::kFlexGenPlus);
  uniform("dynamic_heuristic", UniformRule::kDynamicHeuristic);
  uniform("slo_aware", UniformRule::kSloAware);
  uniform("batch_uniform", UniformRule::kBatchUniform);
}

void add_admissions(Catalogue& all) {
  all.add_admission("layerkv_literal", [] { return std::make_unique<LayerKvLiteralPolicy>(); });
  all.add_admission("whole_request", [] { return std::make_unique<WholeRequestPolicy>(); });
  all.add_admission("past_future", [] { return std::make_unique<PastFuturePolicy>(); });
}

void add_guarded(Catalogue& all) {
  const Catalogue bare = all;
  for (const std::string_view name : bare.names(Decision::kRotation)) {
    all.add_unlisted(with_guards(name), [bare, name]() -> std::unique_ptr<RotationPolicy> {
      return std::make_unique<GuardedPolicy>(bare.rotation(name).value());
    });
  }
  for (const std::string_view name : bare.names(Decision::kAdmission)) {
    all.add_unlisted(with_guards(name), [bare, name]() -> std::unique_ptr<AdmissionPolicy> {
      return std::make_unique<GuardedAdmission>(bare.admission(name).value());
    });
  }
}

Catalogue make_all() {
  Catalogue all = stock_policies();
  add_rotations(all);
  add_placements(all);
  add_admissions(all);
  add_guarded(all);
  return all;
}

}  // namespace

const Catalogue& all_policies() {
  static const Catalogue kAll = make_all();
  return kAll;
}

}  // namespace kvd::planner
