#include "kvd/daemon/control_loop.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "kvd/admin/link/drain.hpp"
#include "kvd/admin/link/tuning_change.hpp"
#include "kvd/daemon/base/log.hpp"

namespace kvd::daemon {

namespace {

constexpr Nanoseconds kTick = std::chrono::milliseconds(50);
constexpr Nanoseconds kDrain = std::chrono::milliseconds(500);
/// Waits until the next tick at most. A limit of its own would cost a timer for each command.
constexpr std::chrono::milliseconds kSleep{-1};

/// Whether sessions find their domain where it was: they know it by its place.
bool same_domains(const std::vector<DomainConfig>& a, const std::vector<DomainConfig>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const DomainConfig& one, const DomainConfig& other) {
                      return one.name == other.name && one.per_user == other.per_user &&
                             one.per_group == other.per_group;
                    });
}

}  // namespace

Status ControlLoop::open() {
  using Source = Poller::Source;
  Poller& poller = parts_->poller;
  KVD_TRY(poller.watch(Source::kInbox, 0, inbox_.fd()));
  for (const auto& backend : parts_->device->backends()) {
    KVD_TRY(poller.watch(Source::kCopies, 0, backend->completion_fd()));
  }
  KVD_TRY(poller.watch(Source::kCommands, 0, parts_->server->fd()));
  KVD_TRY(parts_->acceptor.open());
  return poller.tick_every(kTick);
}

Status ControlLoop::serve(const std::atomic<bool>& stopping) {
  Parts& parts = *parts_;
  realtime_.emplace(parts.config.promptness.realtime, clock_);
  while (!stopping || !ends()) {
    parts.copies.take_finished();
    KVD_TRY(parts.device->health());
    const bool rings = parts.rings.take_turn();
    const bool more = (parts.commands.waiting() && parts.commands.take_turn()) || rings;
    // The rest of a large end must not wait for the timer, as it brings memory back.
    const bool behind = parts.events.is_behind();
    if (behind) parts.events.feed(core::Tick{});
    const bool awake = more || behind || !parts.copies.fall_asleep();
    const auto patience = awake ? std::chrono::milliseconds(0) : kSleep;
    for (const Poller::Ready& ready : parts.poller.wait(patience)) dispatch(ready);
  }
  return {};
}

bool ControlLoop::ends() {
  const Nanoseconds patience = parts_->config.remote.drain;
  if (patience == Nanoseconds(0) || !parts_->workers.remotes) return true;
  if (!end_at_) {
    end_at_ = clock_.now() + patience;
    parts_->events.feed(core::Drain{EngineId(), false, Nanoseconds(0), /*to_remote=*/true});
  }
  return parts_->events.drained() || clock_.now() >= *end_at_;
}

void ControlLoop::dispatch(const Poller::Ready& ready) {
  using Source = Poller::Source;
  switch (ready.source) {
    case Source::kInbox:
      return run_tasks();
    case Source::kCopies:
      return;  // looked at before every wait
    case Source::kCommands:
      return parts_->commands.on_readable();
    case Source::kListener:
      return parts_->acceptor.accept();
    case Source::kTimer:
      return tick();
    case Source::kPending:
      return parts_->acceptor.on_pending(ready.id);
    case Source::kPeer:
      return parts_->frames.on_socket(EngineId(ready.id));
    case Source::kBell:
      return parts_->rings.wake(EngineId(ready.id));
    case Source::kProcess:
      return parts_->ends.on_process_end(EngineId(ready.id));
    case Source::kDisk:
      return parts_->disks->take_finished(core::DiskId(ready.id));
    case Source::kRemote:
      return parts_->workers.remotes->take_finished();
  }
}

void ControlLoop::run_tasks() {
  for (const Inbox::Task& task : inbox_.take()) task();
}

void ControlLoop::tick() {
  parts_->poller.take_tick();
  for (auto& [engine, peer] : parts_->sessions.all()) {
    if (!peer.ended) parts_->ends.beat(peer);
  }
  parts_->events.feed(core::Tick{});
  parts_->effects.retry();
  parts_->server->accept_again();
  parts_->acceptor.on_tick();
  sockets_.on_tick();
  if (parts_->disks) parts_->disks->on_tick();
  realtime_->tick();
}

void ControlLoop::drain() {
  parts_->acceptor.close();
  parts_->workers.solver.reset();
  const TimePoint until = clock_.now() + kDrain;
  while (parts_->copies.awaited() && clock_.now() < until) {
    (void)parts_->poller.wait(std::chrono::milliseconds(10));
    parts_->copies.take_finished();
  }
  if (parts_->disks) parts_->disks->let_writes_end();
  end_sessions();
  log_info("drained; " + std::to_string(parts_->sessions.all().size()) + " sessions ended");
}

/// No copy ends any more and no fence is written: engines are told at once (safety rule 2).
void ControlLoop::end_after_loss(const Error& error) {
  parts_->acceptor.close();
  parts_->workers.solver.reset();
  end_sessions();
  log_error("the device is lost and kvd ends, to be started again: " + error.message);
}

void ControlLoop::end_sessions() {
  parts_->ends.end_all();
  while (parts_->events.is_behind()) parts_->events.feed(core::Tick{});
  run_tasks();
  parts_->server.reset();
}

void ControlLoop::end_parts() {
  parts_->workers.end();
  parts_->end_disks();
}

core::ControllerStatus ControlLoop::status() const {
  core::ControllerStatus status = parts_->events.status();
  status.counters.stale_commands =
      parts_->commands.stale() + (parts_->server ? parts_->server->dropped() : 0);
  status.counters.attach_paused = parts_->acceptor.pauses();
  if (parts_->disks) parts_->disks->describe(status.disk_models);
  if (parts_->workers.remotes) parts_->workers.remotes->describe(status.remote_servers);
  return status;
}

ShellCounters ControlLoop::shell() const {
  const Solver* solver = parts_->workers.solver.get();
  return {parts_->copies.counters(), solver ? solver->counters() : Solver::Counters(), log_losses(),
          parts_->commands.schedule_seconds()};
}

Config ControlLoop::in_force() const {
  Config config = parts_->config;
  config.tuning = parts_->events.tuning();
  return config;
}

Result<core::Tuning> ControlLoop::change(const admin::link::Change& change,
                                         const std::vector<admin::link::Assignment>& assignments) {
  const Config before = in_force();
  auto changed = make_change(change, assignments);
  tell_differences(before, "over REST, with the token");
  return changed;
}

void ControlLoop::tell_differences(const Config& before, const std::string& by) {
  const std::string changed = "setting changed " + by + ": ";
  for (const std::string& difference : differences(before, in_force())) {
    log_.info(EngineId(), std::string(changed).append(difference));
  }
}

Result<core::Tuning> ControlLoop::make_change(
    const admin::link::Change& change, const std::vector<admin::link::Assignment>& assignments) {
  if (change.part == admin::link::Part::kQuotas) {
    KVD_TRY(change_quotas(change, assignments));
    return parts_->events.tuning();
  }
  if (change.part == admin::link::Part::kDrain) {
    KVD_ASSIGN_OR_RETURN(const auto drains, admin::link::drains_of(status(), change, assignments));
    for (const core::Drain& drain : drains) parts_->events.feed(drain);
    return parts_->events.tuning();
  }
  KVD_ASSIGN_OR_RETURN(core::Tuning tuning,
                       admin::link::changed(parts_->events.tuning(), change, assignments));
  parts_->events.feed(core::Retune{tuning});
  return tuning;
}

std::vector<admin::DomainQuota> ControlLoop::quotas() const {
  std::vector<admin::DomainQuota> quotas;
  const auto over = [&](Tier tier) {
    return [this, excess = parts_->events.excess(tier)](std::size_t place) {
      Bytes sum;
      for (const DomainId domain : parts_->domains.of_place(place)) {
        if (const auto found = excess.find(domain); found != excess.end()) sum += found->second;
      }
      return sum;
    };
  };
  const auto hbm_over = over(Tier::kHbm), dram_over = over(Tier::kDram);
  for (const DomainConfig& domain : parts_->config.domains) {
    quotas.push_back({domain.name,
                      domain.makes_domains(),
                      {domain.hbm_guarantee, domain.hbm_maximum},
                      {domain.dram_guarantee, domain.dram_maximum},
                      hbm_over(quotas.size()),
                      dram_over(quotas.size())});
  }
  return quotas;
}

Status ControlLoop::change_quotas(const admin::link::Change& change,
                                  const std::vector<admin::link::Assignment>& assignments) {
  Config wanted = parts_->config;
  const auto capacity = [&](Tier tier) {
    return pool::SlabCapacity{wanted.slab_size(), wanted.slabs(tier)};
  };
  KVD_ASSIGN_OR_RETURN(const auto after,
                       admin::link::changed(quotas(), change, assignments,
                                            {capacity(Tier::kHbm), capacity(Tier::kDram)}));
  for (std::size_t i = 0; i < after.size(); ++i) {
    DomainConfig& domain = wanted.domains[i];
    domain.hbm_guarantee = after[i].hbm.guarantee, domain.hbm_maximum = after[i].hbm.maximum;
    domain.dram_guarantee = after[i].dram.guarantee, domain.dram_maximum = after[i].dram.maximum;
  }
  take_quotas(wanted);
  return {};
}

std::shared_future<Status> ControlLoop::clear_cache() {
  log_.info(EngineId(), "the cache is cleared, over REST, with the token");
  parts_->events.feed(core::ClearCache{});
  if (parts_->disks) return parts_->disks->clear();
  std::promise<Status> done;
  done.set_value(Status());
  return done.get_future().share();
}

void ControlLoop::reload(const Config& config) {
  const Config before = in_force();
  core::Tuning tuning = parts_->events.tuning();
  tuning.slo = config.tuning.slo;
  set_log_level(config.log_level);
  parts_->config.log_level = config.log_level;
  parts_->events.feed(core::Retune{std::move(tuning)});
  if (same_domains(config.domains, parts_->config.domains)) {
    take_quotas(config);
  } else {
    log_warning("the list of domains changed: its quotas need a restart");
  }
  log_info("reloaded SLOs, quotas and log level; every other change needs a restart");
  tell_differences(before, "by SIGHUP");
  configured_.tuning.slo = config.tuning.slo;
  configured_.log_level = config.log_level;
  if (same_domains(config.domains, configured_.domains)) configured_.domains = config.domains;
  configured_.origins = config.origins;
}

void ControlLoop::take_quotas(const Config& config) {
  Config& ours = parts_->config;
  const core::Requota wanted = parts_->domains.quotas(config.domains);
  const auto fits = [&](const pool::Quotas& quotas, Tier tier) {
    return pool::check_quotas(quotas, {ours.slab_size(), ours.slabs(tier)}).ok();
  };
  const bool hbm = fits(wanted.hbm, Tier::kHbm);
  const bool dram = fits(wanted.dram, Tier::kDram);
  for (std::size_t i = 0; i < ours.domains.size(); ++i) {
    const DomainConfig& from = config.domains[i];
    DomainConfig& to = ours.domains[i];
    if (hbm) to.hbm_guarantee = from.hbm_guarantee, to.hbm_maximum = from.hbm_maximum;
    if (dram) to.dram_guarantee = from.dram_guarantee, to.dram_maximum = from.dram_maximum;
  }
  parts_->events.feed(wanted);
}

}  // namespace kvd::daemon
