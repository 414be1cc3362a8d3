#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/lab/bench/serve_run.hpp"

namespace kvd::bench {

/// Two engines with the same model whose busy times alternate: while one has a burst of requests,
/// the other has few. Their sum is constant, and fits into all of the memory.
///
/// An iteration takes at least 5 ms. A GPU's iteration takes nearly the same time for one request
/// as for eight, so that memory bounds how many run. A CPU's takes eight times as long, and would
/// bound them itself.
struct BenefitStage {
  ServeStage serve = {.model = "layers=8,hidden=64,heads=4,kv_heads=4,head_dim=32,ff=128",
                      .engines = 2,
                      .iteration_ms = 5,
                      .bandwidth = "256MiB",
                      .seconds = 5,
                      .prompt_min = 64,
                      .prompt_max = 192,
                      .new_min = 64,
                      .new_max = 192};
  Goals goals = {.ttft_s = 0.5, .tbt_s = 0.02};
  std::uint32_t hbm_mib = 12;  ///< for both engines together; halves are whole slabs of 2 MiB
  std::uint32_t dram_mib = 128;
  double phase_s = 2.5;  ///< time until the busy engine and the quiet one change places
  double busy_rate = 7;  ///< requests a second
  double quiet_rate = 0.5;
  double pace = 1;  ///< factor by which slowed() has stretched all of this
};

/// The same load for a machine on which everything takes `pace` times as long: times, goals and the
/// least iteration grow by it, rates and links shrink.
[[nodiscard]] BenefitStage slowed(BenefitStage stage, double pace);

/// The pace at which this machine keeps the least time of an iteration with both engines busy: from
/// 1 to 1.6, found with a burst on one pool. It is 1 where there is no least time.
[[nodiscard]] double pace_of_this_machine(const BenefitStage& stage);
/// The pace of a machine whose iterations took `iteration_s` on average. It leaves a little room
/// for iterations that take longer than the mean.
[[nodiscard]] double pace_for(const BenefitStage& stage, double iteration_s);

/// A request, and the engine that it is for.
struct EngineRequest {
  std::uint32_t engine = 0;
  ServeRequest request;
};

/// Poisson arrivals at both engines, in order of time; the same for the same seed. The engine that
/// is busy first alternates with the seed.
[[nodiscard]] std::vector<EngineRequest> bursts(const BenefitStage& stage, std::uint64_t seed);

/// Plays it with the memory as `pools` daemons of equal shares: 2, each with one of the engines, or
/// 1 with both. Each daemon has a link of the whole bandwidth. All are processes, which end with
/// the run.
[[nodiscard]] ServeRun run_on_pools(const BenefitStage& stage, std::uint32_t pools,
                                    const std::vector<EngineRequest>& requests);

}  // namespace kvd::bench
