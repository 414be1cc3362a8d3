#pragma once

#include <string>

#include "kvd/core/door/status.hpp"

namespace kvd::admin {

/// Whether keeping KV outside of HBM pays on this machine and under this load, engine by engine and
/// tier by tier, in the four conditions of the KV-offloading article: prompts come back; HBM alone
/// does not keep them; the tier is faster than computing; prompts are long enough. It gives the
/// numbers that each condition follows from, measured since kvd started; times in seconds, rates in
/// bytes a second. A number that was not measured yet is null, and so is what follows from it.
/// Source: the article's table of scenarios; thresholds as said beside them, kvd's.
[[nodiscard]] std::string advice_document(const core::ControllerStatus& status);

}  // namespace kvd::admin
