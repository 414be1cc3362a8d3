#include "kvd/core/controller.hpp"

#include <utility>

#include "ipc/vocabulary/overloaded.hpp"
#include "kvd/core/admission.hpp"
#include "kvd/core/claims.hpp"
#include "kvd/core/commands.hpp"
#include "kvd/core/compactor.hpp"
#include "kvd/core/dram_copies.hpp"
#include "kvd/core/ground.hpp"
#include "kvd/core/layer_plans.hpp"
#include "kvd/core/needs.hpp"
#include "kvd/core/promises.hpp"
#include "kvd/core/ranks.hpp"
#include "kvd/core/regions.hpp"
#include "kvd/core/replies.hpp"
#include "kvd/core/reports.hpp"
#include "kvd/core/rotation.hpp"
#include "kvd/core/sessions.hpp"
#include "kvd/core/silence.hpp"
#include "kvd/core/standstills.hpp"
#include "kvd/core/status_builder.hpp"
#include "kvd/core/steps.hpp"
#include "kvd/core/streams.hpp"
#include "kvd/core/supply.hpp"
#include "kvd/core/swaps.hpp"

namespace kvd::core {

namespace {

std::string joined(const std::vector<std::string>& faults) {
  std::string text;
  for (const std::string& fault : faults) text += (text.empty() ? "" : "; ") + fault;
  return text;
}

}  // namespace

/// A part calls only parts above it.
struct Controller::Parts {
  explicit Parts(Config config) : ground(std::move(config)) {}

  Ground ground;
  Compactor compactor{ground};
  DramCopies copies{ground};
  Streams streams{ground};
  Needs needs{ground};
  Supply supply{ground, needs};
  Swaps swaps{ground, copies, streams, compactor};
  Promises promises{ground, supply};
  Regions regions{ground, copies, needs, supply, promises};
  Claims claims{ground, copies, streams, needs, supply, swaps, promises, regions};
  LayerPlans plans{ground};
  Admission admission{ground, needs, supply};
  Rotation rotation{ground, copies, needs, supply, promises};
  Reports reports{ground, copies};
  Replies replies{ground, streams};
  Silence silence{ground, needs, regions};
  Standstills standstills{ground, needs, supply, silence};
  Steps steps{ground, compactor, copies,    streams,  needs,   swaps,   promises,   regions,
              claims, plans,     admission, rotation, reports, replies, standstills};
  Ranks ranks{ground, swaps, claims, steps};
  Sessions sessions{ground, streams, regions, claims};
  Commands commands{ground, needs, supply, swaps, regions, claims, plans, steps, ranks};

  void on_slab_renewed(SlabIndex slab);
  void on_tick();
  void retune(const Tuning& wanted);
  void requota(const Requota& wanted);
  [[nodiscard]] std::string validate() const;
  [[nodiscard]] std::string validate(const Request& request) const;
};

Controller::Controller(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Controller::~Controller() = default;

Result<std::unique_ptr<Controller>> Controller::create(Config config) {
  std::vector<std::string> faults = config.tuning.faults(config.oracle);
  for (const auto& [tier, quotas] :
       {std::pair{config.hbm, config.hbm_quotas}, std::pair{config.dram, config.dram_quotas}}) {
    const std::string key = std::string("pool.") + kvd::name(tier.tier);
    if (tier.slab_bytes <= Bytes(0) || tier.slabs == 0 || tier.slabs >= SlotId::kMaxSlabs) {
      faults.push_back(key + ": needs 1 to " + std::to_string(SlotId::kMaxSlabs - 1) + " slabs");
      continue;
    }
    const Status quotas_fit = pool::check_quotas(quotas, {tier.slab_bytes, tier.slabs});
    if (!quotas_fit.ok()) faults.push_back(key + ": " + quotas_fit.error().message);
  }
  if (!faults.empty()) return make_error(ErrorCode::kInvalidArgument, joined(faults));
  return std::unique_ptr<Controller>(new Controller(std::make_unique<Parts>(std::move(config))));
}

Result<AttachGrant> Controller::attach(const Attach& attach, TimePoint now) {
  parts_->ground.context.now = now;
  return parts_->sessions.attach(attach);
}

void Controller::on(const Event& event, TimePoint now, std::vector<Effect>& effects) {
  Parts& parts = *parts_;
  Context& context = parts.ground.context;
  context.now = now;
  context.effects = &effects;
  std::visit(Overloaded{
                 [&](const Detach& e) { parts.sessions.on_detach(e.engine); },
                 [&](const Dying& e) { parts.sessions.on_dying(e.engine, e.parting); },
                 [&](const Dead& e) { parts.sessions.on_dead(e.engine); },
                 [&](const Beat& e) { parts.sessions.on_beat(e.engine); },
                 [&](const SlabMapped& e) { parts.sessions.on_slab_mapped(e.engine, e.slab); },
                 [&](const SlabUnmapped& e) { parts.sessions.on_slab_unmapped(e.engine, e.slab); },
                 [&](const SlabUnsent& e) { parts.sessions.on_slab_unsent(e); },
                 [&](const Command& e) { parts.commands.on_command(e); },
                 [&](const CopyFinished& e) {
                   if (parts.swaps.on_copy(e)) parts.claims.serve_everyone();
                 },
                 [&](const PlanReady& e) { parts.plans.on_plan(e); },
                 [&](const SlabRenewed& e) { parts.on_slab_renewed(e.slab); },
                 [&](const Tick&) { parts.on_tick(); },
                 [&](const Retune& e) { parts.retune(e.tuning); },
                 [&](const Requota& e) { parts.requota(e); },
             },
             event);
  context.counters.slabs_renewed += parts.ground.store.tiers.order_renewals();
  context.pass_on_orders();
  context.effects = nullptr;
  if (context.config.validate_each_event) {
    const std::string fault = validate();
    KVD_CHECK(fault.empty(), fault.c_str());
  }
}

ControllerStatus Controller::status(TimePoint now) const {
  Parts& p = *parts_;
  p.ground.context.now = now;
  return StatusBuilder(p.ground, p.regions, p.plans, p.admission, p.rotation).build();
}

const Tuning& Controller::tuning() const { return parts_->ground.context.tuning; }

std::string Controller::validate() const { return parts_->validate(); }

Bytes Controller::region_bytes(EngineId engine) const {
  const auto& sessions = std::as_const(parts_->ground.requests).sessions();
  const auto it = sessions.find(engine);
  return it == sessions.end() ? Bytes(0) : parts_->regions.region_bytes(it->second);
}

void Controller::Parts::on_slab_renewed(SlabIndex slab) {
  ground.store.tiers.renewed(slab);
  claims.serve_everyone();
}

void Controller::Parts::on_tick() {
  regions.expire();
  sessions.forget_unused_classes();
  for (auto& [id, session] : ground.requests.sessions()) {
    ranks.expire_ahead(session);
    silence.check(session);
    silence.evict(session);
  }
  compactor.start();
  standstills.watch();
}

void Controller::Parts::retune(const Tuning& wanted) {
  ground.context.retune(wanted);
  ground.budget.restart();
  // Plans follow the new tuning.
  for (auto& [id, session] : ground.requests.sessions()) session.plan.steps_left = 0;
}

void Controller::Parts::requota(const Requota& wanted) {
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
  claims.serve_everyone();
}

std::string Controller::Parts::validate() const {
  const store::Store& store = ground.store;
  if (std::string fault = store.tiers.validate(); !fault.empty()) return fault;
  if (std::string fault = store.blocks.validate(); !fault.empty()) return fault;
  if (std::string fault = ground.requests.validate(); !fault.empty()) return fault;
  std::size_t staged = 0, references = 0;
  for (const auto& [key, request] : ground.requests.all()) {
    if (std::string fault = validate(request); !fault.empty()) return fault;
    staged += static_cast<std::size_t>(request.layers.staging.count());
    references += request.table.size();
  }
  if (references != store.blocks.references()) return "a block is nobody's";
  for (const Tier tier : {Tier::kHbm, Tier::kDram}) {
    const std::size_t known = store.blocks.slots(tier) + store.tiers.slots(tier) +
                              (tier == Tier::kHbm ? staged : store.compaction.slots());
    const pool::TierStats stats = store.tiers.pool(tier).stats();
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

std::string Controller::Parts::validate(const Request& request) const {
  if (request.order.claim != 0 && !request.waits() && request.place != Location::kParked) {
    return "a request that holds memory has a claim on more";
  }
  if (request.promised && !request.runs()) return "a request that does not run is promised";
  for (const Ticket ticket : {request.moves.rotation, request.moves.sync, request.moves.fetch}) {
    if (ticket && !ground.store.transfers.open(ticket)) return "a request waits for no transfer";
  }
  for (const Ticket stream : request.layers.streams) {
    if (!ground.store.transfers.streams(stream)) return "a request waits for no stream";
  }
  if (request.place == Location::kParked && request.table.in(Tier::kHbm) > 0) {
    return "a request that was swapped out has blocks in HBM";
  }
  return ground.store.blocks.validate(request.table);
}

}  // namespace kvd::core
