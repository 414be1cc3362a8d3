// Prompts that begin alike, in the virtual world: what was computed is found again, in memory or on
// disk, and nobody waits longer for it than computing it would take.
#include <gtest/gtest.h>

#include "tests/sim/small_setting.hpp"

namespace kvd::sim::test {
namespace {

constexpr std::int64_t kPrompt = 1024;  // two ids of 512 tokens

/// 0.1 ms a token to compute; a few tokens to answer, so that the cost of one of a prompt shows.
Arrival prompt(double time, std::uint64_t id, std::int64_t tokens = kPrompt + 20) {
  Arrival made = arrival(time, tokens, 4);
  made.prefix = {2 * id, 2 * id + 1};
  return made;
}

Setting setting(Workload workload, std::int64_t hbm_blocks = 512, std::int64_t dram_blocks = 512) {
  Setting made = small_setting("fcfs", std::move(workload), small_profile(hbm_blocks, dram_blocks));
  made.policy.tuning.load.policy = "measured_crossover";
  made.prefixes = true;
  return made;
}

std::vector<RequestRecord> played(const Setting& setting) {
  auto result = run(setting);
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
  if (!result.ok()) return std::vector<RequestRecord>(setting.workload.size());
  return std::move(result->requests);
}

double ttft(const RequestRecord& record) {
  return record.tokens.empty() ? 1e9 : (record.tokens.front() - record.arrival).count();
}

/// The first prompt, seven others, the first again. Memory has room for three.
Workload crowded_out() {
  Workload workload;
  for (std::uint64_t i = 0; i < 8; ++i) workload.push_back(prompt(static_cast<double>(i), i));
  workload.push_back(prompt(8, 0));
  return workload;
}

Setting on_disk(double bytes_per_s) {
  Setting made = setting(crowded_out(), 96, 96);
  made.disk = DiskModel{.size = Bytes(1 << 26), .bytes_per_s = bytes_per_s};
  return made;
}

TEST(SimPrefixes, WhatIsInHbmIsNotComputedAgain) {
  const auto records = played(setting({prompt(0, 1), prompt(1, 1), prompt(2, 2)}));
  EXPECT_EQ(records[0].found, Tokens(0));
  EXPECT_EQ(records[1].found, Tokens(kPrompt));
  EXPECT_EQ(records[2].found, Tokens(0)) << "another prompt";
  EXPECT_NEAR(ttft(records[0]), 0.1044, 1e-6);
  EXPECT_NEAR(ttft(records[1]), 0.0020, 1e-6);
}

TEST(SimPrefixes, NobodyTellsUnlessAsked) {
  Setting silent = setting({prompt(0, 1), prompt(1, 1)});
  silent.prefixes = false;
  EXPECT_EQ(played(silent)[1].found, Tokens(0));
}

TEST(SimPrefixes, WhatMemoryGaveUpIsFoundOnDisk) {
  EXPECT_LT(played(setting(crowded_out(), 96, 96)).back().found, Tokens(kPrompt));
  const auto records = played(on_disk(1e9));
  EXPECT_EQ(records.back().found, Tokens(kPrompt));
  EXPECT_LT(ttft(records.back()), 0.05);
}

TEST(SimPrefixes, OfASlowDiskNobodyWaitsPastTheTimeOfComputing) {
  const auto records = played(on_disk(1e6));
  EXPECT_LT(ttft(records.back()), 2 * 0.1044 + 0.02) << "as long again as without a disk, at most";
}

TEST(SimPrefixes, EqualSettingsGiveEqualResults) {
  const auto one = played(on_disk(1e8)), two = played(on_disk(1e8));
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].tokens, two[i].tokens);
    EXPECT_EQ(one[i].found, two[i].found);
  }
}

}  // namespace
}  // namespace kvd::sim::test
