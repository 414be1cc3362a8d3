#include "kvd/sim/run/knee.hpp"

#include <cmath>
#include <ostream>

#include "kvd/sim/commands/commands.hpp"
#include "kvd/sim/commands/progress_bar.hpp"
#include "kvd/sim/commands/table.hpp"
#include "kvd/sim/figures/commands.hpp"
#include "kvd/sim/run/summary_json.hpp"

/// `knee`: rates of comparisons are given as multiples of it.
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

Result<Knee> search(const ScenarioOptions& options, const KneeOptions& knee, ProgressBar& bar) {
  KVD_TRY(check_knee(knee));
  const std::string& policy = options.policies.front();
  const auto attainment = [&](double rate) -> Result<double> {
    ScenarioOptions at = options;
    at.rates = {rate};
    const std::string what = policy + " at " + figure_text(rate) + " req/s";
    KVD_ASSIGN_OR_RETURN(const Summary summary, summarize_policy(at, policy, [&](double share) {
                           bar.show(share, what);
                         }));
    return summary.mean.ttft_attainment;
  };
  return find_knee(attainment, options.rates.empty() ? 1 : options.rates.front(), knee.threshold,
                   knee.precision);
}

}  // namespace

int knee_command(const ScenarioOptions& options, const KneeOptions& knee, std::ostream& out,
                 std::ostream& err) {
  ProgressBar bar(err, options.progress);
  const auto found = search(options, knee, bar);
  bar.wipe();
  if (!found.ok()) {
    err << "kvd-sim: " << found.error().message << "\n";
    return found.error().code == ErrorCode::kInternal ? kFailed : kUsage;
  }
  Json points = Json::array();
  std::vector<std::vector<std::string>> rows = {{"req/s", "ttft ok"}};
  for (const KneePoint& point : found->points) {
    points.push_back({{"rate_rps", point.rate}, {"ttft_attainment", point.attainment}});
    rows.push_back({figure_text(point.rate), figure_text(point.attainment)});
  }
  if (options.json) {
    out << Json{{"figure", "knee"},
                {"unit", "requests a second"},
                {"policy", options.policies.front()},
                {"threshold", knee.threshold},
                {"knee_rps", found->rate},
                {"points", std::move(points)}}
               .dump(2)
        << "\n";
  } else {
    out << columns(rows) << "knee of " << options.policies.front() << ": "
        << figure_text(found->rate)
        << " req/s, the highest rate found with TTFT attainment >= " << figure_text(knee.threshold)
        << "\n";
  }
  return kDone;
}

}  // namespace kvd::sim
