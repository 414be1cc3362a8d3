#include <linux/futex.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstring>

#include "ipc/wire/attach_codec.hpp"
#include "kvd/daemon/daemon.hpp"
#include "kvd/daemon/log.hpp"

/// What happens to a session from outside: its socket, its page, its process.
namespace kvd::daemon {

namespace {

/// Wakes whoever sleeps on a fence, so that it sees the poison.
void wake(std::atomic<std::uint64_t>& fence) {
  ::syscall(SYS_futex, &fence, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace

void Daemon::on_peer(EngineId engine) {
  const auto it = peers_.find(engine);
  if (it == peers_.end()) return;
  if (it->second.ended) {
    if (it->second.connected()) hear_goodbye(it->second);
    return;
  }
  Peer* peer = &it->second;
  for (int i = 0; i < kFramesATurn; ++i) {
    const auto frame = peer->connection.receive();
    if (!frame.ok()) {
      if (frame.error().code == ErrorCode::kWouldBlock) return;
      drop(engine, frame.error().code == ErrorCode::kPeerGone ? "closed its socket without goodbye"
                                                              : frame.error().message);
      return;
    }
    const auto message = wire::decode_attach(frame->bytes());
    if (!message.ok()) {
      drop(engine, message.error().message);
      return;
    }
    if (const auto* mapped = std::get_if<wire::SlabMapped>(&*message)) {
      if (mapped->notice.region == 0) on_slab(*peer, SlabIndex(mapped->notice.slab), true);
    } else if (const auto* unmapped = std::get_if<wire::SlabUnmapped>(&*message)) {
      on_slab(*peer, SlabIndex(unmapped->notice.slab), false);
    } else if (std::holds_alternative<wire::Goodbye>(*message)) {
      leave(*peer);
      return;
    } else {
      drop(engine, "sent a frame that only the daemon sends");
      return;
    }
    peer = find(engine);  // an effect may have dropped it
    if (!peer) return;
  }
}

// Goodbye says that it maps and writes nothing of ours any more, as freeing a region does.
void Daemon::leave(Peer& peer) {
  const EngineId engine = peer.engine;
  tell(core::Note::Level::kInfo, engine, "engine " + std::to_string(engine.value) + " left");
  end_session(peer);
  if (peer.group) {
    end_group(peer, false);
    return remove_rank(engine);
  }
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer.pidfd.get(), nullptr);
  peers_.erase(engine);
  feed(core::Detach{engine});
}

void Daemon::end_session(Peer& peer) {
  silence(peer);
  if (!peer.connected()) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer.connection.fd(), nullptr);
  if (peer.bell_fd() >= 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer.bell_fd(), nullptr);
  peer.bell.reset();
  peer.connection = {};
}

void Daemon::silence(Peer& peer) {
  if (peer.ended) return;
  peer.ended = true;
  // Poison first: whoever is released finds it before a token leaves (safety rule 2).
  peer.page->poison();
  wake(peer.page->fence_h2d());
  wake(peer.page->fence_d2h());
  wake(peer.page->fence_layers());
  if (liveness_) liveness_->forget(peer.engine);
  generations_.erase(peer.generation);
  commands_->set_trusted(peer.connection_of_commands, false);
  peer.table.reset();
  std::erase_if(waiting_, [&](const auto& entry) {
    const Waiting& command = entry.second;
    if (command.engine != peer.engine) return false;
    const Error ended = make_error(ErrorCode::kStaleSession, "the session has ended: attach again");
    answer(command.peer, command.head, ended, EngineId());
    return true;
  });
}

void Daemon::drop(EngineId engine, const std::string& why) {
  Peer* peer = find(engine);
  if (!peer) return;
  tell(core::Note::Level::kWarning, engine,
       "engine " + std::to_string(engine.value) + " '" + peer->name + "' is dropped: " + why);
  end_session(*peer);
  if (peer->group) return end_group(*peer, true);
  // Its process may still write what it has mapped: quarantine until the pidfd says it ended.
  feed(core::Dying{engine});
}

void Daemon::on_process_end(EngineId engine) {
  const auto it = peers_.find(engine);
  if (it == peers_.end()) return;
  end_session(it->second);
  if (it->second.group) {
    end_group(it->second, true);
    return remove_rank(engine);
  }
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, it->second.pidfd.get(), nullptr);
  peers_.erase(it);
  feed(core::Dead{engine});
}

void Daemon::watch_peer(Peer& peer) {
  // The first beat says that the keeper holds its mutex; to arm the word before would keep it out.
  if (peer.watched || peer.heartbeat == 0) return;
  peer.watched = true;
  if (const Status status = liveness_->watch(peer.engine, peer.page); !status.ok()) {
    log_warning(status.error().message + "; engine " + std::to_string(peer.engine.value) +
                " is watched by its pidfd alone");
  }
}

void Daemon::beat(Peer& peer, TimePoint) {
  const std::uint64_t heartbeat = peer.page->heartbeat();
  if (heartbeat == peer.heartbeat) return;
  peer.heartbeat = heartbeat;
  watch_peer(peer);
  feed(core::Beat{peer.speaks_for()});
}

void Daemon::kill(const Peer& peer) {
  if (::syscall(SYS_pidfd_send_signal, peer.pidfd.get(), SIGKILL, nullptr, 0) == 0) return;
  if (errno == ESRCH) return;  // it has ended already
  tell(core::Note::Level::kError, peer.engine,
       "engine '" + peer.name + "' (pid " + std::to_string(peer.pid) + ") cannot be killed: " +
           std::strerror(errno) + ": end it by hand, or give kvd CAP_KILL");
}

}  // namespace kvd::daemon
