#pragma once

#include <vector>

#include "tests/lab/bench/bench.hpp"

namespace kvd::bench {

/// The rows of the disk tier in `kvd-bench store`, whose --help explains them and their options.
/// Ends the program where the folder has no room or the disk fails.
std::vector<Row> disk_rows(const Arguments& arguments);

}  // namespace kvd::bench
