#include "kvd/core/controller.hpp"

#include "ipc/vocabulary/overloaded.hpp"
#include "kvd/core/state.hpp"

namespace kvd::core {

namespace {

std::string joined(const std::vector<std::string>& faults) {
  std::string text;
  for (const std::string& fault : faults) text += (text.empty() ? "" : "; ") + fault;
  return text;
}

}  // namespace

Controller::Controller(std::unique_ptr<State> state) : state_(std::move(state)) {}
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
  return std::unique_ptr<Controller>(new Controller(std::make_unique<State>(std::move(config))));
}

Result<AttachGrant> Controller::attach(const Attach& attach, TimePoint now) {
  state_->now = now;
  return state_->attach(attach);
}

void Controller::on(const Event& event, TimePoint now, std::vector<Effect>& effects) {
  State& s = *state_;
  s.now = now;
  s.effects = &effects;
  std::visit(Overloaded{
                 [&](const Detach& e) { s.on_detach(e.engine); },
                 [&](const Dying& e) { s.on_dying(e.engine, e.parting); },
                 [&](const Dead& e) { s.on_dead(e.engine); },
                 [&](const Command& e) { s.on_command(e); },
                 [&](const CopyFinished& e) { s.on_copy(e); },
                 [&](const PlanReady& e) { s.on_plan(e); },
                 [&](const SlabMapped& e) { s.on_slab_mapped(e.engine, e.slab); },
                 [&](const SlabUnmapped& e) { s.on_slab_unmapped(e.engine, e.slab); },
                 [&](const SlabUnsent& e) { s.on_slab_unsent(e); },
                 [&](const SlabRenewed& e) { s.on_slab_renewed(e.slab); },
                 [&](const Tick&) { s.on_tick(); },
                 [&](const Retune& e) { s.retune(e.tuning); },
                 [&](const Requota& e) { s.requota(e); },
                 [&](const Beat& e) { s.on_beat(e.engine); },
             },
             event);
  s.counters.slabs_renewed += s.tiers.order_renewals();
  s.pass_on_orders();
  s.effects = nullptr;
  if (s.config.validate_each_event) {
    const std::string fault = s.validate();
    KVD_CHECK(fault.empty(), fault.c_str());
  }
}

const Tuning& Controller::tuning() const { return state_->tuning; }

std::string Controller::validate() const { return state_->validate(); }

Bytes Controller::region_bytes(EngineId engine) const {
  const auto it = state_->sessions.find(engine);
  return it == state_->sessions.end() ? Bytes(0) : state_->region_bytes(it->second);
}

}  // namespace kvd::core
