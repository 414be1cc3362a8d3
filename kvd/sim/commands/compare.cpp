#include <algorithm>
#include <cmath>
#include <fstream>
#include <ostream>

#include "kvd/sim/commands/commands.hpp"
#include "kvd/sim/commands/progress_bar.hpp"
#include "kvd/sim/commands/sweep_chart.hpp"
#include "kvd/sim/commands/table.hpp"
#include "kvd/sim/run/exit_status.hpp"
#include "kvd/sim/run/parts.hpp"
#include "kvd/sim/run/summary_json.hpp"

/// `run`, `compare` and `sweep`.
namespace kvd::sim {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kUnit = "shares 0..1, seconds, requests a second";

int fail(std::ostream& err, const Error& error) {
  err << "kvd-sim: " << error.message << "\n";
  return error.code == ErrorCode::kInvalidArgument || error.code == ErrorCode::kNotFound ? kUsage
                                                                                         : kFailed;
}

std::string describe(const ScenarioOptions& options) {
  std::string text;
  for (std::size_t i = 0; i < options.profiles.size() && i < options.traces.size(); ++i) {
    text += (i == 0 ? "" : ", ") + options.traces[i] + " on " + options.profiles[i];
  }
  const std::uint64_t first = options.workload.seed;
  text += ", seed " + std::to_string(first);
  if (options.seeds > 1) text += " to " + std::to_string(first + options.seeds - 1);
  return text;
}

Result<std::vector<Summary>> compare(const ScenarioOptions& options, ProgressBar& bar, double begin,
                                     double end) {
  std::vector<Summary> out;
  const double part = (end - begin) / static_cast<double>(options.policies.size());
  for (const std::string& policy : options.policies) {
    const double from = begin + part * static_cast<double>(out.size());
    KVD_ASSIGN_OR_RETURN(Summary summary, summarize_policy(options, policy, [&](double share) {
                           bar.show(from + part * share, policy);
                         }));
    out.push_back(std::move(summary));
  }
  return out;
}

struct Parameter {
  const char* name;
  /// Errors: InvalidArgument.
  Status (*set)(ScenarioOptions& options, const std::string& value);
};

Result<double> number(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end != text.c_str() && *end == '\0' && !std::isnan(value)) return value;
  return make_error(ErrorCode::kInvalidArgument, "\"" + text + "\" is no number");
}

template <auto Field>
Status set_number(ScenarioOptions& options, const std::string& value) {
  KVD_ASSIGN_OR_RETURN(options.*Field, number(value));
  return {};
}

template <auto Field>
Status set_text(ScenarioOptions& options, const std::string& value) {
  if (value.empty()) return make_error(ErrorCode::kInvalidArgument, "an empty value is no size");
  options.*Field = value;
  return {};
}

Status set_prefill(ScenarioOptions& options, const std::string& value) {
  KVD_ASSIGN_OR_RETURN(const double tokens, number(value));
  // Too large a number is refused with the setting, but it has to fit the type first.
  options.prefill_tokens = static_cast<std::int64_t>(std::clamp(tokens, -1.0, 1e18));
  return {};
}

Status set_rate(ScenarioOptions& options, const std::string& value) {
  KVD_ASSIGN_OR_RETURN(const double rate, number(value));
  options.rates = {rate};
  return {};
}

Status set_cv(ScenarioOptions& options, const std::string& value) {
  KVD_ASSIGN_OR_RETURN(options.workload.cv, number(value));
  return {};
}

constexpr Parameter kParameters[] = {
    {"rate", set_rate},
    {"cv", set_cv},
    {"prefill-tokens", set_prefill},
    {"b-xfer", set_text<&ScenarioOptions::b_xfer>},
    {"hbm", set_text<&ScenarioOptions::hbm>},
    {"dram", set_text<&ScenarioOptions::dram>},
    {"link", set_number<&ScenarioOptions::link>},
    {"alpha", set_number<&ScenarioOptions::alpha>},
    {"beta-b", set_number<&ScenarioOptions::beta_b>},
    {"beta-f", set_number<&ScenarioOptions::beta_f>},
    {"ttft", set_number<&ScenarioOptions::ttft_s>},
    {"tbt", set_number<&ScenarioOptions::tbt_s>},
    {"tpot", set_number<&ScenarioOptions::tpot_s>},
    {"length-error", set_number<&ScenarioOptions::length_error>},
};

Status set_parameter(ScenarioOptions& options, const std::string& name, const std::string& value) {
  for (const Parameter& parameter : kParameters) {
    if (name == parameter.name) return parameter.set(options, value);
  }
  std::string message = "nothing called \"" + name + "\" can be swept; available:";
  for (const std::string& known : sweep_parameters()) message += " " + known;
  return make_error(ErrorCode::kInvalidArgument, std::move(message));
}

Result<std::vector<SweepPoint>> sweep(const ScenarioOptions& options, const SweepOptions& sweep,
                                      ProgressBar& bar) {
  KVD_TRY(check_figure(sweep.figure));
  std::vector<SweepPoint> points;
  const auto count = static_cast<double>(sweep.values.size());
  for (const std::string& value : sweep.values) {
    ScenarioOptions at = options;
    KVD_TRY(set_parameter(at, sweep.over, value));
    const auto done = static_cast<double>(points.size());
    KVD_ASSIGN_OR_RETURN(auto policies, compare(at, bar, done / count, (done + 1) / count));
    points.push_back({value, std::move(policies)});
  }
  return points;
}

void print_sweep(const ScenarioOptions& options, const std::string& over,
                 const std::vector<SweepPoint>& points, std::ostream& out) {
  if (!options.json) {
    out << describe(options) << "\n";
    for (const SweepPoint& point : points) {
      out << "\n" << over << " = " << point.value << "\n" << comparison_table(point.policies);
    }
    return;
  }
  Json list = Json::array();
  for (const SweepPoint& point : points) {
    Json entry = {{"value", point.value}};
    entry["policies"] = comparison_json("", "", point.policies)["policies"];
    list.push_back(std::move(entry));
  }
  out << Json{{"figure", "sweep"}, {"unit", kUnit}, {"parameter", over}, {"points", list}}.dump(2)
      << "\n";
}

Status write_picture(const ScenarioOptions& options, const SweepOptions& what,
                     const std::vector<SweepPoint>& points) {
  if (what.svg.empty()) return {};
  KVD_ASSIGN_OR_RETURN(const Chart chart,
                       sweep_chart({what.figure, what.over, describe(options)}, points));
  std::ofstream file(what.svg);
  file << svg_of(chart);
  file.close();
  if (file) return {};
  return make_error(ErrorCode::kInvalidArgument, "cannot write " + what.svg.string());
}

Json run_json(const ScenarioOptions& options, const RunResult& result) {
  Json figures = Json::object();
  const Metrics metrics = measure(result);
  for (const MetricName& metric : metric_names()) figures[metric.name] = metrics.*metric.figure;
  Json out = {{"traces", options.traces},
              {"profiles", options.profiles},
              {"policy", options.policies.front()},
              {"seed", options.workload.seed},
              {"metrics", std::move(figures)}};
  for (const RequestPart& part : parts_of(result)) {
    Json of = {{"part", part.name}};
    const Metrics its = measure(part.result);
    for (const MetricName& metric : metric_names()) {
      if (!metric.of_machine) of[metric.name] = its.*metric.figure;
    }
    out["parts"].push_back(std::move(of));
  }
  if (!result.totals.note.empty()) out["note"] = result.totals.note;
  return out;
}

/// Empty where there is only one part.
std::string parts_table(const RunResult& result) {
  std::vector<Summary> parts;
  for (const RequestPart& part : parts_of(result)) {
    parts.push_back(summarize(part.name, {measure(part.result)}));
  }
  return parts.empty() ? "" : "\n" + goals_table(parts, "requests of");
}

Status write_requests(const std::filesystem::path& to, const RunResult& result) {
  if (to.empty()) return {};
  std::ofstream file(to);
  file << requests_csv(result);
  file.close();
  if (file) return {};
  return make_error(ErrorCode::kInvalidArgument, "cannot write " + to.string());
}

}  // namespace

int run_command(const ScenarioOptions& options, const RunOptions& what, std::ostream& out,
                std::ostream& err) {
  ProgressBar bar(err, options.progress);
  const std::string& policy = options.policies.front();
  const auto result = simulate(options, policy, options.workload.seed,
                               [&](double share) { bar.show(share, policy); });
  bar.wipe();
  if (!result.ok()) return fail(err, result.error());
  if (const Status written = write_requests(what.requests_csv, *result); !written.ok()) {
    return fail(err, written.error());
  }
  if (options.json) {
    out << run_json(options, *result).dump(2) << "\n";
  } else {
    out << describe(options) << ", policy " << policy << "\n"
        << metrics_table(measure(*result)) << parts_table(*result);
    if (!result->totals.note.empty()) out << "note: " << result->totals.note << "\n";
  }
  return kDone;
}

int compare_command(const ScenarioOptions& options, std::ostream& out, std::ostream& err) {
  ProgressBar bar(err, options.progress);
  const auto summaries = compare(options, bar, 0, 1);
  bar.wipe();
  if (!summaries.ok()) return fail(err, summaries.error());
  if (options.json) {
    out << comparison_json("compare", kUnit, *summaries).dump(2) << "\n";
  } else {
    out << describe(options) << "\n" << comparison_table(*summaries);
  }
  return kDone;
}

std::vector<std::string> sweep_parameters() {
  std::vector<std::string> names;
  for (const Parameter& parameter : kParameters) names.emplace_back(parameter.name);
  return names;
}

int sweep_command(const ScenarioOptions& options, const SweepOptions& what, std::ostream& out,
                  std::ostream& err) {
  ProgressBar bar(err, options.progress);
  const auto points = sweep(options, what, bar);
  bar.wipe();
  if (!points.ok()) return fail(err, points.error());
  if (const Status drawn = write_picture(options, what, *points); !drawn.ok()) {
    return fail(err, drawn.error());
  }
  print_sweep(options, what.over, *points, out);
  return kDone;
}

}  // namespace kvd::sim
