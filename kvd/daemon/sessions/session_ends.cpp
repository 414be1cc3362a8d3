#include "kvd/daemon/sessions/session_ends.hpp"

#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kvd/daemon/base/log.hpp"

namespace kvd::daemon {

namespace {

/// Wakes whoever sleeps on a fence, so that it sees the poison.
void wake(std::atomic<std::uint64_t>& fence) {
  ::syscall(SYS_futex, &fence, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

std::string called(EngineId engine) { return "engine " + std::to_string(engine.value); }

}  // namespace

void SessionEnds::drop(EngineId engine, const std::string& why) {
  Peer* peer = uses_.sessions.find(engine);
  if (!peer) return;
  uses_.log.warn(engine, called(engine) + " '" + peer->name + "' is dropped: " + why);
  end_session(*peer);
  if (peer->group) return end_group(*peer, true);
  // Its process may still write to what it maps, so that is quarantined until the pidfd says that
  // it ended.
  uses_.events.feed(core::Dying{engine});
}

void SessionEnds::leave(Peer& peer) {
  const EngineId engine = peer.engine;
  uses_.log.info(engine, called(engine) + " left");
  end_session(peer);
  if (peer.group) {
    end_group(peer, false);
    return remove_rank(peer);
  }
  remove(peer);
  uses_.events.feed(core::Detach{engine});
}

void SessionEnds::on_process_end(EngineId engine) {
  Peer* peer = uses_.sessions.any(engine);
  if (!peer) return;
  end_session(*peer);
  if (peer->group) {
    end_group(*peer, true);
    return remove_rank(*peer);
  }
  remove(*peer);
  uses_.events.feed(core::Dead{engine});
}

void SessionEnds::leave_silenced(Peer& peer) {
  end_session(peer);
  remove_rank(peer);
}

// It may still write to the memory that it maps. The end of its process tells when that is over.
void SessionEnds::end_silenced(Peer& peer) {
  end_session(peer);
  uses_.events.feed(core::Dying{peer.group});
}

void SessionEnds::end_all() {
  for (auto& [engine, peer] : uses_.sessions.all()) end_session(peer);
}

void SessionEnds::end_session(Peer& peer) {
  silence(peer);
  if (!peer.connected()) return;
  uses_.poller.forget(peer.connection.fd());
  if (peer.bell_fd() >= 0) uses_.poller.forget(peer.bell_fd());
  peer.bell.reset();
  peer.connection = {};
}

void SessionEnds::silence(Peer& peer) {
  if (peer.ended) return;
  peer.ended = true;
  // Poison first: whoever is released finds it before a token leaves (safety rule 2).
  peer.page->poison();
  wake(peer.page->fence_h2d());
  wake(peer.page->fence_d2h());
  wake(peer.page->fence_layers());
  uses_.liveness.forget(peer.engine);
  uses_.sessions.forget_generation(peer.generation);
  peer.table.reset();
  uses_.replies.end(peer);
}

void SessionEnds::end_group(Peer& first, bool died) {
  Group& group = *uses_.groups.find(first.group);
  uses_.events.feed(core::Dying{first.group, !died});
  if (group.ended) return;
  group.ended = true;
  uses_.log.info(first.group, group.called() + " ends with its rank " + std::to_string(first.rank));
  uses_.sessions.each_rank(first.group, [&](Peer& peer) { silence(peer); });
}

void SessionEnds::remove(Peer& peer) {
  unkillable_.erase(peer.engine);
  uses_.poller.forget(peer.process.pidfd.get());
  uses_.sessions.remove(peer.engine);
}

void SessionEnds::remove_rank(Peer& rank) {
  const EngineId engine = rank.group;
  remove(rank);
  if (uses_.sessions.has_rank_of(engine)) return;
  uses_.groups.remove(engine);
  uses_.events.feed(core::Dead{engine});
}

void SessionEnds::beat(Peer& peer) {
  const std::uint64_t heartbeat = peer.page->heartbeat();
  if (heartbeat == peer.keeper.heartbeat) return;
  peer.keeper.heartbeat = heartbeat;
  watch_keeper(peer);
  uses_.events.feed(core::Beat{peer.speaks_for()});
}

void SessionEnds::watch_keeper(Peer& peer) {
  // The first beat says that the keeper holds its mutex; to arm the word before would keep it out.
  if (peer.keeper.watched || peer.keeper.heartbeat == 0) return;
  peer.keeper.watched = true;
  if (const Status status = uses_.liveness.watch(peer.engine, peer.page); !status.ok()) {
    log_warning(status.error().message + "; " + called(peer.engine) +
                " is watched by its pidfd alone");
  }
}

void SessionEnds::kill_ranks(EngineId engine) {
  for (const auto& [rank, peer] : uses_.sessions.all()) {
    if (peer.speaks_for() == engine) kill(peer);
  }
}

void SessionEnds::kill(const Peer& peer) {
  if (::syscall(SYS_pidfd_send_signal, peer.process.pidfd.get(), SIGKILL, nullptr, 0) == 0) return;
  const int error = errno;
  const bool unseen = peer.process.pid == 0;
  if (error == ESRCH && !unseen) return;  // it has ended already
  if (!unkillable_.insert(peer.engine).second) return;
  const std::string remedy =
      unseen ? "kvd does not see its process: run kvd with hostPID: true (docker: --pid host)"
      : error == EPERM ? "end it by hand, or give kvd CAP_KILL"
                       : "end it by hand";
  uses_.log.tell(core::Note::Level::kError, peer.engine,
                 "engine '" + peer.name + "' (pid " + std::to_string(peer.process.pid) +
                     ") cannot be killed: " + std::strerror(error) + ": " + remedy);
}

}  // namespace kvd::daemon
