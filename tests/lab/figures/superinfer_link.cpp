#include <algorithm>

#include "tests/lab/figures/makers.hpp"
#include "tests/lab/figures/superinfer_setting.hpp"
#include "tests/lab/figures/text.hpp"

/// SuperInfer's figures over the link, and its ablation.
namespace kvd::sim::figures {
namespace {

/// The naive engine's link: SI Table 1, one direction at a time.
void make_naive(LinkModel& link) {
  link.h2d_bytes_s = 9.86 * static_cast<double>(kGiB.value);
  link.d2h_bytes_s = 10.75 * static_cast<double>(kGiB.value);
  link.shared_bytes_s = link.h2d_bytes_s;
}

/// A trial whose adjustment is followed by another one.
Trial adjusted(Trial trial, const std::string& variant, std::function<void(Setting&)> more) {
  trial.variant += ", " + variant;
  trial.adjust = [first = trial.adjust, more = std::move(more)](Setting& setting) {
    first(setting);
    more(setting);
  };
  return trial;
}

}  // namespace

Result<Figure> si_fig2(Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const double knee, superinfer_knee(lab, kQwen));
  const Grid grid{"si-fig2",
                  kSuperInferUnit,
                  "gb_s",
                  "swap bandwidth each way, GB/s",
                  {"waiting_first", "lvf"},
                  {10, 20, 40, 64, 100, 180},
                  [knee](const std::string& policy, double x) {
                    return adjusted(superinfer_trial(kQwen, policy, kOverload * knee),
                                    "link " + number_text(x), [x](Setting& setting) {
                                      LinkModel& link = setting.engines[0].profile.link;
                                      link.h2d_bytes_s = x * 1e9;
                                      link.d2h_bytes_s = x * 1e9;
                                      link.shared_bytes_s = 2 * x * 1e9;
                                    });
                  }};
  KVD_ASSIGN_OR_RETURN(const auto result, measure_grid(lab, grid));
  Figure figure;
  figure.notes = {
      "At 1.3 times FCFS's knee. The paper measures vLLM with offloading, whose victims and "
      "order of return it does not give: waiting_first comes nearest."};
  for (const char* policy : {"waiting_first", "lvf"}) {
    const auto ttft = [&](double x) { return result.mean(policy, x, &Metrics::ttft_p99_s); };
    const auto gap = [&](double x) { return result.mean(policy, x, &Metrics::longest_gap_p99_s); };
    figure.findings.push_back({std::string(policy) + ": P99 TTFT falls with swap bandwidth",
                               number_text(ttft(10)) + " s at 10 GB/s, " + number_text(ttft(64)) +
                                   " at 64, " + number_text(ttft(180)) + " at 180",
                               agreement(ttft(180) < ttft(10))});
    figure.findings.push_back({std::string(policy) + ": P99 TBT falls with swap bandwidth",
                               number_text(gap(10)) + " s of the longest gaps at 10 GB/s, " +
                                   number_text(gap(180)) + " at 180",
                               agreement(gap(180) < gap(10))});
  }
  figure.charts = {chart_of(result, {"si-fig2-ttft", "P99 TTFT by bandwidth", "seconds",
                                     &Metrics::ttft_p99_s, 1, true}),
                   chart_of(result, {"si-fig2-gap", "P99 of each request's longest gap", "seconds",
                                     &Metrics::longest_gap_p99_s, 1, true})};
  figure.data = json_of(result);
  return figure;
}

Result<Figure> si_fig17(Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const double knee, superinfer_knee(lab, kQwen));
  const std::vector<std::string> engines = {"fcfs", "lvf, naive engine, 300 blocks",
                                            "lvf, naive engine, 2,400 blocks", "lvf"};
  const Grid grid{"si-fig17",
                  kSuperInferUnit,
                  "times_knee",
                  "request rate, multiples of FCFS's knee",
                  engines,
                  {0.8, 1.0, 1.3, 1.6},
                  [knee](const std::string& engine, double x) {
                    const bool naive = engine.find("naive") != std::string::npos;
                    const std::string policy = engine.substr(0, engine.find(','));
                    RotaParameters parameters;
                    if (engine.find(" 300 ") != std::string::npos) parameters.blocks = 300;
                    Trial trial = superinfer_trial(kQwen, policy, x * knee, parameters);
                    if (!naive) return trial;
                    return adjusted(std::move(trial), "naive", [](Setting& setting) {
                      make_naive(setting.engines[0].profile.link);
                    });
                  }};
  KVD_ASSIGN_OR_RETURN(const auto result, measure_grid(lab, grid));
  const auto at = [&](std::size_t engine, double Metrics::*m) {
    return result.mean(engines[engine], 1.3, m);
  };
  const auto ttft = &Metrics::ttft_attainment;
  const auto tbt = &Metrics::tbt_mean_attainment;
  Figure figure;
  figure.notes = {
      "The naive engine's link is Table 1's: 9.9 and 10.8 GiB/s, one direction at a time."};
  figure.findings = {{"RotaSched with 300 blocks improves TTFT over vLLM",
                      percent(at(1, ttft)) + " against " + percent(at(0, ttft)),
                      agreement(at(1, ttft) > at(0, ttft))},
                     {"2,400 blocks on the naive engine lower TBT attainment",
                      percent(at(2, tbt)) + " against " + percent(at(1, tbt)) + " by mean gap",
                      agreement(at(2, tbt) < at(1, tbt))},
                     {"the full system improves TTFT further",
                      percent(at(3, ttft)) + " against " + percent(at(1, ttft)),
                      agreement(at(3, ttft) >= at(1, ttft))}};
  figure.charts = {
      chart_of(result, {"si-fig17-ttft", "TTFT attainment", "share of requests", ttft}),
      chart_of(result, {"si-fig17-tbt", "TBT attainment, mean gap", "share of requests", tbt})};
  figure.data = json_of(result);
  return figure;
}

Result<Figure> si_fig22(Lab& lab) {
  Figure figure;
  figure.notes = {
      "Two ranks double compute, bandwidth, link and memory for KV beyond one copy of the weights; "
      "all-reduces over NVLink are left out. LMSYS lengths are not published with the paper."};
  figure.data = {{"figure", "si-fig22"},
                 {"unit", "2 x GH200, ShareGPT lengths"},
                 {"models", nlohmann::ordered_json::array()}};
  for (const char* profile : {kQwen, "gh200-mixtral-8x7b"}) {
    KVD_ASSIGN_OR_RETURN(const double knee, superinfer_knee(lab, profile));
    const Grid grid{"si-fig22",
                    std::string("2 x ") + profile,
                    "rate",
                    "requests a second",
                    {"fcfs", "lvf", "unified"},
                    {2 * knee, 2.6 * knee, 3.2 * knee},
                    [profile](const std::string& policy, double x) {
                      return adjusted(superinfer_trial(profile, policy, x), "tp 2",
                                      [](Setting& setting) {
                                        Profile& two = setting.engines[0].profile;
                                        two.iteration.flops *= 2;
                                        two.iteration.hbm_bytes_s *= 2;
                                        two.link.h2d_bytes_s *= 2;
                                        two.link.d2h_bytes_s *= 2;
                                        two.link.shared_bytes_s *= 2;
                                        // 0.9 x 144 GB less 3 GB.
                                        two.hbm += Bytes(126'600'000'000);
                                        two.dram = two.dram * 2;
                                      });
                    }};
    KVD_ASSIGN_OR_RETURN(const auto result, measure_grid(lab, grid));
    const double x = grid.xs.back();
    const auto at = [&](const char* policy, double Metrics::*m) {
      return result.mean(policy, x, m);
    };
    const std::string model(profile);
    figure.findings.push_back(
        {model + ": higher TTFT attainment than vLLM at TP 2",
         percent(at("lvf", &Metrics::ttft_attainment)) + " against " +
             percent(at("fcfs", &Metrics::ttft_attainment)) + " at " + number_text(x) + " req/s",
         agreement(at("lvf", &Metrics::ttft_attainment) >= at("fcfs", &Metrics::ttft_attainment))});
    figure.findings.push_back({model + ": higher TBT attainment",
                               percent(at("lvf", &Metrics::tbt_mean_attainment)) + " against " +
                                   percent(at("fcfs", &Metrics::tbt_mean_attainment)) +
                                   " by mean gap",
                               agreement(at("lvf", &Metrics::tbt_mean_attainment) >=
                                         at("fcfs", &Metrics::tbt_mean_attainment))});
    const std::string id = "si-fig22-" + std::to_string(figure.charts.size());
    figure.charts.push_back(chart_of(
        result, {id, "TTFT attainment, " + model, "share of requests", &Metrics::ttft_attainment}));
    figure.charts.push_back(chart_of(result, {id + "-tbt", "TBT attainment by mean gap, " + model,
                                              "share of requests", &Metrics::tbt_mean_attainment}));
    auto json = json_of(result);
    json["profile"] = model;
    figure.data["models"].push_back(std::move(json));
  }
  return figure;
}

}  // namespace kvd::sim::figures
