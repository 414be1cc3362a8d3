#include "kvd/sim/run/metrics.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

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

/// What became of a prompt, so that the longest ones can be looked at separately.
struct Prompt {
  std::int64_t tokens = 0;
  std::optional<double> ttft;
  bool joint = false;
};

/// The longest wait of a user who is shown tokens as they are made.
Nanoseconds longest_raw_gap(const RequestRecord& record) {
  Nanoseconds longest{0};
  for (std::size_t i = 1; i < record.tokens.size(); ++i) {
    longest = std::max(longest, whole(record.tokens[i]) - whole(record.tokens[i - 1]));
  }
  return longest;
}

/// Counts over all requests, from which the figures follow.
class Tally {
 public:
  void add(const RequestRecord& record);
  [[nodiscard]] Metrics figures(const RunTotals& totals);

 private:
  void add_gaps(const RequestRecord& record, double mean_gap);
  void add_raw_gap(const RequestRecord& record);
  void add_shares(Metrics& m) const;
  void add_times(Metrics& m);
  void add_long(Metrics& m);
  static double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

  double requests_ = 0, finished_ = 0;
  double ttft_met_ = 0, mean_met_ = 0, p99_met_ = 0, max_met_ = 0, tpot_met_ = 0;
  double joint_ = 0, ttft_tpot_ = 0;
  double tokens_ = 0, late_ = 0, raw_late_ = 0, gaps_due_ = 0, late_gaps_ = 0, made_ = 0;
  double intervals_ = 0, missed_ = 0, raw_gap_requests_ = 0, second_gap_requests_ = 0;
  Nanoseconds longest_raw_gap_{0};
  std::vector<double> ttft_, gaps_, tpot_, queue_, longest_, e2e_, held_;
  std::vector<Prompt> prompts_;
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
  prompts_.push_back({record.prompt.value, begun ? std::optional(ttft.count()) : std::nullopt,
                      first_met && mean_met});
  add_raw_gap(record);
  if (record.held > Seconds(0)) held_.push_back(record.held.count());
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
  for (std::size_t i = 1; i < seen.times.size(); ++i) {
    const Nanoseconds gap = seen.times[i] - seen.times[i - 1];
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
  const double gaps = seen.times.empty() ? 0 : static_cast<double>(seen.times.size() - 1);
  intervals_ += gaps + missed + undelivered;
  if (record.tokens.size() > 1) longest_.push_back(to_seconds(longest));
  if (!record.finished()) return;
  p99_met_ += late_gaps <= 0.01 * gaps;
  max_met_ += late_gaps == 0;
}

// An answer that ended early leaves its user waiting for ever.
void Tally::add_raw_gap(const RequestRecord& record) {
  const Nanoseconds longest = longest_raw_gap(record);
  const bool cut = !record.finished();
  raw_gap_requests_ += cut || longest > whole(record.tbt_slo) * 10;
  second_gap_requests_ += cut || longest > std::chrono::seconds(1);
  longest_raw_gap_ = std::max(longest_raw_gap_, longest);
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
  m.missed_intervals = missed_;
  m.raw_gap_share = share(raw_gap_requests_, requests_);
  m.second_gap_share = share(second_gap_requests_, requests_);
  m.joint_attainment = share(joint_, requests_);
  m.ttft_tpot_attainment = share(ttft_tpot_, requests_);
}

void Tally::add_times(Metrics& m) {
  m.ttft_mean_s = mean(ttft_);
  m.ttft_p50_s = percentile(ttft_, 0.5);
  m.ttft_p95_s = percentile(ttft_, 0.95);
  m.ttft_p99_s = percentile(ttft_, 0.99);
  m.ttft_max_s = percentile(ttft_, 1);
  m.tbt_mean_s = mean(gaps_);
  m.tbt_p50_s = percentile(gaps_, 0.5);
  m.tbt_p95_s = percentile(gaps_, 0.95);
  m.tbt_p99_s = percentile(gaps_, 0.99);
  m.tpot_mean_s = mean(tpot_);
  m.tpot_p99_s = percentile(tpot_, 0.99);
  m.queue_mean_s = mean(queue_);
  m.longest_gap_p99_s = percentile(longest_, 0.99);
  m.longest_gap_max_s = percentile(longest_, 1);
  m.longest_raw_gap_s = to_seconds(longest_raw_gap_);
  m.e2e_mean_s = mean(e2e_);
  m.e2e_p99_s = percentile(e2e_, 0.99);
}

// The tenth of the requests with the longest prompts, plus all whose prompts are as long as the
// last of these.
void Tally::add_long(Metrics& m) {
  if (prompts_.empty()) return;
  const std::size_t tenth = (prompts_.size() + 9) / 10;
  const auto last = prompts_.begin() + static_cast<std::ptrdiff_t>(tenth - 1);
  std::nth_element(prompts_.begin(), last, prompts_.end(),
                   [](const Prompt& a, const Prompt& b) { return a.tokens > b.tokens; });
  const std::int64_t least = last->tokens;
  double count = 0, joint = 0;
  std::vector<double> ttft;
  for (const Prompt& prompt : prompts_) {
    if (prompt.tokens < least) continue;
    ++count;
    joint += prompt.joint;
    if (prompt.ttft) ttft.push_back(*prompt.ttft);
  }
  m.long_joint_attainment = share(joint, count);
  m.long_ttft_p99_s = percentile(ttft, 0.99);
}

Metrics Tally::figures(const RunTotals& totals) {
  Metrics m;
  m.requests = requests_;
  m.finished = finished_;
  add_shares(m);
  add_times(m);
  add_long(m);
  m.held_back_share = share(static_cast<double>(held_.size()), requests_);
  m.held_back_mean_s = mean(held_);
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
  m.layerwise_prefills = static_cast<double>(totals.layerwise);
  m.pauses = static_cast<double>(totals.pauses);
  m.rotations = static_cast<double>(totals.rotations_out);
  m.iterations = iterations;
  m.refused = static_cast<double>(totals.refused);
  m.prefix_repeats = totals.prefix_repeats;
  return m;
}

}  // namespace

Delivery deliver(const RequestRecord& record) {
  Delivery out;
  if (record.tokens.empty()) return out;
  const TimePoint first = whole(record.tokens.front());
  out.times.push_back(first);
  const auto take = [&](TimePoint at) { out.times.push_back(at); };
  TokenDeposit<Nanoseconds> deposit(whole(record.tbt_slo), first);
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

Metrics measure(const RunResult& result) {
  Tally tally;
  for (const RequestRecord& record : result.requests) tally.add(record);
  return tally.figures(result.totals);
}

}  // namespace kvd::sim
