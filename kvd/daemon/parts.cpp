#include "kvd/daemon/parts.hpp"

#include <sys/random.h>

#include <algorithm>
#include <utility>

#include "ipc/vocabulary/keep.hpp"
#include "kvd/core/door/kept_for_engines.hpp"
#include "kvd/daemon/machine/places.hpp"
#include "kvd/daemon/sessions/session_bounds.hpp"

namespace kvd::daemon {

namespace {

/// A domain may have as many requests open as so many engines.
constexpr std::uint32_t kEnginesOfADomain = 8;

Result<std::unique_ptr<core::Controller>> make_controller(const Config& config,
                                                          const Domains& domains,
                                                          const mover::SlabStore& slabs,
                                                          core::Config::Keep keep,
                                                          const DiskNames& remote_names) {
  core::Controller::Config core;
  if (!config.disk.path.empty()) {
    core.disk.awaited = true;
    core.disk.size = config.disk.size;
    core.disk.admission.least = config.disk.touches;
    core.disk.writes_a_day = config.disk.daily_writes;
  }
  core.remote.name = remote_names;
  core.remote.admission.least = config.remote.write_all ? 1 : 2;
  core.remote.bytes_per_s = config.remote.budget;
  core.hbm.assign(config.devices.size(),
                  {Tier::kHbm, config.slab_size(), config.slabs(Tier::kHbm)});
  core.dram = {
      Tier::kDram, config.slab_size(), config.slabs(Tier::kDram), {}, slabs.missing(Tier::kDram)};
  for (const SlabIndex slab : slabs.missing(Tier::kHbm)) {
    core.hbm[slabs.device_of(slab).value].missing.push_back(slab);
  }
  const core::Requota quotas = domains.quotas(config.domains);
  core.hbm_quotas = quotas.hbm;
  core.dram_quotas = quotas.dram;
  core.tuning = config.tuning;
  core.index.eviction = config.disk.eviction;
  core.retain = config.disk.retain;
  // With a secret seed nobody outside can choose digests that meet in one place of a table.
  KVD_CHECK(::getrandom(core.index.secret.data(), sizeof core.index.secret, 0) ==
                sizeof core.index.secret,
            "the kernel has no randomness");
  core.keep = keep;
  core.step_timeout = config.step_timeout;
  core.evict_after = config.evict_after;
  core.standstill_after = config.standstill_after;
  core.max_domains = static_cast<std::uint32_t>(config.domains.size() + kMaxUserDomains);
  core.max_requests_per_engine = config.max_requests;
  core.max_requests_per_domain = kEnginesOfADomain * config.max_requests;
  return core::Controller::create(std::move(core));
}

Result<transport::AttachListener> open_listener(const Config& config) {
  KVD_TRY(make_runtime_dir(config));
  return transport::AttachListener::create(config.attach_socket);
}

Result<std::unique_ptr<transport::CommandServer>> open_server(const Config& config) {
  transport::ZmqServerOptions options;
  options.path = config.command_socket;
  // With a gid rule any uid may be let in at attach; the session key then decides.
  for (const DomainConfig& domain : config.domains) {
    const bool everyone = domain.uids.empty() || !domain.gids.empty();
    if (everyone) {
      options.allowed_uids.clear();
      break;
    }
    options.allowed_uids.insert(options.allowed_uids.end(), domain.uids.begin(), domain.uids.end());
  }
  options.silent = silent_bounds(config);
  options.buffers = core::kKeptFrames;
  options.by_group = [domains = config.domains](uid_t uid, gid_t gid) {
    return Domains::by_group(domains, uid, gid);
  };
  return transport::zmq_command_server(options);
}

}  // namespace

Result<std::unique_ptr<Parts>> Parts::open(Config config, const Shared& shared, BootId boot,
                                           KeptDescriptors descriptors) {
  KVD_ASSIGN_OR_RETURN(Poller poller, Poller::create());
  Domains domains(config.domains);
  // Opened before everything else, as it says how large automatic slabs are.
  KVD_ASSIGN_OR_RETURN(Backends backends, open_backends(config, shared.clock));
  auto kept = std::make_unique<KeptMemory>(
      KeptMemory::take(config, backends.front()->reopens_slabs(), std::move(descriptors), domains));
  KVD_ASSIGN_OR_RETURN(auto device, Device::open(config, std::move(backends), shared.clock, *kept));
  const bool keeps = kept->on() && kept->keep(device->slabs());
  const core::Config::Keep keep{keeps, keeps && kept->keeps_hbm()};
  KVD_ASSIGN_OR_RETURN(RemoteSecrets remote, read_remote_secrets(config));
  KVD_ASSIGN_OR_RETURN(auto controller,
                       make_controller(config, domains, device->slabs(), keep, remote.names));
  KVD_ASSIGN_OR_RETURN(auto tier, Remotes::open(config.remote, remote.password, poller));
  KVD_ASSIGN_OR_RETURN(transport::AttachListener listener, open_listener(config));
  KVD_ASSIGN_OR_RETURN(auto server, open_server(config));
  Opened opened{std::move(config), std::move(poller),   std::move(domains),
                std::move(kept),   std::move(device),   std::move(controller),
                std::move(tier),   std::move(listener), std::move(server)};
  return std::unique_ptr<Parts>(new Parts(std::move(opened), shared, boot));
}

Parts::Parts(Opened opened, const Shared& shared, BootId boot)
    : config(std::move(opened.config)),
      poller(std::move(opened.poller)),
      domains(std::move(opened.domains)),
      device(std::move(opened.device)),
      server(std::move(opened.server)),
      events(std::move(opened.controller), shared.clock),
      groups(sessions, events, device->writers()),
      replies(*server, sessions),
      workers(start_workers(shared, boot, std::move(opened.kept))),
      ends({sessions, groups, replies, poller, events, shared.log, *workers.liveness}),
      frames(sessions, groups, ends),
      copies({device->movers(), sessions, groups, events, ends}),
      disks(make_disks(shared)),
      slabs({device->slabs(), sessions, groups, events, ends, shared.log}),
      effects(
          {*device, sessions, groups, replies, ends, copies, slabs, disks, workers, shared.log}),
      commands({*server, boot, sessions, groups, replies, ends, events, copies.turns()}),
      rings({sessions, commands, copies, ends, copies.turns(), shared.clock,
             config.promptness.ring_spin.value_or(transport::default_spin())}),
      maker({config, *device, domains, sessions, groups, events, poller, rings, shared.log},
            {boot, server->endpoint()}),
      acceptor({poller, maker, shared.log, shared.clock}, std::move(opened.listener),
               silent_bounds(config)) {
  events.carry_out_with([this](const core::Effect& effect) { effects.perform(effect); });
  make_missing(shared.log);  // before regions are let go, whose slabs lack their memory as well
  core::AdoptRows left = workers.kept->rows(device->slabs());
  const bool any = std::any_of(left.slabs.begin(), left.slabs.end(),
                               [](const auto& there) { return !there.empty(); });
  core::AdoptRegions regions = workers.kept->regions();  // before the keeper has anything to do
  if (workers.kept->on() || any) events.feed(std::move(left));
  if (!regions.regions.empty()) events.feed(std::move(regions));
  if (disks) disks->begin();
  if (opened.remote) {
    workers.remotes = std::make_unique<Remotes>(
        Remotes::Uses{device->slabs(), events, shared.log, poller}, std::move(opened.remote));
  }
}

Parts::~Parts() {
  // The workers end first, because they post to the inbox. Slabs that a copy still touches stay
  // with the backend, and fences with the leases of their pages, until the backend has ended its
  // own threads.
  workers.end();
  end_disks();
  device.reset();
}

// Memory that a hanging disk may still read and write stays until the process ends.
void Parts::end_disks() {
  if (disks && !disks->close()) keep_for_ever(std::move(device));
  disks.reset();
  workers.remotes.reset();
}

std::unique_ptr<Disks> Parts::make_disks(const Shared& shared) {
  if (config.disk.path.empty()) return nullptr;
  return std::make_unique<Disks>(
      Disks::Uses{device->slabs(), events, shared.log, poller, shared.inbox},
      Disks::Settings{config.disk.path, config.disk.size, config.disk.floor});
}

// Engines that attach again release what they map, and forget what they know to be useless.
void Parts::make_missing(EventLog& log) {
  mover::SlabStore& memory = device->slabs();
  std::string lacking;
  for (const Tier tier : {Tier::kHbm, Tier::kDram}) {
    const std::vector<SlabIndex> missing = memory.missing(tier);
    if (missing.empty()) continue;
    lacking += (lacking.empty() ? "" : " and ") + std::to_string(missing.size()) + " of " +
               std::to_string(memory.count(tier)) + " slabs of " + name(tier);
    for (const SlabIndex slab : missing) {
      workers.renewer->renew(
          {&memory.backend_of(tier, slab), slab, {}, tier, memory.slab_bytes(tier), true});
    }
  }
  if (lacking.empty()) return;
  log.warn(EngineId(), lacking +
                           " have no memory yet: engines of an earlier kvd or other processes "
                           "may hold it; kvd makes them as memory comes free. " +
                           memory.shortage().error().message);
}

void Parts::put_slab(EventLog& log, const SlabRenewer::Job& job, const kernels::Slab& memory) {
  const std::uint64_t lacked = device->missing();
  if (const Status put = device->slabs().put(job.tier, job.slab, memory); !put.ok()) {
    log.warn(EngineId(),
             "a slab of " + std::string(name(job.tier)) + " is made anew: " + put.error().message);
    SlabRenewer::Job again = job;
    again.old = memory.handle;
    workers.renewer->renew(again);
    return;
  }
  if (lacked == 1) log.info(EngineId(), "all slabs have memory");
  events.feed(core::SlabRenewed{job.slab, job.tier});
}

Workers Parts::start_workers(const Shared& shared, BootId boot, std::unique_ptr<KeptMemory> kept) {
  Inbox& inbox = shared.inbox;
  EventLog& log = shared.log;
  SlabRenewer::Answers renewals;
  const KeptMemory* keeps = kept.get();
  renewals.renewed = [this, &inbox, &log, keeps](const SlabRenewer::Job& job,
                                                 const kernels::Slab& memory) {
    keeps->renewed({job.tier, job.slab}, job.backend->export_slab(memory.handle));
    inbox.post([this, &log, job, memory] { put_slab(log, job, memory); });
  };
  renewals.failed = [&log](const SlabRenewer::Job& job, const Error& error) {
    log.warn(EngineId(), "slab " + std::to_string(job.slab.value) + " of " + name(job.tier) +
                             " needs new memory and there is none; kvd tries again every "
                             "second: " +
                             error.message);
  };
  Workers started;
  started.liveness = std::make_unique<Liveness>([this, &inbox](EngineId engine) {
    inbox.post([this, engine] { ends.drop(engine, "its keeper died"); });
  });
  started.solver = std::make_unique<Solver>([this, &inbox](core::PlanReady plan) {
    inbox.post([this, plan = std::move(plan)] { events.feed(plan); });
  });
  started.kept = std::move(kept);
  if (started.kept->on()) {
    started.keeper = std::make_unique<Keeper>(
        *started.kept, device->slabs(), domains, boot, [this, &inbox](Ticket ticket) {
          inbox.post([this, ticket] { events.feed(core::RowsKept{ticket}); });
        });
  }
  started.renewer = std::make_unique<SlabRenewer>(std::move(renewals));
  return started;
}

}  // namespace kvd::daemon
