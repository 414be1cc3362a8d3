#pragma once

#include "kvd/store/blocks/block_moves.hpp"
#include "kvd/store/blocks/blocks.hpp"
#include "kvd/store/blocks/compaction.hpp"
#include "kvd/store/blocks/transfers.hpp"
#include "kvd/store/cache/cache.hpp"
#include "kvd/store/memory/orders.hpp"
#include "kvd/store/memory/tiers.hpp"

namespace kvd::store {

/// The parts of the store, each made for the next: memory, the blocks in it, and what moves them.
/// Owner: control thread.
struct Store {
  /// `quotas` in force, by tier.
  Store(const Tiers::Config& config, const Index::Config& index,
        std::array<const pool::Quotas*, kTiers> quotas, Orders& orders)
      : tiers(config, orders),
        blocks(tiers),
        moves(blocks),
        cache(tiers, blocks, index, quotas),
        transfers(orders),
        compaction(tiers) {}

  Tiers tiers;
  Blocks blocks;
  BlockMoves moves;
  Cache cache;
  Transfers transfers;
  Compaction compaction;
  const DevicePools& hbm = tiers.hbm();  ///< to read
  const pool::TierPool& dram = tiers.pool(Tier::kDram);
};

}  // namespace kvd::store
