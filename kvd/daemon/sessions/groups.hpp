#pragma once

#include <map>
#include <memory>
#include <utility>

#include "ipc/wire/attach_codec.hpp"
#include "kvd/daemon/base/page_lease.hpp"
#include "kvd/daemon/sessions/event_feed.hpp"
#include "kvd/daemon/sessions/group.hpp"
#include "kvd/daemon/sessions/session_bounds.hpp"
#include "kvd/daemon/sessions/session_table.hpp"

namespace kvd::daemon {

/// Tensor-parallel groups: what makes several processes one engine to the Controller. What all
/// ranks have to say counts once the last one has said it. SessionEnds, and not this part, ends
/// groups.
/// Source: kvd/DESIGN.md "Ranks".
/// Owner:  control thread. What it is given must outlive it; of the backends it keeps no hold.
class Groups {
 public:
  Groups(SessionTable& sessions, EventFeed& events, PageLease::Writers writers)
      : sessions_(sessions), events_(events), writers_(std::move(writers)) {}

  /// The group with the engine's number, ended or not; null: the engine is one by itself.
  [[nodiscard]] Group* find(EngineId engine);
  /// The living group that a rank names; null: there is none yet.
  [[nodiscard]] Group* named(const wire::JoinGroup& join, DomainId domain, uid_t uid);
  /// Processes that make up the engine.
  [[nodiscard]] std::uint32_t ranks(EngineId engine);
  [[nodiscard]] std::map<EngineId, Group>& all() { return groups_; }

  /// The grant of the rank, in the group that it names. The first rank makes the group. `attach`
  /// has the rank's own device.
  /// Errors: InvalidArgument for a rank that is there or attaches unlike the others; those of
  ///         EventFeed::attach and PageLease::make.
  [[nodiscard]] Result<core::AttachGrant> enter(const wire::JoinGroup& join,
                                                const core::Attach& attach);
  /// The rank was let in and could not be told so.
  void forget_rank(EngineId engine, std::uint32_t rank);
  /// The last rank is gone.
  void remove(EngineId engine) { groups_.erase(engine); }

  /// The seats that a rank of the group needs: none while one is kept for it, those of all ranks
  /// when it is the first. A late rank takes a seat of its own, if there is one.
  [[nodiscard]] std::size_t seats(const wire::JoinGroup& join, DomainId domain, uid_t uid);
  /// Counts the seats that are kept for ranks yet to come as taken.
  void add_missing(DomainId domain, SessionCounts& all, SessionCounts& of_domain) const;
  /// Errors: WouldBlock for a command that needs all ranks while some are missing.
  [[nodiscard]] Status check(const Peer& peer, const decltype(core::Command::body)& body);
  /// The ranks on the device are about to be sent the slab.
  void expect(EngineId engine, SlabIndex slab, DeviceId device);
  /// The peer has mapped the slab, or unmapped it.
  void on_slab(const Peer& peer, SlabIndex slab, bool mapped);
  /// Writes the fences of the group's copies into the page of each rank.
  void raise_fences(EngineId engine);

 private:
  [[nodiscard]] Result<Group*> make(const wire::JoinGroup& join, const core::Attach& attach);

  SessionTable& sessions_;
  EventFeed& events_;
  const PageLease::Writers writers_;
  std::map<EngineId, Group> groups_;
};

}  // namespace kvd::daemon
