#pragma once

#include "ipc/vocabulary/ids.hpp"
#include "tests/lab/bench/bench.hpp"

namespace kvd::bench {

/// The rows `restart`, `restart_dram` and `restart_hbm` of `kvd-bench store`, whose --help explains
/// them and their option.
Row restart_row(const Arguments& arguments);
Row restart_kept_row(const Arguments& arguments, Tier tier);

}  // namespace kvd::bench
