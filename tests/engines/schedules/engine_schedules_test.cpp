// Whatever kvd decides, the logits are those of a run with everything resident: seeded random
// schedules of engines, pools, policies and a device that misbehaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cinttypes>
#include <cstdlib>

#include "tests/engines/schedules/engine_schedule.hpp"

namespace kvd::test {
namespace {

/// A sanitizer makes them ten times as long.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kSchedules = 20;
#else
constexpr std::uint64_t kSchedules = 200;
#endif

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* given = std::getenv(variable);
  return given != nullptr ? std::stoull(given) : otherwise;
}

TEST(EngineSchedules, ChangeNoBit) {
  const std::uint64_t count = number_from("KVD_TEST_SCHEDULES", kSchedules);
  const std::uint64_t first = number_from("KVD_TEST_SEED", 1);
  const References references;
  core::Counters sum;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const Schedule schedule = Schedule::of(seed);
    const ScheduleResult result = run_schedule(schedule, references);
    EXPECT_THAT(result.faults, testing::IsEmpty()) << schedule.describe();
    sum.rotations_in += result.counters.rotations_in;
    sum.streams += result.counters.streams;
    sum.layers_fetched += result.counters.layers_fetched;
    sum.pauses += result.counters.pauses;
    sum.layerwise += result.counters.layerwise;
    sum.copy_failures += result.counters.copy_failures;
    for (const int tier : {0, 1}) {
      sum.prefixes.found[tier] += result.counters.prefixes.found[tier];
    }
  }
  std::printf("seeds %" PRIu64 " to %" PRIu64 ": %" PRIu64 " rotations, %" PRIu64
              " streamed iterations of %" PRIu64 " blocks, %" PRIu64 " pauses, %" PRIu64
              " prompts into DRAM, %" PRIu64 " failed copies, %" PRIu64
              " tokens found in HBM and %" PRIu64 " in DRAM\n",
              first, first + count - 1, sum.rotations_in, sum.streams, sum.layers_fetched,
              sum.pauses, sum.layerwise, sum.copy_failures, sum.prefixes.found[0],
              sum.prefixes.found[1]);
  // Else nothing much was proved; a few seeds by hand may happen to move little.
  if (count < 100) return;
  EXPECT_GE(sum.rotations_in, count);
  EXPECT_GE(sum.streams, count);
  EXPECT_GT(sum.copy_failures, 0U);
  EXPECT_GT(sum.prefixes.found[0], count);
  EXPECT_GT(sum.prefixes.found[1], 0U);
}

}  // namespace
}  // namespace kvd::test
