#pragma once

#include <map>

#include "kvd/core/ledger/context.hpp"
#include "kvd/core/ledger/requests.hpp"
#include "kvd/core/ledger/spaces.hpp"
#include "kvd/store/store.hpp"

namespace kvd::core {

/// Regions that an earlier daemon granted, whose engines may still compute in them. Each waits for
/// its engine, to be the same region again, without a copy. What nobody has claimed in time is let
/// go: its slabs get new memory, and the old stays as its engine has it.
///
/// Source: kvd/DESIGN.md "Regions that outlive kvd".
///
/// Owner: control thread. Errors: as the replies say. Cost: O(slabs of the region).
class LeftRegions {
 public:
  LeftRegions(Context& context, store::Store& store, Requests& requests, Spaces& spaces)
      : context_(context), store_(store), requests_(requests), spaces_(spaces) {}

  void adopt(const AdoptRegions& left);
  /// A wrong proof and another domain get the answer to a name that is not there. A session that
  /// asks again gets the same answer.
  void on_claim(const Command& command, const ClaimRegion& claim);
  /// Called at each tick. True: memory has been released.
  bool expire();

 private:
  struct Left {
    Digest proof;
    DomainId domain;
    Region region;
  };
  void give(Session& session, Region region);
  void renew(SlabIndex slab);

  Context& context_;
  store::Store& store_;
  Requests& requests_;
  Spaces& spaces_;
  std::map<RegionName, Left> left_;
  TimePoint until_{0};  ///< they wait so long
};

}  // namespace kvd::core
