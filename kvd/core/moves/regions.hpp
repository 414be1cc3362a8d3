#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kvd/core/moves/dram_copies.hpp"
#include "kvd/core/moves/ground.hpp"
#include "kvd/core/moves/left_regions.hpp"
#include "kvd/core/moves/needs.hpp"
#include "kvd/core/moves/promises.hpp"
#include "kvd/core/moves/shares.hpp"
#include "kvd/core/moves/supply.hpp"

namespace kvd::core {

/// A region command that waits for slabs to be scrubbed, or for requests to make way.
struct PendingRegion {
  EngineId engine;
  ReplyTo reply_to;
  TimePoint deadline;
  Bytes bytes;
};

/// Level-1 memory: whole slabs leased to one session, pinned until it frees them. Where blocks of
/// the domain's requests fill the session's device, the emptiest slabs retire and the requests in
/// them are rotated out; the command waits for that until its deadline.
///
/// Owner: control thread. Cost: O(slabs).
class Regions : private Part {
 public:
  Regions(Ground& ground, DramCopies& copies, Needs& needs, Supply& supply, Promises& promises)
      : Part(ground),
        drains_(ground.drains),
        copies_of_regions_(ground.region_copies),
        spaces_(ground.spaces),
        copies_(copies),
        needs_(needs),
        supply_(supply),
        shares_(ground, copies, needs, supply),
        promises_(promises),
        left_(ground.context, ground.store, ground.requests, ground.spaces) {}

  [[nodiscard]] const std::deque<PendingRegion>& pending() const { return pending_; }
  /// Regions of an earlier daemon that wait for their engines.
  [[nodiscard]] LeftRegions& left() { return left_; }
  void on_allocate(const Command& command, const AllocateRegion& region);
  /// False: the session has no such region.
  [[nodiscard]] bool on_release(const Command& command, const ReleaseRegion& release);
  void serve();
  /// Quotas have changed. Domains that have more than they may give it back as it comes free: first
  /// what is cached, then by rotating requests out.
  void on_requota() {
    quotas_changed_ = true;
    shrink();
  }
  /// Rotates out the requests with blocks in retiring slabs, as far as they may leave now.
  void yield(Share share, EngineId caller);
  void drop(EngineId engine);
  void expire();
  [[nodiscard]] Bytes region_bytes(const Session& session) const;
  /// The HBM of the device that pending regions wait for.
  [[nodiscard]] std::map<DomainId, Bytes> awaited(DeviceId device) const;

 private:
  void share_out();
  void shrink();
  void shrink_dram();
  [[nodiscard]] bool grant(const PendingRegion& pending);
  [[nodiscard]] bool make_way(const PendingRegion& pending);
  [[nodiscard]] Share share_of(const PendingRegion& pending) const {
    return requests_.sessions().at(pending.engine).share();
  }
  [[nodiscard]] std::vector<SlabIndex> emptiest_slabs(Share share);
  void end_yielding(const std::set<Share>& still_waiting);
  [[nodiscard]] std::string obstacle(const PendingRegion& pending);

  const Drains& drains_;
  RegionCopies& copies_of_regions_;
  Spaces& spaces_;
  DramCopies& copies_;
  Needs& needs_;
  Supply& supply_;
  Shares shares_;
  Promises& promises_;
  LeftRegions left_;
  std::deque<PendingRegion> pending_;  ///< served in this order within a share
  std::set<DomainId> in_dram_;         ///< domains with more than they may have there
  bool quotas_changed_ = false;        ///< or shares changed, so a domain may now have too much
};

}  // namespace kvd::core
