#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvd/core/door/status.hpp"
#include "tests/engines/schedules/engine_thread.hpp"

namespace kvd::test {

/// Everything that shapes a run: drawn from a seed, printed where it went wrong.
struct Schedule {
  std::uint64_t seed = 0;
  std::uint32_t layers_per_block = 1;
  std::uint32_t engines = 1;
  std::uint32_t pool_percent = 100;  ///< HBM, of what all requests need at their ends together
  std::string placement = "none";
  std::string rotation = "unified";
  std::string admission = "none";
  bool pipeline = true;
  bool slow_link = false;
  bool faults = false;
  bool shares = false;  ///< engines tell what tokens their requests have

  [[nodiscard]] static Schedule of(std::uint64_t seed);
  [[nodiscard]] std::string describe() const;
};

struct ScheduleResult {
  std::vector<std::string> faults;  ///< empty: every bit as it should be, nothing left behind
  core::Counters counters;
};

/// Runs requests as the schedule says on a daemon in this process and compares every answer.
[[nodiscard]] ScheduleResult run_schedule(const Schedule& schedule, const References& references);

}  // namespace kvd::test
