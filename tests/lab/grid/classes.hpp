#pragma once

#include <span>
#include <vector>

#include "kvd/sim/workload/goals.hpp"
#include "tests/lab/grid/axes.hpp"

/// What the classes of goals mean for the requests of a cell.
namespace kvd::sim::grid {

/// The goals of each class and its share of the requests, the tightest first.
[[nodiscard]] std::vector<GoalClass> classes_of(const Cell& cell);

/// Requests a second that an engine is sent, out of the cell's `rate`.
[[nodiscard]] double engine_rate(const Cell& cell, std::size_t engine, double rate);

/// Gives the requests of one engine their goals where each engine has a class.
[[nodiscard]] Status set_engine_goals(const Cell& cell, std::size_t engine, std::uint64_t seed,
                                      Workload& requests);
/// Gives all requests their goals where the classes are mixed.
[[nodiscard]] Status set_mixed_goals(const Cell& cell, std::uint64_t seed, Workload& requests);

/// Leaves out requests that are not of the tightest class.
void leave_tightest(const Cell& cell, Workload& requests);

/// The cell with the tightest class alone, as its only class: its knee is that class's own.
[[nodiscard]] Cell tightest_alone(const Cell& cell);
/// Name of that knee: the knee of the lengths on the machine where their goals are tightest.
[[nodiscard]] std::string tightest_knee_name(const Cell& cell);

}  // namespace kvd::sim::grid
