#include "kvd/sim/run/metrics.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "kvd/sim/run/knee.hpp"
#include "kvd/sim/run/parts.hpp"
#include "kvd/sim/run/summary_json.hpp"

namespace kvd::sim {
namespace {

/// One request with a TBT goal of 2 s and a TTFT goal of 5 s, its first token at 1 s.
RequestRecord with_gaps(const std::vector<double>& gaps) {
  RequestRecord r;
  r.prompt = Tokens(10);
  r.ttft_slo = Seconds(5);
  r.tbt_slo = Seconds(2);
  r.tpot_slo = Seconds(3);
  r.scheduled = Seconds(0.5);
  double at = 1;
  r.tokens.emplace_back(at);
  for (const double gap : gaps) r.tokens.emplace_back(at += gap);
  r.output = Tokens(static_cast<std::int64_t>(r.tokens.size()));
  r.finish = r.tokens.back();
  return r;
}

Metrics of(std::vector<RequestRecord> records, double duration = 10) {
  RunResult result;
  result.requests = std::move(records);
  result.totals.duration = Seconds(duration);
  return measure(result);
}

// The token deposit's goldens (OrbitFlow's published post-processing), by hand: late tokens.
TEST(Metrics, LateTokensAreThoseTheDepositDoesNotCover) {
  EXPECT_DOUBLE_EQ(of({with_gaps({1, 1, 1, 1, 4, 1})}).tbt_attainment, 1);
  EXPECT_DOUBLE_EQ(of({with_gaps({1, 1, 1, 1, 6, 1})}).tbt_attainment, 1);
  EXPECT_DOUBLE_EQ(of({with_gaps({3, 3, 3})}).tbt_attainment, 1.0 / 4);
  EXPECT_DOUBLE_EQ(of({with_gaps({2, 2, 2})}).tbt_attainment, 1);
  EXPECT_DOUBLE_EQ(of({with_gaps({1, 3, 1, 3})}).tbt_attainment, 1);
}

TEST(Metrics, RawCountsGapsAsGenerated) {
  EXPECT_DOUBLE_EQ(of({with_gaps({1, 1, 1, 1, 4, 1})}).tbt_raw_attainment, 6.0 / 7);
  EXPECT_DOUBLE_EQ(of({with_gaps({1, 3, 1, 3})}).tbt_raw_attainment, 3.0 / 5);
}

TEST(Metrics, UndeliveredTokensAreLate) {
  RequestRecord cut = with_gaps({1, 1});
  cut.output = Tokens(10);  // seven never came
  cut.finish = Seconds(-1);
  const Metrics m = of({cut});
  EXPECT_DOUBLE_EQ(m.tbt_attainment, 3.0 / 10);
  EXPECT_DOUBLE_EQ(m.tbt_raw_attainment, 3.0 / 10);
  EXPECT_DOUBLE_EQ(m.tbt_token_attainment, 2.0 / 9);
  EXPECT_DOUBLE_EQ(m.interval_attainment, 2.0 / 9);
  EXPECT_DOUBLE_EQ(m.tbt_mean_attainment, 0);
  EXPECT_DOUBLE_EQ(m.tpot_attainment, 0);
  EXPECT_DOUBLE_EQ(m.finished, 0);
  EXPECT_DOUBLE_EQ(m.ttft_attainment, 1);
}

// A pause of 20 s with nothing saved up: one late token, but nine intervals without one.
TEST(Metrics, ALongPauseIsManyMissedIntervals) {
  const Metrics m = of({with_gaps({2, 20, 2})});
  EXPECT_DOUBLE_EQ(m.tbt_attainment, 3.0 / 4);
  EXPECT_DOUBLE_EQ(m.interval_attainment, 3.0 / 12);
  EXPECT_DOUBLE_EQ(m.longest_gap_p99_s, 20);
}

// A long answer's mean gap forgives a pause of a minute; what its user saw does not.
TEST(Metrics, APauseThatTheMeanForgivesIsARawGap) {
  std::vector<double> gaps(99, 1);
  gaps.push_back(60);
  RequestRecord cut = with_gaps({1});
  cut.finish = Seconds(-1);
  const Metrics m = of({with_gaps(gaps), with_gaps({1, 20}), cut, with_gaps({1})});
  EXPECT_DOUBLE_EQ(of({with_gaps(gaps)}).joint_attainment, 1);
  EXPECT_DOUBLE_EQ(m.raw_gap_share, 2.0 / 4) << "60 s, and the answer that never ended";
  EXPECT_DOUBLE_EQ(m.second_gap_share, 3.0 / 4) << "20 s is long, too, whatever the goal";
  EXPECT_DOUBLE_EQ(m.longest_raw_gap_s, 60);
  EXPECT_DOUBLE_EQ(of({with_gaps({2, 20, 2})}).missed_intervals, 9);
}

// The longest tenth of 15 requests is the two longest prompts, and the one that is as long as the
// second.
TEST(Metrics, TheLongestTenthOfPromptsIsLookedAtApart) {
  std::vector<RequestRecord> records(15, with_gaps({1}));
  for (RequestRecord& r : records) r.prompt = Tokens(100);
  for (const std::size_t i : {3u, 7u, 9u}) records[i].prompt = Tokens(i == 3 ? 9000 : 5000);
  for (Seconds& token : records[7].tokens) token += Seconds(20);
  records[7].finish += Seconds(20);
  const Metrics m = of(records);
  EXPECT_DOUBLE_EQ(m.long_joint_attainment, 2.0 / 3);
  EXPECT_DOUBLE_EQ(m.long_ttft_p99_s, 21);
  EXPECT_DOUBLE_EQ(m.ttft_max_s, 21);
  EXPECT_DOUBLE_EQ(m.ttft_p50_s, 1);
}

TEST(Metrics, PromptsHeldBackAreCountedWithTheirTime) {
  RequestRecord held = with_gaps({1});
  held.held = Seconds(3);
  const Metrics m = of({held, with_gaps({1}), with_gaps({1}), with_gaps({1})});
  EXPECT_DOUBLE_EQ(m.held_back_share, 0.25);
  EXPECT_DOUBLE_EQ(m.held_back_mean_s, 3);
}

TEST(Metrics, PerRequestStatistics) {
  // Mean 2 and 2.5 s against 2 s; both have a late gap; TPOT goal 3 s.
  const Metrics m = of({with_gaps({1, 3}), with_gaps({2, 3}), with_gaps({1, 1})});
  EXPECT_DOUBLE_EQ(m.tbt_mean_attainment, 2.0 / 3);
  EXPECT_DOUBLE_EQ(m.tpot_attainment, 1);
  // 1, 3: the second token is saved up until 3 s and the third comes when it is due, at 5 s.
  EXPECT_DOUBLE_EQ(m.tbt_max_attainment, 2.0 / 3);
  EXPECT_DOUBLE_EQ(m.tbt_p99gap_attainment, 2.0 / 3);
  EXPECT_DOUBLE_EQ(m.joint_attainment, 2.0 / 3);
}

TEST(Metrics, OneGapInAHundredMayBeLate) {
  std::vector<double> gaps(99, 2);
  gaps.push_back(3);
  EXPECT_DOUBLE_EQ(of({with_gaps(gaps)}).tbt_p99gap_attainment, 1);
  EXPECT_DOUBLE_EQ(of({with_gaps(gaps)}).tbt_max_attainment, 0);
  gaps.pop_back();
  gaps.back() = 3;
  EXPECT_DOUBLE_EQ(of({with_gaps(gaps)}).tbt_p99gap_attainment, 0);
}

TEST(Metrics, TimesAndRates) {
  RequestRecord late = with_gaps({1});
  for (Seconds& token : late.tokens) token += Seconds(6);
  late.finish += Seconds(6);
  const Metrics m = of({with_gaps({1}), late}, 4);
  EXPECT_DOUBLE_EQ(m.ttft_mean_s, 4);
  EXPECT_DOUBLE_EQ(m.ttft_p50_s, 1);
  EXPECT_DOUBLE_EQ(m.ttft_p99_s, 7);
  EXPECT_DOUBLE_EQ(m.ttft_attainment, 0.5);
  EXPECT_DOUBLE_EQ(m.e2e_mean_s, 5);
  EXPECT_DOUBLE_EQ(m.throughput_rps, 0.5);
  EXPECT_DOUBLE_EQ(m.throughput_tps, 1);
  EXPECT_DOUBLE_EQ(m.goodput_rps, 0.25);
  EXPECT_DOUBLE_EQ(m.queue_mean_s, 0.5);
}

TEST(Metrics, TotalsBecomeShares) {
  RunResult result;
  result.requests = {with_gaps({1})};
  result.totals.duration = Seconds(10);
  result.totals.planner = Seconds(1);
  result.totals.stall = Seconds(2);
  result.totals.link_busy[0] = Seconds(5);
  result.totals.iterations = 4;
  result.totals.blocks_moved = 10;
  const Metrics m = measure(result);
  EXPECT_DOUBLE_EQ(m.planner_share, 0.1);
  EXPECT_DOUBLE_EQ(m.stall_share, 0.2);
  EXPECT_DOUBLE_EQ(m.link_use_h2d, 0.5);
  EXPECT_DOUBLE_EQ(m.blocks_moved_per_step, 2.5);
}

TEST(Parts, AreByEngineAndByGoalsWhereThereAreSeveral) {
  RunResult result;
  result.totals.duration = Seconds(10);
  result.totals.iterations = 7;
  result.requests = {with_gaps({1, 1}), with_gaps({1, 1}), with_gaps({9, 9})};
  EXPECT_TRUE(parts_of(result).empty());
  result.requests[1].engine = result.requests[2].engine = 1;
  result.requests[2].ttft_slo = Seconds(0.5);
  const std::vector<RequestPart> parts = parts_of(result);
  ASSERT_EQ(parts.size(), 4u);
  EXPECT_EQ(parts[0].name, "engine 1");
  EXPECT_EQ(parts[1].name, "engine 2");
  EXPECT_EQ(parts[2].name, "ttft 0.5 s, tbt 2 s");
  EXPECT_EQ(parts[3].name, "ttft 5 s, tbt 2 s");
  EXPECT_DOUBLE_EQ(measure(parts[0].result).joint_attainment, 1);
  EXPECT_DOUBLE_EQ(measure(parts[1].result).joint_attainment, 0.5);
  EXPECT_DOUBLE_EQ(measure(parts[2].result).joint_attainment, 0);
  EXPECT_DOUBLE_EQ(measure(parts[1].result).throughput_rps, 0.2);
  EXPECT_DOUBLE_EQ(measure(parts[1].result).iterations, 0) << "the machine's, not its";
}

TEST(Parts, ARequestIsALineOfFigures) {
  RunResult result;
  result.requests = {with_gaps({1, 4}), RequestRecord{}};
  result.requests[1].refused = true;
  const std::string csv = requests_csv(result);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 3);
  // Its last token was due 4 s after the first one, and was made 5 s after it.
  EXPECT_NE(csv.find("\n1,1,0.000000,10,3,3,1.000000,2.500000,3.000000,6.000000,"),
            std::string::npos)
      << csv;
  EXPECT_NE(csv.find("\n2,1,0.000000,0,0,0,-1.000000,"), std::string::npos) << csv;
}

TEST(Summary, HasMeanLeastAndGreatest) {
  Metrics a, b;
  a.ttft_mean_s = 1;
  b.ttft_mean_s = 4;
  const Summary summary = summarize("lvf", {a, b});
  EXPECT_DOUBLE_EQ(summary.mean.ttft_mean_s, 2.5);
  EXPECT_DOUBLE_EQ(summary.low.ttft_mean_s, 1);
  EXPECT_DOUBLE_EQ(summary.high.ttft_mean_s, 4);
}

TEST(Summary, PrintsTheAgreedJson) {
  const auto json = comparison_json("compare", "s", {summarize("lvf", {Metrics{}})});
  std::vector<std::string> keys;
  for (const auto& [key, value] : json["policies"][0].items()) keys.push_back(key);
  const std::vector<std::string> wanted = {"policy",
                                           "ttft_attainment",
                                           "tbt_attainment",
                                           "tbt_mean_attainment",
                                           "tpot_attainment",
                                           "ttft_mean_s",
                                           "ttft_p99_s",
                                           "tbt_p95_s",
                                           "tbt_p99_s",
                                           "throughput_rps",
                                           "e2e_mean_s",
                                           "joint_attainment",
                                           "tbt_token_attainment",
                                           "tbt_p99gap_attainment",
                                           "tbt_max_attainment",
                                           "interval_attainment",
                                           "longest_gap_p99_s",
                                           "blocks_moved_per_step",
                                           "hbm_transit_share",
                                           "missed_intervals",
                                           "raw_gap_share",
                                           "ttft_p50_s",
                                           "ttft_max_s",
                                           "long_joint_attainment",
                                           "long_ttft_p99_s",
                                           "throughput_tps",
                                           "held_back_share",
                                           "held_back_mean_s",
                                           "layerwise_prefills",
                                           "longest_raw_gap_s",
                                           "second_gap_share",
                                           "spread"};
  EXPECT_EQ(keys, wanted);
  EXPECT_EQ(json["policies"][0]["spread"]["ttft_mean_s"].size(), 2u);
}

TEST(Knee, LiesWhereTheThresholdIsCrossed) {
  const auto falls_at = [](double knee) {
    return [knee](double rate) -> Result<double> { return rate <= knee ? 1.0 : 0.5; };
  };
  for (const double start : {0.1, 17.0, 400.0}) {
    const auto knee = find_knee(falls_at(17.3), start, 0.99, 0.01);
    ASSERT_TRUE(knee.ok());
    EXPECT_LE(knee->rate, 17.3);
    EXPECT_GE(knee->rate, 17.3 / 1.01);
  }
}

TEST(Knee, RefusesWhatHasNone) {
  const auto always = [](double) -> Result<double> { return 1.0; };
  EXPECT_EQ(find_knee(always, 1, 0.99, 0.1).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(find_knee(always, 0, 0.99, 0.1).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvd::sim
