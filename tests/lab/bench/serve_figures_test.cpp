#include "tests/lab/bench/serve_figures.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

namespace kvd::bench {
namespace {

constexpr Goals kGoals{1.0, 0.1};

double figure(const std::vector<Figure>& figures, std::string_view name) {
  const auto found = std::find_if(figures.begin(), figures.end(),
                                  [&](const Figure& one) { return one.name == name; });
  EXPECT_NE(found, figures.end()) << name;
  return found == figures.end() ? -1 : found->value;
}

/// An answer whose first token comes after `ttft`, and the others after these gaps.
ServeAnswer answer(double sent, double ttft, const std::vector<double>& gaps) {
  ServeAnswer out{.sent_s = sent, .token_s = {sent + ttft}, .complete = true};
  for (const double gap : gaps) out.token_s.push_back(out.token_s.back() + gap);
  return out;
}

std::vector<Figure> of(std::vector<ServeAnswer> answers) {
  ServeRun run;
  run.wall_s = 10;
  run.answers = std::move(answers);
  return figures_of(run, kGoals);
}

TEST(ServeFigures, CountWhoMetTheGoals) {
  const auto figures = of({answer(0, 0.5, {0.1, 0.1, 0.1, 0.1}), answer(3, 1.5, {0.05, 0.05})});
  EXPECT_EQ(figure(figures, "ttft_attainment"), 0.5);
  EXPECT_EQ(figure(figures, "tbt_attainment"), 1);
  EXPECT_EQ(figure(figures, "tpot_attainment"), 1);
  EXPECT_EQ(figure(figures, "stalls"), 0);
  EXPECT_DOUBLE_EQ(figure(figures, "throughput"), 0.8);
  EXPECT_DOUBLE_EQ(figure(figures, "ttft_p99"), 1.5);
}

TEST(ServeFigures, ALongPauseIsManyMissedIntervals) {
  const auto figures = of({answer(0, 0.5, {0.1, 5.04, 0.105, 0.12})});
  EXPECT_EQ(figure(figures, "stalls"), 2);  // 5 ms late is the timer's fault, 20 ms is not
  EXPECT_EQ(figure(figures, "missed_intervals"), 50 + 1);
  EXPECT_NEAR(figure(figures, "stalled"), 4.94 + 0.02, 1e-9);
  EXPECT_NEAR(figure(figures, "longest_gap"), 5.04, 1e-9);
  EXPECT_EQ(figure(figures, "tbt_attainment"), 0.5);
  EXPECT_EQ(figure(figures, "tpot_attainment"), 0);
}

TEST(ServeFigures, WithinItsSloIsWhoMetBothGoalsToTheEnd) {
  ServeAnswer cut_off = answer(0, 0.5, {0.1});
  cut_off.complete = false;
  const auto figures =
      of({answer(0, 0.5, {0.1, 0.1}), answer(0, 1.5, {0.1}), answer(0, 0.5, {0.2, 0.2}), cut_off});
  EXPECT_EQ(figure(figures, "within_slo"), 1);
}

TEST(ServeFigures, WhoGetsNothingCountsAgainstEveryGoal) {
  const auto figures = of({answer(0, 0.5, {0.1}), ServeAnswer{.sent_s = 1}});
  EXPECT_EQ(figure(figures, "ttft_attainment"), 0.5);
  EXPECT_EQ(figure(figures, "tpot_attainment"), 0.5);
  EXPECT_EQ(figure(figures, "unfinished"), 1);
}

TEST(ServeFigures, ControlTimeIsAShareOfTheIterations) {
  ServeRun run;
  run.control_cpu_s = 0.03;
  run.steps = 150;
  run.iterating_s = 3;
  run.iterations = 100;
  const auto figures = figures_of(run, kGoals);
  EXPECT_DOUBLE_EQ(figure(figures, "control_share"), 0.01);
  EXPECT_DOUBLE_EQ(figure(figures, "iteration"), 0.03);
  EXPECT_DOUBLE_EQ(figure(figures, "control_cpu_per_step"), 200);
  EXPECT_EQ(figure(figures_of({}, kGoals), "control_share"), 0);
}

TEST(ServeFigures, ADocumentHasEveryRunAndItsMean) {
  const PolicyRuns policy{"lvf", {of({answer(0, 0.5, {})}), of({answer(0, 1.5, {})})}};
  const auto document = nlohmann::json::parse(serve_json({}, kGoals, {policy}));
  EXPECT_EQ(document["goals"]["ttft_s"], 1.0);
  EXPECT_EQ(document["policies"]["lvf"]["runs"].size(), 2U);
  EXPECT_EQ(document["policies"]["lvf"]["runs"][1]["ttft_attainment"], 0.0);
  EXPECT_EQ(document["policies"]["lvf"]["mean"]["ttft_attainment"], 0.5);
  EXPECT_NE(serve_svg({}, kGoals, {policy}).find(">lvf<"), std::string::npos);
}

TEST(ServeArrivals, AreTheSameForTheSameSeed) {
  const ServeStage stage{.seconds = 100, .rate = 5};
  const auto a = arrivals(stage, 1, kGoals), b = arrivals(stage, 1, kGoals);
  ASSERT_EQ(a.size(), b.size());
  EXPECT_NEAR(static_cast<double>(a.size()), 500, 150);
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].prompt, b[i].prompt);
    EXPECT_EQ(a[i].at_s, b[i].at_s);
    EXPECT_TRUE(i == 0 || a[i - 1].at_s <= a[i].at_s);
  }
  EXPECT_NE(arrivals(stage, 2, kGoals).front().at_s, a.front().at_s);
}

}  // namespace
}  // namespace kvd::bench
