#include "kvd/core/door/tuning_keys.hpp"

#include <type_traits>
#include <utility>

#include "ipc/vocabulary/check.hpp"

namespace kvd::core {
namespace {

constexpr double kMostWeight = 1e6;
constexpr double kMaxLag = 100;          ///< of a goal
constexpr double kMaxTransfer = 0x1p50;  ///< 1 PiB
constexpr std::string_view kOverload[] = {"ttft", "goodput"};
constexpr std::string_view kPacing[] = {"engine", "client"};

/// The field `Member` of the table `Table`.
template <auto Table, auto Member>
constexpr auto field() {
  using T = std::decay_t<decltype(std::declval<Tuning&>().*Table.*Member)>;
  return TuningField<T>{[](Tuning& t) -> T& { return t.*Table.*Member; },
                        [](const Tuning& t) -> const T& { return t.*Table.*Member; }};
}

const TuningKey kKeys[] = {
    {"rotation.policy", "who runs",
     "to put first tokens before all others (lvf), or for batch work (fcfs)",
     field<&Tuning::rotation, &RotationTuning::policy>()},
    {"rotation.alpha", "weight of a rotated-out request's lag",
     "with lvf, where answers pause too long: raise it",
     field<&Tuning::rotation, &RotationTuning::alpha>(), 0, kMostWeight},
    {"rotation.beta_b", "a rotated-out request lags from beta_b x its TBT goal on",
     "with lvf, where answers pause too long: lower it, below 0 too",
     field<&Tuning::rotation, &RotationTuning::beta_b>(), -kMaxLag, kMaxLag},
    {"rotation.beta_f", "a waiting request lags from beta_f x its TTFT goal on",
     "where first tokens come too late: lower it",
     field<&Tuning::rotation, &RotationTuning::beta_f>(), -kMaxLag, kMaxLag},
    {"rotation.b_xfer", "bytes rotated a step, at most, or auto",
     "where copies slow steps down: lower it", field<&Tuning::rotation, &RotationTuning::b_xfer>(),
     1, kMaxTransfer},
    {"rotation.eager", "copy full blocks to DRAM ahead, in the background: true or false",
     "where copies slow engines down and requests seldom leave: false",
     field<&Tuning::rotation, &RotationTuning::eager>()},
    {"rotation.overload", "whom unified serves where not all goals can be met: ttft or goodput",
     "where late first tokens are worse than late answers: ttft",
     field<&Tuning::rotation, &RotationTuning::overload>(), 0, 0, kOverload},
    {"rotation.pacing",
     "who shows tokens evenly, of engines that place their blocks: engine (nobody) or client",
     "where clients show a token each TBT goal, however it comes: client",
     field<&Tuning::rotation, &RotationTuning::pacing>(), 0, 0, kPacing},
    {"placement.policy", "which layers stay in HBM", "where no layer should stream: none",
     field<&Tuning::placement, &PlacementTuning::policy>()},
    {"admission.policy", "who may prefill", "where nothing should be held back for a goal: none",
     field<&Tuning::admission, &AdmissionTuning::policy>()},
    {"load.policy", "whether prefixes found in DRAM or on disk are loaded",
     "where computing, or loading, is always faster: never, or always",
     field<&Tuning::load, &LoadTuning::policy>()},
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
