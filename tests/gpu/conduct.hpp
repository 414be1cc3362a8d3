#pragma once

#include <string>
#include <vector>

#include "ipc/vocabulary/unique_fd.hpp"
#include "tests/gpu/experiments/experiments.hpp"
#include "tests/gpu/report.hpp"

namespace kvd::gpu {

/// What the processes of experiments are started with.
struct Conduct {
  std::string suites;  ///< results of the test programs
  bool quick = false;
};

/// Runs one experiment in a process of its own, `limit_s` long at most.
/// Never waits much longer than that: a process that is stuck in the kernel is left behind.
[[nodiscard]] Outcome conduct(const Experiment& experiment, const Conduct& how, double limit_s);

/// Keeps the GPUs initialised, as persistence mode does: without it the first process that opens
/// one waits for seconds. Starts no CUDA. On a machine without a GPU nothing happens.
class Holder {
 public:
  void hold();
  void release() { devices_.clear(); }

 private:
  std::vector<UniqueFd> devices_;
};

}  // namespace kvd::gpu
