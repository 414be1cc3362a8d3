// Whether KV outside of HBM pays, by what was measured: the article's scenarios.
#include "kvd/admin/advice/advice.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvd::admin {
namespace {

using nlohmann::json;

/// An 8B model whose prompts of 8,000 tokens come back from DRAM half of the time.
core::ControllerStatus rotating_prefixes() {
  core::ControllerStatus status;
  status.devices.resize(1);
  status.devices[0].link_rate[0] = 25e9;
  status.disk_rates = {3e9, 1e-3};
  auto& prefixes = status.counters.prefixes;
  prefixes.prompts = 100;
  prefixes.asked = 800'000;
  prefixes.found[0] = 40'000;
  prefixes.found[1] = 400'000;
  core::EngineStatus engine;
  engine.id = EngineId(1);
  engine.kv = {Bytes(131'072), 5e-5};
  status.engines.push_back(engine);
  return status;
}

json tier(const core::ControllerStatus& status, std::size_t number) {
  return json::parse(advice_document(status)).at("engines").at(0).at("tiers").at(number);
}
std::vector<json> holds(const json& tier) {
  std::vector<json> all;
  for (const json& condition : tier.at("conditions")) all.push_back(condition.at("holds"));
  return all;
}

TEST(Advice, ManyRotatingPrefixesPay) {
  const auto status = rotating_prefixes();
  const json dram = tier(status, 0);
  EXPECT_EQ(dram.at("tier"), "dram");
  EXPECT_EQ(dram.at("pays"), true);
  EXPECT_EQ(holds(dram), std::vector<json>({true, true, true, true}));
  EXPECT_NEAR(dram.at("load_s").get<double>(), 8000 * 131'072 / 25e9, 1e-9);
  EXPECT_NEAR(dram.at("prefill_s").get<double>(), 0.4, 1e-9);
  EXPECT_EQ(dram.at("crossover_tokens"), 1);
}

TEST(Advice, OneShotPromptsDoNot) {
  auto status = rotating_prefixes();
  status.counters.prefixes.found[0] = 0;
  status.counters.prefixes.found[1] = 8000;
  EXPECT_EQ(tier(status, 0).at("pays"), false);
  EXPECT_EQ(holds(tier(status, 0)), std::vector<json>({false, true, true, true}));
}

TEST(Advice, APrefixThatHbmKeepsByItselfDoesNot) {
  auto status = rotating_prefixes();
  status.counters.prefixes.found[0] = 790'000;
  status.counters.prefixes.found[1] = 1000;
  EXPECT_EQ(holds(tier(status, 0)), std::vector<json>({true, false, true, true}));
}

TEST(Advice, ATierSlowerThanComputingDoesNot) {
  auto status = rotating_prefixes();
  status.disk_rates = {0.3e9, 5e-3};
  EXPECT_EQ(tier(status, 0).at("pays"), true) << "DRAM is as it was";
  const json disk = tier(status, 1);
  EXPECT_EQ(disk.at("pays"), false);
  EXPECT_EQ(holds(disk), std::vector<json>({true, true, false, false}));
  EXPECT_TRUE(disk.at("crossover_tokens").is_null());
}

TEST(Advice, ShortPromptsDoNot) {
  auto status = rotating_prefixes();
  status.counters.prefixes.prompts = 8000;  // of 100 tokens
  status.disk_rates = {6e9, 3e-3};
  const json disk = tier(status, 1);
  EXPECT_EQ(disk.at("pays"), false);
  EXPECT_EQ(holds(disk), std::vector<json>({true, true, true, false}));
  EXPECT_GT(disk.at("crossover_tokens"), 100);
}

TEST(Advice, WhatNobodyMeasuredIsNotKnown) {
  auto status = rotating_prefixes();
  status.disk_rates = {};
  EXPECT_TRUE(tier(status, 1).at("pays").is_null());
  EXPECT_TRUE(tier(status, 1).at("bytes_per_s").is_null());
  status.engines[0].kv.prefill_token_s = 0;
  EXPECT_TRUE(tier(status, 0).at("pays").is_null());
  EXPECT_EQ(json::parse(advice_document({})).at("engines"), json::array());
}

}  // namespace
}  // namespace kvd::admin
