#include "kvd/daemon/service/session_maker.hpp"

#include <algorithm>
#include <utility>

#include "kvd/daemon/base/log.hpp"
#include "kvd/daemon/sessions/session_bounds.hpp"
#include "kvd/daemon/sessions/session_key.hpp"
#include "kvd/daemon/sessions/translate.hpp"

namespace kvd::daemon {

namespace {

/// Sessions of one process that ended though it lives on.
constexpr std::size_t kMaxEndedPerProcess = 64;

/// Slots that a version of a session's block table may name: each block of it is in one of the
/// tiers, and one that is in DRAM alone is named by a staging slot.
std::uint32_t table_slots(const Config& config, const core::ModelClass& shape) {
  constexpr std::int64_t kMost = shm::kMaxTableBytes / sizeof(std::uint32_t) / 4;
  const std::int64_t slabs =
      std::int64_t{config.all_slabs(Tier::kHbm)} + config.all_slabs(Tier::kDram);
  const std::int64_t slots = config.slab_size() / shape.slot_bytes() * slabs;
  return static_cast<std::uint32_t>(std::min(slots, kMost));
}

/// A session's pages, and what tables have of it.
constexpr Bytes kPages = kKiB * 16;

std::string attached(const Peer& peer, const core::Attach& attach) {
  const auto& shape = attach.model_class;
  const std::string rank = "rank " + std::to_string(peer.rank);
  return "engine " + std::to_string(peer.engine.value) + " '" + attach.name + "' attached (pid " +
         std::to_string(attach.pid) + ", level " + (shape ? "3" : "1") +
         (peer.group ? ", " + rank + " of " + std::to_string(shape->ranks) : std::string()) +
         ", device " + std::to_string(peer.device.value) + ")";
}

}  // namespace

/// Whether the device that the engine names is there, and the engine can map its memory.
Status SessionMaker::check_device(const wire::Hello& hello) const {
  const DeviceId device(hello.shape.device);
  if (device.value >= uses_.device.count()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "device " + std::to_string(device.value) + " does not exist: this kvd has " +
                          std::to_string(uses_.device.count()) +
                          ", numbered from 0; name one of them, or add a [[device]]");
  }
  const auto& gpu = uses_.device.gpu(device);
  const auto kind = gpu ? wire::SlabKind::kCudaVmm : wire::SlabKind::kHostMemfd;
  if ((hello.slab_kinds & wire::slab_kind_bit(kind)) != 0) return {};
  if (!gpu) {
    return make_error(ErrorCode::kUnsupported,
                      "this kvd lends host memory and the engine takes memory of a GPU only: start "
                      "kvd with --backend cuda");
  }
  return make_error(ErrorCode::kUnsupported,
                    "this kvd lends memory of GPU " + gpu->uuid +
                        " and the engine takes host memory only: use an engine that opens kvd for "
                        "CUDA memory, or a kvd started with --backend host");
}

// No domain can keep the others out, and no process can keep its own domain out. A group takes the
// seats of all its ranks when the first comes, so that no two wait for each other's; those of ranks
// that do not come are free again soon.
Status SessionMaker::check_room(DomainId domain, const transport::PeerIdentity& who,
                                std::size_t seats) const {
  const std::size_t ended = uses_.sessions.ended_of_process(who.pid, who.uid);
  if (ended >= kMaxEndedPerProcess) {
    return make_error(ErrorCode::kQuotaExceeded,
                      std::to_string(ended) + " sessions of this process ended without goodbye " +
                          "and may still map what they were given: restart the process");
  }
  SessionCounts all = uses_.sessions.counts();
  SessionCounts of_domain = uses_.sessions.counts(domain);
  uses_.groups.add_missing(domain, all, of_domain);
  const std::size_t domains = uses_.domains.count(uses_.config.domains, [&](DomainId other) {
    return other == domain || uses_.sessions.has_domain(other);
  });
  return check_seats(all, of_domain, seats, uses_.config.max_engines, domains);
}

Result<Domains::Entry> SessionMaker::domain_of(const transport::PeerIdentity& identity) {
  return uses_.domains.enter(uses_.config.domains, identity.uid, identity.gid,
                             [this](DomainId other) { return uses_.sessions.has_domain(other); });
}

Result<core::Attach> SessionMaker::application_of(const Introduction& introduction,
                                                  const transport::PeerIdentity& identity,
                                                  const Domains::Entry& domain) const {
  const wire::Hello& hello = introduction.hello;
  const auto& join = introduction.join;
  KVD_ASSIGN_OR_RETURN(auto shape, complete_shape(hello.shape, uses_.config.slab_size()));
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
  attach.devices = core::Devices(DeviceId(hello.shape.device));
  const bool ring = static_cast<wire::TransportKind>(hello.transport) == wire::TransportKind::kRing;
  const Bytes own = kPages + Bytes(ring ? std::int64_t{shm::kRingMemfdBytes} : 0);
  attach.kept = own * std::int64_t{shape ? shape->ranks : 1};
  attach.orphaned = Bytes(static_cast<std::int64_t>(
      std::min<std::uint64_t>(hello.orphaned_bytes, wire::kMaxRegionBytes)));
  return attach;
}

// This is made before the Controller hears of the session: a session without descriptors for it
// never existed.
Result<Peer> SessionMaker::peer_of(const wire::Hello& hello, const core::Attach& attach,
                                   transport::PeerIdentity identity) const {
  Peer peer;
  KVD_ASSIGN_OR_RETURN(shm::ServedClientPage served, shm::ServedClientPage::create());
  peer.page = std::make_shared<shm::ServedClientPage>(std::move(served));
  KVD_ASSIGN_OR_RETURN(peer.lease, PageLease::make(uses_.device.writers(), peer.page));
  if (static_cast<wire::TransportKind>(hello.transport) == wire::TransportKind::kRing) {
    KVD_ASSIGN_OR_RETURN(peer.ring, transport::RingPort::create());
  } else if (attach.model_class) {
    KVD_ASSIGN_OR_RETURN(peer.bell, transport::make_bell());
  }
  peer.domain = attach.domain;
  peer.device = attach.devices.first();
  peer.key = make_session_key();
  peer.name = attach.name;
  peer.process = std::move(identity);
  return peer;
}

wire::Welcome SessionMaker::welcome_of(const Peer& peer, const core::Attach& attach,
                                       ClassId class_id) const {
  const auto& shape = attach.model_class;
  wire::Welcome welcome;
  welcome.header.version = peer.version;
  welcome.boot_id = identity_.boot.bytes;
  welcome.session_key = peer.key.bytes;
  welcome.generation = peer.generation.value;
  welcome.engine_id = peer.engine.value;
  welcome.class_id = class_id.value;
  welcome.domain_id = peer.domain.value;
  welcome.layer_groups = shape ? shape->rank_groups() : 0;
  welcome.shape = shape ? to_wire(*shape) : wire::ModelShape{};
  welcome.shape.device = peer.device.value;
  welcome.slot_bytes = shape ? static_cast<std::uint64_t>(shape->slot_bytes().value) : 0;
  welcome.slab_bytes = static_cast<std::uint64_t>(uses_.config.slab_size().value);
  welcome.table_bytes = static_cast<std::uint64_t>(peer.table->size().value);
  welcome.client_page_bytes = shm::kClientPageBytes;
  wire::set_text(welcome.command_endpoint, identity_.command_endpoint);
  if (const auto gpu = uses_.device.backends()[peer.device.value]->identity()) {
    welcome.slab_kind = static_cast<std::uint32_t>(wire::SlabKind::kCudaVmm);
    welcome.device_uuid = gpu->uuid;
  }
  return welcome;
}

Status SessionMaker::admit(transport::AttachConnection& connection,
                           const Introduction& introduction) {
  const auto& join = introduction.join;
  KVD_ASSIGN_OR_RETURN(transport::PeerIdentity identity, connection.peer());
  KVD_ASSIGN_OR_RETURN(const Domains::Entry domain, domain_of(identity));
  const std::size_t seats = join ? uses_.groups.seats(*join, domain.id, identity.uid) : 1;
  KVD_TRY(check_room(domain.id, identity, seats));
  KVD_TRY(check_device(introduction.hello));
  KVD_ASSIGN_OR_RETURN(const core::Attach attach, application_of(introduction, identity, domain));
  uses_.events.feed(uses_.domains.quotas(uses_.config.domains));  // the domain may be new
  KVD_ASSIGN_OR_RETURN(Peer peer, peer_of(introduction.hello, attach, std::move(identity)));
  KVD_ASSIGN_OR_RETURN(const core::AttachGrant grant,
                       join ? uses_.groups.enter(*join, attach) : uses_.events.attach(attach));
  peer.engine = grant.engine;
  peer.generation = grant.generation;
  peer.version = introduction.version;
  if (join) {
    peer.group = EngineId(grant.engine.value - join->rank);
    peer.rank = join->rank;
  }
  if (Status welcomed = welcome(peer, attach, grant, connection); !welcomed.ok()) {
    join ? uses_.groups.forget_rank(peer.group, peer.rank)
         : uses_.events.feed(core::Detach{grant.engine});
    return welcomed;
  }
  peer.connection = std::move(connection);
  seat(std::move(peer), attach);
  return {};
}

Status SessionMaker::welcome(Peer& peer, const core::Attach& attach, const core::AttachGrant& grant,
                             transport::AttachConnection& connection) {
  const auto& shape = attach.model_class;
  // A level-1 session has no block tables; the smallest memfd keeps the frame's shape.
  const std::uint32_t rows = shape ? grant.max_rows : 1u;
  const std::uint32_t slots = shape ? table_slots(uses_.config, *shape) : 1u;
  KVD_ASSIGN_OR_RETURN(peer.table,
                       shm::TableWriter::create(std::max(1u, rows), std::max(1u, slots)));
  std::vector<int> fds = {peer.page->fd(), peer.table->fd()};
  if (peer.ring) {
    for (const int fd : peer.ring->peer_fds()) fds.push_back(fd);
  } else if (peer.bell.valid()) {
    fds.push_back(peer.bell.get());
  }
  // Watched before the engine hears that it is in, so that nobody is served whose end would not be
  // noticed. What is watched here goes again with its descriptor.
  KVD_TRY(watch(peer, connection.fd()));
  wire::Welcome welcome = welcome_of(peer, attach, grant.class_id);
  return connection.send(wire::seal(welcome), fds);
}

Status SessionMaker::watch(const Peer& peer, int socket) {
  using Source = Poller::Source;
  const std::uint32_t engine = peer.engine.value;
  KVD_TRY(uses_.poller.watch(Source::kProcess, engine, peer.process.pidfd.get()));
  KVD_TRY(uses_.poller.watch(Source::kPeer, engine, socket));
  const int bell = peer.bell_fd();
  return bell < 0 ? Status() : uses_.poller.watch(Source::kBell, engine, bell, EPOLLIN | EPOLLET);
}

void SessionMaker::seat(Peer peer, const core::Attach& attach) {
  const EngineId engine = peer.engine;
  if (peer.ring) peer.ring->close_peer_fds();
  uses_.log.info(engine, attached(peer, attach));
  if (attach.pid == 0 && !std::exchange(told_unseen_, true)) {
    uses_.log.warn(
        engine,
        "kvd does not see the processes of engines, and so cannot end one that hangs and "
        "keeps memory from others: run kvd with hostPID: true (docker: --pid host)");
  }
  uses_.sessions.add(std::move(peer));
  uses_.rings.wake(engine);  // looked at once, then asleep
}

}  // namespace kvd::daemon
