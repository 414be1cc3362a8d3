#pragma once

#include <map>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "kvd/pool/tier_pool.hpp"
#include "kvd/store/memory/device_pools.hpp"
#include "kvd/store/memory/orders.hpp"

namespace kvd::store {

/// Which engine maps which slab of HBM for its slots. A slab is sent to an engine when it first
/// gets slots there; slots are granted once it says that it maps the slab; a slab that is to be
/// zeroed is asked back. What an engine says of a slab that it was not given counts for nothing.
///
/// Source: kvd design (DESIGN.md "Domains and quotas").
///
/// Owner: control thread. Errors: none. Cost: O(1) a slab; forgetting an engine O(slabs).
class Mappings {
 public:
  Mappings(DevicePools& hbm, Orders& orders) : hbm_(hbm), orders_(orders) {}

  void engine_came(EngineId engine);
  void engine_gone(EngineId engine) { engines_.erase(engine); }
  /// Slabs in which the engine may be granted slots; null: no such engine.
  [[nodiscard]] const pool::SlabSet* of(EngineId engine) const;
  /// Orders the slabs to be sent, except those on their way. The engine waits for exactly these
  /// now.
  void send(EngineId engine, const std::vector<SlabIndex>& slabs);
  /// The slots it asked for last are in slabs it has yet to map.
  [[nodiscard]] bool awaited_by(EngineId engine) const;

  /// The engine says that it maps the slab. False for a slab that it was never given for slots.
  [[nodiscard]] bool mapped(EngineId engine, SlabIndex slab);
  /// Called after mapped(), once those who waited have been served: the slabs it maps are awaited
  /// no longer.
  void end_awaiting_mapped(EngineId engine);
  /// The engine no longer waits for any slab.
  void stop_awaiting(EngineId engine) {
    for (pool::TierPool& device : hbm_) device.stop_awaiting(engine);
  }
  /// The engine says that it no longer maps the slab. False unless it was asked to unmap it.
  [[nodiscard]] bool unmapped(EngineId engine, SlabIndex slab);
  /// The slab could not be sent to the engine. `region`: it was part of one.
  void unsent(EngineId engine, SlabIndex slab, bool region);
  /// A region's slab, which the engine unmapped: it may still have slots there.
  void region_unmapped(EngineId engine, SlabIndex slab);
  /// From here on nobody is granted slots there. Engines that map the slabs are asked to unmap
  /// them.
  void ask_back(const std::vector<SlabIndex>& slabs);
  /// The engine maps nothing any more, though its process may still exist. Call it before its slabs
  /// are zeroed: a slab that was zeroed while it was mapped is not clean.
  void forget(EngineId engine);

 private:
  struct Known {
    pool::SlabSet mapped;  ///< acknowledged
    pool::SlabSet sent;    ///< its descriptor left for the engine
    bool awaits = false;
  };
  /// Null: no such engine or slab.
  [[nodiscard]] Known* known(EngineId engine, SlabIndex slab);

  DevicePools& hbm_;
  Orders& orders_;
  std::map<EngineId, Known> engines_;
};

}  // namespace kvd::store
