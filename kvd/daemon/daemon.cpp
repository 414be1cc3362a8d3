#include "kvd/daemon/daemon.hpp"

#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>

#include "kvd/admin/link/tuning_change.hpp"
#include "kvd/daemon/backend.hpp"
#include "kvd/daemon/log.hpp"
#include "kvd/daemon/memory_check.hpp"
#include "kvd/daemon/metrics_mapping.hpp"
#include "kvd/daemon/session_bounds.hpp"
#include "kvd/daemon/session_key.hpp"

namespace kvd::daemon {

namespace {

constexpr Nanoseconds kTick = std::chrono::milliseconds(50);
constexpr Nanoseconds kDrain = std::chrono::milliseconds(500);

Id128 random_id() {
  Id128 id;
  KVD_CHECK(::getrandom(id.bytes.data(), id.bytes.size(), 0) == 16, "the kernel has no randomness");
  return id;
}

/// What backs most of a tier.
std::string page_kind(const mover::SlabStore& slabs, Tier tier) {
  using kernels::PageKind;
  PageKind most = PageKind::kSmall;
  for (const PageKind kind : {PageKind::kHugetlb, PageKind::kTransparentHuge, PageKind::kDevice}) {
    if (slabs.bytes_backed_by(tier, kind) > slabs.bytes_backed_by(tier, most)) most = kind;
  }
  return name(most);
}

/// What of the pools is memory of the machine must fit into it; a GPU's answers for itself.
Status check_machine_memory(const Config& config) {
  const Bytes dram = config.slab_size() * config.slabs(Tier::kDram);
  if (config.backend == BackendChoice::kCuda) {
    return check_memory(dram, config.reserve, "", "pool.dram");
  }
  return check_memory(config.slab_size() * config.slabs(Tier::kHbm) + dram, config.reserve);
}

}  // namespace

SessionKey make_session_key() { return random_id(); }

Daemon::Daemon(Config config, const Clock& clock, Inbox inbox)
    : config_(std::move(config)),
      clock_(clock),
      started_(clock.now()),
      boot_(random_id()),
      inbox_(std::move(inbox)),
      ring_spin_(config_.ring_spin.value_or(transport::default_spin())),
      domains_(config_.domains) {}

Daemon::~Daemon() {
  // Those that post to this object end first. Slabs that a copy still touches stay with the
  // backend, and fences with the leases of their pages, until the backend has ended its own
  // threads.
  liveness_.reset();
  solver_.reset();
  renewer_.reset();
  slabs_.reset();
  backend_.reset();
}

Result<std::unique_ptr<Daemon>> Daemon::create(Config config, const Clock& clock) {
  KVD_ASSIGN_OR_RETURN(Inbox inbox, Inbox::create());
  std::unique_ptr<Daemon> daemon(new Daemon(std::move(config), clock, std::move(inbox)));
  KVD_TRY(daemon->open());
  return daemon;
}

Status Daemon::open() {
  epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  timer_ = UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!epoll_.valid() || !timer_.valid()) {
    return make_error(ErrorCode::kUnavailable, "no file descriptor left: raise RLIMIT_NOFILE");
  }
  KVD_TRY(open_backend());
  KVD_TRY(open_pool());
  KVD_TRY(open_sockets());
  liveness_ = std::make_unique<Liveness>([this](EngineId engine) {
    inbox_.post([this, engine] { drop(engine, "its keeper died"); });
  });

  solver_ = std::make_unique<Solver>([this](core::PlanReady plan) {
    inbox_.post([this, plan = std::move(plan)] { feed(plan); });
  });

  open_renewer();
  const itimerspec period{{0, kTick.count()}, {0, kTick.count()}};
  ::timerfd_settime(timer_.get(), 0, &period, nullptr);
  KVD_TRY(add(Source::kInbox, 0, inbox_.fd()));
  KVD_TRY(add(Source::kCopies, 0, backend_->completion_fd()));
  KVD_TRY(add(Source::kCommands, 0, commands_->fd()));
  KVD_TRY(add(Source::kListener, 0, listener_->fd()));
  KVD_TRY(add(Source::kTimer, 0, timer_.get()));
  ready_ = true;
  return {};
}

Status Daemon::open_backend() {
  KVD_ASSIGN_OR_RETURN(backend_, daemon::open_backend(config_, clock_));
  KVD_TRY(open_copy_table());
  // Automatic slabs are larger on CUDA, and guarantees count in whole ones.
  const std::vector<std::string> found = faults(config_);
  if (!found.empty()) return make_error(ErrorCode::kInvalidArgument, found.front());
  return {};
}

Status Daemon::open_copy_table() {
  if (config_.copy_table.empty()) return {};
  KVD_ASSIGN_OR_RETURN(const CopyTable table, read_copy_table(config_.copy_table));
  const auto gpu = backend_->identity();
  if (table.source == backend_->kind() && (!gpu || gpu->name == table.device)) {
    copy_ = table.sizes;
    return {};
  }
  log_warning("copy.table is not used: it was measured on " + table.source + " " + table.device +
              ", this backend is " + backend_->kind() + (gpu ? " " + gpu->name : "") +
              "; measure here: kvd-bench copy --matrix --out " + config_.copy_table);
  return {};
}

Status Daemon::open_pool() {
  const Bytes slab = config_.slab_size();
  const mover::SlabStore::Size hbm{slab, config_.slabs(Tier::kHbm)};
  const mover::SlabStore::Size dram{slab, config_.slabs(Tier::kDram)};
  KVD_TRY(check_machine_memory(config_));
  TimePoint told = clock_.now();
  const auto progress = [&](Bytes done, Bytes total) {
    if (clock_.now() - told < std::chrono::seconds(1)) return;
    told = clock_.now();
    log_info("populating the pool: " + std::to_string(done.value >> 20) + " of " +
             std::to_string(total.value >> 20) + " MiB");
  };
  KVD_ASSIGN_OR_RETURN(mover::SlabStore store,
                       mover::SlabStore::create(*backend_, hbm, dram, progress));
  slabs_ = std::make_unique<mover::SlabStore>(std::move(store));
  mover_ = std::make_unique<mover::Mover>(*backend_, *slabs_);
  gpu_ = gpu_facts(*backend_);
  if (gpu_) {
    log_info("gpu: " + gpu_->name + ", " + gpu_->uuid + ", context " +
             std::to_string(gpu_->context_bytes.value >> 20) + " MiB");
  }
  for (const Tier tier : {Tier::kHbm, Tier::kDram}) {
    std::string& pages = page_kinds_[static_cast<std::size_t>(tier)];
    pages = page_kind(*slabs_, tier);
    const std::uint32_t count = config_.slabs(tier);
    log_info(std::string(name(tier)) + ": " + std::to_string(count) + " slabs of " +
             std::to_string(slab.value >> 20) + " MiB on " + pages + " pages");
  }

  core::Controller::Config core;
  core.hbm = {Tier::kHbm, slab, hbm.slabs};
  core.dram = {Tier::kDram, slab, dram.slabs};
  const core::Requota quotas = domains_.quotas(config_.domains);
  core.hbm_quotas = quotas.hbm;
  core.dram_quotas = quotas.dram;
  core.tuning = config_.tuning;
  core.step_timeout = config_.step_timeout;
  core.evict_after = config_.evict_after;
  core.standstill_after = config_.standstill_after;
  core.max_requests_per_engine = config_.max_requests;
  core.max_requests_per_domain = config_.max_domain_requests;
  KVD_ASSIGN_OR_RETURN(controller_, core::Controller::create(std::move(core)));
  return {};
}

Status Daemon::open_sockets() {
  // Only the last folder is ours to make; who may enter it is who may attach.
  if (::mkdir(config_.runtime_dir.c_str(), 0755) != 0 && errno != EEXIST) {
    return make_error(ErrorCode::kUnavailable, "cannot make the folder " + config_.runtime_dir +
                                                   ": set paths.runtime_dir to one that can be");
  }
  KVD_ASSIGN_OR_RETURN(transport::AttachListener listener,
                       transport::AttachListener::create(config_.attach_socket));
  listener_ = std::make_unique<transport::AttachListener>(std::move(listener));
  transport::ZmqServerOptions options;
  options.path = config_.command_socket;
  // With a gid rule any uid may be let in at attach; the session key then decides.
  for (const DomainConfig& domain : config_.domains) {
    const bool everyone = domain.uids.empty() || !domain.gids.empty();
    if (everyone) {
      options.allowed_uids.clear();
      break;
    }
    options.allowed_uids.insert(options.allowed_uids.end(), domain.uids.begin(), domain.uids.end());
  }
  options.silent = silent_bounds(config_);
  KVD_ASSIGN_OR_RETURN(commands_, transport::zmq_command_server(options));
  return {};
}

Status Daemon::add(Source source, std::uint32_t id, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = (std::uint64_t{static_cast<std::uint32_t>(source)} << 32) | id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return make_error(ErrorCode::kUnavailable,
                      std::string("cannot watch one more descriptor: ") + std::strerror(errno) +
                          "; raise fs.epoll.max_user_watches, or close sessions");
  }
  return {};
}

Status Daemon::run() {
  while (!stopping_) {
    take_copies();
    if (Status health = backend_->health(); !health.ok()) {
      end_after_loss(health.error());
      return health;
    }
    const bool rings = take_ring_commands();
    const bool waiting = commands_due_ || !turns_.empty();
    const bool more = (waiting && take_commands()) || rings;
    const bool awake = more || !mover_->fall_asleep();
    epoll_event events[64];
    const int ready = ::epoll_wait(epoll_.get(), events, 64, awake ? 0 : 1000);
    for (int i = 0; i < ready; ++i) dispatch(events[i].data.u64);
  }
  drain();
  return {};
}

/// No copy ends any more and no fence is written: engines are told at once (safety rule 2).
void Daemon::end_after_loss(const Error& error) {
  ready_ = false;
  listener_.reset();
  solver_.reset();
  for (auto& [engine, peer] : peers_) end_session(peer);
  for (const Inbox::Task& task : inbox_.take()) task();
  commands_.reset();
  log_error("the device is lost and kvd ends, to be started again: " + error.message);
}

void Daemon::dispatch(std::uint64_t source) {
  const auto id = static_cast<std::uint32_t>(source);
  switch (static_cast<Source>(source >> 32)) {
    case Source::kInbox:
      for (const Inbox::Task& task : inbox_.take()) task();
      break;
    case Source::kCopies:
      break;  // looked at before every wait
    case Source::kCommands:
      commands_due_ = true;
      break;
    case Source::kListener:
      accept();
      break;
    case Source::kTimer:
      tick();
      break;
    case Source::kPending:
      on_pending(id);
      break;
    case Source::kPeer:
      on_peer(EngineId(id));
      break;
    case Source::kBell:
      on_bell(EngineId(id));
      break;
    case Source::kProcess:
      on_process_end(EngineId(id));
      break;
  }
}

void Daemon::feed(core::Event event, TimePoint at) {
  // Carrying out an effect can bring about an event (a peer turns out to be gone). It waits its
  // turn: effects are carried out in the order they were decided in, copies above all.
  events_.emplace_back(std::move(event), at);
  if (feeding_) return;
  feeding_ = true;
  while (!events_.empty()) {
    const auto [next, when] = std::move(events_.front());
    events_.pop_front();
    std::vector<core::Effect> effects;
    controller_->on(next, when, effects);
    for (const core::Effect& effect : effects) {
      std::visit([this](const auto& e) { perform(e); }, effect);
    }
  }
  feeding_ = false;
}

void Daemon::take_copies() {
  copies_.clear();
  mover_->poll(copies_);
  for (const core::CopyFinished& copy : std::exchange(copies_, {})) {
    auto fenced = fences_.extract(copy.ticket);
    if (fenced.empty()) fenced = streams_.extract(copy.ticket);
    const bool lost = !copy.ok && !fenced.empty();
    // Its fence stays behind: whoever waits is released by poison or not at all (safety rule 2).
    if (lost) fenced.mapped().page->page().poison();
    if (!fenced.empty()) {
      each_rank(fenced.mapped().engine, [&](Peer& peer) {
        if (lost) peer.page->poison();
      });
      raise_fences(fenced.mapped().engine);
    }
    feed(copy);
    if (lost) drop(fenced.mapped().engine, "a copy of its blocks failed");
  }
}

void Daemon::tick() {
  std::uint64_t expirations = 0;
  (void)!::read(timer_.get(), &expirations, sizeof(expirations));
  const TimePoint now = clock_.now();
  for (auto& [engine, peer] : peers_) {
    if (!peer.ended) beat(peer, now);
  }
  feed(core::Tick{});
  send_waiting_slabs();
  if (!listening_) listen(true);
  commands_->accept_again();
  evict_ended_groups(now);
  while (!pending_.empty() && pending_.begin()->second.deadline <= now) {
    remove_pending(pending_.begin()->first);
  }
}

void Daemon::drain() {
  ready_ = false;
  listener_.reset();
  solver_.reset();
  const TimePoint until = clock_.now() + kDrain;
  while (!fences_.empty() && clock_.now() < until) {
    epoll_event events[8];
    ::epoll_wait(epoll_.get(), events, 8, 10);
    take_copies();
  }
  for (auto& [engine, peer] : peers_) end_session(peer);
  for (const Inbox::Task& task : inbox_.take()) task();
  commands_.reset();
  log_info("drained; " + std::to_string(peers_.size()) + " sessions ended");
}

void Daemon::stop() {
  stopping_ = true;
  inbox_.post([] {});
}

Peer* Daemon::find(EngineId engine) {
  const auto it = peers_.find(engine);
  return it == peers_.end() || it->second.ended ? nullptr : &it->second;
}

Peer* Daemon::connected(EngineId engine) {
  const auto it = peers_.find(engine);
  return it == peers_.end() || !it->second.connected() ? nullptr : &it->second;
}

template <class T>
Result<T> Daemon::ask(std::function<T()> question, Nanoseconds timeout) {
  if (!ready_) return make_error(ErrorCode::kUnavailable, "kvd is draining: ask again later");
  const auto answer = std::make_shared<std::promise<T>>();
  std::future<T> future = answer->get_future();
  inbox_.post([answer, question = std::move(question)] { answer->set_value(question()); });
  if (future.wait_for(timeout) != std::future_status::ready) {
    return make_error(ErrorCode::kDeadlineExceeded,
                      "the control thread did not answer in time: ask again");
  }
  return future.get();
}

core::ControllerStatus Daemon::status_now() {
  core::ControllerStatus status = controller_->status(clock_.now());
  status.counters.stale_commands = stale_commands_ + (commands_ ? commands_->dropped() : 0);
  status.counters.attach_paused = attach_paused_;
  return status;
}

ShellCounters Daemon::shell_now() const {
  return {mover_->counters(), solver_ ? solver_->counters() : Solver::Counters(), log_losses()};
}

Result<core::ControllerStatus> Daemon::status(Nanoseconds timeout) {
  return ask<core::ControllerStatus>([this] { return status_now(); }, timeout);
}

Result<ShellCounters> Daemon::shell(Nanoseconds timeout) {
  return ask<ShellCounters>([this] { return shell_now(); }, timeout);
}

Result<admin::Snapshot> Daemon::snapshot(Nanoseconds timeout) {
  using Taken = std::pair<admin::Snapshot, ShellCounters>;
  KVD_ASSIGN_OR_RETURN(Taken taken, ask<Taken>(
                                        [this] {
                                          Taken now;
                                          now.first.status = status_now();
                                          Config in_force = config_;
                                          in_force.tuning = controller_->tuning();
                                          now.first.config = effective_values(in_force);
                                          now.second = shell_now();
                                          return now;
                                        },
                                        timeout));
  auto& [snapshot, shell] = taken;
  snapshot.now = clock_.now();
  snapshot.read = config_.admin_read;
  snapshot.uid = ::geteuid();
  snapshot.info = info();
  snapshot.happenings = journal_.all();
  collect(snapshot.status, shell, snapshot.info, snapshot.samples);
  return std::move(snapshot);
}

Result<core::Tuning> Daemon::change(const admin::link::Change& change,
                                    std::vector<admin::link::Assignment> assignments,
                                    Nanoseconds timeout) {
  struct Changed {
    Status status;
    core::Tuning tuning;
  };
  KVD_ASSIGN_OR_RETURN(Changed changed, ask<Changed>(
                                            [this, change, assignments = std::move(assignments)] {
                                              const auto tuning = admin::link::changed(
                                                  controller_->tuning(), change, assignments);
                                              if (!tuning.ok()) return Changed{tuning.error(), {}};
                                              feed(core::Retune{*tuning});
                                              return Changed{{}, *tuning};
                                            },
                                            timeout));
  KVD_TRY(changed.status);
  return std::move(changed.tuning);
}

void Daemon::reload(Config config) {
  inbox_.post([this, config = std::move(config)] {
    core::Tuning tuning = controller_->tuning();
    tuning.slo = config.tuning.slo;
    set_log_level(config.log_level);
    config_.log_level = config.log_level;
    feed(core::Retune{std::move(tuning)});
    // Sessions know their domain by its place, so domains may not come, go or change places.
    const auto same_name = [](const DomainConfig& a, const DomainConfig& b) {
      return a.name == b.name && a.per_user == b.per_user;
    };
    if (std::equal(config.domains.begin(), config.domains.end(), config_.domains.begin(),
                   config_.domains.end(), same_name)) {
      take_quotas(config);
    } else {
      log_warning("the list of domains changed: its quotas need a restart");
    }
    log_info("reloaded SLOs, quotas and log level; every other change needs a restart");
  });
}

void Daemon::take_quotas(const Config& config) {
  const core::Requota wanted = domains_.quotas(config.domains);
  const auto fits = [&](const pool::Quotas& quotas, Tier tier) {
    return pool::check_quotas(quotas, {config_.slab_size(), config_.slabs(tier)}).ok();
  };
  const bool hbm = fits(wanted.hbm, Tier::kHbm);
  const bool dram = fits(wanted.dram, Tier::kDram);
  for (std::size_t i = 0; i < config_.domains.size(); ++i) {
    const DomainConfig& from = config.domains[i];
    DomainConfig& to = config_.domains[i];
    if (hbm) to.hbm_guarantee = from.hbm_guarantee, to.hbm_maximum = from.hbm_maximum;
    if (dram) to.dram_guarantee = from.dram_guarantee, to.dram_maximum = from.dram_maximum;
  }
  feed(wanted);
}

}  // namespace kvd::daemon
