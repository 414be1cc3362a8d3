#include <algorithm>

#include "tests/lab/figures/makers.hpp"
#include "tests/lab/figures/superinfer_setting.hpp"
#include "tests/lab/figures/text.hpp"

/// SuperInfer's figures over LVF's parameters, at 1.3 times FCFS's knee.
namespace kvd::sim::figures {
namespace {

Result<GridResult> over_parameter(Lab& lab, const std::string& figure, const std::string& name,
                                  const std::string& label, std::vector<double> values,
                                  RotaParameters (*parameters)(double)) {
  KVD_ASSIGN_OR_RETURN(const double knee, superinfer_knee(lab, kQwen));
  const Grid grid{figure,
                  kSuperInferUnit,
                  name,
                  label,
                  {"lvf"},
                  std::move(values),
                  [knee, parameters](const std::string& policy, double x) {
                    return superinfer_trial(kQwen, policy, kOverload * knee, parameters(x));
                  }};
  return measure_grid(lab, grid);
}

std::vector<double> values_of(const GridResult& result, double Metrics::*figure) {
  std::vector<double> values;
  for (const double x : result.grid.xs) values.push_back(result.mean("lvf", x, figure));
  return values;
}

/// Whether the values never fall by more than `slack` of the largest.
bool rises(const std::vector<double>& values, double slack) {
  const double most = *std::max_element(values.begin(), values.end());
  for (std::size_t i = 1; i < values.size(); ++i) {
    if (values[i] < values[i - 1] - slack * most) return false;
  }
  return values.back() > values.front();
}
bool falls(std::vector<double> values, double slack) {
  std::reverse(values.begin(), values.end());
  return rises(values, slack);
}

std::string ends(const GridResult& result, double Metrics::*figure, const char* unit) {
  const auto values = values_of(result, figure);
  std::string text;
  for (const double value : values) text += (text.empty() ? "" : ", ") + number_text(value);
  return text + unit;
}

std::vector<Chart> latency_charts(const GridResult& result, const std::string& id) {
  return {chart_of(result, {id + "-ttft", "P99 TTFT", "seconds", &Metrics::ttft_p99_s}),
          chart_of(result, {id + "-tbt", "P99 TBT over all gaps", "seconds", &Metrics::tbt_p99_s})};
}

constexpr double kNoise = 0.02;

}  // namespace

Result<Figure> si_fig18(Lab& lab) {
  KVD_ASSIGN_OR_RETURN(
      const auto result,
      over_parameter(lab, "si-fig18", "alpha", "alpha", {1, 2, 3, 5, 10}, [](double x) {
        return RotaParameters{.alpha = x, .beta_b = 0, .beta_f = 0};
      }));
  Figure figure;
  const auto tbt = values_of(result, &Metrics::tbt_mean_attainment);
  const auto ttft = values_of(result, &Metrics::ttft_p99_s);
  figure.findings = {
      {"larger alpha, better TBT attainment",
       ends(result, &Metrics::tbt_mean_attainment, " by mean gap"), agreement(rises(tbt, kNoise))},
      {"larger alpha, worse TTFT", ends(result, &Metrics::ttft_p99_s, " s P99"),
       agreement(rises(ttft, kNoise))}};
  figure.charts = {chart_of(result, {"si-fig18-ttft", "TTFT attainment", "share of requests",
                                     &Metrics::ttft_attainment}),
                   chart_of(result, {"si-fig18-p99", "P99 TTFT", "seconds", &Metrics::ttft_p99_s}),
                   chart_of(result, {"si-fig18-tbt", "TBT attainment, mean gap",
                                     "share of requests", &Metrics::tbt_mean_attainment})};
  figure.data = json_of(result);
  return figure;
}

Result<Figure> si_fig19(Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto result,
                       over_parameter(lab, "si-fig19", "beta_f", "beta_f, of the TTFT goal",
                                      {0, 0.5, 1, 2, 4}, [](double x) {
                                        return RotaParameters{.alpha = 1, .beta_b = 0, .beta_f = x};
                                      }));
  Figure figure;
  const auto ttft = values_of(result, &Metrics::ttft_p99_s);
  figure.findings = {{"larger beta_F, worse P99 TTFT", ends(result, &Metrics::ttft_p99_s, " s"),
                      agreement(rises(ttft, kNoise))},
                     {"from beta_F = 2 on P99 TTFT rises sharply",
                      number_text(ttft[3]) + " s at 2 against " + number_text(ttft[2]) + " s at 1",
                      agreement(ttft[3] > 1.3 * ttft[2])}};
  figure.charts = latency_charts(result, "si-fig19");
  figure.data = json_of(result);
  return figure;
}

Result<Figure> si_fig20(Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto result,
                       over_parameter(lab, "si-fig20", "beta_b", "beta_b, of the TBT goal",
                                      {-10, 0, 10, 30, 50}, [](double x) {
                                        return RotaParameters{.alpha = 1, .beta_b = x, .beta_f = 0};
                                      }));
  Figure figure;
  figure.notes = {"P99 TBT a request: over requests, of the longest gap."};
  figure.findings = {
      {"larger beta_B, worse P99 TBT",
       ends(result, &Metrics::longest_gap_p99_s, " s of the longest gaps"),
       agreement(rises(values_of(result, &Metrics::longest_gap_p99_s), kNoise))},
      {"negative beta_B at the cost of TTFT", ends(result, &Metrics::ttft_p99_s, " s P99 TTFT"),
       agreement(falls(values_of(result, &Metrics::ttft_p99_s), kNoise))}};
  figure.charts = latency_charts(result, "si-fig20");
  figure.charts.push_back(chart_of(result, {"si-fig20-gap", "P99 of each request's longest gap",
                                            "seconds", &Metrics::longest_gap_p99_s}));
  figure.data = json_of(result);
  return figure;
}

Result<Figure> si_fig21(Lab& lab) {
  KVD_ASSIGN_OR_RETURN(
      const auto result,
      over_parameter(lab, "si-fig21", "b_xfer_blocks", "B_xfer, blocks an iteration",
                     {75, 150, 300, 600, 1200, 2400, 4800}, [](double x) {
                       return RotaParameters{.blocks = static_cast<std::int64_t>(x)};
                     }));
  const auto joint = values_of(result, &Metrics::joint_attainment);
  const auto best =
      static_cast<std::size_t>(std::max_element(joint.begin(), joint.end()) - joint.begin());
  Figure figure;
  figure.notes = {"Joint attainment (TTFT and mean TBT) is best at B_xfer = " +
                  number_text(result.grid.xs[best]) + " blocks here: " + percent(joint[best]) +
                  "."};
  figure.findings = {{"larger B_xfer lowers P99 TTFT", ends(result, &Metrics::ttft_p99_s, " s"),
                      agreement(falls(values_of(result, &Metrics::ttft_p99_s), kNoise))},
                     {"larger B_xfer lowers P99 TBT",
                      ends(result, &Metrics::longest_gap_p99_s, " s of the longest gaps"),
                      agreement(falls(values_of(result, &Metrics::longest_gap_p99_s), kNoise))}};
  figure.charts = latency_charts(result, "si-fig21");
  for (Chart& chart : figure.charts) chart.log_x = true;
  const auto add = [&](const Shown& shown) {
    figure.charts.push_back(chart_of(result, shown));
    figure.charts.back().log_x = true;
  };
  add({"si-fig21-joint", "Joint attainment, with its optimum", "share of requests",
       &Metrics::joint_attainment});
  add({"si-fig21-moved", "Blocks moved a step", "blocks", &Metrics::blocks_moved_per_step});
  add({"si-fig21-throughput", "Throughput", "requests a second", &Metrics::throughput_rps});
  figure.data = json_of(result);
  return figure;
}

}  // namespace kvd::sim::figures
