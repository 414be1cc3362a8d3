#include <gtest/gtest.h>

#include "kvd/sim/engine/profile.hpp"
#include "kvd/sim/run/policy_names.hpp"
#include "planner/baselines/all_policies.hpp"
#include "tests/sim/small_setting.hpp"

namespace kvd::sim {
namespace {

struct Expected {
  const char* name;
  const char *rotation, *placement, *admission, *load;
};

TEST(PolicyNames, SetTheirOwnDecisionAndHaveOneRestBesideIt) {
  const Expected kAll[] = {
      {"lvf", "lvf", "none", "none", "never"},
      {"fcfs", "fcfs", "none", "none", "never"},
      {"sjf_oracle", "sjf_oracle", "none", "none", "never"},
      {"orbitflow", "fcfs", "orbitflow", "whole_request", "never"},
      {"batch_uniform", "fcfs", "batch_uniform", "whole_request", "never"},
      {"layerkv", "fcfs", "none", "layerkv", "never"},
      {"whole_request", "fcfs", "none", "whole_request", "never"},
      {"none", "fcfs", "none", "none", "never"},
      {"always", "fcfs", "none", "whole_request", "always"},
      {"deposit", "fcfs", "orbitflow", "whole_request", "never"},
      {"past_future", "fcfs", "none", "past_future", "never"},
      {"lvf+guards", "lvf+guards", "none", "none+guards", "never"},
      {"layerkv+guards", "fcfs+guards", "none", "layerkv+guards", "never"},
      {"deposit+guards", "fcfs+guards", "orbitflow", "whole_request+guards", "never"},
  };
  for (const Expected& wanted : kAll) {
    const auto policy = policy_named(wanted.name);
    ASSERT_TRUE(policy.ok()) << wanted.name;
    EXPECT_EQ(policy->tuning.rotation.policy, wanted.rotation) << wanted.name;
    EXPECT_EQ(policy->tuning.placement.policy, wanted.placement) << wanted.name;
    EXPECT_EQ(policy->tuning.admission.policy, wanted.admission) << wanted.name;
    EXPECT_EQ(policy->tuning.load.policy, wanted.load) << wanted.name;
  }
}

TEST(PolicyNames, UnifiedSetsAllDefaultsThatRun) {
  const auto policy = policy_named("unified");
  ASSERT_TRUE(policy.ok());
  EXPECT_EQ(policy->tuning.rotation.policy, "unified");
  EXPECT_EQ(policy->tuning.placement.policy, "orbitflow");
  EXPECT_EQ(policy->tuning.admission.policy, "layerkv");
  EXPECT_TRUE(policy->tuning.faults(planner::all_policies()).empty());
}

TEST(PolicyNames, TheAblationTakesPauseAndDepositAway) {
  const auto of = [](const char* name) { return policy_named(name)->tuning.placement; };
  EXPECT_FALSE(of("request_wise").pause);
  EXPECT_FALSE(of("request_wise").deposit);
  EXPECT_TRUE(of("pause_resume").pause);
  EXPECT_FALSE(of("pause_resume").deposit);
  EXPECT_TRUE(of("deposit").pause && of("deposit").deposit);
  EXPECT_TRUE(of("orbitflow").pause && of("orbitflow").deposit);
}

TEST(PolicyNames, EveryNameIsKnownAndAnUnknownOneNamesThem) {
  for (const auto name : policy_names()) {
    EXPECT_TRUE(policy_named(name).ok()) << name;
    const std::string guarded = std::string(name) + "+guards";
    ASSERT_TRUE(policy_named(guarded).ok()) << guarded;
    EXPECT_EQ(policy_named(guarded)->name, guarded);
    EXPECT_TRUE(policy_named(guarded)->tuning.faults(planner::all_policies()).empty()) << guarded;
  }
  EXPECT_FALSE(policy_named("lru+guards").ok());
  const auto unknown = policy_named("lru");
  ASSERT_FALSE(unknown.ok());
  for (const char* known : {"unified", "orbitflow", "layerkv_literal", "never", "request_wise"}) {
    EXPECT_NE(unknown.error().message.find(known), std::string::npos) << known;
  }
}

// T = 9.63e-7 * T + 0.0495 (the published A5000 fit): 65.28 ms at 16,384 tokens.
TEST(IterationTime, OfAFittedDecode) {
  Profile p = test::small_profile();
  p.iteration = {};
  p.iteration.fitted = true;
  p.iteration.fixed = Seconds(0.0495);
  p.iteration.context_token = Seconds(9.63e-7);
  p.iteration.flops_per_token = 16e9;
  p.iteration.flops = 120e12;
  p.iteration.flops_efficiency = 0.5;
  p.iteration.attention_flops_per_pair = 6e4;
  EXPECT_NEAR(iteration_time(p, {4, 16384, 0, 0}).count(), 0.065277792, 1e-9);
  // 1,000 prompt tokens: 16e12 / 60e12 = 0.266667 s, and 500,500 pairs of 6e4: 0.0005005 s.
  EXPECT_NEAR(iteration_time(p, {0, 0, 1000, 500500}).count(), 0.267167166667, 1e-9);
  EXPECT_NEAR(iteration_time(p, {4, 16384, 1000, 500500}).count(), 0.332444958667, 1e-9);
}

// 4 ms + max(65.5 GB / 3.9 TB/s, 65 GFLOP x tokens / 640 TFLOPS) + KV / 3.9 TB/s.
TEST(IterationTime, OfARoofline) {
  Profile p = test::small_profile();
  p.shape = {64, 64, 16, Bytes(4096)};
  p.iteration = {};
  p.iteration.fixed = Seconds(0.004);
  p.iteration.weight_bytes = 65.5e9;
  p.iteration.hbm_bytes_s = 3.9e12;
  p.iteration.flops_per_token = 65e9;
  p.iteration.flops = 640e12;
  const double kv = 100'000.0 * 262'144 / 3.9e12;
  EXPECT_NEAR(iteration_time(p, {100, 100'000, 0, 0}).count(), 0.004 + 65.5e9 / 3.9e12 + kv, 1e-9);
  EXPECT_NEAR(iteration_time(p, {600, 100'000, 1000, 0}).count(), 0.004 + 0.1625 + kv, 1e-9);
}

TEST(ProfileCheck, NamesEveryFault) {
  Profile p = test::small_profile();
  p.shape.layers = 0;
  p.iteration.flops = 0;
  p.link.h2d_bytes_s = -1;
  const Status status = check(p);
  ASSERT_FALSE(status.ok());
  for (const char* key : {"shape.layers", "iteration.flops", "link.h2d_bytes_s"}) {
    EXPECT_NE(status.error().message.find(key), std::string::npos) << key;
  }
}

TEST(ProfileCheck, RefusesAModelThatDoesNotFit) {
  Profile p = test::small_profile();
  p.hbm = Bytes(1000);
  const Status status = check(p);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("does not fit"), std::string::npos);
}

}  // namespace
}  // namespace kvd::sim
