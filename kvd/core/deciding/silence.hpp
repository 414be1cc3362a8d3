#pragma once

#include <optional>

#include "kvd/core/moves/ground.hpp"
#include "kvd/core/moves/needs.hpp"
#include "kvd/core/moves/regions.hpp"

namespace kvd::core {

/// Engines that should have spoken and did not: their blocks leave the supply, and one that holds
/// HBM is to end when others have waited for it longer than config.evict_after. So are the ranks
/// that are left of a group, as long after its end. The shell ends the processes.
///
/// Source: kvd/DESIGN.md "A death".
///
/// Owner: control thread. Cost: O(requests) for a silent engine, else O(requests of the session).
class Silence {
 public:
  Silence(Ground& ground, Needs& needs, Regions& regions)
      : context_(ground.context),
        store_(ground.store),
        requests_(ground.requests),
        memory_(ground.memory),
        needs_(needs),
        regions_(regions) {}

  /// Whether it has been silent for longer than config.step_timeout while it owed something.
  void check(Session& session);
  /// Ends one that others have waited for too long, and what is left of a group that has ended.
  void evict(Session& session);
  /// In requests and regions.
  [[nodiscard]] Bytes held_hbm(const Session& session) const;
  /// Whether memory of the holder's domain, given back, could go to the other, who waits for it
  /// on the device.
  [[nodiscard]] bool would_help(DomainId holder, Share waiting, Bytes need) const;

 private:
  [[nodiscard]] std::optional<Bytes> unmet_need(const Session& session, DeviceId device);
  [[nodiscard]] bool is_awaited(const Session& holder);
  void drop_claims(Session& session);
  void evict_rest(Session& group);

  Context& context_;
  store::Store& store_;
  Requests& requests_;
  RequestMemory& memory_;
  Needs& needs_;
  Regions& regions_;
};

}  // namespace kvd::core
