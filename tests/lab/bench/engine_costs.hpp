#pragma once

#include <vector>

#include "kvd/sim/engine/profile.hpp"
#include "tests/lab/bench/serve_run.hpp"

namespace kvd::bench {

/// An iteration that either decodes or prefills, and how long it took.
struct CostSample {
  sim::Batch batch;
  double seconds = 0;
};

/// The terms of IterationModel (fitted) that predict the samples best: least squares of the
/// relative errors, no term below 0, decoding and prefill separately. Precondition: at least one
/// sample of each kind.
[[nodiscard]] sim::IterationModel fitted_model(const std::vector<CostSample>& samples);

/// The profile that kvd-sim needs to play this stage: how long iterations of its engine take on
/// this machine, measured on a node that holds everything, and the stage's own pool and link. Ends
/// the program where no node starts.
[[nodiscard]] sim::Profile measured_profile(const ServeStage& stage);

}  // namespace kvd::bench
