#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "kvd/sim/figures/commands.hpp"
#include "kvd/sim/figures/figure.hpp"

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
  for (const Json& row : Json::parse(reproduced("si-table1"))["rows"]) {
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

}  // namespace
}  // namespace kvd::sim
