#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "kvd/core/ledger/session.hpp"
#include "kvd/store/store.hpp"

namespace kvd::core {

/// Copies that read or write ranges of regions. A region that its engine hands back, or leaves
/// behind, is kept from everyone until the last of its copies has ended (safety rule 4).
///
/// Owner: control thread. Errors: none. Cost: O(slabs of the region).
class RegionCopies {
 public:
  explicit RegionCopies(store::Store& store) : store_(store) {}

  void begin(RegionId region) { ++open_[region].copies; }
  [[nodiscard]] bool touch(RegionId region) const { return open_.contains(region); }
  /// True: the region was handed back meanwhile, and its memory can be used again.
  bool end(RegionId region);
  /// The region's engine is gone.
  void release(const Region& region);
  /// The region's engine lives, but no longer maps the region.
  void unmapped(const Region& region, EngineId engine);

 private:
  struct Open {
    std::uint32_t copies = 0;
    bool released = false;
    std::vector<SlabIndex> slabs;  ///< of a released region
  };
  store::Store& store_;
  std::map<RegionId, Open> open_;
};

}  // namespace kvd::core
