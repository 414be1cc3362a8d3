#include <algorithm>
#include <cmath>
#include <functional>
#include <ostream>
#include <utility>

#include "kvd/sim/commands/progress_bar.hpp"
#include "kvd/sim/commands/table.hpp"
#include "kvd/sim/run/exit_status.hpp"
#include "kvd/sim/run/summary_json.hpp"
#include "tests/lab/cache/replay.hpp"
#include "tests/lab/commands/commands.hpp"

/// `cache`: eviction policies against each other and against what is possible.
namespace kvd::sim {
namespace {

using Json = nlohmann::ordered_json;

/// Shares of what all prompts ask for: means over the seeds.
struct CacheShares {
  double found = 0;
  double saved = 0;
  double evicted = 0;  ///< blocks for each request
};
struct CachePoint {
  double capacity = 0;
  double blocks = 0;
  CacheShares bound;
  std::vector<CacheShares> policies;  ///< in the order in which they were asked for
};

struct Work {
  std::vector<MakeEviction> policies;
  std::vector<CachePoint> points;
  CacheDemand demand;  ///< demand of the last seed
};

Result<Work> work_of(const CacheOptions& options) {
  if (options.seeds < 1 || options.seeds > 1000) {
    return make_error(ErrorCode::kInvalidArgument, "--seeds must be from 1 to 1000");
  }
  Work work;
  for (const std::string& name : options.policies) {
    KVD_ASSIGN_OR_RETURN(MakeEviction policy, cache_policy(name));
    work.policies.push_back(std::move(policy));
  }
  for (const double percent : options.capacities) {
    if (!(percent > 0 && percent <= 100)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--capacity is in percent of the workload's different blocks, above 0 and "
                        "up to 100");
    }
    work.points.push_back({percent / 100, 0, {}, std::vector<CacheShares>(work.policies.size())});
  }
  return work;
}

void add(const CacheFigures& figures, const CacheDemand& demand, double seeds, CacheShares& sum) {
  sum.found += static_cast<double>(figures.found) / static_cast<double>(demand.asked) / seeds;
  sum.saved += figures.saved_s / demand.asked_s / seeds;
  sum.evicted +=
      static_cast<double>(figures.evicted) / static_cast<double>(demand.requests) / seeds;
}

/// The workload of one seed, at every capacity and with every policy.
class Seed {
 public:
  /// Called with the share of the seed that is done, and what is under way.
  using Progress = std::function<void(double, const std::string&)>;

  Seed(const CacheOptions& options, const Workload& workload, BlockCosts& costs, Work& work)
      : options_(options), workload_(workload), costs_(costs), work_(work) {}

  void play(const Progress& progress) {
    for (CachePoint& point : work_.points) play(point, progress);
  }

 private:
  void play(CachePoint& point, const Progress& progress) {
    const CacheDemand& demand = work_.demand;
    const auto seeds = static_cast<double>(options_.seeds);
    const auto blocks = static_cast<std::size_t>(
        std::max(1.0, std::ceil(point.capacity * static_cast<double>(demand.distinct))));
    point.blocks += static_cast<double>(blocks) / seeds;
    add(cache_bound(workload_, blocks, costs_), demand, seeds, point.bound);
    const auto parts = static_cast<double>(work_.points.size() * work_.policies.size());
    for (std::size_t p = 0; p < work_.policies.size(); ++p, ++done_) {
      const CacheSetting setting{work_.policies[p], blocks};
      const CacheFigures figures = replay(workload_, setting, costs_, [&](double share) {
        progress((done_ + share) / parts, options_.policies[p]);
      });
      add(figures, demand, seeds, point.policies[p]);
    }
  }

  const CacheOptions& options_;
  const Workload& workload_;
  BlockCosts& costs_;
  Work& work_;
  double done_ = 0;  ///< finished runs
};

Status play(const CacheOptions& options, Work& work, ProgressBar& bar) {
  KVD_ASSIGN_OR_RETURN(const Profile profile, load_profile(options.profile));
  BlockCosts costs(profile);
  for (std::size_t i = 0; i < options.seeds; ++i) {
    WorkloadOptions wanted = options.workload;
    wanted.seed += i;
    KVD_ASSIGN_OR_RETURN(const Workload workload, make_workload(options.trace, wanted));
    work.demand = demand_of(workload, costs);
    if (work.demand.asked == 0) {
      return make_error(ErrorCode::kInvalidArgument,
                        options.trace +
                            " does not say which prompts begin alike: take gen:chat, or a trace "
                            "with hash_ids");
    }
    Seed(options, workload, costs, work).play([&](double share, const std::string& policy) {
      bar.show((static_cast<double>(i) + share) / static_cast<double>(options.seeds), policy);
    });
  }
  return {};
}

std::string head(const CacheOptions& options, const Work& work) {
  std::string text =
      options.trace + " on " + options.profile + ", seed " + std::to_string(options.workload.seed);
  if (options.seeds > 1) {
    text += " to " + std::to_string(options.workload.seed + options.seeds - 1);
  }
  return text + ": " + std::to_string(work.demand.requests) + " requests for " +
         std::to_string(work.demand.asked) + " blocks of " + std::to_string(kPrefixTokens.value) +
         " tokens, " + std::to_string(work.demand.distinct) + " of them different\n";
}

std::string table(const CacheOptions& options, const Work& work, double CacheShares::*figure) {
  std::vector<std::vector<std::string>> rows = {{"capacity", "blocks"}};
  for (const std::string& name : options.policies) rows[0].push_back(name);
  rows[0].emplace_back("at most");
  for (const CachePoint& point : work.points) {
    std::vector<std::string> row = {figure_text(point.capacity * 100) + " %",
                                    figure_text(point.blocks)};
    for (const CacheShares& shares : point.policies) row.push_back(figure_text(shares.*figure));
    row.push_back(figure_text(point.bound.*figure));
    rows.push_back(std::move(row));
  }
  return columns(rows);
}

Json json_of(const CacheShares& shares) {
  return {{"found", shares.found}, {"saved", shares.saved}};
}

Json json_of(const CacheOptions& options, const Work& work) {
  Json points = Json::array();
  for (const CachePoint& point : work.points) {
    Json policies = Json::object();
    for (std::size_t p = 0; p < options.policies.size(); ++p) {
      policies[options.policies[p]] = json_of(point.policies[p]);
      policies[options.policies[p]]["evicted_per_request"] = point.policies[p].evicted;
    }
    points.push_back({{"capacity", point.capacity},
                      {"blocks", point.blocks},
                      {"at_most", json_of(point.bound)},
                      {"policies", std::move(policies)}});
  }
  return {{"figure", "cache"},
          {"unit", "shares of the blocks asked for, and of the seconds of computing them"},
          {"trace", options.trace},
          {"profile", options.profile},
          {"seed", options.workload.seed},
          {"seeds", options.seeds},
          {"requests", work.demand.requests},
          {"asked", work.demand.asked},
          {"distinct", work.demand.distinct},
          {"points", std::move(points)}};
}

}  // namespace

int cache_command(const CacheOptions& options, std::ostream& out, std::ostream& err) {
  ProgressBar bar(err, options.progress);
  auto work = work_of(options);
  const Status status = work.ok() ? play(options, *work, bar) : work.error();
  bar.wipe();
  if (!status.ok()) {
    err << "kvd-lab: " << status.error().message << "\n";
    return kUsage;
  }
  if (options.json) {
    out << json_of(options, *work).dump(2) << "\n";
  } else {
    out << head(options, *work) << "\nblocks found, as a share of those asked for\n"
        << table(options, *work, &CacheShares::found)
        << "\nseconds of computing saved, as a share\n"
        << table(options, *work, &CacheShares::saved);
  }
  return kDone;
}

}  // namespace kvd::sim
