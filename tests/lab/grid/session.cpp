#include "tests/lab/grid/session.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "tests/lab/grid/classes.hpp"
#include "tests/lab/grid/ledger.hpp"

namespace kvd::sim::grid {
namespace {

using Json = nlohmann::ordered_json;

struct Task {
  std::string name;
  std::function<Result<Json>(const std::function<bool()>& stop)> play;
};

/// Works through tasks on several threads and writes each answer down as soon as it is there.
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
  std::mutex mutex_;  ///< guards the members below, the ledger and the progress
  std::size_t done_ = 0;
  Status status_;
};

/// For each knee, by name, a cell that has it.
std::map<std::string, Cell> knees_of(const Plan& plan) {
  std::map<std::string, Cell> out;
  for (const Cell& cell : plan.cells) out.emplace(knee_name(cell), cell);
  if (plan.alone.empty()) return out;
  for (const Cell& cell : plan.cells) out.emplace(tightest_knee_name(cell), tightest_alone(cell));
  return out;
}

Status find_knees(const Plan& plan, Ledger& knees, const GridProgress& progress) {
  std::vector<Task> tasks;
  for (const auto& [name, cell] : knees_of(plan)) {
    if (knees.lines().contains(name)) continue;
    tasks.push_back({name, [cell = cell](const auto&) -> Result<Json> {
                       KVD_ASSIGN_OR_RETURN(const double rate, knee_of(cell));
                       return Json{{"rate_rps", rate}};
                     }});
  }
  return Workers(knees, tasks, progress).work(plan.jobs);
}

double knee_in(const Ledger& knees, const std::string& name) {
  return knees.lines().at(name).at("rate_rps").get<double>();
}

Json json_of(const Metrics& metrics, bool of_class) {
  Json out = Json::object();
  for (const MetricName& metric : metric_names()) {
    if (of_class && metric.of_machine) continue;
    out[metric.name] = metrics.*metric.figure;
  }
  return out;
}

Json json_of(const Played& played) {
  if (!played.fault.empty()) return {{"fault", played.fault}};
  Json out = {{"metrics", json_of(played.mean, false)}};
  if (played.classes.size() < 2) return out;
  for (const PlayedClass& one : played.classes) {
    out["classes"].push_back({{"class", one.name}, {"metrics", json_of(one.mean, true)}});
  }
  return out;
}

Metrics metrics_in(const Json& json) {
  Metrics out;
  for (const MetricName& metric : metric_names()) {
    out.*metric.figure = json.value(metric.name, 0.0);
  }
  return out;
}

Played played_in(const Json& line) {
  Played out;
  out.fault = line.value("fault", "");
  if (line.contains("metrics")) out.mean = metrics_in(line["metrics"]);
  for (const Json& one : line.value("classes", Json::array())) {
    out.classes.push_back({one.value("class", ""), metrics_in(one.at("metrics"))});
  }
  return out;
}

std::string name_of(const Cell& cell, const std::string& policy, Whose whose = Whose::kAll) {
  return cell.id + " " + policy + (whose == Whose::kTightest ? " alone" : "");
}

PlayedAlone alone_in(const Cell& cell, const Ledger& knees, const Json& line) {
  const double own = knee_in(knees, tightest_knee_name(cell));
  const double rate = knee_in(knees, knee_name(cell)) * cell.load * classes_of(cell).front().share;
  const Played played = played_in(line);
  return {played.mean, played.fault, rate / own};
}

Result<Json> answer_of(const Result<Played>& played, const std::string& name) {
  if (played.ok()) return json_of(*played);
  return make_error(played.error().code, name + ": " + played.error().message);
}

Status play_cells(const Plan& plan, const Ledger& knees, Ledger& results,
                  const GridProgress& progress) {
  std::vector<Task> tasks;
  const auto add = [&](const Cell& cell, const std::string& policy, Whose whose) {
    const std::string name = name_of(cell, policy, whose);
    if (results.lines().contains(name)) return;
    const double knee = knee_in(knees, knee_name(cell));
    tasks.push_back({name, [&plan, &cell, &policy, name, knee, whose](const auto& stop) {
                       return answer_of(play_policy(cell, knee, policy, plan.seeds, stop, whose),
                                        name);
                     }});
  };
  for (const Cell& cell : plan.cells) {
    for (const std::string& policy : plan.policies) add(cell, policy, Whose::kAll);
    if (!plan.alone.empty()) add(cell, plan.alone, Whose::kTightest);
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
    if (plan.alone.empty()) continue;
    const Cell& cell = plan.cells[i];
    const Json& line = results.lines().at(name_of(cell, plan.alone, Whose::kTightest));
    out[i][plan.alone].alone = alone_in(cell, knees, line);
  }
  return out;
}

}  // namespace kvd::sim::grid
