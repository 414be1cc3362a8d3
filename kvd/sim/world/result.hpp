#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/vocabulary/units.hpp"
#include "planner/model/seconds.hpp"

namespace kvd::sim {

using planner::Seconds;

/// What became of one request. All times count from the start of the run.
struct RequestRecord {
  std::uint32_t engine = 0;
  Tokens prompt;
  Tokens output;                ///< tokens that it was to make
  Tokens found;                 ///< tokens of its prompt that were found, so not computed
  Seconds arrival{0};           ///< the workload's
  Seconds submitted{-1};        ///< when the engine gave it a seat; below 0: never
  Seconds scheduled{-1};        ///< start of its first iteration; below 0: never
  Seconds finish{-1};           ///< when its last token was made; below 0: the run ended before
  Seconds held{0};              ///< time with a seat but no first token in which it was not let run
  std::vector<Seconds> tokens;  ///< when each token was made
  // The goals it is judged by.
  Seconds ttft_slo{0};
  Seconds tbt_slo{0};
  Seconds tpot_slo{0};
  std::uint32_t rotations = 0;  ///< times it was seen held as swapped out after it had run
  std::uint32_t pauses = 0;     ///< times it was held as paused after it had run
  bool refused = false;         ///< the Controller did not take it; `tokens` is empty

  [[nodiscard]] bool finished() const { return finish >= Seconds(0); }
};

/// Sums over the run. Shares are averages over virtual time from the first arrival to the end.
struct RunTotals {
  Seconds duration{0};           ///< from the first arrival to the last event
  std::uint64_t iterations = 0;  ///< of all engines
  Seconds compute{0};            ///< time in which engines compute
  Seconds stall{0};  ///< time in which engines wait inside an iteration for copies or layers
  Bytes moved[2];    ///< h2d, d2h; swaps, background copies and streamed layers
  Bytes streamed;    ///< of moved[0]: layers staged during iterations
  std::uint64_t blocks_moved = 0;   ///< slots that swaps and streams moved, either direction
  std::uint64_t blocks_synced = 0;  ///< slots copied ahead in the background
  Seconds link_busy[2] = {Seconds(0), Seconds(0)};
  std::uint64_t rotations_out = 0;
  std::uint64_t rotations_in = 0;
  std::uint64_t pauses = 0;
  std::uint64_t layerwise = 0;  ///< prompts that prefilled into DRAM
  std::uint64_t plans = 0;
  Seconds planner{0};      ///< time charged to the virtual clock
  double hbm_use = 0;      ///< share of slots that hold something
  double hbm_transit = 0;  ///< share of slots that a swap is reading or writing
  double dram_use = 0;
  std::uint64_t refused = 0;
  double prefix_repeats = 0;  ///< share of the prompts' blocks that an earlier prompt had, too
  std::string note;           ///< why the run ended before every request did; empty: all ended
};

struct RunResult {
  std::vector<RequestRecord> requests;  ///< in the workload's order
  RunTotals totals;
};

}  // namespace kvd::sim
