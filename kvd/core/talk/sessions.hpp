#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvd/core/deciding/claims.hpp"
#include "kvd/core/moves/ground.hpp"
#include "kvd/core/moves/regions.hpp"
#include "kvd/core/moves/streams.hpp"

namespace kvd::core {

/// Engines that come and go: attach, goodbye, and a death in two stages, first noticed, then
/// certain. What an engine may still touch is held until its death is certain.
///
/// Source: kvd/DESIGN.md "A death".
///
/// Owner: control thread. Cost: O(requests of the session).
class Sessions : private Part {
 public:
  Sessions(Ground& ground, Streams& streams, Regions& regions, Claims& claims)
      : Part(ground),
        classes_(ground.classes),
        region_copies_(ground.region_copies),
        streams_(streams),
        caches_(ground.engine_caches),
        drains_(ground.drains),
        regions_(regions),
        claims_(claims) {}

  /// QuotaExceeded: too many model shapes; InvalidArgument as Tiers::add_class.
  [[nodiscard]] Result<AttachGrant> attach(const Attach& attach);
  void on_ranks_placed(const RanksPlaced& placed);
  void on_detach(EngineId engine);
  void on_dying(EngineId engine, bool parting);
  void on_dead(EngineId engine);
  void on_beat(EngineId engine);
  void on_slab_mapped(EngineId engine, SlabIndex slab);
  void on_slab_unmapped(EngineId engine, SlabIndex slab);
  void on_slab_unsent(const SlabUnsent& unsent);
  /// Called at the end of each event: notes sessions whose memory has been zeroed since their
  /// process ended.
  void tell_returned();

 private:
  /// An engine whose process has ended, and the memory it leaves behind.
  struct Gone {
    EngineId engine;
    std::string name;
    TimePoint noticed{0};
    Bytes bytes;  ///< of HBM
    std::vector<RegionId> regions;
    /// Tickets under which all of it is zeroed; until: none while it is still touched.
    Ticket after, until{};
  };
  void end_requests(Session& session);
  /// InvalidArgument for a device that does not exist, or where the devices are not one for each
  /// rank.
  [[nodiscard]] Status check_devices(const Attach& attach) const;

  Classes& classes_;
  RegionCopies& region_copies_;
  Streams& streams_;
  EngineCaches& caches_;
  const Drains& drains_;
  Regions& regions_;
  Claims& claims_;
  std::vector<Gone> gone_;  ///< engines whose memory is not all back yet
  std::uint32_t last_engine_ = 0;
  std::uint64_t last_generation_ = 0;
};

}  // namespace kvd::core
