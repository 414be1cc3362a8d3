#pragma once

#include "tests/bench/bench.hpp"

namespace kvd::bench {

/// Row `restart` of `kvd-bench store`, whose --help explains it and its option.
Row restart_row(const Arguments& arguments);

}  // namespace kvd::bench
