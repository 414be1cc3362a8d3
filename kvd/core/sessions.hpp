#pragma once

#include <cstdint>
#include <map>

#include "kvd/core/claims.hpp"
#include "kvd/core/ground.hpp"
#include "kvd/core/regions.hpp"
#include "kvd/core/streams.hpp"

namespace kvd::core {

/// Engines that come and go: attach, goodbye, and a death in its two stages, first noticed, then
/// sure. What an engine may still touch is held until it is sure.
///
/// Source: kvd/DESIGN.md "A death".
///
/// Owner: control thread. Cost: O(requests of the session).
class Sessions {
 public:
  Sessions(Ground& ground, Streams& streams, Regions& regions, Claims& claims)
      : context_(ground.context),
        store_(ground.store),
        requests_(ground.requests),
        memory_(ground.memory),
        streams_(streams),
        regions_(regions),
        claims_(claims) {}

  /// Empty slabs remember their class; where there are many, what nobody uses need not.
  void forget_unused_classes();
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

 private:
  /// InvalidArgument for a device that does not exist, or not one for each rank.
  [[nodiscard]] Status check_devices(const Attach& attach) const;
  [[nodiscard]] Result<ClassId> class_for(const ModelClass& shape);
  /// Forgets the classes that no session, and no slab of either tier, has any more.
  void forget_classes();

  Context& context_;
  store::Store& store_;
  Requests& requests_;
  RequestMemory& memory_;
  Streams& streams_;
  Regions& regions_;
  Claims& claims_;
  std::map<ModelClass, ClassId> classes_;
  std::uint32_t last_engine_ = 0;
  std::uint32_t last_class_ = 0;
  std::uint64_t last_generation_ = 0;
};

}  // namespace kvd::core
