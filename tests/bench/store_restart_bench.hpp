#pragma once

#include "tests/bench/bench.hpp"

namespace kvd::bench {

/// Rows `restart` and `restart_dram` of `kvd-bench store`, whose --help explains them and their
/// option.
Row restart_row(const Arguments& arguments);
Row restart_dram_row(const Arguments& arguments);

}  // namespace kvd::bench
