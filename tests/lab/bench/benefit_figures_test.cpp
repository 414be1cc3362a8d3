#include "tests/lab/bench/benefit_figures.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvd::bench {
namespace {

constexpr Goals kGoals{0.5, 0.02};

/// A run of four requests, of which the first `in_time` met their SLO.
std::vector<Figure> run_with(std::size_t in_time) {
  ServeRun run;
  run.wall_s = 1;
  for (std::size_t i = 0; i < 4; ++i) {
    const double first = i < in_time ? 0.1 : 2.0;
    run.answers.push_back({.token_s = {first, first + 0.01}, .complete = true});
  }
  return figures_of(run, kGoals);
}

BenefitRuns runs_of(const std::vector<std::size_t>& halves, const std::vector<std::size_t>& kvd) {
  BenefitRuns out;
  for (const std::size_t count : halves) out.halves.runs.push_back(run_with(count));
  for (const std::size_t count : kvd) out.kvd.runs.push_back(run_with(count));
  return out;
}

TEST(BenefitFigures, SayByHowManyRequestsAndWhetherEverFewer) {
  EXPECT_EQ(more_within_slo(runs_of({1, 2}, {4, 2})), 1.5);
  EXPECT_TRUE(never_fewer(runs_of({1, 2}, {4, 2})));
  EXPECT_FALSE(never_fewer(runs_of({1, 3}, {4, 2})));  // more in sum, fewer with one seed
}

TEST(BenefitFigures, ADocumentHasBothSidesAndWhatWasCompared) {
  const auto document = nlohmann::json::parse(benefit_json({}, runs_of({1, 2}, {4, 3})));
  EXPECT_EQ(document["halves"]["within_slo"], 3.0);
  EXPECT_EQ(document["kvd"]["within_slo"], 7.0);
  EXPECT_EQ(document["kvd"]["requests"], 8.0);
  EXPECT_EQ(document["kvd"]["within_slo_by_seed"], nlohmann::json::parse("[4.0, 3.0]"));
  EXPECT_EQ(document["more_within_slo_mean"], 2.0);
  EXPECT_EQ(document["load"]["least_iteration_s"], 0.005);
  EXPECT_EQ(document["slo"]["ttft_s"], 0.5);
}

TEST(BenefitFigures, TextAndPictureHaveEverySeed) {
  const BenefitRuns runs = runs_of({1, 2}, {4, 3});
  const std::string text = benefit_text({}, runs);
  EXPECT_NE(text.find("halves ██████████░"), std::string::npos) << text;
  EXPECT_NE(text.find("  4 of 4\n"), std::string::npos) << text;
  const std::string svg = benefit_svg({}, runs);
  EXPECT_NE(svg.find(">of 4<"), std::string::npos);
  EXPECT_NE(svg.find(">one kvd with all of it<"), std::string::npos);
}

TEST(BenefitFigures, SayThatTheMachineWasTooBusy) {
  const auto runs_with = [](double iteration_s) {
    BenefitRuns runs = runs_of({1}, {4});
    for (Figure& figure : runs.kvd.runs[0]) {
      if (std::string_view(figure.name) == "iteration") figure.value = iteration_s;
    }
    return runs;
  };
  const BenefitStage stage;  // 5 ms
  EXPECT_FALSE(machine_was_busy(stage, runs_with(0.0059)));
  EXPECT_TRUE(machine_was_busy(stage, runs_with(0.0061)));
  EXPECT_EQ(benefit_text(stage, runs_with(0.0059)).find("TOO BUSY"), std::string::npos);
  EXPECT_NE(benefit_text(stage, runs_with(0.0061)).find("TOO BUSY"), std::string::npos);
  BenefitStage unpaced = stage;
  unpaced.serve.iteration_ms = 0;
  EXPECT_FALSE(machine_was_busy(unpaced, runs_with(0.0061)));
}

TEST(BenefitPace, IsThatOfTheMachineAndScalesAllThatTakesTime) {
  const BenefitStage stage;  // 5 ms
  EXPECT_EQ(pace_for(stage, 0.0052), 1);
  EXPECT_DOUBLE_EQ(pace_for(stage, 0.006), 1.38);
  EXPECT_EQ(pace_for(stage, 0.1), 1.6);
  const BenefitStage slow = slowed(stage, 2);
  EXPECT_EQ(slow.serve.iteration_ms, 10);
  EXPECT_EQ(slow.goals.tbt_s, 2 * stage.goals.tbt_s);
  EXPECT_EQ(slow.serve.bandwidth, "131072KiB");
  const auto one = bursts(stage, 3), other = bursts(slow, 3);
  ASSERT_EQ(other.size(), one.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(other[i].engine, one[i].engine);
    EXPECT_EQ(other[i].request.prompt, one[i].request.prompt);
    EXPECT_NEAR(other[i].request.at_s, 2 * one[i].request.at_s, 1e-9);
  }
  EXPECT_NE(benefit_text(slow, runs_of({1}, {4})).find("2.00 times as slow"), std::string::npos);
}

TEST(BenefitArrivals, BurstsComeInTurnAndTheSameForTheSameSeed) {
  BenefitStage stage;
  stage.serve.seconds = 100;
  stage.phase_s = 50;
  const auto requests = bursts(stage, 2);
  const auto count = [&](std::uint32_t engine, double from, double to) {
    double sum = 0;
    for (const EngineRequest& one : requests) {
      const double at = one.request.at_s;
      sum += one.engine == engine && from <= at && at < to ? 1 : 0;
    }
    return sum;
  };
  EXPECT_NEAR(count(0, 0, 50), 350, 80);  // with seed 2 engine 0 is busy first
  EXPECT_NEAR(count(1, 0, 50), 25, 20);
  EXPECT_NEAR(count(0, 50, 100), 25, 20);
  EXPECT_NEAR(count(1, 50, 100), 350, 80);
  const auto again = bursts(stage, 2);
  ASSERT_EQ(again.size(), requests.size());
  for (std::size_t i = 0; i < again.size(); ++i) {
    EXPECT_EQ(again[i].request.prompt, requests[i].request.prompt);
    EXPECT_TRUE(i == 0 || again[i - 1].request.at_s <= again[i].request.at_s);
  }
}

}  // namespace
}  // namespace kvd::bench
