#include "kvd/sim/grid/session.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "kvd/sim/grid/ledger.hpp"

namespace kvd::sim::grid {
namespace {

using Json = nlohmann::ordered_json;

struct Task {
  std::string name;
  std::function<Result<Json>(const std::function<bool()>& stop)> play;
};

/// Works tasks off on several threads and writes each answer down as soon as it is there.
class Workers {
 public:
  Workers(Ledger& ledger, const std::vector<Task>& tasks, const GridProgress& progress)
      : ledger_(ledger), tasks_(tasks), progress_(progress) {}

  /// The first error ends it, after the runs that are under way.
  Status work(std::size_t jobs) {
    std::vector<std::thread> threads;
    for (std::size_t i = 1; i < std::min(jobs, tasks_.size()); ++i) {
      threads.emplace_back([this] { loop(); });
    }
    loop();
    for (std::thread& thread : threads) thread.join();
    return std::move(status_);
  }

 private:
  void loop() {
    for (std::size_t i = next_++; i < tasks_.size() && !failed_; i = next_++) {
      auto answer = tasks_[i].play([this] { return failed_.load(); });
      const std::lock_guard lock(mutex_);
      const Status kept =
          answer.ok() ? ledger_.add(tasks_[i].name, *answer) : Status(answer.error());
      if (!kept.ok() && status_.ok()) status_ = kept.error();
      if (!kept.ok()) failed_ = true;
      ++done_;
      progress_(static_cast<double>(done_) / static_cast<double>(tasks_.size()), tasks_[i].name);
    }
  }

  Ledger& ledger_;
  const std::vector<Task>& tasks_;
  const GridProgress& progress_;
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  ///< guards what follows, the ledger and the progress
  std::size_t done_ = 0;
  Status status_;
};

Status find_knees(const Plan& plan, Ledger& knees, const GridProgress& progress) {
  std::vector<Task> tasks;
  std::set<std::string> named;
  for (const Cell& cell : plan.cells) {
    const std::string name = knee_name(cell);
    if (knees.lines().contains(name) || !named.insert(name).second) continue;
    tasks.push_back({name, [&cell](const auto&) -> Result<Json> {
                       KVD_ASSIGN_OR_RETURN(const double rate, knee_of(cell));
                       return Json{{"rate_rps", rate}};
                     }});
  }
  return Workers(knees, tasks, progress).work(plan.jobs);
}

Json json_of(const Played& played) {
  if (!played.fault.empty()) return {{"fault", played.fault}};
  Json metrics = Json::object();
  for (const MetricName& metric : metric_names()) {
    metrics[metric.name] = played.mean.*metric.figure;
  }
  return {{"metrics", std::move(metrics)}};
}

Played played_in(const Json& line) {
  Played out;
  out.fault = line.value("fault", "");
  if (!line.contains("metrics")) return out;
  for (const MetricName& metric : metric_names()) {
    out.mean.*metric.figure = line["metrics"].value(metric.name, 0.0);
  }
  return out;
}

std::string name_of(const Cell& cell, const std::string& policy) { return cell.id + " " + policy; }

Status play_cells(const Plan& plan, const Ledger& knees, Ledger& results,
                  const GridProgress& progress) {
  std::vector<Task> tasks;
  for (const Cell& cell : plan.cells) {
    const double knee = knees.lines().at(knee_name(cell)).at("rate_rps").get<double>();
    for (const std::string& policy : plan.policies) {
      if (results.lines().contains(name_of(cell, policy))) continue;
      tasks.push_back(
          {name_of(cell, policy), [&plan, &cell, &policy, knee](const auto& stop) -> Result<Json> {
             auto played = play_policy(cell, knee, policy, plan.seeds, stop);
             if (played.ok()) return json_of(*played);
             return make_error(played.error().code,
                               name_of(cell, policy) + ": " + played.error().message);
           }});
    }
  }
  return Workers(results, tasks, progress).work(plan.jobs);
}

std::string seeds_text(Seeds seeds) {
  return std::to_string(seeds.first) + "-" + std::to_string(seeds.first + seeds.count - 1);
}

}  // namespace

Result<std::vector<PlayedCell>> play_grid(const Plan& plan, const GridProgress& progress) {
  std::error_code error;
  std::filesystem::create_directories(plan.folder, error);
  const std::string seeds = seeds_text(plan.seeds);
  KVD_ASSIGN_OR_RETURN(Ledger knees,
                       Ledger::open(plan.folder / "knees.jsonl", {{"axes", plan.digest}}));
  KVD_ASSIGN_OR_RETURN(Ledger results, Ledger::open(plan.folder / ("seeds-" + seeds + ".jsonl"),
                                                    {{"axes", plan.digest}, {"seeds", seeds}}));
  KVD_TRY(find_knees(plan, knees, progress));
  KVD_TRY(play_cells(plan, knees, results, progress));
  std::vector<PlayedCell> out(plan.cells.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    for (const std::string& policy : plan.policies) {
      out[i][policy] = played_in(results.lines().at(name_of(plan.cells[i], policy)));
    }
  }
  return out;
}

}  // namespace kvd::sim::grid
