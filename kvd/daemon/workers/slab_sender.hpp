#pragma once

#include <deque>
#include <vector>

#include "kvd/core/door/effects.hpp"
#include "kvd/daemon/base/event_log.hpp"
#include "kvd/daemon/sessions/event_feed.hpp"
#include "kvd/daemon/sessions/groups.hpp"
#include "kvd/daemon/sessions/session_ends.hpp"
#include "kvd/daemon/sessions/session_table.hpp"
#include "kvd/mover/slab_store.hpp"

namespace kvd::daemon {

/// Hands slabs to engines. One that cannot be sent for want of a descriptor waits for a later tick,
/// and everything that its engine is to get after it waits behind it: the engine maps a region when
/// the region is granted, so all of it has to be on its way by then. After two seconds what the
/// slab was for ends; the engine is innocent and keeps its session.
/// Source: kvd/DESIGN.md "Out of descriptors".
/// Owner:  control thread. What it is given must outlive it.
class SlabSender {
 public:
  struct Uses {
    const mover::SlabStore& slabs;
    SessionTable& sessions;
    Groups& groups;
    EventFeed& events;
    SessionEnds& ends;
    EventLog& log;
  };

  explicit SlabSender(const Uses& uses) : uses_(uses) {}

  /// Sends to every rank of the engine that is on the slab's device.
  void send(const core::SendSlab& slab);
  /// Asks those ranks to unmap the slab.
  void ask_unmap(const core::AskUnmap& ask);
  /// The slab gets new memory: whoever was to be sent the old is not to get it.
  void withdraw(SlabIndex slab);
  /// Keeps a grant of a region whose slabs are not all on their way; false: answer it now.
  [[nodiscard]] bool hold(const core::Reply& reply);
  /// Tries again what waits. Afterwards take_held() has to be answered.
  void retry();
  [[nodiscard]] std::vector<core::Reply> take_held();

 private:
  struct Unsent {
    core::SendSlab slab;
    TimePoint deadline;
  };

  /// False for want of a descriptor.
  [[nodiscard]] bool send_to(const core::SendSlab& slab);
  void give_up(const core::SendSlab& slab);

  const Uses uses_;
  std::deque<Unsent> unsent_;      ///< in this order
  std::vector<core::Reply> held_;  ///< grants of regions with slabs in unsent_
};

}  // namespace kvd::daemon
