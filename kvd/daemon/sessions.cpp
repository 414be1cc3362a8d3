#include <linux/futex.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

#include <algorithm>

#include "ipc/wire/attach_codec.hpp"
#include "kvd/daemon/daemon.hpp"
#include "kvd/daemon/log.hpp"
#include "kvd/daemon/pending_bounds.hpp"
#include "kvd/daemon/session_bounds.hpp"
#include "kvd/daemon/session_key.hpp"

/// Attach, and everything that happens to a session from outside: its socket, its page, its
/// process.
namespace kvd::daemon {

namespace {

constexpr Nanoseconds kHelloTimeout = std::chrono::seconds(5);
/// Sessions of one process that ended though it lives on.
constexpr std::size_t kMaxEndedPerProcess = 64;

/// Wakes whoever sleeps on a fence, so that it sees the poison.
void wake(std::atomic<std::uint64_t>& fence) {
  ::syscall(SYS_futex, &fence, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

/// Slots that a version of a session's block table may name: each block of it is in one of the
/// tiers, and one that is in DRAM alone is named by a staging slot.
std::uint32_t table_slots(const Config& config, const core::ModelClass& shape) {
  constexpr std::int64_t kMost = shm::kMaxTableBytes / sizeof(std::uint32_t) / 4;
  const std::int64_t slabs = std::int64_t{config.slabs(Tier::kHbm)} + config.slabs(Tier::kDram);
  const std::int64_t slots = config.slab_size() / shape.slot_bytes() * slabs;
  return static_cast<std::uint32_t>(std::min(slots, kMost));
}

template <class T>
bool contains(const std::vector<T>& values, T value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace

void Daemon::accept() {
  for (int i = 0; i < kFramesATurn; ++i) {
    auto connection = listener_->accept();
    if (!connection.ok()) {
      constexpr std::uint64_t kTellEvery = 200;  // tries: ten seconds
      if (attach_paused_++ % kTellEvery == 0) {
        log_warning(connection.error().message + "; attaching has to wait: raise RLIMIT_NOFILE");
      }
      return listen(false);
    }
    if (!connection->has_value()) return;
    const auto uid = (*connection)->uid();
    if (!uid.ok()) continue;  // gone already
    PendingUids uids;
    for (const auto& [id, pending] : pending_) uids.emplace(id, pending.uid);
    if (const auto leaver = who_gives_way(uids, *uid)) pending_.erase(*leaver);
    const std::uint32_t id = ++last_pending_;
    const int fd = (*connection)->fd();
    pending_.emplace(id,
                     Pending{std::move(**connection), clock_.now() + kHelloTimeout, *uid, {}, {}});
    if (!add(Source::kPending, id, fd).ok()) pending_.erase(id);
  }
}

// Out of descriptors the listener stays readable for a connection that cannot be taken: looking at
// it again before the next tick would spin.
void Daemon::listen(bool on) {
  listening_ = on;
  epoll_event event{};
  event.events = on ? std::uint32_t{EPOLLIN} : 0u;
  event.data.u64 = std::uint64_t{static_cast<std::uint32_t>(Source::kListener)} << 32;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_->fd(), &event);
}

void Daemon::on_pending(std::uint32_t id) {
  const auto it = pending_.find(id);
  if (it == pending_.end()) return;
  const auto complete = take_introduction(it->second);
  if (complete.ok() && !*complete) return;
  Pending pending = std::move(it->second);
  transport::AttachConnection& connection = pending.connection;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.fd(), nullptr);
  pending_.erase(it);
  Status status = complete.ok() ? Status() : Status(complete.error());
  if (status.ok()) {
    const auto version =
        wire::common_version(pending.hello->version_min, pending.hello->version_max);
    status = version.ok() ? admit(connection, *pending.hello, pending.join, *version)
                          : Status(version.error());
  }
  if (status.ok() || status.code() == ErrorCode::kPeerGone) return;
  tell(core::Note::Level::kWarning, EngineId(),
       "an attach was refused: " + status.error().to_string());
  refuse(connection, status.error());
}

Result<bool> Daemon::take_introduction(Pending& pending) {
  KVD_ASSIGN_OR_RETURN(const auto frame, pending.connection.receive());
  KVD_ASSIGN_OR_RETURN(const wire::AttachMessage message, wire::decode_attach(frame.bytes()));
  if (!pending.hello) {
    const auto* hello = std::get_if<wire::Hello>(&message);
    if (!hello) {
      return make_error(ErrorCode::kInvalidArgument, "a connection begins with a hello frame");
    }
    pending.hello = *hello;
    return (hello->abilities & wire::kJoinsGroup) == 0;
  }
  const auto* join = std::get_if<wire::JoinGroup>(&message);
  if (!join) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the hello announced a join group frame, and another one followed");
  }
  pending.join = *join;
  return true;
}

void Daemon::refuse(transport::AttachConnection& connection, const Error& error) {
  wire::Refused refused;
  refused.code = static_cast<std::uint16_t>(error.code);
  wire::set_text(refused.message, error.message);
  (void)connection.send(wire::seal(refused)).ok();  // a peer that left needs no answer
}

/// Whether the engine can map what this daemon lends.
Status Daemon::check_slab_kind(const wire::Hello& hello) const {
  const auto kind = gpu_ ? wire::SlabKind::kCudaVmm : wire::SlabKind::kHostMemfd;
  if ((hello.slab_kinds & wire::slab_kind_bit(kind)) != 0) return {};
  if (!gpu_) {
    return make_error(ErrorCode::kUnsupported,
                      "this kvd lends host memory and the engine takes memory of a GPU only: start "
                      "kvd with --backend cuda");
  }
  return make_error(ErrorCode::kUnsupported,
                    "this kvd lends memory of GPU " + gpu_->uuid +
                        " and the engine takes host memory only: use an engine that opens kvd for "
                        "CUDA memory, or a kvd started with --backend host");
}

// No domain can keep the others out, and no process its own domain.
Status Daemon::check_room(DomainId domain, pid_t process, std::size_t seats) const {
  SessionCounts all, of_domain;
  std::size_t ended_of_process = 0;
  for (const auto& [engine, peer] : peers_) {
    const bool same = peer.domain == domain;
    ++(peer.ended ? all.ended : all.open);
    if (same) ++(peer.ended ? of_domain.ended : of_domain.open);
    ended_of_process += peer.ended && peer.pid == process ? 1 : 0;
  }
  if (ended_of_process >= kMaxEndedPerProcess) {
    return make_error(ErrorCode::kQuotaExceeded,
                      std::to_string(ended_of_process) + " sessions of this process ended " +
                          "without goodbye and may still map what they were given: restart the " +
                          "process");
  }
  for (const auto& [engine, group] : groups_) {
    if (group.ended()) continue;
    const std::size_t missing = group.ranks() - group.present();
    all.open += missing;
    if (group.domain == domain) of_domain.open += missing;
  }
  return check_seats(all, of_domain, seats, config_.max_engines, config_.domains.size());
}

Status Daemon::admit(transport::AttachConnection& connection, const wire::Hello& hello,
                     const std::optional<wire::JoinGroup>& join, std::uint16_t version) {
  KVD_ASSIGN_OR_RETURN(transport::PeerIdentity identity, connection.peer());
  std::uint32_t domain = 0;
  while (domain < config_.domains.size()) {
    const DomainConfig& d = config_.domains[domain];
    const bool open = d.uids.empty() && d.gids.empty();
    if (open || contains(d.uids, identity.uid) || contains(d.gids, identity.gid)) break;
    ++domain;
  }
  if (domain == config_.domains.size()) {
    return make_error(ErrorCode::kPermissionDenied,
                      "uid " + std::to_string(identity.uid) +
                          " belongs to no domain: add it to a [[domain]] of kvd's configuration");
  }
  // One that joins has its seat since the first of its group came.
  const bool joins = join && group_of(*join, DomainId(domain + 1), identity.uid);
  KVD_TRY(check_room(DomainId(domain + 1), identity.pid, joins ? 0 : join ? join->ranks : 1));
  KVD_TRY(check_slab_kind(hello));
  const Bytes slab = config_.slab_size();
  KVD_ASSIGN_OR_RETURN(auto shape, complete_shape(hello.shape, slab, copy_.good_slot));
  if (join && !shape) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a rank of a group without a model class: attach with a model shape");
  }
  if (join) shape->ranks = join->ranks;

  core::Attach attach;
  attach.name = std::string(wire::text(hello.name));
  attach.domain = DomainId(domain + 1);
  attach.domain_name = config_.domains[domain].name;
  attach.slo_class = config_.domains[domain].slo_class;
  attach.pid = identity.pid;
  attach.uid = identity.uid;
  attach.model_class = shape;
  attach.streams_layers = (hello.abilities & wire::kStreamsLayers) != 0;
  attach.orphaned = Bytes(static_cast<std::int64_t>(
      std::min<std::uint64_t>(hello.orphaned_bytes, wire::kMaxRegionBytes)));

  KVD_ASSIGN_OR_RETURN(shm::ServedClientPage served, shm::ServedClientPage::create());
  const auto page = std::make_shared<shm::ServedClientPage>(std::move(served));
  KVD_ASSIGN_OR_RETURN(auto lease, PageLease::make(backend_, page));
  std::optional<transport::RingPort> ring;
  if (static_cast<wire::TransportKind>(hello.transport) == wire::TransportKind::kRing) {
    KVD_ASSIGN_OR_RETURN(ring, transport::RingPort::create());
  }
  UniqueFd bell;
  if (shape && !ring) {
    KVD_ASSIGN_OR_RETURN(bell, transport::make_bell());
  }
  KVD_ASSIGN_OR_RETURN(
      const core::AttachGrant grant,
      join ? enter_group(*join, attach) : controller_->attach(attach, clock_.now()));
  const EngineId group = join ? EngineId(grant.engine.value - join->rank) : EngineId();
  const auto give_back = [&](const Error& error) {
    if (join) {
      forget_rank(group, join->rank);
    } else {
      feed(core::Detach{grant.engine});
    }
    return error;
  };
  // A level-1 session has no block tables; the smallest memfd keeps the frame's shape.
  auto table = shm::TableWriter::create(std::max(1u, shape ? grant.max_rows : 1u),
                                        std::max(1u, shape ? table_slots(config_, *shape) : 1u));
  if (!table.ok()) return give_back(table.error());

  wire::Welcome welcome;
  welcome.header.version = version;
  welcome.boot_id = boot_.bytes;
  const SessionKey key = make_session_key();
  welcome.session_key = key.bytes;
  welcome.generation = grant.generation.value;
  welcome.engine_id = grant.engine.value;
  welcome.class_id = grant.class_id.value;
  welcome.domain_id = domain + 1;
  welcome.layer_groups = shape ? shape->rank_groups() : 0;
  welcome.shape = shape ? to_wire(*shape) : wire::ModelShape{};
  welcome.slot_bytes = shape ? static_cast<std::uint64_t>(shape->slot_bytes().value) : 0;
  welcome.slab_bytes = static_cast<std::uint64_t>(slab.value);
  welcome.table_bytes = static_cast<std::uint64_t>(table->size().value);
  welcome.client_page_bytes = shm::kClientPageBytes;
  wire::set_text(welcome.command_endpoint, commands_->endpoint());
  if (const auto gpu = backend_->identity()) {
    welcome.slab_kind = static_cast<std::uint32_t>(wire::SlabKind::kCudaVmm);
    welcome.device_uuid = gpu->uuid;
  }
  std::vector<int> fds = {page->fd(), table->fd()};
  if (ring) {
    for (const int fd : ring->peer_fds()) fds.push_back(fd);
  } else if (bell.valid()) {
    fds.push_back(bell.get());
  }
  // Before the engine hears that it is in: nobody is to be served whose end would not be noticed.
  // What is watched here goes again with its descriptor.
  const int bell_fd = ring ? ring->bell() : bell.get();
  if (Status watched = watch(grant.engine, identity.pidfd.get(), connection.fd(), bell_fd);
      !watched.ok()) {
    return give_back(watched.error());
  }
  if (Status sent = connection.send(wire::seal(welcome), fds); !sent.ok()) {
    return give_back(sent.error());
  }

  Peer peer{grant.engine,
            attach.domain,
            grant.generation,
            key,
            attach.name,
            version,
            identity.pid,
            identity.uid,
            std::move(identity.pidfd),
            std::move(connection),
            page,
            std::move(lease),
            std::move(*table),
            std::move(ring),
            std::move(bell),
            0,
            0,
            false,
            false,
            std::nullopt,
            group,
            join ? join->rank : 0};
  generations_[grant.generation] = grant.engine;
  Peer& attached = peers_.emplace(grant.engine, std::move(peer)).first->second;
  if (attached.ring) {
    attached.ring->close_peer_fds();
    awake_rings_.push_back(grant.engine);  // looked at once, then asleep
  }
  tell(core::Note::Level::kInfo, grant.engine,
       "engine " + std::to_string(grant.engine.value) + " '" + attach.name + "' attached (pid " +
           std::to_string(attach.pid) + ", level " + (shape ? "3" : "1") +
           (join ? ", rank " + std::to_string(join->rank) + " of " + std::to_string(join->ranks)
                 : std::string()) +
           ")");
  const std::string advice = shape ? slot_advice(*shape, copy_) : "";
  if (!advice.empty()) log_warning("engine '" + attach.name + "': " + advice);
  return {};
}

Status Daemon::watch(EngineId engine, int process, int socket, int bell) {
  KVD_TRY(add(Source::kProcess, engine.value, process));
  KVD_TRY(add(Source::kPeer, engine.value, socket));
  return bell < 0 ? Status() : add(Source::kBell, engine.value, bell, EPOLLIN | EPOLLET);
}

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
  peer.connection = transport::AttachConnection(UniqueFd());
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

void Daemon::evict_silent() {
  if (config_.evict_after.count() == 0) return;
  const TimePoint now = clock_.now();
  evict_ended_groups(now);
  for (const core::EngineStatus& engine : controller_->status(now).engines) {
    Peer* peer = find(engine.id);
    if (!peer) continue;
    if (engine.responsive) {
      peer->silent_since.reset();
    } else if (!peer->silent_since) {
      peer->silent_since = now;
    } else if (now - *peer->silent_since >= config_.evict_after) {
      tell(core::Note::Level::kWarning, engine.id,
           "engine " + std::to_string(engine.id.value) + " is killed: silent longer than " +
               "engine.evict_after");
      each_rank(engine.id, [](const Peer& rank) {
        ::syscall(SYS_pidfd_send_signal, rank.pidfd.get(), SIGKILL, nullptr, 0);
      });
      peer->silent_since = now;
    }
  }
}

}  // namespace kvd::daemon
