#pragma once

#include <map>
#include <string>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "kvd/pool/slab_book.hpp"

namespace kvd::pool {

/// The regions of a tier: whole slabs that are leased to level-1 sessions.
/// Source: kvd/DESIGN.md "Words" (region).
/// Owner:  control thread.
/// Errors: a region that is used twice or does not exist is a bug and aborts.
class RegionLeases {
 public:
  struct Lease {
    RegionId region;
    DomainId domain;
    EngineId owner;
  };

  [[nodiscard]] bool contains(RegionId region) const { return leases_.contains(region); }
  /// Precondition: the slabs are clean, and loose or the domain's.
  std::vector<SlabIndex> lease(SlabBook& book, const Lease& lease, const Positions& slabs);
  /// Its slabs become dirty.
  void release(SlabBook& book, RegionId region);
  /// The engine is its owner from now on.
  void claim(SlabBook& book, RegionId region, EngineId owner);
  /// Its slabs get new memory. Returns them.
  std::vector<SlabIndex> renew(SlabBook& book, RegionId region);
  /// Its engine may still write to it, until it is released.
  void quarantine(SlabBook& book, RegionId region);

  /// Empty, or what does not add up.
  [[nodiscard]] std::string validate(const SlabBook& book) const;

 private:
  std::map<RegionId, std::vector<SlabIndex>> leases_;
};

}  // namespace kvd::pool
