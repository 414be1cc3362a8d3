// No command holds the control thread for long, whatever is in kvd.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#include "planner/solver/placement_solver.hpp"
#include "tests/bench/command_world.hpp"

namespace kvd::bench {
namespace {

/// What so many entries of a command have to cost at least: each is looked up in a large table.
double floor_ms() {
  using Digest = std::array<std::uint64_t, 4>;
  std::map<Digest, std::uint64_t> table;
  std::uint64_t random = 1;
  const auto next = [&] { return random = random * 6364136223846793005u + 1442695040888963407u; };
  for (int i = 0; i < 1 << 18; ++i) table.emplace(Digest{next(), next(), 0, 0}, 0);
  const planner::ThreadCpuClock clock;
  const TimePoint begin = clock.now();
  for (int i = 0; i < 4096; ++i) table.emplace(Digest{next(), next(), 0, 0}, 1);
  return to_seconds(clock.now() - begin) * 1e3;
}

/// How many floors each may hold the thread. One takes 7 to 10 ms where 10 ms are the limit.
double most_floors(const std::string& name) {
  constexpr double kMost = 1.5;
  // One event gives up all rows of a thousand prompts, or lists all requests. This list only
  // shrinks.
  const std::map<std::string, double> longer = {
      {"dying with named", 6}, {"step that ends all", 8}, {"snapshot", 2}};
  const auto found = longer.find(name);
  return found == longer.end() ? kMost : found->second;
}

TEST(Commands, CostNoMoreThanAFewLooksIntoATableForEachEntry) {
  const double floor = std::min({floor_ms(), floor_ms(), floor_ms()});
  for (const CommandCost& cost : CommandWorld().measure()) {
    std::printf("%-20s %8.3f ms, %4.1f floors\n", cost.name.c_str(), cost.ms, cost.ms / floor);
    EXPECT_LE(cost.ms, most_floors(cost.name) * floor) << cost.name << " holds the control thread";
  }
}

}  // namespace
}  // namespace kvd::bench
