#include <cmath>

#include "planner/model/profile.hpp"
#include "tests/lab/figures/makers.hpp"
#include "tests/lab/figures/text.hpp"

namespace kvd::sim::figures {
namespace {

using planner::LinearCost;
using planner::Seconds;

// The curves of Fig. 2b and 2c as OrbitFlow's published script draws them: LLaMA3-8B on an RTX
// A6000.
constexpr LinearCost kCompute{Seconds(0.040), Seconds(1.23e-6)};
constexpr LinearCost kTransfer{Seconds(0.040), Seconds(2.0e-5)};
constexpr Seconds kSlo{0.052};

double ratio(std::int64_t tokens) {
  return kTransfer.at(Tokens(tokens)) / kCompute.at(Tokens(tokens));
}

/// The first length whose decode step is slower than the SLO.
std::int64_t crossing() {
  return static_cast<std::int64_t>(std::ceil((kSlo - kCompute.fixed) / kCompute.per_token));
}

ChartSeries curve(const char* name, std::int64_t to, double (*value)(double)) {
  ChartSeries series{name, {}};
  for (std::int64_t tokens = 0; tokens <= to; tokens += 512) {
    series.points.push_back({static_cast<double>(tokens), value(static_cast<double>(tokens))});
  }
  return series;
}

}  // namespace

Result<Figure> of_fig2b(Lab&) {
  Figure figure;
  figure.notes = {
      "Computed from the published fits: compute 1.23e-6 T + 0.040 s, transfer 2.0e-5 T + "
      "0.040 s for all layers, T in tokens."};
  const double short_ratio = ratio(2048);
  const double long_ratio = ratio(16384);
  figure.findings = {
      {"at 2K tokens a layer's transfer takes 1.9 times its compute",
       number_text(short_ratio) + " times", agreement(std::abs(short_ratio - 1.9) < 0.05)},
      {"at 16K tokens 6.1 times", number_text(long_ratio) + " times",
       agreement(std::abs(long_ratio - 6.1) < 0.05)}};
  const auto compute = [](double t) {
    return kCompute.at(Tokens(std::llround(t))).count() / 32 * 1e3;
  };
  const auto transfer = [](double t) {
    return kTransfer.at(Tokens(std::llround(t))).count() / 32 * 1e3;
  };
  figure.charts = {
      {.id = "of-fig2b",
       .title = "One layer: compute and transfer by sequence length",
       .description = "Both grow linearly with the sequence; transfer grows 16 times as fast.",
       .kind = ChartKind::kLines,
       .x_label = "tokens",
       .y_label = "milliseconds a layer",
       .series = {curve("compute", 16384, compute), curve("transfer", 16384, transfer)}}};
  figure.data = {{"ratio_2k", short_ratio}, {"ratio_16k", long_ratio}};
  return figure;
}

Result<Figure> of_fig2c(Lab&) {
  Figure figure;
  figure.notes = {
      "Computed from the published fit of compute; TPOT is the mean over all tokens so far."};
  const auto at = crossing();
  figure.findings = {{"around 9K tokens TBT rises above the SLO of 52 ms",
                      std::to_string(at) + " tokens", agreement(at >= 8500 && at < 10000)}};
  const auto tbt = [](double t) { return kCompute.at(Tokens(std::llround(t))).count() * 1e3; };
  // The mean of a line over [0, t] is its value at t / 2.
  const auto tpot = [](double t) { return kCompute.at(Tokens(std::llround(t / 2))).count() * 1e3; };
  const auto slo = [](double) { return kSlo.count() * 1e3; };
  figure.charts = {
      {.id = "of-fig2c",
       .title = "Time of a token, and mean so far, against the SLO",
       .description = "TBT crosses 52 ms at 9,757 tokens while the mean stays below it.",
       .kind = ChartKind::kLines,
       .x_label = "tokens generated",
       .y_label = "milliseconds",
       .series = {curve("TBT", 16384, tbt), curve("TPOT", 16384, tpot), curve("SLO", 16384, slo)}}};
  figure.data = {{"slo_s", kSlo.count()}, {"crossing_tokens", at}};
  return figure;
}

}  // namespace kvd::sim::figures
