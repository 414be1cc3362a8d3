#include "kvd/sim/commands/options.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "kvd/sim/run/parts.hpp"
#include "kvd/sim/workload/goals.hpp"
#include "kvd/sim/workload/merge.hpp"
#include "kvd/sim/workload/predict.hpp"
#include "kvd/sim/world/configuration.hpp"

namespace kvd::sim {
namespace {

constexpr std::size_t kMostSeeds = 1000;

Error invalid(std::string message) {
  return make_error(ErrorCode::kInvalidArgument, std::move(message));
}

Status check_goal(const char* flag, std::optional<double> seconds) {
  // This form fails for NaN.
  if (!seconds || (*seconds >= 1e-6 && *seconds <= 86400)) return {};
  return invalid(std::string(flag) + " must be from 1e-6 to 86400 seconds");
}

/// "2:0.06:0.1": TTFT and TBT in seconds, and the share of requests.
Result<GoalClass> goal_class(const std::string& text) {
  GoalClass out;
  double ttft = 0, tbt = 0;
  int read = 0;
  if (std::sscanf(text.c_str(), "%lf:%lf:%lf%n", &ttft, &tbt, &out.share, &read) != 3 ||
      static_cast<std::size_t>(read) != text.size()) {
    return invalid("--class " + text + " is no TTFT:TBT:SHARE such as 2:0.06:0.1");
  }
  out.ttft = Seconds(ttft);
  out.tbt = Seconds(tbt);
  return out;
}

/// "600:1": TTFT and TBT in seconds, for all requests of an engine.
Status set_engine_goals(const std::string& text, Workload& requests) {
  double ttft = 0, tbt = 0;
  int read = 0;
  if (std::sscanf(text.c_str(), "%lf:%lf%n", &ttft, &tbt, &read) != 2 ||
      static_cast<std::size_t>(read) != text.size()) {
    return invalid("--goals " + text + " is no TTFT:TBT such as 600:1");
  }
  const GoalClass all{Seconds(ttft), Seconds(tbt), 1};
  return assign_goals(requests, {&all, 1}, 0);
}

Status set_classes(const ScenarioOptions& options, std::uint64_t seed, Workload& workload) {
  std::vector<GoalClass> classes;
  for (const std::string& text : options.classes) {
    KVD_ASSIGN_OR_RETURN(classes.emplace_back(), goal_class(text));
  }
  return assign_goals(workload, classes, seed);
}

Status check_options(const ScenarioOptions& options) {
  if (options.profiles.empty()) return invalid("name a profile: --profile NAME|FILE");
  if (options.traces.size() != options.profiles.size()) {
    return invalid(std::to_string(options.profiles.size()) + " engines need as many --trace, are " +
                   std::to_string(options.traces.size()));
  }
  if (options.rates.size() > 1 && options.rates.size() != options.profiles.size()) {
    return invalid("--rate is given once, or once for each --profile");
  }
  const std::size_t goals = options.engines.goals.size();
  if (goals > 0 && goals != options.profiles.size()) {
    return invalid("--goals is given once for each --profile");
  }
  for (const double rate : options.rates) {
    if (!(rate > 0)) return invalid("--rate must be above 0: at rate 0 no request ever comes");
  }
  if (!(options.link > 0) || !std::isfinite(options.link)) {
    return invalid("--link must be above 0: without a link nothing can rotate or stream");
  }
  if (options.until_s && !(*options.until_s > 0)) return invalid("--until must be above 0");
  KVD_TRY(check_goal("--ttft", options.ttft_s));
  KVD_TRY(check_goal("--tbt", options.tbt_s));
  return check_goal("--tpot", options.tpot_s);
}

Result<std::optional<Bytes>> optional_size(const char* flag, const std::string& text) {
  if (text.empty() || text == "auto") return std::optional<Bytes>();
  auto size = parse_size(text);
  if (!size.ok()) return invalid(std::string(flag) + ": " + size.error().message);
  return std::optional<Bytes>(*size);
}

/// Puts each engine in a domain of its own.
Status add_guarantees(const ScenarioOptions& options, Setting& setting) {
  if (options.engines.partition || options.engines.guarantees.size() != setting.engines.size()) {
    return invalid("--guarantee is given once for each --profile, and not with --partition");
  }
  const Profile& machine = setting.engines.front().profile;
  const Bytes hbm = setting.hbm.value_or(machine.hbm);
  const Bytes dram = setting.dram.value_or(machine.dram);
  Bytes all;
  for (std::size_t i = 0; i < setting.engines.size(); ++i) {
    auto size = parse_size(options.engines.guarantees[i]);
    if (!size.ok()) return invalid("--guarantee: " + size.error().message);
    setting.engines[i].domain = static_cast<std::uint32_t>(i + 1);
    setting.engines[i].guarantee = *size;
    const double share = static_cast<double>(size->value) / static_cast<double>(hbm.value);
    setting.engines[i].dram_guarantee =
        Bytes(static_cast<std::int64_t>(static_cast<double>(dram.value) * share));
    all += *size;
    if (all > hbm) break;  // stops before the sum grows too large for its type
  }
  if (all <= hbm) return {};
  return invalid("guarantees of " + std::to_string(all.value) +
                 " bytes are more than HBM, which has " + std::to_string(hbm.value));
}

Status add_engines(const ScenarioOptions& options, Setting& setting) {
  for (const std::string& name : options.profiles) {
    EngineSetting engine;
    KVD_ASSIGN_OR_RETURN(engine.profile, load_profile(name));
    LinkModel& link = engine.profile.link;
    link.h2d_bytes_s *= options.link;
    link.d2h_bytes_s *= options.link;
    link.shared_bytes_s *= options.link;
    engine.elastic = !options.engines.partition && options.engines.guarantees.empty();
    setting.engines.push_back(std::move(engine));
  }
  if (!options.engines.guarantees.empty()) return add_guarantees(options, setting);
  if (!options.engines.partition) return {};
  const Bytes hbm = setting.hbm.value_or(setting.engines.front().profile.hbm);
  const auto parts = static_cast<std::int64_t>(setting.engines.size());
  for (std::size_t i = 0; i < setting.engines.size(); ++i) {
    setting.engines[i].domain = static_cast<std::uint32_t>(i + 1);
    setting.engines[i].guarantee = Bytes(hbm.value / parts);
  }
  return {};
}

// Engines of one run get different requests from one seed.
Result<Workload> all_arrivals(const ScenarioOptions& options, const Setting& setting,
                              std::uint64_t seed) {
  constexpr std::uint64_t kFarApart = 1'000'003;
  std::vector<EngineWorkload> parts;
  for (std::size_t i = 0; i < options.traces.size(); ++i) {
    WorkloadOptions workload = options.workload;
    workload.seed = seed + kFarApart * i;
    KVD_ASSIGN_OR_RETURN(workload.context, context_of(setting, i));
    if (!options.rates.empty()) workload.rate = options.rates[i % options.rates.size()];
    EngineWorkload part;
    KVD_ASSIGN_OR_RETURN(part.requests, make_workload(options.traces[i], workload));
    if (!options.engines.goals.empty()) {
      KVD_TRY(set_engine_goals(options.engines.goals[i], part.requests));
    }
    parts.push_back(std::move(part));
  }
  return merged(parts);
}

void set_goals(const ScenarioOptions& options, core::Slo& slo) {
  const auto set = [](Nanoseconds& goal, std::optional<double> seconds) {
    if (seconds) goal = Nanoseconds(std::llround(*seconds * 1e9));
  };
  set(slo.ttft, options.ttft_s);
  set(slo.tbt, options.tbt_s);
  // LayerKV aims at TPOT, and is judged by the goal between tokens like all others.
  set(slo.tpot, options.tpot_s ? options.tpot_s : to_seconds(slo.tbt));
}

Result<Setting> make_setting(const ScenarioOptions& options, const std::string& policy,
                             std::uint64_t seed) {
  KVD_TRY(check_options(options));
  Setting setting;
  setting.engines_place = options.engines.place;
  KVD_ASSIGN_OR_RETURN(setting.policy, policy_named(policy));
  KVD_ASSIGN_OR_RETURN(setting.hbm, optional_size("--hbm", options.hbm));
  KVD_ASSIGN_OR_RETURN(setting.dram, optional_size("--dram", options.dram));
  KVD_ASSIGN_OR_RETURN(setting.b_xfer, optional_size("--b-xfer", options.b_xfer));
  KVD_TRY(add_engines(options, setting));
  KVD_ASSIGN_OR_RETURN(setting.workload, all_arrivals(options, setting, seed));
  if (options.length_error) {
    KVD_TRY(predict_lengths(setting.workload, *options.length_error, seed));
  }
  KVD_TRY(set_classes(options, seed, setting.workload));
  if (!options.overload.empty()) setting.policy.tuning.rotation.overload = options.overload;
  setting.shortest_first = options.engines.shortest_first;
  set_goals(options, setting.slo);
  setting.prefill_tokens = options.prefill_tokens;
  setting.alpha = options.alpha;
  setting.beta_b = options.beta_b;
  setting.beta_f = options.beta_f;
  setting.one_device = options.engines.one_device;
  if (options.until_s) setting.until = Seconds(*options.until_s);
  setting.check = options.check;
  return setting;
}

}  // namespace

Result<Bytes> parse_size(const std::string& text) {
  struct Unit {
    const char* name;
    double bytes;
  };
  static constexpr std::array<Unit, 6> kUnits = {{{"", 1},
                                                  {"B", 1},
                                                  {"KiB", 1024.0},
                                                  {"MiB", 1048576.0},
                                                  {"GiB", 1073741824.0},
                                                  {"TiB", 1099511627776.0}}};
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  while (*end == ' ') ++end;
  for (const Unit& unit : kUnits) {
    if (end == text.c_str() || unit.name != std::string(end)) continue;
    const double bytes = number * unit.bytes;
    if (bytes >= 1 && bytes <= 1e18) return Bytes(static_cast<std::int64_t>(bytes));
  }
  return invalid("\"" + text + "\" is no size: write a number with B, KiB, MiB, GiB or TiB");
}

Result<RunResult> simulate(const ScenarioOptions& options, const std::string& policy,
                           std::uint64_t seed, const RunProgress& progress) {
  KVD_ASSIGN_OR_RETURN(Setting setting, make_setting(options, policy, seed));
  if (progress) {
    setting.progress = [&](std::size_t done, std::size_t all) {
      progress(static_cast<double>(done) / static_cast<double>(all));
    };
  }
  return run(setting);
}

Result<Summary> summarize_policy(const ScenarioOptions& options, const std::string& policy,
                                 const RunProgress& progress) {
  if (options.seeds < 1 || options.seeds > kMostSeeds) {
    return invalid("--seeds must be from 1 to " + std::to_string(kMostSeeds));
  }
  std::vector<Metrics> runs;
  std::vector<std::pair<std::string, std::vector<Metrics>>> parts;
  const auto seeds = static_cast<double>(options.seeds);
  for (std::size_t i = 0; i < options.seeds; ++i) {
    RunProgress part;
    if (progress) {
      part = [&](double share) { progress((static_cast<double>(i) + share) / seeds); };
    }
    KVD_ASSIGN_OR_RETURN(const RunResult result,
                         simulate(options, policy, options.workload.seed + i, part));
    runs.push_back(measure(result));
    for (const RequestPart& of : parts_of(result)) {
      auto known = std::find_if(parts.begin(), parts.end(),
                                [&](const auto& part) { return part.first == of.name; });
      if (known == parts.end()) known = parts.insert(parts.end(), {of.name, {}});
      known->second.push_back(measure(of.result));
    }
  }
  Summary summary = summarize(policy, runs);
  for (const auto& [name, figures] : parts) summary.parts.push_back(summarize(name, figures));
  return summary;
}

}  // namespace kvd::sim
