#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/integration/cuda/rotation_schedule.hpp"

namespace kvd::tests {
namespace {

constexpr unsigned kSteps = 16;
constexpr std::uint64_t kMutantSchedules = 100;

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// KVD_TEST_SCHEDULES: how many; KVD_SCHEDULE_SEED: the first seed, to play one again.
TEST(RotationSchedules, NoBlockEverHoldsAWrongByte) {
  RotationSchedule::World world;
  ASSERT_TRUE(world.ready());
  const std::uint64_t first = number_from("KVD_SCHEDULE_SEED", 1);
  const std::uint64_t count = number_from("KVD_TEST_SCHEDULES", 300);
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE("KVD_SCHEDULE_SEED=" + std::to_string(seed));
    ASSERT_EQ(RotationSchedule(world, seed, Mutant::kNone).play(kSteps), 0u);
    ASSERT_FALSE(HasFailure());
  }
}

TEST(RotationSchedules, OneFlippedBitIsOneWrongBlock) {
  RotationSchedule::World world;
  ASSERT_TRUE(world.ready());
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ASSERT_EQ(RotationSchedule(world, seed, Mutant::kCorruptByte).play(kSteps), 1u);
  }
}

class BrokenSchedules : public ::testing::TestWithParam<std::pair<const char*, Mutant>> {};

// The test of the test: a driver loop that leaves out one rule must be seen.
TEST_P(BrokenSchedules, AreSeenByTheirWrongBytes) {
  RotationSchedule::World world;
  ASSERT_TRUE(world.ready());
  std::uint64_t wrong = 0, seed = 0;
  while (wrong == 0 && seed < kMutantSchedules) {
    wrong = RotationSchedule(world, ++seed, GetParam().second).play(kSteps);
  }
  EXPECT_GT(wrong, 0u) << "in " << seed << " schedules";
  RecordProperty("schedules", static_cast<int>(seed));
}

INSTANTIATE_TEST_SUITE_P(Mutants, BrokenSchedules,
                         ::testing::Values(std::pair{"NoFenceWait", Mutant::kNoFenceWait},
                                           std::pair{"NoIterationWait", Mutant::kNoIterationWait},
                                           std::pair{"FillWhileLeaving", Mutant::kFillWhileLeaving},
                                           std::pair{"LoadWhileLeaving", Mutant::kLoadWhileLeaving},
                                           std::pair{"LoadTooEarly", Mutant::kLoadTooEarly}),
                         [](const auto& tested) { return std::string(tested.param.first); });

}  // namespace
}  // namespace kvd::tests
