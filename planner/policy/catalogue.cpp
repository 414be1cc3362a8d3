#include "planner/policy/catalogue.hpp"

#include <algorithm>

#include "planner/policy/admission/layerkv.hpp"
#include "planner/policy/fcfs.hpp"
#include "planner/policy/load.hpp"
#include "planner/policy/lvf.hpp"
#include "planner/policy/placement/orbitflow.hpp"
#include "planner/policy/unified.hpp"

namespace kvd::planner {
namespace {

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

/// All layers of every request stay in HBM. Source: kvd.
/// Owner: immutable.
class AllResidentPolicy final : public PlacementPolicy {
 public:
  [[nodiscard]] std::string_view name() const override { return "none"; }
  [[nodiscard]] PlacementTraits traits() const override { return {.streams = false}; }
  /// The bound that it gives is the compute time alone.
  [[nodiscard]] Result<PlacementDecision> decide(const PlacementSnapshot& snapshot,
                                                 const PlacementConfig& config,
                                                 const Clock& /*clock*/) const override {
    KVD_TRY(check(snapshot, config));
    return place_alike(snapshot, config, 0);
  }
};

template <class Policy>
auto make_new() {
  return [] { return std::make_unique<Policy>(); };
}

Catalogue make_stock() {
  Catalogue stock;
  stock.add_rotation("unified", make_new<UnifiedPolicy>());
  stock.add_rotation("lvf", make_new<LvfPolicy>());
  stock.add_rotation("fcfs", make_new<FcfsPolicy>());
  stock.add_placement("none", make_new<AllResidentPolicy>());
  stock.add_placement("orbitflow", make_new<OrbitFlowPolicy>());
  stock.add_admission("none", make_new<AdmitAllPolicy>());
  stock.add_admission("layerkv", make_new<LayerKvPolicy>());
  return stock;
}

}  // namespace

std::string_view name(Decision decision) {
  constexpr std::string_view kNames[] = {"rotation", "placement", "admission", "load"};
  return kNames[static_cast<std::size_t>(decision)];
}

void Catalogue::add_rotation(std::string_view name, Make<RotationPolicy> make) {
  names_[static_cast<std::size_t>(Decision::kRotation)].push_back(name);
  rotation_.emplace(name, std::move(make));
}

void Catalogue::add_placement(std::string_view name, Make<PlacementPolicy> make) {
  names_[static_cast<std::size_t>(Decision::kPlacement)].push_back(name);
  placement_.emplace(name, std::move(make));
}

void Catalogue::add_admission(std::string_view name, Make<AdmissionPolicy> make) {
  names_[static_cast<std::size_t>(Decision::kAdmission)].push_back(name);
  admission_.emplace(name, std::move(make));
}

void Catalogue::add_unlisted(std::string name, Make<RotationPolicy> make) {
  rotation_.emplace(std::move(name), std::move(make));
}

void Catalogue::add_unlisted(std::string name, Make<AdmissionPolicy> make) {
  admission_.emplace(std::move(name), std::move(make));
}

std::span<const std::string_view> Catalogue::names(Decision decision) const {
  if (decision == Decision::kLoad) return load_policy_names();
  return names_[static_cast<std::size_t>(decision)];
}

Status Catalogue::check(Decision decision, std::string_view policy) const {
  const auto loads = load_policy_names();
  const bool known = decision == Decision::kRotation    ? rotation_.contains(policy)
                     : decision == Decision::kPlacement ? placement_.contains(policy)
                     : decision == Decision::kAdmission
                         ? admission_.contains(policy)
                         : std::find(loads.begin(), loads.end(), policy) != loads.end();
  if (known) return {};
  return unknown(decision, policy);
}

template <class Policy>
Result<std::unique_ptr<Policy>> Catalogue::make(Decision decision, const Table<Policy>& table,
                                                std::string_view policy) const {
  const auto found = table.find(policy);
  if (found == table.end()) return unknown(decision, policy);
  return found->second();
}

Result<std::unique_ptr<RotationPolicy>> Catalogue::rotation(std::string_view policy) const {
  return make(Decision::kRotation, rotation_, policy);
}

Result<std::unique_ptr<PlacementPolicy>> Catalogue::placement(std::string_view policy) const {
  return make(Decision::kPlacement, placement_, policy);
}

Result<std::unique_ptr<AdmissionPolicy>> Catalogue::admission(std::string_view policy) const {
  return make(Decision::kAdmission, admission_, policy);
}

Error Catalogue::unknown(Decision decision, std::string_view policy) const {
  std::string message = "no " + std::string(kvd::planner::name(decision)) + " policy \"" +
                        std::string(policy) + "\"; available:";
  for (const auto known : names(decision)) message += " " + std::string(known);
  return make_error(ErrorCode::kInvalidArgument, std::move(message));
}

const Catalogue& stock_policies() {
  static const Catalogue kStock = make_stock();
  return kStock;
}

}  // namespace kvd::planner
