// Domains that want memory at the same time: each has an equal part, and none has what it does not
// use.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/support/controller_world.hpp"

namespace kvd::test {
namespace {

constexpr std::uint32_t kSlabs = 16;

Controller::Config pool_with(const std::string& policy, std::uint32_t dram_slabs) {
  Controller::Config config = small_pool(kSlabs, dram_slabs);
  config.tuning.rotation.policy = policy;
  return config;
}

/// Two domains with an engine each; whoever is busy always has ten requests of about two slabs.
struct Two {
  explicit Two(const std::string& policy = "unified", std::uint32_t dram_slabs = 64)
      : world(pool_with(policy, dram_slabs)) {}

  void feed(EngineId engine) {
    while (world.engines.at(engine).requests.size() < 10) {
      const std::int64_t prompt = engine == second ? prompt_of_second : 8;
      ASSERT_EQ(world.submit(engine, ++last, prompt, 24), ErrorCode::kOk);
    }
  }
  void run(std::initializer_list<EngineId> busy, int times) {
    for (int i = 0; i < times; ++i) {
      for (const EngineId engine : busy) feed(engine);
      world.pass(std::chrono::milliseconds(10));
      for (const EngineId engine : {first, second}) world.run_and_step(engine);
      world.finish_copies();
      if (i % 5 == 0) world.feed(Tick{});
    }
  }
  [[nodiscard]] std::uint32_t held(DomainId domain) const {
    const auto slabs = world.controller->status(world.now).slabs[0];
    return static_cast<std::uint32_t>(
        std::count_if(slabs.begin(), slabs.end(), [&](const auto& slab) {
          return slab.domain == domain && slab.use == pool::SlabUse::kClass;
        }));
  }
  [[nodiscard]] bool idle() const {
    return world.engines.at(first).requests.empty() && world.engines.at(second).requests.empty();
  }
  [[nodiscard]] std::uint64_t tokens(EngineId engine) const { return world.engines.at(engine).ran; }

  World world;
  EngineId first = world.attach(small_model(), DomainId(1));
  EngineId second = world.attach(small_model(), DomainId(2));
  std::uint64_t last = 0;
  std::int64_t prompt_of_second = 8;
};

TEST(ControllerShares, WhoComesLaterHasItsPartOfWhatAnotherDomainFills) {
  Two two;
  two.run({two.first}, 100);
  ASSERT_GE(two.held(DomainId(1)), kSlabs - 2) << "alone it may have all";
  two.run({two.first, two.second}, 100);
  const std::uint64_t before[] = {two.tokens(two.first), two.tokens(two.second)};
  two.run({two.first, two.second}, 300);
  const auto first = static_cast<double>(two.tokens(two.first) - before[0]);
  const auto second = static_cast<double>(two.tokens(two.second) - before[1]);
  EXPECT_GT(second, first * .7) << first;
  EXPECT_GT(first, second * .7) << second;
  EXPECT_EQ(two.world.errors, 0u);
}

TEST(ControllerShares, WhatTheOtherNoLongerWantsIsUsedAgain) {
  Two two;
  two.run({two.first}, 100);
  two.run({two.first, two.second}, 100);
  two.run({two.first}, 300);
  EXPECT_GE(two.held(DomainId(1)), kSlabs - 2);
}

TEST(ControllerShares, WithoutRotationItComesAsRequestsEnd) {
  Two two("fcfs");
  two.prompt_of_second = 60;  // four slabs at once, where those of the other want one
  two.run({two.first}, 100);
  two.run({two.first, two.second}, 200);
  const std::uint64_t before[] = {two.tokens(two.first), two.tokens(two.second)};
  two.run({two.first, two.second}, 300);
  EXPECT_GT(two.tokens(two.second) - before[1], (two.tokens(two.first) - before[0]) / 2);
  EXPECT_EQ(two.world.errors, 0u);
}

TEST(ControllerShares, WithoutDramNobodyLosesWhatItHasBegun) {
  Two two("unified", 1);
  two.run({two.first}, 100);
  two.run({two.first, two.second}, 600);
  EXPECT_GT(two.tokens(two.second), 0u);
  for (int i = 0; i < 200 && !two.idle(); ++i) two.run({}, 10);
  EXPECT_TRUE(two.idle());
  EXPECT_EQ(two.world.controller->status(two.world.now).counters.ended.for_memory, 0u);
}

// The request has more than half of HBM, and has begun: it goes on although another domain has a
// right to half.
TEST(ControllerShares, ARequestLargerThanAnEqualPartEndsAllTheSame) {
  Two two;
  ASSERT_EQ(two.world.submit(two.first, ++two.last, 80, 20), ErrorCode::kOk);
  two.run({}, 20);
  const std::uint64_t before = two.tokens(two.first);
  ASSERT_GT(before, 0u);
  for (int i = 0; i < 400 && !two.world.engines.at(two.first).requests.empty(); ++i) {
    two.run({two.second}, 1);
  }
  EXPECT_TRUE(two.world.engines.at(two.first).requests.empty());
  EXPECT_GT(two.tokens(two.second), 0u);
}

}  // namespace
}  // namespace kvd::test
