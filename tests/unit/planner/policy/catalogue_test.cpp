#include "planner/policy/catalogue.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/policy/admission.hpp"
#include "planner/policy/placement.hpp"

namespace kvd::planner {
namespace {

using ::testing::HasSubstr;

TEST(Catalogue, MakesEveryRotationPolicyItNames) {
  for (const auto policy : rotation_policy_names()) {
    auto made = make_rotation_policy(policy);
    ASSERT_TRUE(made.ok());
    EXPECT_EQ((*made)->name(), policy);
  }
}

TEST(Catalogue, EveryRotationPolicyIsThereWithGuards) {
  for (const auto policy : rotation_policy_names()) {
    const auto bare = make_rotation_policy(policy).value();
    const auto made = make_rotation_policy(with_guards(policy));
    ASSERT_TRUE(made.ok()) << policy;
    EXPECT_EQ((*made)->name(), std::string(policy) + "+guards");
    EXPECT_TRUE((*made)->traits().guards_steps);
    EXPECT_EQ((*made)->traits().evicts, bare->traits().evicts) << "it took more than the guard";
    EXPECT_EQ(without_guards((*made)->name()), policy);
  }
  EXPECT_EQ(with_guards("lvf+guards"), "lvf+guards");
  EXPECT_TRUE(check_policy_name(Decision::kRotation, "lvf+guards").ok());
  EXPECT_FALSE(check_policy_name(Decision::kRotation, "sjf_oracle+guards").ok());
  EXPECT_TRUE(check_policy_name(Decision::kAdmission, "none+guards").ok());
  EXPECT_FALSE(check_policy_name(Decision::kPlacement, "orbitflow+guards").ok());
  EXPECT_FALSE(make_rotation_policy("+guards").ok());
}

TEST(Catalogue, EveryDecisionHasADefaultThatPasses) {
  for (const auto decision :
       {Decision::kRotation, Decision::kPlacement, Decision::kAdmission, Decision::kLoad}) {
    ASSERT_FALSE(policy_names(decision).empty());
    EXPECT_TRUE(check_policy_name(decision, policy_names(decision).front()).ok());
  }
}

TEST(Catalogue, AnUnknownPolicyIsRefusedWithThoseAvailable) {
  const auto made = make_rotation_policy("longest");
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(made.error().message, HasSubstr("\"longest\""));
  for (const auto policy : rotation_policy_names()) {
    EXPECT_THAT(made.error().message, HasSubstr(std::string(policy)));
  }
}

TEST(Catalogue, ADaemonIsOfferedOnlyWhatItCanFeed) {
  EXPECT_EQ(check_policy_name(Decision::kRotation, "sjf_oracle").code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(policy_names(Decision::kRotation).front(), "unified");
  EXPECT_EQ(policy_names(Decision::kPlacement).front(), "none");
}

TEST(Catalogue, WhatADaemonIsOfferedExists) {
  for (const auto policy : policy_names(Decision::kRotation)) {
    EXPECT_TRUE(make_rotation_policy(policy).ok()) << policy;
  }
  for (const auto policy : policy_names(Decision::kPlacement)) {
    EXPECT_TRUE(make_placement_policy(policy).ok()) << policy;
  }
  for (const auto policy : policy_names(Decision::kAdmission)) {
    EXPECT_TRUE(make_admission_policy(policy).ok()) << policy;
  }
  EXPECT_EQ(policy_names(Decision::kPlacement).size(), placement_policy_names().size());
  EXPECT_EQ(policy_names(Decision::kAdmission).size(), admission_policy_names().size());
}

TEST(Catalogue, ARotationPolicyIsNoLoadPolicy) {
  const auto status = check_policy_name(Decision::kLoad, "lvf");
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.error().message, HasSubstr("load policy"));
}

}  // namespace
}  // namespace kvd::planner
