#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

namespace kvd::planner::testing {

/// The seed of a random test: KVD_TEST_SEED, or 1. Tests print it with their failures.
inline std::uint64_t test_seed() {
  const char* given = std::getenv("KVD_TEST_SEED");
  return given ? std::stoull(given) : 1;
}

}  // namespace kvd::planner::testing
