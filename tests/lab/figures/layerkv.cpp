#include <algorithm>

#include "tests/lab/figures/layerkv_setting.hpp"
#include "tests/lab/figures/makers.hpp"
#include "tests/lab/figures/text.hpp"

/// LayerKV's figures (its section 5): L20, whole-prompt prefill, TTFT within 3 s, TPOT within 200
/// ms.
namespace kvd::sim::figures {
namespace {

// vLLM 0.5.5 is request-wise and first come, first served: whole_request.
const std::vector<std::string> kPolicies = {"whole_request", "layerkv_literal", "layerkv",
                                            "unified"};

Result<GridResult> over_rates(Lab& lab, const std::string& figure, const std::string& profile,
                              std::vector<double> rates) {
  const Grid grid{
      figure,
      profile + ", ShareGPT lengths, 120 s",
      "rate",
      "requests a second",
      kPolicies,
      std::move(rates),
      [profile](const std::string& policy, double x) { return layerkv_trial(profile, policy, x); }};
  return measure_grid(lab, grid);
}

const std::vector<double> kRates = {4, 5, 5.5, 6, 6.5, 7};

/// 100 requests of one length, one a second, with answers of 512 tokens.
Result<GridResult> over_lengths(Lab& lab, const std::string& figure, const std::string& profile,
                                std::vector<std::string> policies, std::vector<double> lengths) {
  const Grid grid{figure,
                  profile + ", 100 requests at 1 req/s, answers of 512 tokens",
                  "prompt_tokens",
                  "prompt, tokens",
                  std::move(policies),
                  std::move(lengths),
                  [profile](const std::string& policy, double x) {
                    const auto tokens = std::to_string(static_cast<int>(x));
                    return layerkv_fixed_trial(profile, policy, "gen:fixed-" + tokens + "-512");
                  }};
  return measure_grid(lab, grid);
}

/// How many times as long the first takes as the second.
double times(double first, double second) { return second > 0 ? first / second : 0; }

std::string times_text(const GridResult& result, double x, double Metrics::*figure) {
  const auto at = [&](const char* policy) { return result.mean(policy, x, figure); };
  return number_text(times(at("whole_request"), at("layerkv"))) + " times (as printed " +
         number_text(times(at("whole_request"), at("layerkv_literal"))) + ")";
}

constexpr const char* kLiteral =
    "as printed, one decoding request that can no longer meet its goal blocks every prefill until "
    "it "
    "ends; layerkv leaves such requests out of the minimum";

}  // namespace

Result<Figure> lk_fig1(Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto result,
                       over_lengths(lab, "lk-fig1", kLlama, {"whole_request"},
                                    {128, 256, 512, 1024, 2048, 4096, 8192, 16384}));
  const auto at = [&](double x, double Metrics::*m) { return result.mean("whole_request", x, m); };
  const double queued = at(1024, &Metrics::queue_mean_s) / at(1024, &Metrics::ttft_mean_s);
  const double tpot_growth = at(8192, &Metrics::tpot_mean_s) / at(128, &Metrics::tpot_mean_s);
  const double ttft_growth = at(8192, &Metrics::ttft_mean_s) / at(128, &Metrics::ttft_mean_s);
  Figure figure;
  figure.findings = {{"from about 1K tokens on queueing dominates TTFT",
                      percent(queued) + " of TTFT at 1,024 tokens", agreement(queued > 0.5)},
                     {"TTFT grows faster than TPOT",
                      "from 128 to 8,192 tokens " + number_text(ttft_growth) + " times against " +
                          number_text(tpot_growth),
                      agreement(ttft_growth > tpot_growth)}};
  figure.charts = {
      chart_of(result, {"lk-fig1-ttft", "Mean TTFT, vLLM's policy", "seconds",
                        &Metrics::ttft_mean_s, 1, true}),
      chart_of(result, {"lk-fig1-queue", "Mean time in the queue", "seconds",
                        &Metrics::queue_mean_s, 1, true}),
      chart_of(result, {"lk-fig1-tpot", "Mean TPOT", "milliseconds", &Metrics::tpot_mean_s, 1e3})};
  for (Chart& chart : figure.charts) chart.log_x = true;
  figure.data = json_of(result);
  return figure;
}

Result<Figure> lk_fig4(Lab& lab) {
  Figure figure;
  figure.notes = {
      "Counted as the same: TTFT at least 3 times lower somewhere and nowhere more than a tenth "
      "higher; throughput at least 95 % of vLLM's everywhere."};
  figure.data = {{"figure", "lk-fig4"},
                 {"unit", "L20, fixed prompts"},
                 {"models", nlohmann::ordered_json::array()}};
  for (const char* profile : {kLlama, "l20-yi-34b-tp2", "l20-llama3-70b-tp4"}) {
    KVD_ASSIGN_OR_RETURN(const auto result, over_lengths(lab, "lk-fig4", profile, kPolicies,
                                                         {512, 1024, 2048, 4096, 8192}));
    const std::string model(profile);
    double best = 0;
    bool never_worse = true;
    double throughput = 1;
    for (const double x : result.grid.xs) {
      const auto ttft = [&](const char* policy) {
        return result.mean(policy, x, &Metrics::ttft_mean_s);
      };
      best = std::max(best, times(ttft("whole_request"), ttft("layerkv")));
      never_worse = never_worse && ttft("layerkv") < 1.1 * ttft("whole_request");
      throughput =
          std::min(throughput, times(result.mean("layerkv", x, &Metrics::throughput_rps),
                                     result.mean("whole_request", x, &Metrics::throughput_rps)));
    }
    figure.findings.push_back(
        {model + ": TTFT up to an order of magnitude lower, growing with the prompt",
         "up to " + number_text(best) + " times lower", agreement(never_worse && best >= 3)});
    figure.findings.push_back({model + ": throughput nearly identical",
                               "at worst " + percent(throughput) + " of vLLM's",
                               agreement(throughput > 0.95)});
    const std::string id = "lk-fig4-" + std::to_string(figure.charts.size());
    figure.charts.push_back(
        chart_of(result, {id, "Mean TTFT, " + model, "seconds", &Metrics::ttft_mean_s, 1, true}));
    figure.charts.back().log_x = true;
    auto json = json_of(result);
    json["profile"] = model;
    figure.data["models"].push_back(std::move(json));
  }
  return figure;
}

Result<Figure> lk_fig5(Lab& lab) {
  const Grid grid{"lk-fig5",
                  "L20 x 2, 4, 8, Yi-34B, prompts of 4,096 tokens",
                  "tensor_parallel",
                  "GPUs",
                  kPolicies,
                  {2, 4, 8},
                  [](const std::string& policy, double x) {
                    Trial trial =
                        layerkv_fixed_trial("l20-yi-34b-tp2", policy, "gen:fixed-4096-512");
                    trial.variant = "tp " + std::to_string(static_cast<int>(x));
                    trial.adjust = [x](Setting& setting) {
                      Profile& profile = setting.engines[0].profile;
                      const double more = x / 2;
                      profile.iteration.flops *= more;
                      profile.iteration.hbm_bytes_s *= more;
                      profile.link.h2d_bytes_s *= more;
                      profile.link.d2h_bytes_s *= more;
                      // 48 GB for each GPU, less 10 % and 3 GB; the weights are there once.
                      profile.hbm += Bytes(static_cast<std::int64_t>((x - 2) * 40.2e9));
                    };
                    return trial;
                  }};
  KVD_ASSIGN_OR_RETURN(const auto result, measure_grid(lab, grid));
  Figure figure;
  figure.notes = {
      "More GPUs bring compute, bandwidth and memory in proportion; the cost of more "
      "all-reduces is left out."};
  bool lower = true;
  for (const double x : grid.xs) {
    lower = lower && result.mean("layerkv", x, &Metrics::ttft_mean_s) <=
                         1.02 * result.mean("whole_request", x, &Metrics::ttft_mean_s);
  }
  const auto gap = [&](double x) {
    return times(result.mean("layerkv", x, &Metrics::throughput_rps),
                 result.mean("whole_request", x, &Metrics::throughput_rps));
  };
  figure.findings = {
      {"TTFT lower at every degree of parallelism",
       times_text(result, 2, &Metrics::ttft_mean_s) + " lower at 2 GPUs", agreement(lower)},
      {"the throughput gap narrows with more GPUs",
       percent(gap(2)) + " of vLLM's at 2 GPUs, " + percent(gap(8)) + " at 8",
       agreement(gap(8) >= gap(2) - 0.01)}};
  figure.charts = {
      chart_of(result, {"lk-fig5-ttft", "Mean TTFT", "seconds", &Metrics::ttft_mean_s, 1, true}),
      chart_of(result, {"lk-fig5-throughput", "Throughput", "requests a second",
                        &Metrics::throughput_rps})};
  figure.data = json_of(result);
  return figure;
}

Result<Figure> lk_fig6(Lab& lab) {
  Figure figure;
  figure.notes = {"Counted as the same: mean TTFT at the highest rate at least 1.5 times lower."};
  figure.data = {{"figure", "lk-fig6"},
                 {"unit", "L20, ShareGPT lengths"},
                 {"models", nlohmann::ordered_json::array()}};
  for (const char* profile : {kLlama, "l20-yi-34b-tp2", "l20-llama3-70b-tp4"}) {
    const bool main = profile == kLlama;
    KVD_ASSIGN_OR_RETURN(
        const auto result,
        over_rates(lab, "lk-fig6", profile, main ? kRates : std::vector<double>{3, 4, 5, 6}));
    const double x = result.last_x();
    const std::string model(profile);
    const auto gain = times(result.mean("whole_request", x, &Metrics::ttft_mean_s),
                            result.mean("layerkv", x, &Metrics::ttft_mean_s));
    const auto kept = times(result.mean("layerkv", x, &Metrics::throughput_rps),
                            result.mean("whole_request", x, &Metrics::throughput_rps));
    figure.findings.push_back(
        {model + ": mean TTFT up to 69 times lower",
         "at " + number_text(x) + " req/s " + times_text(result, x, &Metrics::ttft_mean_s),
         agreement(gain > 1.5), gain > 1.5 ? kLiteral : ""});
    figure.findings.push_back({model + ": throughput loss below 3 %", percent(1 - kept) + " lost",
                               agreement(kept > 0.97)});
    const std::string id = "lk-fig6-" + std::to_string(figure.charts.size());
    figure.charts.push_back(
        chart_of(result, {id, "Mean TTFT, " + model, "seconds", &Metrics::ttft_mean_s, 1, true}));
    figure.charts.push_back(chart_of(result, {id + "-throughput", "Throughput, " + model,
                                              "requests a second", &Metrics::throughput_rps}));
    auto json = json_of(result);
    json["profile"] = model;
    figure.data["models"].push_back(std::move(json));
  }
  return figure;
}

Result<Figure> lk_fig7(Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto result, over_rates(lab, "lk-fig7", kLlama, kRates));
  const auto gain = [&](double x) {
    return times(result.mean("whole_request", x, &Metrics::ttft_p99_s),
                 result.mean("layerkv", x, &Metrics::ttft_p99_s));
  };
  Figure figure;
  figure.notes = {"Counted as the same: at least 1.5 times lower at 6 and at 7 requests a second."};
  figure.findings = {{"P99 TTFT up to 45 times lower",
                      "at 6 req/s " + times_text(result, 6, &Metrics::ttft_p99_s) + ", at 7 " +
                          times_text(result, 7, &Metrics::ttft_p99_s),
                      agreement(gain(6) > 1.5 && gain(7) > 1.5), kLiteral}};
  figure.charts = {chart_of(
      result, {"lk-fig7", "P99 TTFT, Llama2-7B", "seconds", &Metrics::ttft_p99_s, 1, true})};
  figure.data = json_of(result);
  return figure;
}

Result<Figure> lk_fig8(Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto result, over_rates(lab, "lk-fig8", kLlama, kRates));
  const auto meets = [&](const char* policy, double x) {
    return result.mean(policy, x, &Metrics::ttft_tpot_attainment);
  };
  const double fewer = meets("layerkv", 7) - meets("whole_request", 7);
  Figure figure;
  figure.notes = {
      "A request violates its goals when TTFT exceeds 3 s or TPOT 200 ms. Counted as the same: "
      "more "
      "than 10 % at 6 req/s, and more than 10 points fewer at 7. unified, which is not "
      "the paper's, violates " +
      percent(1 - meets("unified", 7)) + " at 7 req/s."};
  figure.findings = {{"from 6 req/s on vLLM violates significantly",
                      percent(1 - meets("whole_request", 6)) + " at 6 req/s",
                      agreement(1 - meets("whole_request", 6) > 0.1)},
                     {"LayerKV's violations are 17.7 to 28.7 points fewer",
                      points(-fewer) + " at 7 req/s, " +
                          points(meets("whole_request", 6) - meets("layerkv", 6)) + " at 6",
                      agreement(fewer > 0.1), kLiteral}};
  figure.charts = {chart_of(result, {"lk-fig8", "Requests that meet both goals",
                                     "share of requests", &Metrics::ttft_tpot_attainment})};
  figure.data = json_of(result);
  return figure;
}

}  // namespace kvd::sim::figures
