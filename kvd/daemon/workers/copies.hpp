#pragma once

#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "kvd/core/door/effects.hpp"
#include "kvd/daemon/base/page_lease.hpp"
#include "kvd/daemon/sessions/event_feed.hpp"
#include "kvd/daemon/sessions/groups.hpp"
#include "kvd/daemon/sessions/session_ends.hpp"
#include "kvd/daemon/sessions/session_table.hpp"
#include "kvd/daemon/workers/turns.hpp"
#include "kvd/mover/movers.hpp"

namespace kvd::daemon {

/// Copies on their way: which fence each will raise, and what its end means. The page with the
/// fence is kept until the copy has ended, whoever died. A session or group whose copy failed is
/// poisoned and dropped: a fence is completed or poisoned, never silently released.
/// Source: kvd/DESIGN.md "Safety rules" 1, 2 and 4.
/// Owner:  control thread. What it is given must outlive it; the leases outlive the backend.
class Copies {
 public:
  struct Uses {
    mover::Movers& movers;
    SessionTable& sessions;
    Groups& groups;
    EventFeed& events;
    SessionEnds& ends;
  };

  explicit Copies(const Uses& uses) : uses_(uses) {}

  void start(const core::CopySlots& copy);
  void start(const core::StreamLayers& stream);
  void start(const core::CopyRanges& copy);
  void drop(const core::DropCopy& drop) { uses_.movers.drop(drop.ticket); }
  void end(const core::EndStream& end) { uses_.movers.end_stream(end.ticket); }
  void move(const core::MoveSlots& move) { uses_.movers.move(move); }
  void scrub(const core::Scrub& scrub) { uses_.movers.scrub(scrub); }
  /// Tells the Controller of the copies that have ended, for about a millisecond, beginning with
  /// the domain that has used the least time of the control thread.
  void take_finished();

  /// Whether a copy is on its way that somebody waits for, streams aside.
  [[nodiscard]] bool awaited() const { return !fences_.empty() || !ranges_.empty(); }
  /// Whether looking again may show news, without a sleep in between.
  [[nodiscard]] bool in_motion() const {
    return uses_.movers.busy() || uses_.movers.awaits_progress();
  }
  [[nodiscard]] bool awaits_progress() const { return uses_.movers.awaits_progress(); }
  /// Call before sleeping. False: take_finished() first.
  [[nodiscard]] bool fall_asleep() { return ended_.empty() && uses_.movers.fall_asleep(); }
  /// The time of the control thread that each domain has used, for its commands and the ends of its
  /// copies.
  [[nodiscard]] Turns& turns() { return turns_; }
  [[nodiscard]] mover::MoverCounters counters() const { return uses_.movers.counters(); }

 private:
  struct Fenced {
    EngineId engine;
    std::shared_ptr<PageLease> page;
  };

  /// The next end to tell the Controller, and the domain that it is charged to.
  [[nodiscard]] std::pair<DomainId, core::CopyFinished> next_ended();
  void finish(const core::CopyFinished& copy);
  /// The page whose fences the engine's copies raise; null: none.
  [[nodiscard]] std::shared_ptr<PageLease> page_of(EngineId engine);
  void poison(const Fenced& lost);

  const Uses uses_;
  Turns turns_;
  std::map<Ticket, Fenced> fences_;
  std::map<Ticket, Fenced> streams_;   ///< the same for streams of layers
  std::map<Ticket, DomainId> ranges_;  ///< copies of regions, and whose
  std::vector<core::CopyFinished> finished_;
  /// Ends that the Controller has yet to be told, by the domain that gets what they free or bring;
  /// none: not known. No empty lists.
  std::map<DomainId, std::deque<core::CopyFinished>> ended_;
};

}  // namespace kvd::daemon
