#pragma once

#include "tests/lab/bench/bench.hpp"

namespace kvd::bench {

/// The row `dram_load` of `kvd-bench store`, whose --help explains it and its option. Ends the
/// program where kvd does not serve or a byte is wrong.
Row dram_load_row(const Arguments& arguments);

}  // namespace kvd::bench
