#include "tests/lab/grid/play.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "kvd/sim/run/inputs.hpp"
#include "kvd/sim/run/knee.hpp"
#include "kvd/sim/run/parts.hpp"
#include "kvd/sim/workload/announce.hpp"
#include "kvd/sim/workload/merge.hpp"
#include "kvd/sim/world/configuration.hpp"
#include "tests/lab/grid/classes.hpp"

namespace kvd::sim::grid {
namespace {

constexpr std::uint64_t kFarApart = 1'000'003;

Status add_engines(const Cell& cell, Setting& setting) {
  for (const std::string& name : cell.profiles) {
    EngineSetting engine;
    KVD_ASSIGN_OR_RETURN(engine.profile, load_profile(name));
    setting.engines.push_back(std::move(engine));
  }
  return {};
}

Result<Workload> arrivals_of(const Cell& cell, double rate, std::uint64_t seed) {
  const std::size_t engines = cell.profiles.size();
  std::vector<EngineWorkload> parts(engines);
  for (std::size_t i = 0; i < engines; ++i) {
    WorkloadOptions options;
    options.seed = seed + kFarApart * i;
    options.rate = engine_rate(cell, i, rate);
    options.duration = Seconds(cell.lengths.duration_s);
    options.cv = cell.cv;
    KVD_ASSIGN_OR_RETURN(parts[i].requests, make_workload(cell.lengths.source, options));
    KVD_TRY(set_engine_goals(cell, i, options.seed, parts[i].requests));
  }
  return merged(parts);
}

/// Half of what HBM holds, for each engine.
Result<std::vector<Tokens>> contexts_of(const Setting& setting) {
  std::vector<Tokens> contexts;
  for (std::size_t i = 0; i < setting.engines.size(); ++i) {
    KVD_ASSIGN_OR_RETURN(const Tokens most, most_tokens(setting, i));
    contexts.emplace_back(most.value / 2);
  }
  return contexts;
}

void shorten(Arrival& arrival, Tokens most) {
  const Tokens all = arrival.prompt + arrival.output;
  if (all <= most) return;
  const double factor = static_cast<double>(most.value) / static_cast<double>(all.value);
  const auto shorter = [&](Tokens tokens) {
    const double part = static_cast<double>(tokens.value) * factor;
    return Tokens(std::max<std::int64_t>(1, static_cast<std::int64_t>(part)));
  };
  arrival.prompt = shorter(arrival.prompt);
  arrival.output = shorter(arrival.output);
}

Status shape_workload(const Cell& cell, std::uint64_t seed, Setting& setting) {
  KVD_ASSIGN_OR_RETURN(const std::vector<Tokens> contexts, contexts_of(setting));
  for (Arrival& arrival : setting.workload) shorten(arrival, contexts[arrival.engine]);
  KVD_TRY(announce_lengths(setting.workload, cell.max_tokens, seed, contexts));
  return set_mixed_goals(cell, seed, setting.workload);
}

/// Figures of several seeds, for all requests and by their goals.
class Runs {
 public:
  void add(const RunResult& result) {
    all_.push_back(measure(result));
    for (const RequestPart& part : parts_by_goals(result)) {
      const RequestRecord& any = part.result.requests.front();
      auto& [name, figures] = classes_[{any.ttft_slo, any.tbt_slo}];
      name = part.name;
      figures.push_back(measure(part.result));
    }
  }
  [[nodiscard]] Played played() const {
    Played out{summarize("", all_).mean, ""};
    for (const auto& [goals, part] : classes_) {
      out.classes.push_back({part.first, summarize("", part.second).mean});
    }
    return out;
  }

 private:
  std::vector<Metrics> all_;
  std::map<std::pair<Seconds, Seconds>, std::pair<std::string, std::vector<Metrics>>> classes_;
};

}  // namespace

Result<Setting> setting_of(const Cell& cell, double rate, const std::string& policy,
                           std::uint64_t seed) {
  Setting setting;
  setting.engines_place = cell.engines_place;
  KVD_TRY(add_engines(cell, setting));
  const auto hbm = static_cast<double>(setting.engines.front().profile.hbm.value) * cell.hbm;
  setting.hbm = Bytes(std::llround(hbm));
  setting.dram = Bytes(std::llround(hbm * cell.dram));
  KVD_ASSIGN_OR_RETURN(setting.policy, policy_named(policy));
  KVD_ASSIGN_OR_RETURN(setting.workload, arrivals_of(cell, rate, seed));
  if (setting.workload.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "no request of " + cell.lengths.source + " comes at " + std::to_string(rate) +
                          " requests a second: the grid's axes need a longer duration");
  }
  KVD_TRY(shape_workload(cell, seed, setting));
  const auto goal = [](double seconds) { return whole(Seconds(seconds)); };
  setting.slo = {goal(cell.lengths.ttft_s), goal(cell.lengths.tbt_s), goal(cell.lengths.tbt_s)};
  setting.one_device = setting.engines.size() > 1;

  return setting;
}

Result<double> knee_of(const Cell& cell) {
  constexpr double kThreshold = 0.99;
  constexpr double kPrecision = 0.1;
  constexpr std::uint64_t kSeeds = 3;
  constexpr double kAmple = 4;  // times HBM
  Cell plain = cell;
  plain.cv = 1;
  plain.max_tokens = "exact";
  plain.classes = {};
  plain.apart = false;
  plain.dram = kAmple;
  const auto attainment = [&](double rate) -> Result<double> {
    double met = 0;
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
      KVD_ASSIGN_OR_RETURN(Setting setting, setting_of(plain, rate, "fcfs", seed));
      // A request without a first token by then is late whatever comes.
      setting.until = setting.workload.back().time + Seconds(cell.lengths.ttft_s);
      KVD_ASSIGN_OR_RETURN(const RunResult result, run(setting));
      met += measure(result).ttft_attainment / kSeeds;
    }
    return met;
  };
  auto knee = find_knee(attainment, 1, kThreshold, kPrecision);
  if (!knee.ok()) {
    return make_error(knee.error().code, knee_name(cell) + ": " + knee.error().message);
  }
  return knee->rate;
}

Result<Played> play_policy(const Cell& cell, double knee, const std::string& policy, Seeds seeds,
                           const std::function<bool()>& stop, Whose whose) {
  Runs runs;
  for (std::uint64_t i = 0; i < seeds.count; ++i) {
    if (stop()) return make_error(ErrorCode::kUnavailable, "stopped");
    KVD_ASSIGN_OR_RETURN(Setting setting,
                         setting_of(cell, knee * cell.load, policy, seeds.first + i));
    if (whose == Whose::kTightest) leave_tightest(cell, setting.workload);
    if (setting.workload.empty()) continue;
    const auto result = run(setting);
    if (!result.ok() && result.error().code == ErrorCode::kInternal) {
      return Played{{}, result.error().message};
    }
    if (!result.ok()) return result.error();
    runs.add(*result);
  }
  return runs.played();
}

}  // namespace kvd::sim::grid
