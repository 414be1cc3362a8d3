#pragma once

#include "tests/lab/bench/bench.hpp"

namespace kvd::bench {

/// kvd-bench copy --matrix [--out FILE]: prints what each way to copy reaches by segment size and
/// count, and writes the crossover table. With a CUDA driver it measures the copy engine, the loop
/// and the slot kernels; without one, the host's copies. Returns the exit status.
int run_copy_matrix(const Arguments& arguments);

}  // namespace kvd::bench
