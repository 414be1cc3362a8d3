#include "kvd/sim/run/knee.hpp"

#include <algorithm>
#include <ostream>
#include <utility>

#include "kvd/sim/commands/commands.hpp"
#include "kvd/sim/commands/progress_bar.hpp"
#include "kvd/sim/commands/table.hpp"
#include "kvd/sim/run/exit_status.hpp"
#include "kvd/sim/run/summary_json.hpp"

/// `knee` finds the rate that comparisons call 1: they give their rates as multiples of it.
namespace kvd::sim {
namespace {

using Json = nlohmann::ordered_json;

Status check_knee(const KneeOptions& knee) {
  if (!(knee.threshold > 0 && knee.threshold < 1)) {
    return make_error(ErrorCode::kInvalidArgument, "--threshold must be between 0 and 1");
  }
  if (!(knee.precision >= 0.001 && knee.precision <= 1)) {
    return make_error(ErrorCode::kInvalidArgument, "--precision must be from 0.001 to 1");
  }
  return {};
}

/// `tried` gets the result of each rate.
Result<Knee> search(const ScenarioOptions& options, const KneeOptions& knee, ProgressBar& bar,
                    std::vector<Summary>& tried) {
  KVD_TRY(check_knee(knee));
  const std::string& policy = options.policies.front();
  const auto attainment = [&](double rate) -> Result<double> {
    ScenarioOptions at = options;
    at.rates = {rate};
    at.seeds = knee.seeds;
    const std::string what = policy + " at " + figure_text(rate) + " req/s";
    KVD_ASSIGN_OR_RETURN(Summary summary, summarize_policy(at, policy, [&](double share) {
                           bar.show(share, what);
                         }));
    summary.policy = figure_text(rate);
    tried.push_back(std::move(summary));
    return tried.back().mean.ttft_attainment;
  };
  return find_knee(attainment, options.rates.empty() ? 1 : options.rates.front(), knee.threshold,
                   knee.precision);
}

/// Prints rows in order of rate, without the spread over seeds, which would fill a screen.
std::vector<Summary> by_rate(const Knee& knee, const std::vector<Summary>& tried) {
  std::vector<std::pair<double, Summary>> sorted;
  for (std::size_t i = 0; i < tried.size(); ++i) sorted.emplace_back(knee.points[i].rate, tried[i]);
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Summary> rows;
  for (auto& [rate, summary] : sorted) {
    summary.seeds = 1;
    rows.push_back(std::move(summary));
  }
  return rows;
}

Json knee_json(const std::string& policy, double threshold, const Knee& knee,
               const std::vector<Summary>& tried) {
  Json points = comparison_json("", "", tried)["policies"];
  for (std::size_t i = 0; i < points.size(); ++i) {
    points[i].erase("policy");
    points[i]["rate_rps"] = knee.points[i].rate;
  }
  return {{"figure", "knee"},           {"unit", "requests a second"},
          {"policy", policy},           {"seeds", tried.front().seeds},
          {"threshold", threshold},     {"knee_rps", knee.rate},
          {"points", std::move(points)}};
}

}  // namespace

int knee_command(const ScenarioOptions& options, const KneeOptions& knee, std::ostream& out,
                 std::ostream& err) {
  ProgressBar bar(err, options.progress);
  std::vector<Summary> tried;
  const auto found = search(options, knee, bar, tried);
  bar.wipe();
  if (!found.ok()) {
    err << "kvd-sim: " << found.error().message << "\n";
    return found.error().code == ErrorCode::kInternal ? kFailed : kUsage;
  }
  const std::string& policy = options.policies.front();
  if (options.json) {
    out << knee_json(policy, knee.threshold, *found, tried).dump(2) << "\n";
    return kDone;
  }
  out << comparison_table(by_rate(*found, tried), "req/s") << "knee of " << policy << ": "
      << figure_text(found->rate)
      << " req/s, the highest rate found with TTFT attainment >= " << figure_text(knee.threshold)
      << " over " << knee.seeds << (knee.seeds == 1 ? " seed" : " seeds") << "\n";
  return kDone;
}

}  // namespace kvd::sim
