#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kvd/sim/run/exit_status.hpp"
#include "tests/lab/commands/commands.hpp"
#include "tests/lab/figures/figure.hpp"
#include "tests/lab/figures/grid.hpp"
#include "tests/lab/tests/browser.hpp"

namespace kvd::sim {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

std::string reproduced(const std::string& figure) {
  std::ostringstream out;
  std::ostringstream err;
  const ReproduceOptions options{
      .figure = figure, .json = true, .seeds = 1, .first_seed = 1, .progress = false};
  EXPECT_EQ(reproduce_command(options, out, err), kDone) << err.str();
  return out.str();
}

TEST(Reproduce, Fig3IsExact) {
  EXPECT_EQ(reproduced("of-fig3"), "{\"A\":[9,12],\"B\":[0,null],\"C\":[0,2]}\n");
}

TEST(Reproduce, Fig2FromThePublishedFits) {
  const Json ratios = Json::parse(reproduced("of-fig2b"));
  EXPECT_NEAR(ratios["ratio_2k"], 1.904, 0.001);
  EXPECT_NEAR(ratios["ratio_16k"], 6.112, 0.001);
  EXPECT_EQ(Json::parse(reproduced("of-fig2c"))["crossing_tokens"], 9757);
}

TEST(Reproduce, Table1FollowsFromItsRates) {
  const Json table = Json::parse(reproduced("si-table1"));
  for (const Json& row : table["rows"]) {
    const double computed = row["computed_ms"];
    EXPECT_NEAR(computed / row["reported_ms"].get<double>(), 1, 0.05) << row;
  }
}

TEST(Reproduce, TheArticlesVerdicts) {
  const Json scenarios = Json::parse(reproduced("article-verdicts"))["scenarios"];
  ASSERT_EQ(scenarios.size(), 6U);
  for (const Json& scenario : scenarios)
    EXPECT_EQ(scenario["ours"], scenario["article"]) << scenario;
}

TEST(Reproduce, CrossoverFallsWithBandwidthAndModelSize) {
  const Json models = Json::parse(reproduced("article-crossover"))["models"];
  const auto tokens = [&](const char* model, double rate) {
    for (const Json& point : models[model]) {
      if (point["gb_s"] == rate) return point["crossover_tokens"].get<double>();
    }
    ADD_FAILURE() << model << " at " << rate;
    return 0.0;
  };
  EXPECT_GT(tokens("Llama 3 8B", 1), tokens("Llama 3 8B", 8));
  EXPECT_GT(tokens("Llama 3 8B", 1), tokens("Llama 3 70B", 1));
}

TEST(Reproduce, AnUnknownFigureIsRefused) {
  std::ostringstream out;
  std::ostringstream err;
  EXPECT_EQ(reproduce_command({.figure = "of-fig99"}, out, err), kUsage);
  EXPECT_THAT(err.str(), HasSubstr("of-fig99"));
  EXPECT_EQ(reproduce_command({.figure = "of-fig3", .seeds = 0}, out, err), kUsage);
  EXPECT_EQ(reproduce_command({.figure = ""}, out, err), kDone);
  EXPECT_THAT(out.str(), HasSubstr("of-fig15"));
}

Grid small_grid() {
  return {"small",
          "L20, short requests",
          "rate",
          "requests a second",
          {"fcfs", "layerkv"},
          {1, 4},
          [](const std::string& policy, double x) {
            Trial trial;
            trial.profile = "l20-llama2-7b";
            trial.policy = policy;
            trial.workload = "gen:fixed-64-8";
            trial.options.rate = x;
            trial.options.requests = 6;
            return trial;
          }};
}

TEST(Grid, EveryPointIsMeasuredOnceAndPrintedByItsName) {
  int plays = 0;
  Grid grid = small_grid();
  grid.trial = [&plays, inner = grid.trial](const std::string& policy, double x) {
    Trial trial = inner(policy, x);
    trial.adjust = [&plays](Setting&) { ++plays; };
    return trial;
  };
  Lab lab(2, 1, nullptr);
  const auto result = measure_grid(lab, grid);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(plays, 2 * 2 * 2) << "rates, policies, seeds";
  ASSERT_TRUE(measure_grid(lab, grid).ok());
  EXPECT_EQ(plays, 8) << "known points were run again";

  const Json json = json_of(*result);
  ASSERT_EQ(json["points"].size(), 2U);
  EXPECT_EQ(json["points"][1]["rate"], 4);
  EXPECT_EQ(json["policies"][1]["policy"], "layerkv");
  EXPECT_EQ(json["policies"][1]["ttft_mean_s"], result->mean("layerkv", 4, &Metrics::ttft_mean_s));
  EXPECT_GT(result->mean("fcfs", 1, &Metrics::throughput_rps), 0);
}

TEST(Grid, AFailedRunFailsTheWhole) {
  Grid grid = small_grid();
  grid.policies = {"fcfs", "nobody"};
  Lab lab(1, 1, nullptr);
  EXPECT_FALSE(measure_grid(lab, grid).ok());
}

TEST(Grid, RefusedRequestsAreNoticed) {
  Grid grid = small_grid();
  const auto inner = grid.trial;
  grid.trial = [inner](const std::string& policy, double x) {
    Trial trial = inner(policy, x);
    trial.adjust = [](Setting& setting) { setting.hbm = Bytes(8) * kMiB.value; };
    return trial;
  };
  Lab lab(1, 1, nullptr);
  const auto result = measure_grid(lab, grid);
  EXPECT_TRUE(!result.ok() || lab.refused() > 0) << "a pool of one block served 64 tokens";
}

class Report : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "kvd-figures-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(root); }
  int report(std::vector<std::string> figures, int seeds = 1) {
    const ReportOptions options{root / "report", std::move(figures), seeds, 1, false};
    return report_command(options, out, err);
  }
  [[nodiscard]] bool left_nothing() const { return std::filesystem::is_empty(root); }

  std::filesystem::path root;
  std::ostringstream out, err;
};

TEST_F(Report, HoldsThePageAndAFileAChart) {
  ASSERT_EQ(report({"of-fig2b", "of-fig3", "si-table1", "article-crossover"}), kDone) << err.str();
  EXPECT_TRUE(std::filesystem::exists(root / "report" / "of-fig2b.svg"));
  EXPECT_TRUE(std::filesystem::exists(root / "report" / "si-table1.svg"));
  EXPECT_THAT(out.str(), HasSubstr("4 figures, 3 SVG files"));
}

TEST_F(Report, OpensInABrowser) {
  const auto browser = testing::find_browser();
  if (!browser) GTEST_SKIP() << "no Chromium on PATH or in KVD_CHROMIUM";
  ASSERT_EQ(report({"of-fig2b", "of-fig3", "si-table1"}), kDone) << err.str();
  const std::string url = "file://" + (root / "report" / "index.html").string();
  const auto picture = root / "picture.png";
  ASSERT_EQ(
      testing::run_browser(*browser, root, root / "log",
                           {"--window-size=1000,1400", "--screenshot=" + picture.string(), url}),
      0);
  EXPECT_GT(std::filesystem::file_size(picture), 40'000U) << "a blank sheet takes some 6 KB";
}

TEST_F(Report, WhatFailsLeavesNothing) {
  EXPECT_EQ(report({"of-fig3", "of-fig99"}), kUsage);
  EXPECT_EQ(report({"of-fig3"}, 0), kUsage);
  EXPECT_TRUE(left_nothing());
}

}  // namespace
}  // namespace kvd::sim
