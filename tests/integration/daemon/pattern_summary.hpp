#pragma once

#include <nlohmann/json.hpp>

#include "tests/engines/child_process.hpp"

namespace kvd::test {

/// What kvd-pattern says at its end with --json; null: it said nothing.
inline nlohmann::json summary_of(ChildProcess& engine) {
  const auto line = engine.wait_for_line("{");
  return line ? nlohmann::json::parse(*line) : nlohmann::json();
}

}  // namespace kvd::test
