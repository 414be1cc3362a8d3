// What every admission policy and every load policy promises, whatever its rule.
#include <gtest/gtest.h>

#include <random>

#include "planner/baselines/all_policies.hpp"
#include "planner/policy/admission/admission.hpp"
#include "planner/policy/load.hpp"
#include "tests/unit/planner/seed.hpp"

namespace kvd::planner::testing {
namespace {

std::string test_name(const ::testing::TestParamInfo<std::string_view>& of) {
  return std::string(of.param);
}

class AdmissionContract : public ::testing::TestWithParam<std::string_view> {
 protected:
  std::unique_ptr<AdmissionPolicy> sut = all_policies().admission(GetParam()).value();
};

DecodingRequest random_decoding(std::mt19937_64& random) {
  std::uniform_real_distribution<double> unit(0, 1);
  DecodingRequest request;
  request.tpot_slo = Seconds(0.05 + unit(random));
  request.n_past = static_cast<std::int64_t>(random() % 500);
  request.t_past = Seconds(unit(random) * 0.3 * static_cast<double>(request.n_past));
  request.n_future = 1 + static_cast<std::int64_t>(random() % 500);
  request.tpot = Seconds(unit(random) * 0.2);
  request.prompt = Tokens(static_cast<std::int64_t>(random() % 4000));
  request.deposit = static_cast<std::int64_t>(random() % 30);
  if (random() % 2) request.retained_layers = static_cast<std::int32_t>(random() % 33);
  return request;
}

AdmissionSnapshot random_snapshot(std::mt19937_64& random) {
  std::uniform_real_distribution<double> unit(0, 1);
  AdmissionSnapshot snapshot;
  snapshot.costs = {32, 1, 1, 1e14, {2e10 * (0.01 + unit(random))}, 8e9, 4096, 8, 128, 2};
  const auto total = 32 * (2000 + static_cast<std::int64_t>(random() % 4000));
  const auto free = std::uniform_int_distribution<std::int64_t>(0, total)(random);
  snapshot.memory = AdmissionMemory{Blocks(total), Blocks(free)};
  if (random() % 2) snapshot.guard = StepGuard{Seconds(unit(random) * 0.1), Seconds(1e-3)};
  for (auto n = random() % 6; n > 0; --n) snapshot.decoding.push_back(random_decoding(random));
  for (auto n = random() % 8; n > 0; --n) {
    snapshot.queue.push_back({Tokens(1 + static_cast<std::int64_t>(random() % 8000)), Tokens(0),
                              1 + static_cast<std::int64_t>(random() % 500)});
  }
  return snapshot;
}

TEST_P(AdmissionContract, NamesItself) { EXPECT_EQ(sut->name(), GetParam()); }

TEST_P(AdmissionContract, AnEmptyQueueIsAnEmptyDecision) {
  std::mt19937_64 random(test_seed());
  auto snapshot = random_snapshot(random);
  snapshot.queue.clear();
  const auto decision = sut->decide(snapshot);
  ASSERT_TRUE(decision.ok());
  EXPECT_EQ(decision->admitted, 0u);
  EXPECT_TRUE(decision->prefill.empty());
}

TEST_P(AdmissionContract, RandomSnapshotsGiveAPrefixWithEveryFigure) {
  SCOPED_TRACE(::testing::Message() << "seed " << test_seed());
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 2000; ++round) {
    const auto snapshot = random_snapshot(random);
    const auto decision = sut->decide(snapshot);
    ASSERT_TRUE(decision.ok()) << decision.error().message;
    ASSERT_LE(decision->admitted, snapshot.queue.size());
    for (const auto size :
         {decision->prefill.size(), decision->retained_layers.size(), decision->offload.size()}) {
      ASSERT_EQ(size, snapshot.queue.size());
    }
    for (const auto layers : decision->retained_layers) ASSERT_TRUE(layers >= 0 && layers <= 32);
    for (std::size_t i = 0; i < decision->offload_layers.size(); ++i) {
      const auto most = snapshot.decoding[i].retained_layers.value_or(32);
      ASSERT_TRUE(decision->offload_layers[i] >= 0 && decision->offload_layers[i] <= most);
    }
    ASSERT_EQ(sut->decide(snapshot)->admitted, decision->admitted);
  }
}

TEST_P(AdmissionContract, AShorterQueueIsAdmittedAsFarAsItGoes) {
  SCOPED_TRACE(::testing::Message() << "seed " << test_seed());
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 500; ++round) {
    auto snapshot = random_snapshot(random);
    if (snapshot.queue.empty()) continue;
    const auto whole = sut->decide(snapshot)->admitted;
    snapshot.queue.pop_back();
    // What comes later in the queue never changes what is said of those before.
    ASSERT_EQ(sut->decide(snapshot)->admitted, std::min(whole, snapshot.queue.size()));
  }
}

TEST_P(AdmissionContract, WhereNobodyIsInsideAndAllIsFreeTheFirstEnters) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 200; ++round) {
    auto snapshot = random_snapshot(random);
    if (snapshot.queue.empty()) continue;
    snapshot.decoding.clear();
    snapshot.memory->free = snapshot.memory->total;
    ASSERT_GE(sut->decide(snapshot)->admitted, 1u) << "or nobody ever gets anywhere";
  }
}

TEST_P(AdmissionContract, RefusesWhatMakesNoSense) {
  std::mt19937_64 random(test_seed());
  const auto refused = [&](auto spoil) {
    auto snapshot = random_snapshot(random);
    snapshot.queue.push_back({Tokens(10)});
    snapshot.decoding.push_back(random_decoding(random));
    spoil(snapshot);
    const auto decision = sut->decide(snapshot);
    return !decision.ok() && decision.error().code == ErrorCode::kInvalidArgument;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(refused([&](auto& of) { of.costs.flops_per_s = nan; }));
  EXPECT_TRUE(refused([&](auto& of) { of.costs.layers = 1025; }));
  EXPECT_TRUE(refused([&](auto& of) { of.queue.back().tokens = Tokens(0); }));
  EXPECT_TRUE(refused([&](auto& of) { of.queue.back().done = Tokens(10); }));
  EXPECT_TRUE(refused([&](auto& of) { of.decoding.back().n_future = 0; }));
  EXPECT_TRUE(refused([&](auto& of) { of.decoding.back().retained_layers = 33; }));
  EXPECT_TRUE(refused([&](auto& of) { of.decoding.back().tpot_slo = Seconds(nan); }));
  EXPECT_TRUE(refused([&](auto& of) { of.memory->block_tokens = Tokens(0); }));
  EXPECT_TRUE(refused([&](auto& of) { of.memory->free = of.memory->total + Blocks(1); }));
  EXPECT_TRUE(refused([&](auto& of) { of.memory->threshold = nan; }));
  EXPECT_TRUE(refused([&](auto& of) { of.guard = StepGuard{Seconds(-1)}; }));
}

INSTANTIATE_TEST_SUITE_P(Built, AdmissionContract,
                         ::testing::ValuesIn(all_policies().names(Decision::kAdmission).begin(),
                                             all_policies().names(Decision::kAdmission).end()),
                         test_name);

class LoadContract : public ::testing::TestWithParam<std::string_view> {
 protected:
  std::unique_ptr<LoadPolicy> sut = make_load_policy(GetParam()).value();
};

TEST_P(LoadContract, GivesAPartOfThePrefixAndKeepsTiersApart) {
  SCOPED_TRACE(::testing::Message() << "seed " << test_seed());
  std::mt19937_64 random(test_seed());
  std::uniform_real_distribution<double> unit(0, 1);
  LoadMemory tiers[2];
  for (int round = 0; round < 2000; ++round) {
    const LoadCosts costs{Tokens(1 + static_cast<std::int64_t>(random() % 100'000)),
                          Bytes(static_cast<std::int64_t>(random() % 10'000'000'000)),
                          {1e8 + unit(random) * 1e10},
                          Seconds(unit(random) * 0.1),
                          Seconds(0),
                          Seconds(unit(random) * 1e-3),
                          Seconds(0)};
    ASSERT_TRUE(check(costs).ok());
    auto& tier = tiers[round % 2];
    const auto other = tiers[(round + 1) % 2].loaded_last;
    LoadMemory copy = tier;
    const auto tokens = sut->decide(costs, tier);
    ASSERT_TRUE(tokens >= Tokens(0) && tokens <= costs.tokens);
    ASSERT_EQ(sut->decide(costs, copy), tokens) << "the answer follows from costs and memory";
    ASSERT_EQ(tiers[(round + 1) % 2].loaded_last, other);
  }
}

TEST_P(LoadContract, NamesItself) { EXPECT_EQ(sut->name(), GetParam()); }

INSTANTIATE_TEST_SUITE_P(Built, LoadContract,
                         ::testing::ValuesIn(load_policy_names().begin(),
                                             load_policy_names().end()),
                         test_name);

TEST(PolicyNames, AnUnknownOneIsRefusedWithThoseAvailable) {
  EXPECT_NE(all_policies().admission("fair").error().message.find("past_future"),
            std::string::npos);
  EXPECT_NE(make_load_policy("maybe").error().message.find("always"), std::string::npos);
}

}  // namespace
}  // namespace kvd::planner::testing
