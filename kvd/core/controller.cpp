#include "kvd/core/controller.hpp"

#include <algorithm>
#include <utility>

#include "ipc/vocabulary/human.hpp"
#include "ipc/vocabulary/overloaded.hpp"
#include "kvd/core/moves/ground.hpp"
#include "kvd/core/parts.hpp"
#include "kvd/core/talk/status_builder.hpp"

namespace kvd::core {

namespace {

std::string joined(const std::vector<std::string>& faults) {
  std::string text;
  for (const std::string& fault : faults) text += (text.empty() ? "" : "; ") + fault;
  return text;
}

void check_pool(const pool::TierPool::Config& pool, const pool::Quotas& quotas,
                std::vector<std::string>& faults) {
  const std::string key = std::string("pool.") + kvd::name(pool.tier);
  if (pool.slab_bytes <= Bytes(0) || pool.slabs == 0 || pool.slabs >= SlotId::kMaxSlabs) {
    faults.push_back(key + ": needs 1 to " + std::to_string(SlotId::kMaxSlabs - 1) + " slabs");
    return;
  }
  const Status quotas_fit = pool::check_quotas(quotas, {pool.slab_bytes, pool.slabs});
  if (!quotas_fit.ok()) faults.push_back(key + ": " + quotas_fit.error().message);
}

}  // namespace

struct Controller::House {
  explicit House(Config config) : ground(std::move(config)) {}

  Ground ground;
  Parts parts{ground};
  bool clearing = false;           ///< the cache is being emptied, tick by tick
  bool has_more_to_clear = false;  ///< now, without waiting for a tick

  void on_slab_renewed(const SlabRenewed& renewed);
  void end_event();
  void on_tick();
  void retune(const Tuning& wanted);
  void requota(const Requota& wanted);
  void clear_cache();
  void clear_on();
  [[nodiscard]] std::string validate() const;
  [[nodiscard]] std::string validate(const Request& request) const;
};

Controller::Controller(std::unique_ptr<House> house) : house_(std::move(house)) {}
Controller::~Controller() = default;

Result<std::unique_ptr<Controller>> Controller::create(Config config) {
  std::vector<std::string> faults = config.tuning.faults(*config.policies);
  std::uint32_t slabs = 0;
  for (const pool::TierPool::Config& device : config.hbm) {
    check_pool(device, config.hbm_quotas, faults);
    slabs += std::min(device.slabs, SlotId::kMaxSlabs);
  }
  if (config.hbm.empty() || slabs >= SlotId::kMaxSlabs) {
    faults.push_back("device: needs one at least, and under " + std::to_string(SlotId::kMaxSlabs) +
                     " slabs in all of them");
  }
  check_pool(config.dram, config.dram_quotas, faults);
  if (!faults.empty()) return make_error(ErrorCode::kInvalidArgument, joined(faults));
  return std::unique_ptr<Controller>(new Controller(std::make_unique<House>(std::move(config))));
}

Result<AttachGrant> Controller::attach(const Attach& attach, TimePoint now) {
  house_->ground.context.now = now;
  return house_->parts.sessions.attach(attach);
}

void Controller::on(const Event& event, TimePoint now, std::vector<Effect>& effects) {
  Parts& parts = house_->parts;
  Context& context = house_->ground.context;
  context.now = now;
  context.effects = &effects;
  std::visit(Overloaded{
                 [&](const RanksPlaced& e) { parts.sessions.on_ranks_placed(e); },
                 [&](const Detach& e) { parts.sessions.on_detach(e.engine); },
                 [&](const Dying& e) { parts.sessions.on_dying(e.engine, e.parting); },
                 [&](const Dead& e) { parts.sessions.on_dead(e.engine); },
                 [&](const Beat& e) { parts.sessions.on_beat(e.engine); },
                 [&](const SlabMapped& e) { parts.sessions.on_slab_mapped(e.engine, e.slab); },
                 [&](const SlabUnmapped& e) { parts.sessions.on_slab_unmapped(e.engine, e.slab); },
                 [&](const SlabUnsent& e) { parts.sessions.on_slab_unsent(e); },
                 [&](const Command& e) { parts.commands.on_command(e); },
                 [&](const CopyFinished& e) {
                   if (parts.swaps.on_copy(e) || house_->ground.cache_copies.on_copy(e) ||
                       house_->ground.engine_caches.on_copy(e)) {
                     parts.claims.serve_everyone();
                   }
                 },
                 [&](const PlanReady& e) { parts.plans.on_plan(e); },
                 [&](const SlabRenewed& e) { house_->on_slab_renewed(e); },
                 // Requests that waited for the disk can go on.
                 [&](const DiskOpened& e) {
                   house_->ground.disk.on_opened(e);
                   parts.claims.serve_everyone();
                 },
                 [&](const DiskNamed& e) { house_->ground.disk.classes().on_named(e); },
                 [&](const DiskResized& e) { house_->ground.disk.on_resized(e); },
                 [&](const DiskClosed& e) { house_->ground.disk.classes().on_closed(e); },
                 [&](const DiskFound& e) { house_->ground.disk.classes().on_found(e); },
                 [&](const DiskFinished& e) {
                   if (!house_->ground.disk.on_finished(e)) return;
                   house_->ground.engine_caches.on_read();
                   parts.claims.serve_everyone();
                 },
                 [&](const RemoteFound& e) {
                   house_->ground.disk.remote().on_found(e);
                   parts.claims.serve_everyone();
                 },
                 [&](const RemoteChanged&) { house_->ground.disk.remote().on_changed(); },
                 [&](const RowsKept& e) {
                   if (house_->ground.keeping.on_kept(e)) parts.claims.serve_everyone();
                 },
                 [&](const AdoptRows& e) { house_->ground.keeping.adopt(e); },
                 [&](const AdoptRegions& e) { parts.regions.left().adopt(e); },
                 [&](const Tick&) { house_->on_tick(); },
                 [&](const Retune& e) { house_->retune(e.tuning); },
                 [&](const Requota& e) { house_->requota(e); },
                 [&](const ClearCache&) { house_->clear_cache(); },
                 [&](const Drain& e) { house_->ground.drains.on_drain(e); },
             },
             event);
  house_->end_event();
}

ControllerStatus Controller::status(TimePoint now) const {
  Parts& p = house_->parts;
  house_->ground.context.now = now;
  return StatusBuilder(house_->ground, p.regions, p.plans, p.admission, p.rotation).build();
}

std::vector<DiskFound::Block> Controller::on_disk(DiskId disk) const {
  return house_->ground.disk.blocks(disk);
}

std::map<DomainId, Bytes> Controller::excess(Tier tier) const {
  std::map<DomainId, Bytes> sums;
  const auto add = [&](const pool::TierPool& pool) {
    for (const auto& [domain, slabs] : pool::excess(pool)) {
      sums[domain] += pool.config().slab_bytes * std::int64_t{slabs};
    }
  };
  const store::Store& store = house_->ground.store;
  if (tier == Tier::kDram) add(store.dram);
  for (const pool::TierPool& device : store.hbm) {
    if (tier == Tier::kHbm) add(device);
  }
  return sums;
}

const Tuning& Controller::tuning() const { return house_->ground.context.tuning; }

bool Controller::is_behind() const {
  return house_->ground.requests.is_behind() || house_->ground.disk.classes().is_behind() ||
         house_->has_more_to_clear;
}

bool Controller::drains() const { return house_->ground.drains.status().has_value(); }

bool Controller::drained() const {
  const Drains& drains = house_->ground.drains;
  const std::optional<DrainStatus> drain = drains.status();
  const std::optional<RemoteWrites> to_remote = drains.to_remote();
  return drain && drain->left == 0 && (!to_remote || to_remote->left == 0);
}

std::string Controller::validate() const { return house_->validate(); }

Bytes Controller::region_bytes(EngineId engine) const {
  const auto& sessions = std::as_const(house_->ground.requests).sessions();
  const auto it = sessions.find(engine);
  return it == sessions.end() ? Bytes(0) : house_->parts.regions.region_bytes(it->second);
}

// First comes the work that nobody waits for, then the orders that all of it gave.
void Controller::House::end_event() {
  const bool given_up = ground.memory.go_on();
  if (ground.disk.go_on() || given_up) parts.claims.serve_everyone();
  if (!clearing) ground.engine_caches.hints().go_on();
  ground.store.cache.follow();
  ground.prefixes.name_on();
  // Blocks that are about to be cleared should go neither to DRAM nor to disk.
  if (!clearing) {
    ground.disk.write_ahead();
    if (ground.drains.copies_ahead()) ground.cache_copies.make_ahead();
  }
  ground.keeping.tell();
  parts.sessions.tell_returned();
  ground.context.counters.slabs.renewed += ground.store.tiers.order_renewals();
  ground.context.pass_on_orders();
  ground.context.effects = nullptr;
  if (ground.context.config.validate_each_event) {
    const std::string fault = validate();
    KVD_CHECK(fault.empty(), fault.c_str());
  }
}

void Controller::House::on_slab_renewed(const SlabRenewed& renewed) {
  slab_renewed(ground.store.tiers, renewed.tier, renewed.slab);
  parts.claims.serve_everyone();
}

void Controller::House::on_tick() {
  parts.regions.expire();
  if (parts.regions.left().expire()) parts.claims.serve_everyone();
  ground.lateness.watch();
  ground.classes.forget_unused();
  for (auto& [id, session] : ground.requests.sessions()) {
    parts.ranks.expire_ahead(session);
    parts.silence.check(session);
    parts.silence.evict(session);
  }
  parts.compactor.start();
  if (clearing) clear_on();
  ground.engine_caches.hints().let_go_due();
  if (ground.engine_caches.give_up_parked()) parts.claims.serve_everyone();
  if (ground.disk.expire()) parts.claims.serve_everyone();
  parts.standstills.watch();
  ground.drains.watch();
}

void Controller::House::retune(const Tuning& wanted) {
  ground.context.retune(wanted);
  ground.budget.restart();
  // Plans follow the new tuning.
  for (auto& [id, session] : ground.requests.sessions()) session.plan.steps_left = 0;
}

void Controller::House::requota(const Requota& wanted) {
  Config& config = ground.context.config;
  for (const auto& [tier, quotas] :
       {std::pair{Tier::kHbm, &wanted.hbm}, std::pair{Tier::kDram, &wanted.dram}}) {
    const Status status = ground.store.tiers.set_quotas(tier, *quotas);
    if (status.ok()) {
      (tier == Tier::kHbm ? config.hbm_quotas : config.dram_quotas) = *quotas;
      continue;
    }
    ground.context.note(
        Note::Level::kError, EngineId(),
        std::string("the quotas of ") + name(tier) + " stay: " + status.error().message);
  }
  parts.regions.on_requota();
  parts.claims.serve_everyone();
}

void Controller::House::clear_cache() {
  Bytes bytes;
  for (const Tier tier : {Tier::kHbm, Tier::kDram}) bytes += ground.store.cache.cached(tier);
  bytes += ground.disk.bytes();
  ground.disk.clear();
  ground.context.note(Note::Level::kInfo, EngineId(),
                      "the prefix cache was emptied: " + human_size(bytes));
  clear_on();
}

// A tick clears a part of a large cache, since the control thread has others to serve. Blocks that
// ended requests still have were as good as cached when the command came.
void Controller::House::clear_on() {
  constexpr std::size_t kRows = 4096;
  has_more_to_clear = !ground.store.cache.clear(kRows);
  clearing = has_more_to_clear || ground.requests.is_behind() || ground.cache_copies.slots() > 0;
  parts.claims.serve_everyone();
}

std::string Controller::House::validate() const {
  const store::Store& store = ground.store;
  if (std::string fault = store.tiers.validate(); !fault.empty()) return fault;
  if (std::string fault = store.blocks.validate(); !fault.empty()) return fault;
  if (std::string fault = store.cache.validate(); !fault.empty()) return fault;
  if (std::string fault = ground.requests.validate(); !fault.empty()) return fault;
  std::size_t staged = 0, references = 0;
  for (const auto& [key, request] : ground.requests.all()) {
    if (std::string fault = validate(request); !fault.empty()) return fault;
    staged += static_cast<std::size_t>(request.layers.staging.count());
    references += request.table.size();
  }
  references += ground.engine_caches.parked() + ground.memory.blocks_behind();
  if (references != store.blocks.references()) return "a block is nobody's";
  for (const Tier tier : {Tier::kHbm, Tier::kDram}) {
    const std::size_t known =
        store.blocks.slots(tier) + store.tiers.slots(tier) +
        (tier == Tier::kHbm ? staged
                            : store.compaction.slots() + ground.cache_copies.slots() +
                                  ground.disk.slots() + ground.engine_caches.slots());
    pool::TierStats stats;
    if (tier == Tier::kDram) stats = store.dram.stats();
    for (const pool::TierPool& device : store.hbm) {
      if (tier == Tier::kHbm) stats += device.stats();
    }
    std::uint64_t used = 0;
    for (std::size_t s = 1; s < pool::kSlotStates; ++s) used += stats.slots_by_state[s];
    if (used != known) {
      return std::string(kvd::name(tier)) + ": " + std::to_string(used) +
             " slots are in use, blocks, staging, holds and moves account for " +
             std::to_string(known);
    }
  }
  return {};
}

std::string Controller::House::validate(const Request& request) const {
  if (request.order.claim != 0 && !request.waits() && request.place != Location::kParked) {
    return "a request that holds memory has a claim on more";
  }
  if (request.promised && !request.runs()) return "a request that does not run is promised";
  for (const Ticket ticket : {request.moves.rotation, request.moves.sync, request.moves.fetch}) {
    if (!ticket) continue;
    if (!ground.store.transfers.open(ticket)) return "a request waits for no transfer";
    const std::vector<std::uint32_t>& places = ground.store.transfers.at(ticket).places;
    if (std::any_of(places.begin(), places.end(),
                    [&](std::uint32_t place) { return place >= request.table.size(); })) {
      return "a transfer moves blocks that its request has not";
    }
  }
  for (const Ticket stream : request.layers.streams) {
    if (!ground.store.transfers.streams(stream)) return "a request waits for no stream";
  }
  const bool parked = request.place == Location::kParked;
  if (parked != request.table.parked()) return "a block table is parked, its request is not";
  for (std::uint32_t i = 0; parked && i < request.table.size(); ++i) {
    const bool wanted = store::wanted_in_hbm(ground.store.blocks, request.table, i);
    if (ground.store.blocks.has(request.table, i, Tier::kHbm) && !wanted) {
      return "a request that was swapped out has blocks in HBM that nobody runs on";
    }
  }
  const Session& session = ground.requests.session_of(request);
  for (std::uint32_t i = 0; i < request.table.size(); ++i) {
    const SlotId slot = ground.store.blocks.slot(request.table, i, Tier::kHbm);
    const DeviceId device = session.device_of_group(i % request.table.groups());
    if (!slot.none() && ground.store.hbm.device_of(slot) != device) {
      return "a block is on another device than its rank";
    }
  }
  if (request.waits() && !request.table.empty()) return "a request that waits has blocks";
  return ground.store.blocks.validate(request.table);
}

}  // namespace kvd::core
