#include "tests/lab/grid/class_verdict.hpp"

#include <algorithm>

#include "tests/lab/grid/verdict.hpp"

namespace kvd::sim::grid {
namespace {

using Json = nlohmann::ordered_json;

/// Figures of a class, by its name; zeros where none of its requests came or the policy got stuck.
Metrics figures_of(const Played& played, const std::string& name) {
  for (const PlayedClass& one : played.classes) {
    if (one.name == name) return one.mean;
  }
  return {};
}

struct Named {
  std::string policy;
  const Played* played = nullptr;
};

/// The run that a looser class is compared with: among the others that pass `keeps` the one that is
/// best for the class, or fcfs.
template <class Keeps>
Named best_other(const PlayedCell& played, const std::string& policy, const std::string& name,
                 Keeps keeps) {
  Named best;
  const auto joint = [&](const Played& of) { return figures_of(of, name).joint_attainment; };
  for (const auto& [other, of] : played) {
    if (other == policy || !of.fault.empty() || !keeps(of)) continue;
    if (best.played == nullptr || joint(of) > joint(*best.played)) best = {other, &of};
  }
  const auto fcfs = played.find("fcfs");
  if (best.played != nullptr || fcfs == played.end() || policy == "fcfs") return best;
  return {"fcfs", &fcfs->second};
}

void judge_tight(const Played& ours, const std::string& name, double tolerance,
                 ClassStanding& out) {
  const Metrics beside = figures_of(ours, name);
  out.tight_requests = beside.requests;
  out.alone = ours.alone->mean.joint_attainment;
  out.tight_load = ours.alone->load;
  out.tight = beside.joint_attainment;
  out.longest_gap_s = beside.longest_raw_gap_s;
  out.second_gaps = beside.second_gap_share;
  out.tight_behind = out.tight < out.alone - tolerance;
  if (out.tight_behind) out.cause["tight"] = cause_of(beside, ours.alone->mean);
}

void judge_tokens(const PlayedCell& played, const Played& ours, ClassStanding& out) {
  const auto fcfs = played.find("fcfs");
  const double reference = fcfs == played.end() ? 0 : fcfs->second.mean.throughput_tps;
  out.tokens = reference > 0 ? ours.mean.throughput_tps / reference : 1;
  out.slow = out.tokens < kLeastTokens;
  if (out.slow) out.cause["slow"] = cause_of(ours.mean, fcfs->second.mean);
}

void judge_loose(const PlayedCell& played, const std::string& policy, const std::string& tight,
                 double tolerance, ClassStanding& out) {
  const Played& ours = played.at(policy);
  const auto keeps = [&](const Played& other) {
    return figures_of(other, tight).joint_attainment >= out.alone - tolerance;
  };
  for (std::size_t i = 1; i < ours.classes.size(); ++i) {
    const auto& [name, mean] = ours.classes[i];
    LooseClass loose{name, mean.joint_attainment, 0, ""};
    if (const Named best = best_other(played, policy, name, keeps); best.played != nullptr) {
      const Metrics theirs = figures_of(*best.played, name);
      loose.best = theirs.joint_attainment;
      loose.best_policy = best.policy;
      if (loose.behind()) out.cause["loose: " + name] = cause_of(mean, theirs);
    }
    out.loose.push_back(std::move(loose));
  }
}

Json json_of(const ClassCounts& counts) {
  return {{"cells", counts.cells},
          {"tight", counts.tight},
          {"slow", counts.slow},
          {"loose", counts.loose},
          {"missed", counts.missed}};
}

Json json_of(const ClassStanding& standing) {
  Json loose = Json::array(), missed = Json::array();
  for (const LooseClass& one : standing.loose) {
    loose.push_back(
        {{"class", one.name}, {"j", one.j}, {"best", one.best}, {"best_policy", one.best_policy}});
  }
  if (standing.tight_behind) missed.push_back("tight");
  if (standing.slow) missed.push_back("slow");
  if (standing.loose_behind()) missed.push_back("loose");
  return {{"cell", standing.cell->id},
          {"setting", text_of(*standing.cell)},
          {"tight_load", standing.tight_load},
          {"fits", standing.fits()},
          {"tight_requests", standing.tight_requests},
          {"alone", standing.alone},
          {"tight", standing.tight},
          {"tokens", standing.tokens},
          {"longest_raw_gap_s", standing.longest_gap_s},
          {"second_gap_share", standing.second_gaps},
          {"loose", std::move(loose)},
          {"missed", std::move(missed)},
          {"cause", standing.cause}};
}

}  // namespace

bool ClassStanding::loose_behind() const {
  return std::any_of(loose.begin(), loose.end(),
                     [](const LooseClass& one) { return one.behind(); });
}

ClassStanding class_standing_of(const Cell& cell, const PlayedCell& played,
                                const std::string& policy, double tolerance) {
  const Played& ours = played.at(policy);
  ClassStanding out;
  out.cell = &cell;
  out.cause = Json::object();
  const std::string fault = ours.fault.empty() ? ours.alone->fault : ours.fault;
  if (!fault.empty() || ours.classes.empty()) {
    // A policy that gets stuck serves no request, with or without other classes.
    out.tight_load = ours.alone->load;
    out.tight_behind = out.slow = true;
    out.cause["fault"] = fault.empty() ? "no request came" : fault;
    return out;
  }
  const std::string tight = ours.classes.front().name;
  judge_tight(ours, tight, tolerance, out);
  judge_tokens(played, ours, out);
  judge_loose(played, policy, tight, tolerance, out);
  return out;
}

ClassCounts counts_of(const std::vector<ClassStanding>& cells, bool fits) {
  ClassCounts out;
  for (const ClassStanding& standing : cells) {
    if (standing.fits() != fits) continue;
    ++out.cells;
    out.tight += standing.tight_behind;
    out.slow += standing.slow;
    out.loose += standing.loose_behind();
    out.missed += standing.missed();
  }
  return out;
}

Json json_of(const std::vector<ClassStanding>& cells) {
  Json list = Json::array();
  for (const ClassStanding& standing : cells) list.push_back(json_of(standing));
  return {{"fits", json_of(counts_of(cells, true))},
          {"others", json_of(counts_of(cells, false))},
          {"cells", std::move(list)}};
}

}  // namespace kvd::sim::grid
