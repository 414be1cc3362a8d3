#include "kvd/core/sessions.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvd::core {

namespace {

/// Far more shapes than one machine serves at a time; engines choose theirs, so there is a bound.
constexpr std::size_t kMaxClasses = 256;

}  // namespace

Result<AttachGrant> Sessions::attach(const Attach& attach) {
  KVD_TRY(check_devices(attach));
  Session session;
  session.info = attach;
  session.life.last_beat = context_.now;
  if (attach.model_class) {
    const ModelClass& shape = *attach.model_class;
    KVD_ASSIGN_OR_RETURN(session.class_id, class_for(shape));
    session.shape = shape;
  }
  session.id = EngineId(++last_engine_);
  session.generation = Generation(++last_generation_);
  if (session.shape.ranks > 1) {
    session.ranks.emplace().finished.assign(session.shape.ranks, 0);
    session.info.streams_layers = false;  // the plan of one rank's layers does not fit a group's
    last_engine_ += session.shape.ranks - 1;
    last_generation_ += session.shape.ranks - 1;
  }
  ++context_.counters.engines_attached;
  store_.tiers.engine_came(session.id);
  AttachGrant grant{session.id, session.generation, session.class_id, session.shape,
                    context_.config.max_requests_per_engine};
  requests_.sessions().emplace(session.id, std::move(session));
  return grant;
}

void Sessions::on_ranks_placed(const RanksPlaced& placed) {
  const auto it = requests_.sessions().find(placed.engine);
  if (it == requests_.sessions().end() || it->second.life.dying) return;
  Session& session = it->second;
  KVD_CHECK(session.active.empty(), "ranks are placed after the group has requests");
  session.info.devices = placed.devices;
}

Status Sessions::check_devices(const Attach& attach) const {
  const std::size_t ranks = attach.model_class ? attach.model_class->ranks : 1;
  const std::size_t named = attach.devices.named();
  if (named != 0 && named != ranks) {
    return make_error(ErrorCode::kInvalidArgument,
                      std::to_string(named) + " devices are named for " + std::to_string(ranks) +
                          " ranks: name one for each rank, or one for all");
  }
  if (attach.devices.all().back().value < store_.hbm.count()) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "device " + std::to_string(attach.devices.all().back().value) +
                        " does not exist: kvd has " + std::to_string(store_.hbm.count()) +
                        ", numbered from 0: name one of them, or add a [[device]]");
}

Result<ClassId> Sessions::class_for(const ModelClass& shape) {
  const auto known = classes_.find(shape);
  const bool fresh = known == classes_.end();
  if (fresh && classes_.size() >= kMaxClasses) {
    store_.cache.clear();  // blocks that nobody names keep their classes known
    forget_classes();
  }
  if (fresh && classes_.size() >= kMaxClasses) {
    return make_error(ErrorCode::kQuotaExceeded,
                      std::to_string(kMaxClasses) +
                          " model shapes are in use, the most there can be: end sessions of some");
  }
  // A known one may be forgotten in one tier already while slabs of the other still have it.
  const ClassId id = fresh ? ClassId(++last_class_) : known->second;
  KVD_TRY(store_.tiers.add_class(id, shape.slot_bytes()));
  classes_[shape] = id;
  return id;
}

void Sessions::forget_classes() {
  std::set<ClassId> used;
  for (const auto& [id, session] : requests_.sessions()) used.insert(session.class_id);
  std::erase_if(classes_, [&](const auto& entry) {
    const ClassId id = entry.second;
    return !used.contains(id) && store_.tiers.remove_class(id);
  });
}

void Sessions::forget_unused_classes() {
  if (classes_.size() <= kMaxClasses / 2) return;
  for (std::uint32_t device = 0; device < store_.hbm.count(); ++device) {
    store_.tiers.reclaim(DomainId(), DeviceId(device));
  }
  forget_classes();
}

void Sessions::on_detach(EngineId engine) {
  const auto it = requests_.sessions().find(engine);
  if (it == requests_.sessions().end() || it->second.life.dying) return;
  Session& session = it->second;
  regions_.drop(engine);
  session.iterations.finished =
      session.iterations.granted;  // it said goodbye: it maps and writes nothing any more
  store_.tiers.mappings().forget(engine);
  store_.tiers.iteration_finished(engine, session.iterations.finished);
  for (Request* r : std::vector(session.active)) memory_.end(*r);
  streams_.end(session);
  for (const auto& [id, region] : session.leases.regions) {
    store_.tiers.hbm().of(session.share().device).release_region(id);
  }
  requests_.sessions().erase(it);
  store_.tiers.engine_gone(engine);
  store_.tiers.scrub_slabs();
  claims_.serve_everyone();
}

void Sessions::on_dying(EngineId engine, bool parting) {
  const auto it = requests_.sessions().find(engine);
  if (it == requests_.sessions().end()) return;
  Session& session = it->second;
  const bool dies = !parting && (!session.life.dying || session.life.parting);
  if (dies) {
    ++context_.counters.engines_died;
    context_.note(Note::Level::kWarning, engine,
                  "engine '" + session.info.name +
                      "' died; its memory is quarantined until the process ends");
  }
  session.life.parting = parting || (session.life.parting && !dies);
  if (session.life.dying) return;
  session.life.dying = true;
  session.life.dying_since = context_.now;
  regions_.drop(engine);
  store_.tiers.engine_dying(engine);
  for (Request* r : std::vector(session.active)) memory_.end(*r);
  streams_.end(session);
  for (const auto& [id, region] : session.leases.regions) {
    store_.tiers.hbm().of(session.share().device).quarantine_region(id);
  }
  claims_.serve_everyone();
}

void Sessions::on_dead(EngineId engine) {
  store_.tiers.mappings().forget(engine);
  const auto parting = requests_.sessions().find(engine);
  on_dying(engine, parting != requests_.sessions().end() && parting->second.life.parting);
  const auto it = requests_.sessions().find(engine);
  if (it != requests_.sessions().end()) {
    Session session = std::move(it->second);
    requests_.sessions().erase(it);
    for (const auto& [id, region] : session.leases.regions) {
      store_.tiers.hbm().of(session.share().device).release_region(id);
    }
    store_.tiers.engine_gone(engine);
    context_.note(
        Note::Level::kInfo, engine,
        "engine '" + session.info.name + "' is gone; its memory is being zeroed and returned");
  }
  store_.tiers.scrub_slabs();
  claims_.serve_everyone();
}

void Sessions::on_beat(EngineId engine) {
  const auto it = requests_.sessions().find(engine);
  if (it == requests_.sessions().end()) return;
  it->second.life.last_beat = context_.now;
  if (!it->second.class_id) it->second.life.responsive = true;
}

void Sessions::on_slab_mapped(EngineId engine, SlabIndex slab) {
  const auto it = requests_.sessions().find(engine);
  if (it == requests_.sessions().end() || !store_.tiers.mappings().mapped(engine, slab)) return;
  Session& session = it->second;
  claims_.feed_starved(session);
  claims_.serve(session.info.domain);
  store_.tiers.mappings().end_awaiting_mapped(engine);
}

void Sessions::on_slab_unmapped(EngineId engine, SlabIndex slab) {
  if (store_.tiers.mappings().unmapped(engine, slab)) claims_.serve_everyone();
}

// Slabs of the region that did leave stay the engine's until its session ends: nobody else gets
// them.
void Sessions::on_slab_unsent(const SlabUnsent& unsent) {
  const auto it = requests_.sessions().find(unsent.engine);
  if (it == requests_.sessions().end() || it->second.life.dying) return;
  store_.tiers.mappings().unsent(unsent.engine, unsent.slab, static_cast<bool>(unsent.region));
  if (it->second.leases.regions.erase(unsent.region) == 0) return;
  store_.tiers.hbm().of(it->second.share().device).release_region(unsent.region);
  store_.tiers.scrub_slabs();
  claims_.serve_everyone();
}

}  // namespace kvd::core
