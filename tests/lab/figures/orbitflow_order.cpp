#include "tests/lab/figures/makers.hpp"
#include "tests/lab/figures/orbitflow_setting.hpp"
#include "tests/lab/figures/text.hpp"

/// Which requests OrbitFlow serves first and which it pauses (its Fig. 13 and 14c).
namespace kvd::sim::figures {
namespace {

/// What differs from the policy of that name.
struct Variant {
  const char* name;
  bool shortest_first;
  Setting::Victim victim;
};

Trial variant_trial(const Variant& variant, double scale) {
  Trial trial = orbitflow_trial("orbitflow", scale);
  trial.variant = variant.name;
  trial.adjust = [first = trial.adjust, variant](Setting& setting) {
    first(setting);
    setting.shortest_first = variant.shortest_first;
    setting.victim = variant.victim;
  };
  return trial;
}

template <std::size_t N>
Grid grid_of(const char* figure, const Variant (&variants)[N], std::vector<double> scales) {
  Grid grid{figure, kOrbitFlowUnit, "slo_scale", "SLO scale", {}, std::move(scales), {}};
  for (const Variant& variant : variants) grid.policies.emplace_back(variant.name);
  grid.trial = [&variants](const std::string& policy, double x) {
    for (const Variant& variant : variants) {
      if (policy == variant.name) return variant_trial(variant, x);
    }
    return orbitflow_trial(policy, x);
  };
  return grid;
}

constexpr auto kPaper = Setting::Victim::kPolicys;
constexpr Variant kOrders[] = {{"orbitflow", false, kPaper}, {"orbitflow, srtf", true, kPaper}};
constexpr Variant kVictims[] = {{"longest", false, kPaper},
                                {"shortest", false, Setting::Victim::kShortest},
                                {"random", false, Setting::Victim::kRandom}};

}  // namespace

Result<Figure> of_fig13(Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto result, measure_grid(lab, grid_of("of-fig13", kOrders, {1.5})));
  const auto at = [&](std::size_t order, double Metrics::*m) {
    return result.mean(kOrders[order].name, 1.5, m);
  };
  const auto change = [&](double Metrics::*m) { return at(1, m) / at(0, m) - 1; };
  const double mean = change(&Metrics::ttft_mean_s);
  const double tail = change(&Metrics::ttft_p95_s);
  const double throughput = change(&Metrics::throughput_rps);
  const double tpot = at(1, &Metrics::tpot_attainment) - at(0, &Metrics::tpot_attainment);
  Figure figure;
  figure.notes = {
      "The engine has four seats; srtf gives a free one to the shortest answer that waits, by its "
      "true length, instead of the first that came. SLO scale 1.5."};
  figure.findings = {{"SRTF lowers mean TTFT by 40 %", percent(mean), agreement(mean < 0)},
                     {"and P95 TTFT by 24 %", percent(tail), agreement(tail < 0)},
                     {"TPOT attainment 4.8 % lower", points(tpot), agreement(tpot < 0)},
                     {"throughput 8 % lower", percent(throughput), agreement(throughput < 0)}};
  figure.charts = {
      bars_of(
          result, 1.5,
          {"of-fig13-ttft", "Mean TTFT by order of the queue", "seconds", &Metrics::ttft_mean_s}),
      bars_of(result, 1.5,
              {"of-fig13-p95", "P95 TTFT by order of the queue", "seconds", &Metrics::ttft_p95_s}),
      bars_of(result, 1.5,
              {"of-fig13-tpot", "TPOT attainment by order of the queue", "share of requests",
               &Metrics::tpot_attainment})};
  figure.data = json_of(result);
  return figure;
}

Result<Figure> of_fig14c(Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto result,
                       measure_grid(lab, grid_of("of-fig14c", kVictims, {1, 1.5, 2.5})));
  Figure figure;
  figure.notes = {
      "The longest is the paper's rule, most blocks and deposit; the others replace "
      "whom the solver names."};
  for (const double scale : result.grid.xs) {
    const auto tbt = [&](std::size_t victim) {
      return result.mean(kVictims[victim].name, scale, &Metrics::tbt_attainment);
    };
    figure.findings.push_back(
        {"pausing the longest beats the shortest and a random one, scale " + number_text(scale),
         percent(tbt(0)) + " TBT against " + percent(tbt(1)) + " and " + percent(tbt(2)),
         agreement(tbt(0) > tbt(1) && tbt(0) > tbt(2))});
  }
  figure.charts = {chart_of(result, {"of-fig14c-tbt", "TBT attainment by who is paused",
                                     "share of tokens", &Metrics::tbt_attainment}),
                   chart_of(result, {"of-fig14c-tpot", "TPOT attainment by who is paused",
                                     "share of requests", &Metrics::tpot_attainment})};
  figure.data = json_of(result);
  return figure;
}

}  // namespace kvd::sim::figures
