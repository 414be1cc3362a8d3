#include "kvd/core/door/tuning_keys.hpp"

#include "ipc/vocabulary/check.hpp"

namespace kvd::core {
namespace {

constexpr double kMostWeight = 1e6;
constexpr double kMaxTransfer = 0x1p50;  ///< 1 PiB
constexpr std::string_view kOverload[] = {"goodput", "ttft"};
constexpr std::string_view kPacing[] = {"engine", "client"};

/// `at` maps a Tuning (const or not) to a reference to its field.
template <class T, class At>
constexpr TuningField<T> field(At at) {
  return {at, at};
}

const TuningKey kKeys[] = {
    {"rotation.policy", "who runs",
     "to put first tokens before all others (lvf), or for batch work (fcfs)",
     field<std::string>([](auto& t) -> auto& { return t.rotation.policy; })},
    {"rotation.alpha", "weight of a rotated-out request's lag",
     "with lvf, where answers pause too long: raise it",
     field<double>([](auto& t) -> auto& { return t.rotation.alpha; }), 0, kMostWeight},
    {"rotation.b_xfer", "bytes rotated a step, at most, or auto",
     "where copies slow steps down: lower it",
     field<std::optional<Bytes>>([](auto& t) -> auto& { return t.rotation.b_xfer; }), 1,
     kMaxTransfer},
    {"rotation.eager", "copy full blocks to DRAM ahead, in the background: true or false",
     "where copies slow engines down and requests seldom leave: false",
     field<bool>([](auto& t) -> auto& { return t.rotation.eager; })},
    {"rotation.overload", "whom unified serves where not all goals can be met: ttft or goodput",
     "where late first tokens are worse than late answers: ttft",
     field<std::string>([](auto& t) -> auto& { return t.rotation.overload; }), 0, 0, kOverload},
    {"rotation.pacing",
     "who shows tokens evenly, of engines that place their blocks: engine (nobody) or client",
     "where clients show a token each TBT goal, however it comes: client",
     field<std::string>([](auto& t) -> auto& { return t.rotation.pacing; }), 0, 0, kPacing},
    {"placement.policy", "which layers stay in HBM", "where no layer should stream: none",
     field<std::string>([](auto& t) -> auto& { return t.placement.policy; })},
    {"admission.policy", "who may prefill", "where nothing should be held back for a goal: none",
     field<std::string>([](auto& t) -> auto& { return t.admission.policy; })},
    {"load.policy", "whether prefixes found in DRAM or on disk are loaded",
     "where computing, or loading, is always faster: never, or always",
     field<std::string>([](auto& t) -> auto& { return t.load.policy; })},
};

}  // namespace

std::span<const TuningKey> tuning_keys() { return kKeys; }

std::span<const std::string_view> choices_of(const TuningKey& key,
                                             const planner::Catalogue& policies) {
  using planner::Decision;
  if (!key.choices.empty()) return key.choices;
  for (const Decision decision :
       {Decision::kRotation, Decision::kPlacement, Decision::kAdmission, Decision::kLoad}) {
    if (planner::name(decision) == key.table()) return policies.names(decision);
  }
  KVD_CHECK(false, "a text of the tuning has no choices");
  return {};
}

}  // namespace kvd::core
