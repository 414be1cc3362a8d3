#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvd/core/door/tuning.hpp"
#include "tests/lab/bench/serve_load.hpp"

namespace kvd::bench {

/// The stage of the experiment: the same for every run of it.
struct ServeStage {
  std::string model = "layers=8,hidden=128,heads=4,kv_heads=4,ff=256";
  std::uint32_t engines = 1;
  /// Layers that move together. kvd's own choice, slots of 256 KiB, would make one group of such a
  /// small model, and then nothing could stream.
  std::uint32_t layers_per_block = 1;
  double iteration_ms = 0;  ///< the least time of an iteration, as kvd-engine --iteration-ms
  std::string hbm = "8MiB";
  std::string dram = "256MiB";
  std::string bandwidth = "1GiB";  ///< of the link, each direction
  double seconds = 20;             ///< length of time in which requests come
  double rate = 6;                 ///< requests a second
  std::uint32_t prompt_min = 32, prompt_max = 256;
  std::uint32_t new_min = 16, new_max = 128;
  double ttft_multiple = 10;  ///< SLO, as a multiple of an unloaded engine's time
  double tbt_multiple = 12;
};

/// How long one unloaded request takes, and hence the SLOs of all runs.
struct Goals {
  double ttft_s = 0;
  double tbt_s = 0;
};

/// What clients, daemon and engines saw in one run.
struct ServeRun {
  std::vector<ServeAnswer> answers;
  double wall_s = 0;  ///< from the first request to the last answer
  std::uint64_t steps = 0, rotations_in = 0, rotations_out = 0;
  double bytes_in = 0, bytes_out = 0;  ///< over the link
  std::uint64_t raw_ttft_met = 0, raw_ttft_missed = 0, raw_tbt_met = 0, raw_tbt_missed = 0;
  double control_cpu_s = 0;  ///< CPU time of the daemon's control thread
  std::uint64_t iterations = 0, waited = 0;
  double waiting_s = 0, iterating_s = 0;
};

/// Poisson arrivals; the same for the same seed, whatever the policy.
[[nodiscard]] std::vector<ServeRequest> arrivals(const ServeStage& stage, std::uint64_t seed,
                                                 const Goals& goals);
/// Goals from requests that run one after the other, on a pool that holds all of them.
[[nodiscard]] Goals unloaded_goals(const ServeStage& stage);
/// Uses a daemon and engines of its own, all of them processes. Ends the program with the log where
/// one of them does not start.
[[nodiscard]] ServeRun serve_once(const ServeStage& stage, const core::Tuning& tuning,
                                  const std::vector<ServeRequest>& requests);

}  // namespace kvd::bench
