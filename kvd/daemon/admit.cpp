#include <sys/epoll.h>

#include <algorithm>

#include "ipc/wire/attach_codec.hpp"
#include "kvd/daemon/daemon.hpp"
#include "kvd/daemon/log.hpp"
#include "kvd/daemon/session_bounds.hpp"
#include "kvd/daemon/session_key.hpp"

/// From a hello to a session: whether there is room, what the session gets of its own, the welcome.
namespace kvd::daemon {

namespace {

/// Sessions of one process that ended though it lives on.
constexpr std::size_t kMaxEndedPerProcess = 64;

/// Slots that a version of a session's block table may name: each block of it is in one of the
/// tiers, and one that is in DRAM alone is named by a staging slot.
std::uint32_t table_slots(const Config& config, const core::ModelClass& shape) {
  constexpr std::int64_t kMost = shm::kMaxTableBytes / sizeof(std::uint32_t) / 4;
  const std::int64_t slabs = std::int64_t{config.slabs(Tier::kHbm)} + config.slabs(Tier::kDram);
  const std::int64_t slots = config.slab_size() / shape.slot_bytes() * slabs;
  return static_cast<std::uint32_t>(std::min(slots, kMost));
}

}  // namespace

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
  const std::size_t domains = domains_.count(
      config_.domains, [&](DomainId other) { return other == domain || has_peers(other); });
  return check_seats(all, of_domain, seats, config_.max_engines, domains);
}

bool Daemon::has_peers(DomainId domain) const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [&](const auto& entry) { return entry.second.domain == domain; });
}

Result<Domains::Entry> Daemon::domain_of(const transport::PeerIdentity& identity) {
  return domains_.enter(config_.domains, identity.uid, identity.gid,
                        [this](DomainId other) { return has_peers(other); });
}

Result<core::Attach> Daemon::application_of(const wire::Hello& hello,
                                            const std::optional<wire::JoinGroup>& join,
                                            const transport::PeerIdentity& identity,
                                            const Domains::Entry& domain) const {
  KVD_ASSIGN_OR_RETURN(auto shape,
                       complete_shape(hello.shape, config_.slab_size(), copy_.good_slot));
  if (join && !shape) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a rank of a group without a model class: attach with a model shape");
  }
  if (join) shape->ranks = join->ranks;
  core::Attach attach;
  attach.name = std::string(wire::text(hello.name));
  attach.domain = domain.id;
  attach.domain_name = domain.name;
  attach.slo_class = domain.slo_class;
  attach.pid = identity.pid;
  attach.uid = identity.uid;
  attach.model_class = shape;
  attach.streams_layers = (hello.abilities & wire::kStreamsLayers) != 0;
  attach.orphaned = Bytes(static_cast<std::int64_t>(
      std::min<std::uint64_t>(hello.orphaned_bytes, wire::kMaxRegionBytes)));
  return attach;
}

// Before the Controller hears of it: a session that there are no descriptors for never was.
Result<Peer> Daemon::peer_of(const wire::Hello& hello, const core::Attach& attach,
                             transport::PeerIdentity identity) const {
  Peer peer;
  KVD_ASSIGN_OR_RETURN(shm::ServedClientPage served, shm::ServedClientPage::create());
  peer.page = std::make_shared<shm::ServedClientPage>(std::move(served));
  KVD_ASSIGN_OR_RETURN(peer.lease, PageLease::make(backend_, peer.page));
  if (static_cast<wire::TransportKind>(hello.transport) == wire::TransportKind::kRing) {
    KVD_ASSIGN_OR_RETURN(peer.ring, transport::RingPort::create());
  } else if (attach.model_class) {
    KVD_ASSIGN_OR_RETURN(peer.bell, transport::make_bell());
  }
  peer.domain = attach.domain;
  peer.key = make_session_key();
  peer.name = attach.name;
  peer.pid = identity.pid;
  peer.uid = identity.uid;
  peer.pidfd = std::move(identity.pidfd);
  return peer;
}

wire::Welcome Daemon::welcome_of(const Peer& peer, const core::Attach& attach,
                                 ClassId class_id) const {
  const auto& shape = attach.model_class;
  wire::Welcome welcome;
  welcome.header.version = peer.version;
  welcome.boot_id = boot_.bytes;
  welcome.session_key = peer.key.bytes;
  welcome.generation = peer.generation.value;
  welcome.engine_id = peer.engine.value;
  welcome.class_id = class_id.value;
  welcome.domain_id = peer.domain.value;
  welcome.layer_groups = shape ? shape->rank_groups() : 0;
  welcome.shape = shape ? to_wire(*shape) : wire::ModelShape{};
  welcome.slot_bytes = shape ? static_cast<std::uint64_t>(shape->slot_bytes().value) : 0;
  welcome.slab_bytes = static_cast<std::uint64_t>(config_.slab_size().value);
  welcome.table_bytes = static_cast<std::uint64_t>(peer.table->size().value);
  welcome.client_page_bytes = shm::kClientPageBytes;
  wire::set_text(welcome.command_endpoint, commands_->endpoint());
  if (const auto gpu = backend_->identity()) {
    welcome.slab_kind = static_cast<std::uint32_t>(wire::SlabKind::kCudaVmm);
    welcome.device_uuid = gpu->uuid;
  }
  return welcome;
}

Status Daemon::admit(transport::AttachConnection& connection, const wire::Hello& hello,
                     const std::optional<wire::JoinGroup>& join, std::uint16_t version) {
  KVD_ASSIGN_OR_RETURN(transport::PeerIdentity identity, connection.peer());
  KVD_ASSIGN_OR_RETURN(const Domains::Entry domain, domain_of(identity));
  // One that joins has its seat since the first of its group came.
  const bool joins = join && group_of(*join, domain.id, identity.uid);
  KVD_TRY(check_room(domain.id, identity.pid, joins ? 0 : join ? join->ranks : 1));
  KVD_TRY(check_slab_kind(hello));
  KVD_ASSIGN_OR_RETURN(const core::Attach attach, application_of(hello, join, identity, domain));
  feed(domains_.quotas(config_.domains));  // the domain may be new
  KVD_ASSIGN_OR_RETURN(Peer peer, peer_of(hello, attach, std::move(identity)));
  KVD_ASSIGN_OR_RETURN(
      const core::AttachGrant grant,
      join ? enter_group(*join, attach) : controller_->attach(attach, clock_.now()));
  peer.engine = grant.engine;
  peer.generation = grant.generation;
  peer.version = version;
  if (join) {
    peer.group = EngineId(grant.engine.value - join->rank);
    peer.rank = join->rank;
  }
  if (Status welcomed = welcome(peer, attach, grant, connection); !welcomed.ok()) {
    join ? forget_rank(peer.group, peer.rank) : feed(core::Detach{grant.engine});
    return welcomed;
  }
  peer.connection = std::move(connection);
  seat(std::move(peer), attach);
  return {};
}

Status Daemon::welcome(Peer& peer, const core::Attach& attach, const core::AttachGrant& grant,
                       transport::AttachConnection& connection) {
  const auto& shape = attach.model_class;
  // A level-1 session has no block tables; the smallest memfd keeps the frame's shape.
  KVD_ASSIGN_OR_RETURN(peer.table, shm::TableWriter::create(
                                       std::max(1u, shape ? grant.max_rows : 1u),
                                       std::max(1u, shape ? table_slots(config_, *shape) : 1u)));
  std::vector<int> fds = {peer.page->fd(), peer.table->fd()};
  if (peer.ring) {
    for (const int fd : peer.ring->peer_fds()) fds.push_back(fd);
  } else if (peer.bell.valid()) {
    fds.push_back(peer.bell.get());
  }
  // Before the engine hears that it is in: nobody is to be served whose end would not be noticed.
  // What is watched here goes again with its descriptor.
  KVD_TRY(watch(peer.engine, peer.pidfd.get(), connection.fd(), peer.bell_fd()));
  wire::Welcome welcome = welcome_of(peer, attach, grant.class_id);
  return connection.send(wire::seal(welcome), fds);
}

void Daemon::seat(Peer peer, const core::Attach& attach) {
  const EngineId engine = peer.engine;
  generations_[peer.generation] = engine;
  if (peer.ring) {
    peer.ring->close_peer_fds();
    awake_rings_.push_back(engine);  // looked at once, then asleep
  }
  const auto& shape = attach.model_class;
  tell(core::Note::Level::kInfo, engine,
       "engine " + std::to_string(engine.value) + " '" + attach.name + "' attached (pid " +
           std::to_string(attach.pid) + ", level " + (shape ? "3" : "1") +
           (peer.group
                ? ", rank " + std::to_string(peer.rank) + " of " + std::to_string(shape->ranks)
                : std::string()) +
           ")");
  const std::string advice = shape ? slot_advice(*shape, copy_) : "";
  if (!advice.empty()) log_warning("engine '" + attach.name + "': " + advice);
  peers_.emplace(engine, std::move(peer));
}

Status Daemon::watch(EngineId engine, int process, int socket, int bell) {
  KVD_TRY(add(Source::kProcess, engine.value, process));
  KVD_TRY(add(Source::kPeer, engine.value, socket));
  return bell < 0 ? Status() : add(Source::kBell, engine.value, bell, EPOLLIN | EPOLLET);
}

}  // namespace kvd::daemon
