#pragma once

#include <memory>

#include "kvd/core/door/effects.hpp"
#include "kvd/daemon/base/event_log.hpp"
#include "kvd/daemon/memory/device.hpp"
#include "kvd/daemon/sessions/groups.hpp"
#include "kvd/daemon/sessions/replies.hpp"
#include "kvd/daemon/sessions/session_ends.hpp"
#include "kvd/daemon/sessions/session_table.hpp"
#include "kvd/daemon/workers/copies.hpp"
#include "kvd/daemon/workers/disks.hpp"
#include "kvd/daemon/workers/slab_sender.hpp"
#include "kvd/daemon/workers/workers.hpp"

namespace kvd::daemon {

/// Carries out what the Controller decides: each effect goes to the part that does it. Decides
/// nothing.
/// Source: kvd/DESIGN.md "A functional core in a thin shell".
/// Owner:  control thread. What it is given must outlive it.
/// Errors: none; a peer that cannot be served is dropped.
class Effects {
 public:
  struct Uses {
    Device& device;
    SessionTable& sessions;
    Groups& groups;
    Replies& replies;
    SessionEnds& ends;
    Copies& copies;
    SlabSender& slabs;
    std::unique_ptr<Disks>& disks;
    Workers& workers;
    EventLog& log;
  };

  explicit Effects(const Uses& uses) : uses_(uses) {}

  void perform(const core::Effect& effect) {
    std::visit([this](const auto& e) { carry_out(e); }, effect);
  }
  /// Tries again what waits for a descriptor.
  void retry();

 private:
  void carry_out(const core::Reply& reply);
  void carry_out(const core::PublishTable& table);
  void carry_out(const core::CopySlots& copy) { uses_.copies.start(copy); }
  void carry_out(const core::CopyRanges& copy) { uses_.copies.start(copy); }
  void carry_out(const core::SetTicket& ticket);
  void carry_out(const core::DropCopy& drop) { uses_.copies.drop(drop); }
  void carry_out(const core::MoveSlots& move) { uses_.copies.move(move); }
  void carry_out(const core::StreamLayers& stream) { uses_.copies.start(stream); }
  void carry_out(const core::EndStream& end) { uses_.copies.end(end); }
  void carry_out(const core::SolvePlacement& problem);
  void carry_out(const core::Scrub& scrub) { uses_.copies.scrub(scrub); }
  void carry_out(const core::RenewSlab& renew);
  void carry_out(const core::SendSlab& slab);
  void carry_out(const core::AskUnmap& ask) { uses_.slabs.ask_unmap(ask); }
  void carry_out(const core::OpenDisk& order);
  void carry_out(const core::ResizeDisk& order);
  void carry_out(const core::CloseDisk& order);
  void carry_out(const core::WriteDisk& order);
  void carry_out(const core::ReadDisk& order);
  void carry_out(const core::FindRemote& order) {
    if (uses_.workers.remotes) uses_.workers.remotes->find(order);
  }
  void carry_out(const core::ReadRemote& order) {
    if (uses_.workers.remotes) uses_.workers.remotes->read(order);
  }
  void carry_out(const core::WriteRemote& order) {
    if (uses_.workers.remotes) uses_.workers.remotes->write(order);
  }
  void carry_out(const core::KeepRows& order) {
    if (uses_.workers.keeper) uses_.workers.keeper->keep(order);
  }
  void carry_out(const core::ForgetKept& order) {
    if (uses_.workers.keeper) uses_.workers.keeper->forget(order);
  }
  void carry_out(const core::Evict& evict) { uses_.ends.kill_ranks(evict.engine); }
  void carry_out(const core::Note& note) { uses_.log.tell(note.level, note.engine, note.text); }

  const Uses uses_;
};

}  // namespace kvd::daemon
