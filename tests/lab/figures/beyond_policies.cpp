#include <algorithm>

#include "kvd/sim/workload/predict.hpp"
#include "tests/lab/figures/makers.hpp"
#include "tests/lab/figures/superinfer_setting.hpp"
#include "tests/lab/figures/text.hpp"

/// What happens to the policies when something other than the load changes: prefill budgets, wrong
/// predictions, less DRAM, slower links. It is SuperInfer's setting at 1.3 times FCFS's knee.
namespace kvd::sim::figures {
namespace {

constexpr auto kJoint = &Metrics::joint_attainment;

struct Change {
  const char* figure;
  const char* x_name;
  const char* x_label;
  std::vector<std::string> policies;
  std::vector<double> xs;
  void (*apply)(Setting& setting, double x);
};

Result<GridResult> measure_change(Lab& lab, const Change& change) {
  KVD_ASSIGN_OR_RETURN(const double knee, superinfer_knee(lab, kQwen));
  const Grid grid{change.figure,
                  kSuperInferUnit,
                  change.x_name,
                  change.x_label,
                  change.policies,
                  change.xs,
                  [knee, &change](const std::string& policy, double x) {
                    Trial trial =
                        as_clients_announce(superinfer_trial(kQwen, policy, kOverload * knee));
                    trial.variant += std::string(", ") + change.x_name + " " + number_text(x);
                    trial.adjust = [first = trial.adjust, apply = change.apply, x](Setting& s) {
                      first(s);
                      apply(s, x);
                    };
                    return trial;
                  }};
  return measure_grid(lab, grid);
}

std::string series_text(const GridResult& result, const std::string& policy, double Metrics::*m) {
  std::string text;
  for (const double x : result.grid.xs) {
    text += (text.empty() ? "" : ", ") + percent(result.mean(policy, x, m));
  }
  return text;
}

/// Whether the policy is at most `slack` behind the best at every x.
bool leads(const GridResult& result, const std::string& policy, double slack) {
  return std::all_of(result.grid.xs.begin(), result.grid.xs.end(), [&](double x) {
    return std::all_of(
        result.grid.policies.begin(), result.grid.policies.end(), [&](const std::string& other) {
          return result.mean(policy, x, kJoint) >= result.mean(other, x, kJoint) - slack;
        });
  });
}

Figure figure_of(const GridResult& result, bool log_x) {
  Figure figure;
  figure.beyond = true;
  figure.notes = {"At 1.3 times FCFS's knee; joint attainment is TTFT and mean TBT."};
  const std::string& id = result.grid.figure;
  figure.charts = {
      chart_of(result, {id + "-joint", "Joint attainment", "share of requests", kJoint}),
      chart_of(result,
               {id + "-ttft", "TTFT attainment", "share of requests", &Metrics::ttft_attainment}),
      chart_of(result, {id + "-tbt", "TBT attainment, mean gap", "share of requests",
                        &Metrics::tbt_mean_attainment})};
  for (Chart& chart : figure.charts) chart.log_x = log_x;
  figure.data = json_of(result);
  return figure;
}

Finding leader(const GridResult& result) {
  return {"is unified at most 2 points behind the best at every point, TTFT and mean TBT?",
          series_text(result, "unified", kJoint), agreement(leads(result, "unified", 0.02))};
}

}  // namespace

Result<Figure> beyond_prefill(Lab& lab) {
  const Change change{
      "beyond-prefill",
      "prefill_tokens",
      "prompt tokens an iteration",
      {"fcfs", "layerkv", "si_code", "lvf", "unified"},
      {512, 768, 2048, 16384},
      [](Setting& setting, double x) { setting.prefill_tokens = static_cast<std::int64_t>(x); }};
  KVD_ASSIGN_OR_RETURN(const auto result, measure_change(lab, change));
  Figure figure = figure_of(result, true);
  figure.findings = {leader(result)};
  for (const std::string& policy : result.grid.policies) {
    const double low = result.mean(policy, 512, kJoint);
    const double high = result.mean(policy, 16384, kJoint);
    figure.findings.push_back({policy + ": is 512 as good as 16,384, within 2 points?",
                               series_text(result, policy, kJoint), agreement(low >= high - 0.02)});
  }
  return figure;
}

Result<Figure> beyond_lengths(Lab& lab) {
  const Change change{"beyond-lengths",
                      "length_error",
                      "error of the prediction; 0 knows the length",
                      {"srtf", "ltr", "past_future", "layerkv", "unified"},
                      {0, 0.35, 0.7, 1.4},
                      [](Setting& setting, double x) {
                        const Status status = predict_lengths(setting.workload, x, 1);
                        KVD_CHECK(status.ok(), "an error out of range");
                      }};
  KVD_ASSIGN_OR_RETURN(const auto result, measure_change(lab, change));
  Figure figure = figure_of(result, false);
  figure.notes.emplace_back(
      "Every answer's length is foreseen wrong by a factor exp(error x z), z normal: at 0.7 by "
      "twice or half, or more, for about a third of the requests.");
  for (const std::string& policy : result.grid.policies) {
    const double lost = result.mean(policy, 0, kJoint) - result.mean(policy, 1.4, kJoint);
    figure.findings.push_back({policy + ": loses it at most 5 points to the worst predictions?",
                               series_text(result, policy, kJoint), agreement(lost <= 0.05)});
  }
  return figure;
}

Result<Figure> beyond_dram(Lab& lab) {
  const Change change{
      "beyond-dram",
      "dram_gb",
      "DRAM for KV, GB",
      {"fcfs", "lvf", "unified"},
      {4, 16, 32, 64, 128, 400},
      [](Setting& setting, double x) { setting.dram = Bytes(static_cast<std::int64_t>(x * 1e9)); }};
  KVD_ASSIGN_OR_RETURN(const auto result, measure_change(lab, change));
  Figure figure = figure_of(result, true);
  figure.findings = {leader(result)};
  for (const char* policy : {"lvf", "unified"}) {
    const double most = result.mean(policy, 400, kJoint);
    double enough = 400;
    for (const double x : result.grid.xs) {
      if (x < enough && result.mean(policy, x, kJoint) >= most - 0.01) enough = x;
    }
    figure.findings.push_back(
        {std::string(policy) + ": do 64 GB do as well as 400, within a point?",
         "from " + number_text(enough) + " GB on; " + series_text(result, policy, kJoint),
         agreement(enough <= 64)});
  }
  return figure;
}

Result<Figure> beyond_link(Lab& lab) {
  const Change change{"beyond-link",
                      "gb_s",
                      "link each way, GB/s",
                      {"fcfs", "lvf", "unified"},
                      {6, 12, 25, 50, 100, 200},
                      [](Setting& setting, double x) {
                        LinkModel& link = setting.engines[0].profile.link;
                        link.h2d_bytes_s = link.d2h_bytes_s = x * 1e9;
                        link.shared_bytes_s = 2 * x * 1e9;
                      }};
  KVD_ASSIGN_OR_RETURN(const auto result, measure_change(lab, change));
  Figure figure = figure_of(result, true);
  figure.findings = {leader(result)};
  for (const char* policy : {"lvf", "unified"}) {
    const double fast = result.mean(policy, 200, kJoint);
    const double pcie = result.mean(policy, 25, kJoint);
    figure.findings.push_back({std::string(policy) + ": does PCIe 4 (25 GB/s) do within 5 points?",
                               points(pcie - fast) + "; " + series_text(result, policy, kJoint),
                               agreement(pcie >= fast - 0.05)});
  }
  return figure;
}

}  // namespace kvd::sim::figures
