#include "kvd/ctl/doctor/load.hpp"

#include <algorithm>
#include <map>
#include <string>

#include "kvd/ctl/cells.hpp"

namespace kvd::ctl::doctor {
namespace {

using Document = cells::Json;
using cells::text;

constexpr const char* kLoad = "load";

/// Requests of an engine that wait although their goal has passed.
struct Late {
  std::map<std::string, int> by_reason;
  int count = 0;
  double longest_s = 0;
};

std::map<std::uint64_t, Late> late_by_engine(const Document& requests) {
  std::map<std::uint64_t, Late> all;
  for (const Document& r : requests) {
    if (r.at("waits_for").is_null() || r.at("late_s").is_null()) continue;
    const auto late_s = r.at("late_s").get<double>();
    if (late_s <= 0) continue;
    Late& late = all[r.at("engine").get<std::uint64_t>()];
    ++late.by_reason[text(r.at("waits_for"))];
    ++late.count;
    late.longest_s = std::max(late.longest_s, late_s);
  }
  return all;
}

std::string most_frequent(const Late& late) {
  const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
  return std::max_element(late.by_reason.begin(), late.by_reason.end(), fewer)->first;
}

double hbm_of(const Document& engine) {
  return engine.at("hbm_bytes").get<double>() + engine.at("region_bytes").get<double>();
}

std::string title_of(const Document& engine) {
  return "engine " + text(engine.at("id")) + " (" + text(engine.at("name")) + ", domain " +
         text(engine.at("domain")) + ")";
}

/// What to turn where requests of `engine` wait for that; `holder` has the most HBM.
std::string remedy(const std::string& reason, const Document& engine, const Document& holder) {
  static const std::map<std::string, std::string> kBy = {
      {"step", "its steps are long: fewer requests at a time (engine.max_requests)"},
      {"silent", "look at its process; kvd ends it after engine.evict_after"},
      {"dram", "a larger pool.dram"},
      {"held_back", "kvdctl policy set admission.policy=none lets prompts begin at once"},
      {"seats", "more seats in the engine itself, or another engine"},
      {"copy", "a larger rotation.b_xfer (kvdctl policy set); a larger pool.hbm rotates less"},
      {"disk", "kvdctl policy set load.policy=never where computing is faster"},
      {"forced", "kvdctl events says who took it out"},
      {"drained", "kvdctl drain --cancel"},
      {"ends", "a larger pool.dram, or a higher maximum for its domain (kvdctl quota set)"}};
  if (const auto found = kBy.find(reason); found != kBy.end()) return found->second;
  const std::string own = text(engine.at("domain")), other = text(holder.at("domain"));
  if (own != other) {
    return "kvdctl quota set " + own + ".hbm.guarantee_bytes=N, or " + other +
           ".hbm.maximum_bytes=N; or goals that say what is urgent: kvdctl slo set";
  }
  return "goals that say what is urgent (kvdctl slo set), fewer requests at a time, or a larger "
         "pool.hbm";
}

Finding finding_of(const Document& engine, const Late& late, const Document& holder,
                   const Document& hbm) {
  const std::string reason = most_frequent(late);
  const std::string whose = engine.at("id") == holder.at("id")
                                ? "it holds the most HBM itself, "
                                : title_of(holder) + " holds the most HBM, ";
  return {kLoad, Severity::kWarning,
          title_of(engine) + ": " + std::to_string(late.count) +
              " requests wait past their goal, up to " + seconds_text(late.longest_s) +
              "; most because " + std::string(wait_sentence(reason)) + " (" +
              std::to_string(late.by_reason.at(reason)) + "); " + whose +
              bytes_text(hbm_of(holder)) + " of " + cells::bytes(hbm.at("capacity_bytes")) +
              ", and " + cells::bytes(hbm.at("available_bytes")) + " are available",
          remedy(reason, engine, holder)};
}

std::vector<Finding> findings_of(const Document& overview) {
  const Document& engines = overview.at("engines").at("engines");
  const Document& hbm = overview.at("status").at("pools").at(0);
  const auto late = late_by_engine(overview.at("requests").at("requests"));
  std::vector<Finding> findings;
  const auto holder =
      std::max_element(engines.begin(), engines.end(),
                       [](const Document& a, const Document& b) { return hbm_of(a) < hbm_of(b); });
  for (const Document& engine : engines) {
    const auto found = late.find(engine.at("id").get<std::uint64_t>());
    if (found == late.end()) continue;
    findings.push_back(finding_of(engine, found->second, *holder, hbm));
  }
  if (findings.empty()) {
    findings.push_back({kLoad, Severity::kOk, "no request waits past its goal", ""});
  }
  return findings;
}

}  // namespace

Result<std::vector<Finding>> diagnose_load(std::string_view overview) {
  try {
    return findings_of(Document::parse(overview));
  } catch (const Document::exception& error) {
    return make_error(ErrorCode::kInvalidArgument,
                      std::string("the daemon's answer is not what this kvdctl knows (") +
                          error.what() + "); use the daemon's kvdctl");
  }
}

}  // namespace kvd::ctl::doctor
