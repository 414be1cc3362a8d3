#pragma once

#include "planner/model/latency.hpp"

namespace kvd::planner {

/// The model in which KV moves in groups of `per_group` consecutive layers: a group computes as
/// long as its layers do together, and a block of it is as large as theirs. Where `per_group` does
/// not divide the layers the last group computes less; its blocks are full slots all the same.
/// Source: kvd/DESIGN.md "Words": a block is of one layer group.
/// Preconditions: check() of the model, per_group >= 1.
[[nodiscard]] StepModel in_groups(const StepModel& model, std::size_t per_group);

}  // namespace kvd::planner
