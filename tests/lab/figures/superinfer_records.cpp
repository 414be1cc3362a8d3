#include <algorithm>
#include <cmath>

#include "tests/lab/figures/makers.hpp"
#include "tests/lab/figures/superinfer_setting.hpp"
#include "tests/lab/figures/text.hpp"

/// SuperInfer's appendix: figures drawn from what happened to each request of one run.
namespace kvd::sim::figures {
namespace {

constexpr double kSeconds = 120;
constexpr double kStep = 2;

/// How many requests satisfy `counts`, over time.
template <class Counts>
ChartSeries over_time(const std::string& name, const RunResult& run, Counts counts) {
  ChartSeries series{name, {}};
  for (double t = 0; t <= kSeconds; t += kStep) {
    double sum = 0;
    for (const RequestRecord& record : run.requests) sum += counts(record, t);
    series.points.push_back({t, sum});
  }
  return series;
}

bool waits(const RequestRecord& record, double t) {
  const bool started = record.scheduled >= Seconds(0) && record.scheduled.count() <= t;
  return record.arrival.count() <= t && !started;
}

/// Tokens of KV that it holds: its prompt and what it has made so far.
double holds(const RequestRecord& record, double t) {
  const bool inside = record.scheduled >= Seconds(0) && record.scheduled.count() <= t &&
                      (!record.finished() || record.finish.count() > t);
  if (!inside) return 0;
  const auto made = std::upper_bound(record.tokens.begin(), record.tokens.end(), Seconds(t));
  return static_cast<double>(record.prompt.value + (made - record.tokens.begin()));
}

double most(const ChartSeries& series) {
  double value = 0;
  for (const ChartPoint& point : series.points) value = std::max(value, point.y);
  return value;
}

std::vector<double> gaps_of(const RunResult& run) {
  std::vector<double> gaps;
  for (const RequestRecord& record : run.requests) {
    for (std::size_t i = 1; i < record.tokens.size(); ++i) {
      gaps.push_back((record.tokens[i] - record.tokens[i - 1]).count());
    }
  }
  std::sort(gaps.begin(), gaps.end());
  return gaps;
}

double quantile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  const auto at = static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1));
  return sorted[at];
}

}  // namespace

Result<Figure> si_fig24(Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const double knee, superinfer_knee(lab, kQwen));
  Figure figure;
  figure.notes = {
      "One run each at 1.3 times FCFS's knee. HBM use is that of the KV tokens of requests that "
      "have begun, from the run's records."};
  Chart queue{.id = "si-fig24-queue",
              .title = "Requests waiting",
              .description =
                  "Requests that have arrived and not begun, over time, for FCFS and for shortest "
                  "job first.",
              .x_label = "seconds",
              .y_label = "requests"};
  Chart use = queue;
  use.id = "si-fig24-use";
  use.title = "KV in use";
  use.description = "KV tokens of requests inside as a share of what HBM holds, over time.";
  use.y_label = "share of HBM";
  KVD_ASSIGN_OR_RETURN(const Profile profile, load_profile(kQwen));
  const double tokens =
      static_cast<double>(profile.hbm.value) /
      static_cast<double>(profile.shape.bytes_per_token_per_layer.value * profile.shape.layers);
  for (const char* policy : {"fcfs", "sjf_oracle"}) {
    KVD_ASSIGN_OR_RETURN(const RunResult run,
                         lab.play(superinfer_trial(kQwen, policy, 1.3 * knee), lab.first_seed()));
    queue.series.push_back(
        over_time(policy, run, [](const auto& r, double t) { return waits(r, t) ? 1.0 : 0.0; }));
    use.series.push_back(
        over_time(policy, run, [&](const auto& r, double t) { return holds(r, t) / tokens; }));
    const double high = most(use.series.back());
    const double waiting = most(queue.series.back());
    figure.findings.push_back(
        {std::string(policy) + ": once KV storage is exhausted the queue grows",
         "HBM up to " + percent(high) + " in use, up to " + number_text(waiting) + " waiting",
         agreement(high > 0.9 && waiting > 50)});
    figure.data[policy] = {{"hbm_use_max", high}, {"waiting_max", waiting}};
  }
  figure.charts = {std::move(queue), std::move(use)};
  return figure;
}

Result<Figure> si_fig25(Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const double knee, superinfer_knee(lab, kQwen));
  Figure figure;
  figure.notes = {"One run a rate; all gaps between tokens of all requests."};
  Chart chart{
      .id = "si-fig25",
      .title = "Time between tokens under past_future (LightLLM)",
      .description = "Cumulative distribution of the gaps between tokens at four request rates.",
      .x_label = "seconds",
      .y_label = "share of gaps"};
  std::vector<double> medians;
  for (const double multiple : {0.8, 1.0, 1.3, 1.6}) {
    KVD_ASSIGN_OR_RETURN(
        const RunResult run,
        lab.play(superinfer_trial(kQwen, "past_future", multiple * knee), lab.first_seed()));
    const auto gaps = gaps_of(run);
    ChartSeries series{number_text(multiple) + " x knee", {}};
    for (int p = 0; p <= 99; ++p) series.points.push_back({quantile(gaps, p / 100.0), p / 100.0});
    chart.series.push_back(std::move(series));
    medians.push_back(quantile(gaps, 0.5));
    figure.data["rates"].push_back({{"times_knee", multiple},
                                    {"p50_s", medians.back()},
                                    {"p90_s", quantile(gaps, 0.9)},
                                    {"p99_s", quantile(gaps, 0.99)}});
  }
  const double change = medians.back() / medians[1] - 1;
  figure.findings = {{"above saturation the distribution hardly changes with the rate",
                      "median gap from 1.0 to 1.6 times the knee " + percent(change),
                      agreement(std::abs(change) < 0.15)}};
  figure.charts = {std::move(chart)};
  return figure;
}

}  // namespace kvd::sim::figures
