#include "kvd/sim/run/metrics.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "ipc/vocabulary/deposit.hpp"
#include "kvd/sim/world/arrival.hpp"

namespace kvd::sim {
namespace {

// Nearest rank: the least value that at least the share q of all values does not exceed.
double percentile(std::vector<double>& values, double q) {
  if (values.empty()) return 0;
  const auto rank = static_cast<std::size_t>(std::ceil(q * static_cast<double>(values.size())));
  const auto nth = values.begin() + static_cast<std::ptrdiff_t>(std::max<std::size_t>(rank, 1) - 1);
  std::nth_element(values.begin(), nth, values.end());
  return *nth;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

/// What a user saw of one request.
struct Delivery {
  std::vector<Nanoseconds> gaps;
  std::int64_t late = 0;  ///< tokens that were due and not there
};

Delivery deliver(const RequestRecord& record) {
  Delivery out;
  if (record.tokens.empty()) return out;
  TimePoint last = whole(record.tokens.front());
  const auto take = [&](TimePoint at) {
    out.gaps.push_back(at - last);
    last = at;
  };
  TokenDeposit<Nanoseconds> deposit(whole(record.tbt_slo), last);
  for (std::size_t i = 1; i < record.tokens.size(); ++i) {
    deposit.generated(whole(record.tokens[i]), take);
  }
  if (record.finished()) {
    deposit.finish(whole(record.finish), take);
  } else {
    deposit.advance(TimePoint::max(), take);
  }
  out.late = deposit.violations();
  return out;
}

/// Counts over all requests, from which the figures follow.
class Tally {
 public:
  void add(const RequestRecord& record);
  [[nodiscard]] Metrics figures(const RunTotals& totals);

 private:
  void add_gaps(const RequestRecord& record, double mean_gap);
  void add_shares(Metrics& m) const;
  void add_times(Metrics& m);
  static double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

  double requests_ = 0, finished_ = 0;
  double ttft_met_ = 0, mean_met_ = 0, p99_met_ = 0, max_met_ = 0, tpot_met_ = 0;
  double joint_ = 0, ttft_tpot_ = 0;
  double tokens_ = 0, late_ = 0, raw_late_ = 0, gaps_due_ = 0, late_gaps_ = 0, made_ = 0;
  double intervals_ = 0, missed_ = 0;
  std::vector<double> ttft_, gaps_, tpot_, queue_, longest_, e2e_;
};

void Tally::add(const RequestRecord& record) {
  ++requests_;
  tokens_ += static_cast<double>(record.output.value);
  gaps_due_ += static_cast<double>(record.output.value - 1);
  made_ += static_cast<double>(record.tokens.size());
  const bool begun = !record.tokens.empty();
  const bool ended = record.finished();
  const Seconds ttft = begun ? record.tokens.front() - record.arrival : Seconds(0);
  const bool first_met = begun && whole(ttft) <= whole(record.ttft_slo);
  const double steps = static_cast<double>(record.tokens.size()) - 1;
  const double mean_gap =
      steps > 0 ? (record.tokens.back() - record.tokens.front()).count() / steps : 0;
  const bool mean_met = ended && mean_gap <= record.tbt_slo.count() + 1e-9;
  const bool tpot_met = ended && mean_gap <= record.tpot_slo.count() + 1e-9;
  finished_ += ended;
  ttft_met_ += first_met;
  mean_met_ += mean_met;
  tpot_met_ += tpot_met;
  joint_ += first_met && mean_met;
  ttft_tpot_ += first_met && tpot_met;
  if (begun) ttft_.push_back(ttft.count());
  if (record.scheduled >= Seconds(0)) {
    queue_.push_back((record.scheduled - record.arrival).count());
  }
  if (ended) e2e_.push_back((record.finish - record.arrival).count());
  add_gaps(record, mean_gap);
}

void Tally::add_gaps(const RequestRecord& record, double mean_gap) {
  const Nanoseconds slo = whole(record.tbt_slo);
  for (std::size_t i = 1; i < record.tokens.size(); ++i) {
    const Nanoseconds gap = whole(record.tokens[i]) - whole(record.tokens[i - 1]);
    gaps_.push_back(to_seconds(gap));
    raw_late_ += gap > slo;
  }
  if (record.tokens.size() > 1) tpot_.push_back(mean_gap);
  const Delivery seen = deliver(record);
  const auto undelivered =
      static_cast<double>(record.output.value) - static_cast<double>(record.tokens.size());
  Nanoseconds longest{0};
  double late_gaps = 0, missed = 0;
  for (const Nanoseconds gap : seen.gaps) {
    longest = std::max(longest, gap);
    if (gap <= slo) continue;
    ++late_gaps;
    const std::int64_t intervals = (gap.count() - 1) / slo.count();
    missed += static_cast<double>(intervals);
  }
  late_ += static_cast<double>(seen.late) + undelivered;
  raw_late_ += undelivered;
  late_gaps_ += late_gaps + undelivered;
  missed_ += missed + undelivered;
  intervals_ += static_cast<double>(seen.gaps.size()) + missed + undelivered;
  if (record.tokens.size() > 1) longest_.push_back(to_seconds(longest));
  if (!record.finished()) return;
  p99_met_ += late_gaps <= 0.01 * static_cast<double>(seen.gaps.size());
  max_met_ += late_gaps == 0;
}

void Tally::add_shares(Metrics& m) const {
  m.ttft_attainment = share(ttft_met_, requests_);
  m.tbt_attainment = share(tokens_ - late_, tokens_);
  m.tbt_raw_attainment = share(tokens_ - raw_late_, tokens_);
  m.tbt_token_attainment = gaps_due_ > 0 ? share(gaps_due_ - late_gaps_, gaps_due_) : 1;
  m.tbt_mean_attainment = share(mean_met_, requests_);
  m.tbt_p99gap_attainment = share(p99_met_, requests_);
  m.tbt_max_attainment = share(max_met_, requests_);
  m.tpot_attainment = share(tpot_met_, requests_);
  m.interval_attainment = intervals_ > 0 ? share(intervals_ - missed_, intervals_) : 1;
  m.joint_attainment = share(joint_, requests_);
  m.ttft_tpot_attainment = share(ttft_tpot_, requests_);
}

void Tally::add_times(Metrics& m) {
  m.ttft_mean_s = mean(ttft_);
  m.ttft_p50_s = percentile(ttft_, 0.5);
  m.ttft_p95_s = percentile(ttft_, 0.95);
  m.ttft_p99_s = percentile(ttft_, 0.99);
  m.tbt_mean_s = mean(gaps_);
  m.tbt_p50_s = percentile(gaps_, 0.5);
  m.tbt_p95_s = percentile(gaps_, 0.95);
  m.tbt_p99_s = percentile(gaps_, 0.99);
  m.tpot_mean_s = mean(tpot_);
  m.tpot_p99_s = percentile(tpot_, 0.99);
  m.queue_mean_s = mean(queue_);
  m.longest_gap_p99_s = percentile(longest_, 0.99);
  m.longest_gap_max_s = percentile(longest_, 1);
  m.e2e_mean_s = mean(e2e_);
  m.e2e_p99_s = percentile(e2e_, 0.99);
}

Metrics Tally::figures(const RunTotals& totals) {
  Metrics m;
  m.requests = requests_;
  m.finished = finished_;
  add_shares(m);
  add_times(m);
  const double duration = totals.duration.count();
  const auto iterations = static_cast<double>(totals.iterations);
  m.duration_s = duration;
  m.throughput_rps = share(finished_, duration);
  m.throughput_tps = share(made_, duration);
  m.goodput_rps = share(joint_, duration);
  m.hbm_use = totals.hbm_use;
  m.hbm_transit_share = totals.hbm_transit;
  m.dram_use = totals.dram_use;
  m.link_use_h2d = share(totals.link_busy[0].count(), duration);
  m.link_use_d2h = share(totals.link_busy[1].count(), duration);
  m.planner_share = share(totals.planner.count(), duration);
  m.stall_share = share(totals.stall.count(), duration);
  m.blocks_moved_per_step = share(static_cast<double>(totals.blocks_moved), iterations);
  m.blocks_synced_per_step = share(static_cast<double>(totals.blocks_synced), iterations);
  m.pauses = static_cast<double>(totals.pauses);
  m.rotations = static_cast<double>(totals.rotations_out);
  m.iterations = iterations;
  m.refused = static_cast<double>(totals.refused);
  m.prefix_repeats = totals.prefix_repeats;
  return m;
}

}  // namespace

Metrics measure(const RunResult& result) {
  Tally tally;
  for (const RequestRecord& record : result.requests) tally.add(record);
  return tally.figures(result.totals);
}

const std::vector<MetricName>& metric_names() {
  using M = Metrics;
  static const std::vector<MetricName> kNames = {
      {"ttft_attainment", &M::ttft_attainment, true},
      {"tbt_attainment", &M::tbt_attainment, true},
      {"tbt_mean_attainment", &M::tbt_mean_attainment, true},
      {"tpot_attainment", &M::tpot_attainment, true},
      {"ttft_mean_s", &M::ttft_mean_s, true},
      {"ttft_p99_s", &M::ttft_p99_s, true},
      {"tbt_p95_s", &M::tbt_p95_s, true},
      {"tbt_p99_s", &M::tbt_p99_s, true},
      {"throughput_rps", &M::throughput_rps, true},
      {"e2e_mean_s", &M::e2e_mean_s, true},
      {"joint_attainment", &M::joint_attainment, true},
      {"tbt_token_attainment", &M::tbt_token_attainment, true},
      {"tbt_p99gap_attainment", &M::tbt_p99gap_attainment, true},
      {"tbt_max_attainment", &M::tbt_max_attainment, true},
      {"interval_attainment", &M::interval_attainment, true},
      {"longest_gap_p99_s", &M::longest_gap_p99_s, true},
      {"blocks_moved_per_step", &M::blocks_moved_per_step, true},
      {"hbm_transit_share", &M::hbm_transit_share, true},
      {"tbt_raw_attainment", &M::tbt_raw_attainment, false},
      {"ttft_tpot_attainment", &M::ttft_tpot_attainment, false},
      {"ttft_p50_s", &M::ttft_p50_s, false},
      {"ttft_p95_s", &M::ttft_p95_s, false},
      {"tbt_mean_s", &M::tbt_mean_s, false},
      {"tbt_p50_s", &M::tbt_p50_s, false},
      {"tpot_mean_s", &M::tpot_mean_s, false},
      {"tpot_p99_s", &M::tpot_p99_s, false},
      {"queue_mean_s", &M::queue_mean_s, false},
      {"longest_gap_max_s", &M::longest_gap_max_s, false},
      {"throughput_tps", &M::throughput_tps, false},
      {"goodput_rps", &M::goodput_rps, false},
      {"e2e_p99_s", &M::e2e_p99_s, false},
      {"hbm_use", &M::hbm_use, false},
      {"dram_use", &M::dram_use, false},
      {"link_use_h2d", &M::link_use_h2d, false},
      {"link_use_d2h", &M::link_use_d2h, false},
      {"planner_share", &M::planner_share, false},
      {"stall_share", &M::stall_share, false},
      {"blocks_synced_per_step", &M::blocks_synced_per_step, false},
      {"pauses", &M::pauses, false},
      {"rotations", &M::rotations, false},
      {"iterations", &M::iterations, false},
      {"requests", &M::requests, false},
      {"finished", &M::finished, false},
      {"refused", &M::refused, false},
      {"prefix_repeats", &M::prefix_repeats, false},
      {"duration_s", &M::duration_s, false},
  };
  return kNames;
}

Summary summarize(std::string policy, const std::vector<Metrics>& runs) {
  Summary out{std::move(policy), runs.size(), {}, {}, {}};
  if (runs.empty()) return out;
  for (const MetricName& metric : metric_names()) {
    double sum = 0, low = runs.front().*metric.figure, high = low;
    for (const Metrics& run : runs) {
      const double value = run.*metric.figure;
      sum += value;
      low = std::min(low, value);
      high = std::max(high, value);
    }
    out.mean.*metric.figure = sum / static_cast<double>(runs.size());
    out.low.*metric.figure = low;
    out.high.*metric.figure = high;
  }
  return out;
}

}  // namespace kvd::sim
