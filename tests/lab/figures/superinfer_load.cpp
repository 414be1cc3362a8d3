#include <algorithm>

#include "tests/lab/figures/makers.hpp"
#include "tests/lab/figures/superinfer_setting.hpp"
#include "tests/lab/figures/text.hpp"

/// SuperInfer's figures over the request rate. Rates are multiples of FCFS's knee: its value in
/// requests a second depends on figures of the machine that nobody published.
namespace kvd::sim::figures {
namespace {

Result<GridResult> over_load(Lab& lab, const std::string& figure, const std::string& profile,
                             std::vector<std::string> policies, std::vector<double> multiples) {
  KVD_ASSIGN_OR_RETURN(const double knee, superinfer_knee(lab, profile));
  Grid grid{figure,
            profile == kQwen ? kSuperInferUnit : profile + ", ShareGPT lengths",
            "times_knee",
            "request rate, multiples of FCFS's knee (" + number_text(knee) + " req/s)",
            std::move(policies),
            std::move(multiples),
            [profile, knee](const std::string& policy, double x) {
              return superinfer_trial(profile, policy, x * knee);
            }};
  return measure_grid(lab, grid);
}

const std::vector<double> kMultiples = {0.6, 0.8, 1.0, 1.2, 1.3, 1.4, 1.6};

std::string pair_text(double first, double second) {
  return percent(first) + " and " + percent(second);
}

}  // namespace

Result<Figure> si_fig1(Lab& lab) {
  KVD_ASSIGN_OR_RETURN(
      const auto result,
      over_load(lab, "si-fig1", kQwen, {"fcfs", "waiting_first", "swapped_first"}, kMultiples));
  const double x = 1.3;
  const auto ttft = [&](const char* policy) {
    return result.mean(policy, x, &Metrics::ttft_p99_s);
  };
  const auto gap = [&](const char* policy) {
    return result.mean(policy, x, &Metrics::longest_gap_p99_s);
  };
  Figure figure;
  figure.notes = {
      "TBT is taken a request: P99 over requests of the longest gap. Over all gaps of all "
      "requests together waiting_first's long pauses are too few to show."};
  figure.findings = {
      {"waiting-first lowers P99 TTFT against FCFS",
       "at 1.3 times the knee " + number_text(ttft("waiting_first")) + " s against " +
           number_text(ttft("fcfs")) + " s",
       agreement(ttft("waiting_first") < ttft("fcfs"))},
      {"waiting-first raises P99 TBT against FCFS",
       number_text(gap("waiting_first")) + " s against " + number_text(gap("fcfs")) + " s",
       agreement(gap("waiting_first") > gap("fcfs"))},
      {"swapped-first has FCFS's TTFT",
       number_text(ttft("swapped_first")) + " s against " + number_text(ttft("fcfs")) + " s",
       agreement(ttft("swapped_first") > 0.8 * ttft("fcfs"))}};
  figure.charts = {chart_of(result, {"si-fig1-ttft", "P99 TTFT by load", "seconds",
                                     &Metrics::ttft_p99_s, 1, true}),
                   chart_of(result, {"si-fig1-gap", "P99 of each request's longest gap", "seconds",
                                     &Metrics::longest_gap_p99_s, 1, true})};
  figure.data = json_of(result);
  return figure;
}

Result<Figure> si_fig16(Lab& lab) {
  const std::vector<std::string> policies = {"fcfs",    "ltr", "past_future",
                                             "si_code", "lvf", "unified"};
  KVD_ASSIGN_OR_RETURN(const auto result, over_load(lab, "si-fig16", kQwen, policies, kMultiples));
  const double x = 1.3;
  const auto at = [&](const char* policy, double Metrics::*m) { return result.mean(policy, x, m); };
  const auto ttft = &Metrics::ttft_attainment;
  const auto mean_gap = &Metrics::tbt_mean_attainment;
  const double gain = at("lvf", ttft) - at("fcfs", ttft);
  Figure figure;
  figure.notes = {
      "LVF is the paper's algorithm, si_code the published code's scheduler; all policies "
      "may rotate 2,400 blocks an iteration and have 16,384 prompt tokens. LMSYS lengths "
      "are not published with the paper.",
      "Counted as the same: TTFT attainment at least 30 points above FCFS's, TBT attainment by "
      "mean "
      "gap less than 5 points below.",
      "NEO is not simulated: it computes attention on the CPU, whose speed is published for "
      "none of these machines. TensorRT-LLM is not simulated: its scheduler is not "
      "described, and its speed is that of its kernels."};
  figure.findings = {
      {"TTFT attainment up to 74.7 points above the baselines at high rates",
       "lvf " + points(gain) + " over fcfs at 1.3 times the knee", agreement(gain >= 0.3)},
      {"TBT attainment comparable or better",
       "by mean gap " + pair_text(at("lvf", mean_gap), at("fcfs", mean_gap)) + " (lvf, fcfs)",
       agreement(at("lvf", mean_gap) > at("fcfs", mean_gap) - 0.05)},
      {"NEO, TensorRT-LLM", "not simulated", Agreement::kNotSimulated}};
  const double best =
      std::max({at("fcfs", &Metrics::joint_attainment), at("ltr", &Metrics::joint_attainment),
                at("past_future", &Metrics::joint_attainment),
                at("si_code", &Metrics::joint_attainment), at("lvf", &Metrics::joint_attainment)});
  figure.notes.push_back(
      "unified, which is not the paper's, is at " +
      percent(at("unified", &Metrics::joint_attainment)) +
      " joint attainment (TTFT and mean TBT) at 1.3 times the knee, the best other at " +
      percent(best) + ".");
  figure.charts = {
      chart_of(result, {"si-fig16-ttft", "TTFT attainment", "share of requests", ttft}),
      chart_of(result, {"si-fig16-tbt", "TBT attainment, mean gap of a request",
                        "share of requests", mean_gap}),
      chart_of(result, {"si-fig16-p99gap", "TBT attainment, 99 % of a request's gaps",
                        "share of requests", &Metrics::tbt_p99gap_attainment}),
      chart_of(result, {"si-fig16-joint", "Joint attainment, TTFT and mean TBT",
                        "share of requests", &Metrics::joint_attainment}),
      chart_of(result, {"si-fig16-moved", "Blocks moved a step", "blocks",
                        &Metrics::blocks_moved_per_step})};
  figure.data = json_of(result);
  return figure;
}

Result<Figure> si_fig23(Lab& lab) {
  Figure figure;
  figure.notes = {"Requests completed a second from the first arrival to the last token."};
  figure.data = {{"figure", "si-fig23"},
                 {"unit", "GH200, ShareGPT lengths"},
                 {"models", nlohmann::ordered_json::array()}};
  for (const char* profile : {kQwen, "gh200-mixtral-8x7b"}) {
    KVD_ASSIGN_OR_RETURN(
        const auto result,
        over_load(lab, "si-fig23", profile, {"fcfs", "lvf", "unified"}, {0.8, 1.0, 1.3, 1.6}));
    const auto at = [&](const char* policy) {
      return result.mean(policy, 1.6, &Metrics::throughput_rps);
    };
    const double gain = at("lvf") / at("fcfs") - 1;
    const std::string model(profile);
    figure.findings.push_back({model + ": throughput comparable, up to 29.2 % higher at high rates",
                               "lvf " + percent(gain) + " over fcfs at 1.6 times the knee",
                               agreement(gain > -0.02)});
    figure.charts.push_back(
        chart_of(result, {"si-fig23-" + std::to_string(figure.charts.size()),
                          "Throughput, " + model, "requests a second", &Metrics::throughput_rps}));
    auto json = json_of(result);
    json["profile"] = model;
    figure.data["models"].push_back(std::move(json));
  }
  return figure;
}

}  // namespace kvd::sim::figures
