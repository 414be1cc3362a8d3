#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kvd/sim/engine/profile.hpp"
#include "kvd/sim/world/arrival.hpp"
#include "kvd/store/index/index.hpp"
#include "tests/lab/cache/policies.hpp"

/// One tier of the prefix store, played against the prompts of a workload: which blocks would be
/// found, and how much that would save.
namespace kvd::sim {

/// What computing a block of a prompt again costs: the seconds it adds to an iteration that
/// computes others anyway. Later blocks cost more, because attention looks at all tokens before
/// them.
class BlockCosts {
 public:
  explicit BlockCosts(const Profile& profile) : profile_(profile) {}
  [[nodiscard]] double seconds(std::size_t position);
  [[nodiscard]] Bytes bytes() const;

 private:
  const Profile& profile_;
  std::vector<double> known_;  ///< by position in the prompt
};

/// One tier.
struct CacheSetting {
  MakeEviction policy{};     ///< none: kvd's default
  std::size_t capacity = 0;  ///< blocks
};

/// What a cache did, or the most that any cache could have done.
struct CacheFigures {
  std::uint64_t found = 0;  ///< blocks
  double saved_s = 0;       ///< seconds that computing them takes
  std::uint64_t evicted = 0;
};

/// What the prompts ask for, whatever the cache.
struct CacheDemand {
  std::uint64_t requests = 0;
  std::uint64_t asked = 0;     ///< blocks
  double asked_s = 0;          ///< seconds that computing all of them takes
  std::uint64_t distinct = 0;  ///< different blocks
};
[[nodiscard]] CacheDemand demand_of(const Workload& workload, BlockCosts& costs);

/// Called with the share of the workload that is done.
using ReplayProgress = std::function<void(double)>;

/// Plays the prompts against the tier. A prompt finds its leading blocks, then stores those that it
/// had to compute, and holds all of them meanwhile; requests do not overlap.
[[nodiscard]] CacheFigures replay(const Workload& workload, const CacheSetting& setting,
                                  BlockCosts& costs, const ReplayProgress& progress = {});

/// More than any cache of this many blocks can do, and as a rule not much more. Blocks: the block
/// with the longest time to its next use goes first, though a leading block is missing (Belady's
/// MIN, which may leave a block uncached). Seconds: a block that is kept from one use to the next
/// takes a place for that long; places times time go to the blocks that save most for it, though
/// they would not fit together.
///
/// Source: Belady, IBM Systems Journal 5(2), 1966; Berger et al., "Practical bounds on optimal
/// caching with variable object sizes", SIGMETRICS 2018 (the second).
[[nodiscard]] CacheFigures cache_bound(const Workload& workload, std::size_t capacity,
                                       BlockCosts& costs);

}  // namespace kvd::sim
