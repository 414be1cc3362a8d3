// Every rotation policy of the catalogue keeps what rotation_contract.hpp promises.
#include "planner/baselines/all_policies.hpp"
#include "tests/contract/planner/rotation_contract.hpp"
#include "tests/contract/planner/rotation_play.hpp"

namespace kvd::planner::testing {

TEST_P(RotationContract, OneWithoutATokenSinceItCameInOrInPrefillNeverLeaves) {
  auto of = snapshot(0, 30, {waiting(8, 0), rotary(8, 1), running(20, 1), running(20, 2)});
  of.growth = Bytes(2);
  for (auto& request : of.requests) {
    request.deposit = 100;
    request.output_tokens = Tokens(10);
  }
  of.requests[2].prefilling = true;
  of.requests[2].output_tokens = Tokens(1000);
  of.requests[3].made_token = false;
  EXPECT_TRUE(sut->decide(of, Seconds(30), config).preempted.empty());
}

TEST_P(RotationContract, OneParkedBeforeItsFirstTokenComesBackHoweverFullDramIs) {
  auto parked = waiting(2, 1);
  parked.state = RequestState::kRotary;
  auto of = snapshot(2, 4, {parked, running(4, 5)});
  of.dram = DramUse{Bytes(100), Bytes(3)};
  EXPECT_EQ(sut->decide(of, Seconds(30), config).prioritized, std::vector<std::uint32_t>{0});
}

// In the three plays below: who waits gets in, who comes in makes a token, everybody ends.
TEST_P(RotationContract, EnginesOfVeryDifferentPeriods) {
  for (std::uint64_t seed = test_seed(); seed < test_seed() + 3; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    for (const double rate : {0.02, 0.05}) {
      Play(GetParam(), seed, {{1, 7, 40}, 30, rate, 0, 150}).run(2000);
    }
  }
}

TEST_P(RotationContract, ALargeRequestAmongManySmallOnes) {
  for (std::uint64_t seed = test_seed(); seed < test_seed() + 3; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Play(GetParam(), seed, {{1}, 30, 0.9, 300}).run(4000);
  }
}

TEST_P(RotationContract, Overload) {
  for (std::uint64_t seed = test_seed(); seed < test_seed() + 3; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Play(GetParam(), seed, {{1, 2}, 12, 1, 0}).run(400);
  }
}

// What unified alone promises: the same under goodput, and it evicts by need only.
TEST(UnifiedPlayed, GoodputStarvesNobodyEither) {
  const RotationConfig goodput{.overload = Overload::kGoodput};
  for (std::uint64_t seed = test_seed(); seed < test_seed() + 3; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Play("unified", seed, {{1, 7, 40}, 30, 0.05, 0, 150}, goodput).run(2000);
    Play("unified", seed, {{1}, 30, 0.9, 300}, goodput).run(4000);
    Play("unified", seed, {{1, 2}, 12, 1, 0}, goodput).run(400);
  }
}

TEST(UnifiedPlayed, RotatesFarLessThanLvfUnderTheSameLoad) {
  const Load load{{1}, 30, 0.25, 0, 8};
  Play unified("unified", test_seed(), load), lvf("lvf", test_seed(), load);
  unified.run(3000);
  lvf.run(3000);
  EXPECT_LT(2 * unified.rotations(), lvf.rotations());
  EXPECT_GT(unified.rotations(), 0) << "it does rotate";
}

INSTANTIATE_TEST_SUITE_P(Built, RotationContract,
                         ::testing::ValuesIn(all_policies().names(Decision::kRotation).begin(),
                                             all_policies().names(Decision::kRotation).end()),
                         [](const auto& of) { return std::string(of.param); });

}  // namespace kvd::planner::testing
