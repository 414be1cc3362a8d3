#pragma once

#include <optional>

#include "kvd/core/moves/ground.hpp"
#include "kvd/core/moves/needs.hpp"
#include "kvd/core/moves/regions.hpp"

namespace kvd::core {

/// Engines that should have spoken and did not. Their blocks leave the supply, and an engine that
/// holds HBM is ended when others have waited for it longer than config.evict_after. The ranks that
/// are left of a group are ended as long after the group's end. The shell ends the processes.
///
/// Source: kvd/DESIGN.md "A death".
///
/// Owner: control thread. Cost: O(requests) for a silent engine, else O(requests of the session).
class Silence : private Part {
 public:
  Silence(Ground& ground, Needs& needs, Regions& regions)
      : Part(ground), needs_(needs), regions_(regions) {}

  /// Checks whether it has been silent for longer than config.step_timeout while it owed something.
  void check(Session& session);
  /// Ends an engine that others have waited for too long, and the rest of a group that has ended.
  void evict(Session& session);
  /// HBM that it holds in requests and regions.
  [[nodiscard]] Bytes held_hbm(const Session& session) const;
  /// Whether memory of the holder's domain, once given back, could go to the other domain, which
  /// waits for it on the device.
  [[nodiscard]] bool would_help(DomainId holder, Share waiting, Bytes need) const;

 private:
  [[nodiscard]] std::optional<Bytes> unmet_need(const Session& session, DeviceId device);
  [[nodiscard]] bool is_awaited(const Session& holder);
  void drop_claims(Session& session);
  void evict_rest(Session& group);

  Needs& needs_;
  Regions& regions_;
};

}  // namespace kvd::core
