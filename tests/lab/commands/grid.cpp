#include <algorithm>
#include <cmath>
#include <map>
#include <ostream>

#include "ipc/vocabulary/bounded_input.hpp"
#include "ipc/vocabulary/clock.hpp"
#include "kvd/sim/commands/progress_bar.hpp"
#include "kvd/sim/commands/table.hpp"
#include "kvd/sim/run/exit_status.hpp"
#include "kvd/sim/run/summary_json.hpp"
#include "tests/lab/commands/commands.hpp"
#include "tests/lab/grid/class_verdict.hpp"
#include "tests/lab/grid/grid_page.hpp"
#include "tests/lab/grid/session.hpp"
#include "tests/lab/report/report_folder.hpp"

/// `grid`: a policy on cells that nobody picked, beside the best of the others.
namespace kvd::sim {
namespace {

/// The policies that one is compared with, as strong as they can be: each also with the guards,
/// which are no policy's idea in particular. orbitflow has none, since its plans bound the steps.
/// None of them is told how long answers will be.
constexpr const char* kOthers[] = {"fcfs",
                                   "lvf",
                                   "layerkv",
                                   "si_code",
                                   "past_future",
                                   "orbitflow",
                                   "fcfs+guards",
                                   "lvf+guards",
                                   "layerkv+guards",
                                   "si_code+guards",
                                   "past_future+guards"};
/// The same where engines place their own blocks: their own rule comes first.
constexpr const char* kPlacingOthers[] = {
    "stock", "fcfs", "lvf", "past_future", "fcfs+guards", "lvf+guards", "past_future+guards"};
constexpr std::uint64_t kTuning = 1, kKeptApart = 6;  // the first seed
constexpr std::size_t kTuningSeeds = 5;

Error unfit(const std::string& message) { return make_error(ErrorCode::kInvalidArgument, message); }

Status check_options(const GridOptions& options) {
  constexpr std::size_t kMostJobs = 1024;
  KVD_TRY(policy_named(options.policy));
  if (options.jobs < 1 || options.jobs > kMostJobs) {
    return unfit("--jobs must be from 1 to " + std::to_string(kMostJobs));
  }
  if (!(options.tolerance >= 0 && options.tolerance <= 1)) {
    return unfit("--tolerance must be from 0 to 1: it is a share of requests");
  }
  if (options.seeds < 1 || options.seeds > kTuningSeeds) {
    return unfit("--seeds must be from 1 to " + std::to_string(kTuningSeeds) +
                 ": those from 6 on are kept apart");
  }
  if (options.folder.empty()) return unfit("say where results are kept: --out DIR");
  return {};
}

Result<grid::Axes> axes_of(const GridOptions& options) {
  if (options.axes.empty()) {
    const bool goals = options.ground == "goals";
    return grid::read_axes(goals ? grid::committed_goals() : grid::committed_axes());
  }
  KVD_ASSIGN_OR_RETURN(const std::string text, read_bounded(options.axes.string(), kMiB));
  return grid::read_axes(text);
}

Status keep_only(const std::vector<std::string>& names, std::vector<grid::Cell>& cells) {
  if (names.empty()) return {};
  const std::string first = cells.front().id;
  const auto is_named = [&](const grid::Cell& cell) {
    return std::find(names.begin(), names.end(), cell.id) != names.end();
  };
  std::erase_if(cells, [&](const grid::Cell& cell) { return !is_named(cell); });
  if (cells.size() == names.size()) return {};
  return unfit("--only names a cell twice, or one that there is not: the first is " + first);
}

Result<grid::Plan> plan_of(const GridOptions& options) {
  KVD_TRY(check_options(options));
  KVD_ASSIGN_OR_RETURN(const grid::Axes axes, axes_of(options));
  grid::Plan plan;
  plan.folder = options.folder;
  plan.digest = axes.digest;
  plan.cells = grid::cells_of(axes);
  if (options.cells) {
    if (*options.cells < 1) return unfit("--cells must be at least 1");
    plan.cells.resize(std::min(*options.cells, plan.cells.size()));
  }
  KVD_TRY(keep_only(options.only, plan.cells));
  if (options.engines_place) {
    plan.digest += "-engines-place";
    for (grid::Cell& cell : plan.cells) cell.engines_place = true;
  }
  plan.policies = options.against;
  if (plan.policies.empty() && options.engines_place) {
    plan.policies.assign(std::begin(kPlacingOthers), std::end(kPlacingOthers));
  }
  if (plan.policies.empty()) plan.policies.assign(std::begin(kOthers), std::end(kOthers));
  for (const std::string& name : plan.policies) KVD_TRY(policy_named(name));
  if (std::find(plan.policies.begin(), plan.policies.end(), options.policy) ==
      plan.policies.end()) {
    plan.policies.push_back(options.policy);
  }
  plan.seeds = {options.kept_apart ? kKeptApart : kTuning, options.seeds};
  plan.jobs = options.jobs;
  if (axes.by_class) plan.alone = options.policy;
  return plan;
}

std::string time_left(double share, Nanoseconds passed) {
  const double minutes = to_seconds(passed) / 60 * (1 - share) / std::max(share, 1e-9);
  return share < 0.01 ? "" : ", " + std::to_string(std::lround(minutes)) + " min left";
}

grid::Verdict judge(const grid::Plan& plan, const std::vector<grid::PlayedCell>& played,
                    const GridOptions& options) {
  std::vector<grid::Standing> standings;
  for (std::size_t i = 0; i < played.size(); ++i) {
    standings.push_back(grid::standing_of(plan.cells[i], played[i], options.policy));
  }
  return grid::verdict_of(std::move(standings), options.tolerance);
}

void print_verdict(const grid::Verdict& verdict, const GridOptions& options, std::ostream& out) {
  for (const grid::Standing& s : verdict.behind) {
    out << s.cell->id << "  " << text_of(*s.cell) << "\n      joint " << figure_text(s.j)
        << ", best " << figure_text(s.best) << " by " << s.best_policy << ": "
        << grid::cause_text(s.cause) << "\n";
  }
  out << verdict.cells.size() << " cells: " << options.policy << " is behind by more than "
      << figure_text(100 * options.tolerance) << " points in " << verdict.behind.size()
      << ", at worst by " << figure_text(100 * std::max(0.0, verdict.worst))
      << " points; its mean lead from 0.9 to 1.5 times the knee is "
      << figure_text(100 * verdict.mean_lead) << " points; it makes less than "
      << grid::kLeastTokens << " of fcfs's tokens a second in " << verdict.slow.size()
      << " cells; P99 of its first tokens is above " << grid::kMostLate
      << " times the best other's in " << verdict.late.size() << " cells at or below the knee\n"
      << verdict.alike.size()
      << " cells tell nothing: all policies have the same joint attainment\n"
      << "picture: " << (options.folder / "report" / "index.html").string() << "\n";
}

/// The figures of each policy: means over the cells.
std::vector<Summary> means_of(const std::vector<grid::PlayedCell>& played) {
  std::map<std::string, std::vector<Metrics>> cells;
  for (const grid::PlayedCell& cell : played) {
    for (const auto& [policy, outcome] : cell) cells[policy].push_back(outcome.mean);
  }
  std::vector<Summary> out;
  out.reserve(cells.size());
  for (const auto& [policy, figures] : cells) out.push_back(summarize(policy, figures));
  for (Summary& summary : out) summary.seeds = 1;  // the spread over cells says little
  return out;
}

/// None where the classes are not judged.
std::vector<grid::ClassStanding> judge_classes(const grid::Plan& plan,
                                               const std::vector<grid::PlayedCell>& played,
                                               const GridOptions& options) {
  std::vector<grid::ClassStanding> out;
  for (std::size_t i = 0; i < played.size() && !plan.alone.empty(); ++i) {
    out.push_back(
        grid::class_standing_of(plan.cells[i], played[i], options.policy, options.tolerance));
  }
  return out;
}

void print_class(const grid::ClassStanding& s, std::ostream& out) {
  out << s.cell->id << "  " << text_of(*s.cell) << "\n      tightest class at "
      << figure_text(s.tight_load) << " of its knee: joint " << figure_text(s.tight) << ", alone "
      << figure_text(s.alone) << "; longest gap " << figure_text(s.longest_gap_s)
      << " s, above 1 s " << figure_text(s.second_gaps) << "; tokens " << figure_text(s.tokens)
      << " of fcfs's\n";
  for (const grid::LooseClass& loose : s.loose) {
    out << "      " << loose.name << ": joint " << figure_text(loose.j) << ", best "
        << figure_text(loose.best) << " by " << loose.best_policy << "\n";
  }
  for (const auto& [what, cause] : s.cause.items()) {
    out << "      " << what << ": "
        << (cause.is_string() ? cause.get<std::string>() : grid::cause_text(cause)) << "\n";
  }
}

void print_counts(const grid::ClassCounts& counts, const char* which, std::ostream& out) {
  out << counts.cells << " cells whose tightest class " << which << " " << grid::kFits
      << " of the knee that it has alone: " << counts.missed << " miss something; in "
      << counts.tight << " that class fares worse than alone, in " << counts.slow << " fewer than "
      << grid::kLeastTokens << " of fcfs's tokens a second are made, in " << counts.loose
      << " a looser class is behind\n";
}

void print_classes(const std::vector<grid::ClassStanding>& cells, std::ostream& out) {
  if (cells.empty()) return;
  for (const grid::ClassStanding& standing : cells) {
    if (standing.missed()) print_class(standing, out);
  }
  print_counts(grid::counts_of(cells, true), "comes at most at", out);
  print_counts(grid::counts_of(cells, false), "comes above", out);
}

Status write_page(const grid::Verdict& verdict, const std::vector<grid::PlayedCell>& played,
                  const GridOptions& options) {
  const Page page = grid::page_of(verdict, played, options.policy, options.tolerance);
  std::vector<ReportFile> files = {{"index.html", html_of(page)}};
  for (const Part& part : page.parts) {
    for (const Section& section : part.sections) {
      for (const Chart& chart : section.charts) files.push_back({chart.id + ".svg", svg_of(chart)});
    }
  }
  return write_report(options.folder / "report", files);
}

/// Returns whether the policy is behind nowhere.
Result<bool> play(const GridOptions& options, std::ostream& out, ProgressBar& bar) {
  KVD_ASSIGN_OR_RETURN(const grid::Plan plan, plan_of(options));
  const SteadyClock clock;
  TimePoint begin = clock.now();
  double before = 1;
  const auto played = grid::play_grid(plan, [&](double share, const std::string& what) {
    if (share < before) begin = clock.now();  // knees are found, and cells begin
    before = share;
    bar.show(share, what + time_left(share, clock.now() - begin));
  });
  bar.wipe();
  if (!played.ok()) return played.error();
  const grid::Verdict verdict = judge(plan, *played, options);
  const auto classes = judge_classes(plan, *played, options);
  KVD_TRY(write_page(verdict, *played, options));
  if (options.json) {
    auto json = grid::json_of(verdict);
    json["policies"] = comparison_json("", "", means_of(*played))["policies"];
    if (!classes.empty()) json["classes"] = grid::json_of(classes);
    out << json.dump(2) << "\n";
  } else {
    print_verdict(verdict, options, out);
    out << goals_table(means_of(*played), "mean of the cells");
    print_classes(classes, out);
  }
  return classes.empty() ? verdict.behind.empty() : grid::counts_of(classes, true).missed == 0;
}

}  // namespace

int grid_command(const GridOptions& options, std::ostream& out, std::ostream& err) {
  ProgressBar bar(err, options.progress);
  const auto leads = play(options, out, bar);
  if (leads.ok()) return *leads ? kDone : kFailed;
  err << "kvd-lab: " << leads.error().message << "\n";
  const auto code = leads.error().code;
  return code == ErrorCode::kInvalidArgument || code == ErrorCode::kNotFound ? kUsage : kFailed;
}

}  // namespace kvd::sim
