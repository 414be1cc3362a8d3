#include "kvd/sim/chart/chart.hpp"
#include "tests/lab/bench/benefit_figures.hpp"
#include "tests/lab/bench/print.hpp"

namespace kvd::bench {

std::string benefit_svg(const BenefitStage& stage, const BenefitRuns& runs) {
  sim::Chart chart;
  chart.id = "benefit";
  chart.y_label = "requests within SLO, by seed";
  chart.title = "Two engines with bursts in turn: the same requests, the same memory";
  chart.kind = sim::ChartKind::kBars;
  print(chart.description,
        "SLO: TTFT %.0f ms and TBT %.0f ms. Bursts of %.3g requests/s for %.3g s at one engine, "
        "%.3g at the other. HBM (host memory) %u MiB.",
        stage.goals.ttft_s * 1e3, stage.goals.tbt_s * 1e3, stage.busy_rate, stage.phase_s,
        stage.quiet_rate, stage.hbm_mib);
  chart.series = {{"two halves of the memory", {}}, {"one kvd with all of it", {}}};
  for (std::size_t i = 0; i < runs.kvd.runs.size(); ++i) {
    print(chart.categories.emplace_back(), "of %.0f", value_of(runs.kvd.runs[i], "requests"));
    const auto x = static_cast<double>(i);
    chart.series[0].points.push_back({x, value_of(runs.halves.runs[i], "within_slo")});
    chart.series[1].points.push_back({x, value_of(runs.kvd.runs[i], "within_slo")});
  }
  const auto halves = runs.halves.means(), kvd = runs.kvd.means();
  const auto both = [&](const char* figure, double unit, const char* name) {
    print(chart.x_label, "%s%s %.0f and %.0f", chart.x_label.empty() ? "" : ", ", name,
          unit * value_of(halves, figure), unit * value_of(kvd, figure));
  };
  both("ttft_p95", 1e3, "P95 TTFT (ms)");
  both("tbt_p95", 1e3, "P95 TBT (ms)");
  both("throughput", 1, "tokens a second");
  return sim::svg_of(chart);
}

}  // namespace kvd::bench
