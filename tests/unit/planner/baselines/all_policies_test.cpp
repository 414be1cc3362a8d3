#include "planner/baselines/all_policies.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/baselines/guarded.hpp"

namespace kvd::planner {
namespace {

using ::testing::HasSubstr;

TEST(Catalogue, EveryRotationPolicyIsThereWithGuards) {
  for (const auto policy : all_policies().names(Decision::kRotation)) {
    const auto bare = all_policies().rotation(policy).value();
    const auto made = all_policies().rotation(with_guards(policy));
    ASSERT_TRUE(made.ok()) << policy;
    EXPECT_EQ((*made)->name(), std::string(policy) + "+guards");
    EXPECT_TRUE((*made)->traits().guards_steps);
    EXPECT_EQ((*made)->traits().evicts, bare->traits().evicts) << "it took more than the guard";
    EXPECT_EQ(without_guards((*made)->name()), policy);
  }
  EXPECT_EQ(with_guards("lvf+guards"), "lvf+guards");
  EXPECT_TRUE(all_policies().check(Decision::kRotation, "lvf+guards").ok());
  EXPECT_TRUE(all_policies().check(Decision::kAdmission, "none+guards").ok());
  EXPECT_FALSE(all_policies().check(Decision::kPlacement, "orbitflow+guards").ok());
  EXPECT_FALSE(all_policies().rotation("+guards").ok());
}

TEST(Catalogue, EveryDecisionHasADefaultThatPasses) {
  for (const auto decision :
       {Decision::kRotation, Decision::kPlacement, Decision::kAdmission, Decision::kLoad}) {
    ASSERT_FALSE(all_policies().names(decision).empty());
    EXPECT_TRUE(all_policies().check(decision, all_policies().names(decision).front()).ok());
  }
}

TEST(Catalogue, AnUnknownPolicyIsRefusedWithThoseAvailable) {
  const auto made = all_policies().rotation("longest");
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(made.error().message, HasSubstr("\"longest\""));
  for (const auto policy : all_policies().names(Decision::kRotation)) {
    EXPECT_THAT(made.error().message, HasSubstr(std::string(policy)));
  }
}

TEST(Catalogue, ADaemonIsOfferedItsOwnAlone) {
  using Names = std::vector<std::string_view>;
  const auto stock = [](Decision decision) {
    const auto names = stock_policies().names(decision);
    return Names(names.begin(), names.end());
  };
  EXPECT_EQ(stock(Decision::kRotation), (Names{"unified", "lvf", "fcfs"}));
  EXPECT_EQ(stock(Decision::kPlacement), (Names{"none", "orbitflow"}));
  EXPECT_EQ(stock(Decision::kAdmission), (Names{"none", "layerkv"}));
  EXPECT_FALSE(stock_policies().check(Decision::kRotation, "lvf+guards").ok());
  const Status refused = stock_policies().check(Decision::kAdmission, "past_future");
  ASSERT_EQ(refused.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message, HasSubstr("available: none layerkv"));
}

TEST(Catalogue, WhatItNamesExists) {
  for (const Catalogue* sut : {&stock_policies(), &all_policies()}) {
    for (const auto policy : sut->names(Decision::kRotation)) {
      EXPECT_EQ(sut->rotation(policy).value()->name(), policy);
    }
    for (const auto policy : sut->names(Decision::kPlacement)) {
      EXPECT_EQ(sut->placement(policy).value()->name(), policy);
    }
    for (const auto policy : sut->names(Decision::kAdmission)) {
      EXPECT_EQ(sut->admission(policy).value()->name(), policy);
    }
  }
}

TEST(Catalogue, ARotationPolicyIsNoLoadPolicy) {
  const auto status = all_policies().check(Decision::kLoad, "lvf");
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.error().message, HasSubstr("load policy"));
}

}  // namespace
}  // namespace kvd::planner
