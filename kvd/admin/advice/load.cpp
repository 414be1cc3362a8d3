#include "kvd/admin/advice/load.hpp"

#include <algorithm>
#include <map>

#include "ipc/vocabulary/human.hpp"
#include "ipc/vocabulary/wait_reason.hpp"
#include "kvd/admin/json.hpp"

namespace kvd::admin {
namespace {

using core::EngineStatus;

/// Requests of an engine that wait although their goal has passed.
struct Late {
  std::map<WaitReason, int> by_reason;
  int count = 0;
  double longest_s = 0;
};

std::map<EngineId, Late> late_by_engine(const std::vector<core::RequestStatus>& requests) {
  std::map<EngineId, Late> all;
  for (const core::RequestStatus& r : requests) {
    const double late_s = r.goals.late_s.value_or(0);
    if (r.waits_for == WaitReason::kNone || late_s <= 0) continue;
    Late& late = all[r.key.engine];
    ++late.by_reason[r.waits_for];
    ++late.count;
    late.longest_s = std::max(late.longest_s, late_s);
  }
  return all;
}

Bytes hbm_of(const EngineStatus& engine) { return engine.hbm + engine.region; }

std::string title_of(const EngineStatus& engine) {
  return "engine " + std::to_string(engine.id.value) + " (" + engine.name + ", domain " +
         engine.domain + ")";
}

/// What to turn where requests of `engine` wait for that; `holder` has the most HBM.
std::string remedy(WaitReason reason, const EngineStatus& engine, const EngineStatus& holder) {
  static const std::map<WaitReason, std::string> kBy = {
      {WaitReason::kStep, "its steps are long: fewer requests at a time (engine.max_requests)"},
      {WaitReason::kSilent, "look at its process; kvd ends it after engine.evict_after"},
      {WaitReason::kDram, "a larger pool.dram"},
      {WaitReason::kHeldBack, "kvdctl policy set admission.policy=none lets prompts begin at once"},
      {WaitReason::kSeats, "more seats in the engine itself, or another engine"},
      {WaitReason::kCopy,
       "a larger rotation.b_xfer (kvdctl policy set); a larger pool.hbm rotates less"},
      {WaitReason::kDisk, "kvdctl policy set load.policy=never where computing is faster"},
      {WaitReason::kForced, "kvdctl events says who took it out"},
      {WaitReason::kDrained, "kvdctl drain --cancel"},
      {WaitReason::kEnds,
       "a larger pool.dram, or a higher maximum for its domain (kvdctl quota set)"}};
  if (const auto found = kBy.find(reason); found != kBy.end()) return found->second;
  if (engine.domain != holder.domain) {
    return "kvdctl quota set " + engine.domain + ".hbm.guarantee_bytes=N, or " + holder.domain +
           ".hbm.maximum_bytes=N; or goals that say what is urgent: kvdctl slo set";
  }
  return "goals that say what is urgent (kvdctl slo set), fewer requests at a time, or a larger "
         "pool.hbm";
}

Json finding_of(const EngineStatus& engine, const Late& late, const EngineStatus& holder,
                const core::ControllerStatus& status) {
  const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto [reason, count] =
      *std::max_element(late.by_reason.begin(), late.by_reason.end(), fewer);
  const std::string whose = engine.id == holder.id ? "it holds the most HBM itself, "
                                                   : title_of(holder) + " holds the most HBM, ";
  const auto longest = std::chrono::duration<double>(late.longest_s);
  return {{"engine", engine.id.value},
          {"text", title_of(engine) + ": " + std::to_string(late.count) +
                       " requests wait past their goal, up to " +
                       human_time(std::chrono::duration_cast<Nanoseconds>(longest)) +
                       "; most because " + std::string(wait_sentence(name(reason))) + " (" +
                       std::to_string(count) + "); " + whose + human_size(hbm_of(holder)) + " of " +
                       human_size(status.tiers[0].capacity) + ", and " +
                       human_size(status.tiers[0].free + status.cached[0]) + " are available"},
          {"remedy", remedy(reason, engine, holder)}};
}

}  // namespace

std::string load_document(const core::ControllerStatus& status) {
  const auto& engines = status.engines;
  const auto late = late_by_engine(status.requests);
  const auto holder = std::max_element(
      engines.begin(), engines.end(),
      [](const EngineStatus& a, const EngineStatus& b) { return hbm_of(a) < hbm_of(b); });
  Json findings = Json::array();
  for (const EngineStatus& engine : engines) {
    const auto found = late.find(engine.id);
    if (found != late.end()) findings.push_back(finding_of(engine, found->second, *holder, status));
  }
  return to_text({{"findings", std::move(findings)}});
}

}  // namespace kvd::admin
