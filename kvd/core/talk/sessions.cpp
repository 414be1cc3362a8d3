#include "kvd/core/talk/sessions.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ipc/vocabulary/human.hpp"

namespace kvd::core {

Result<AttachGrant> Sessions::attach(const Attach& attach) {
  KVD_TRY(drains_.takes_engines());
  KVD_TRY(check_devices(attach));
  const Bytes kept =
      attach.kept + Bytes(std::int64_t{2} * sizeof(Session)) + ClassServices::kMost * kKiB;
  KVD_TRY(requests_.may_keep(attach.domain, kept));
  Session session;
  session.info = attach;
  session.totals.services = ClassServices(attach.slo_class);
  session.life.attached = session.life.last_beat = context_.now;
  if (attach.model_class) {
    const ModelClass& shape = *attach.model_class;
    KVD_ASSIGN_OR_RETURN(session.class_id, classes_.of(shape, attach.domain));
    session.shape = shape;
  }
  session.id = EngineId(++last_engine_);
  session.generation = Generation(++last_generation_);
  if (session.shape.ranks > 1) {
    session.ranks.emplace().finished.assign(session.shape.ranks, 0);
    last_engine_ += session.shape.ranks - 1;
    last_generation_ += session.shape.ranks - 1;
  }
  ++context_.counters.engines_attached;
  store_.tiers.engine_came(session.id);
  AttachGrant grant{session.id, session.generation, session.class_id, session.shape,
                    context_.config.max_requests_per_engine};
  requests_.keep(session, kept);
  requests_.sessions().emplace(session.id, std::move(session));
  return grant;
}

void Sessions::on_ranks_placed(const RanksPlaced& placed) {
  const auto it = requests_.sessions().find(placed.engine);
  if (it == requests_.sessions().end() || it->second.life.dying) return;
  Session& session = it->second;
  KVD_CHECK(session.active.empty(), "ranks are placed after the group has requests");
  session.info.devices = placed.devices;
  session.info.streams_layers = placed.streams_layers;
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

void Sessions::on_detach(EngineId engine) {
  const auto it = requests_.sessions().find(engine);
  if (it == requests_.sessions().end() || it->second.life.dying) return;
  Session& session = it->second;
  regions_.drop(engine);
  session.iterations.finished =
      session.iterations.granted;  // it said goodbye: it maps and writes nothing any more
  store_.tiers.mappings().forget(engine);
  store_.tiers.iteration_finished(engine, session.iterations.finished);
  end_requests(session);
  caches_.end(session, false);
  for (const auto& [id, region] : session.leases.regions) region_copies_.release(region);
  (void)requests_.take(engine);
  store_.tiers.engine_gone(engine);
  store_.tiers.scrub_slabs();
  claims_.serve_everyone();
}

void Sessions::end_requests(Session& session) {
  for (Request* r : std::vector(session.active)) memory_.end(*r);
  streams_.end(session);
  store_.transfers.drop(session.id);
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
  end_requests(session);
  caches_.end(session, true);
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
    const Session session = requests_.take(engine);
    Gone gone{engine,
              session.info.name,
              session.life.dying_since,
              regions_.region_bytes(session) + held_hbm(store_.tiers, engine) +
                  memory_.hbm_behind(engine),
              {},
              context_.orders.last_ticket()};
    for (const auto& [id, region] : session.leases.regions) gone.regions.push_back(id);
    if (gone.bytes > Bytes(0)) gone_.push_back(std::move(gone));
    for (const auto& [id, region] : session.leases.regions) region_copies_.release(region);
    store_.tiers.engine_gone(engine);
    context_.note(
        Note::Level::kInfo, engine,
        "engine '" + session.info.name + "' is gone; its memory is being zeroed and returned");
  }
  store_.tiers.scrub_slabs();
  claims_.serve_everyone();
}

void Sessions::tell_returned() {
  std::erase_if(gone_, [&](Gone& gone) {
    const bool touched = held_hbm(store_.tiers, gone.engine) > Bytes(0) ||
                         memory_.hbm_behind(gone.engine) > Bytes(0) ||
                         std::any_of(gone.regions.begin(), gone.regions.end(),
                                     [&](RegionId region) { return region_copies_.touch(region); });
    if (touched) return false;
    if (!gone.until) gone.until = context_.orders.last_ticket();
    if (zeroes(store_.tiers, gone.after, gone.until)) return false;
    context_.note(Note::Level::kInfo, gone.engine,
                  "the memory of engine '" + gone.name + "', " + human_size(gone.bytes) +
                      ", is zeroed and free " + human_time(context_.now - gone.noticed) +
                      " after its end was noticed");
    return true;
  });
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

// Slabs of the region that were sent stay with the engine until its session ends: nobody else gets
// them.
void Sessions::on_slab_unsent(const SlabUnsent& unsent) {
  const auto it = requests_.sessions().find(unsent.engine);
  if (it == requests_.sessions().end() || it->second.life.dying) return;
  store_.tiers.mappings().unsent(unsent.engine, unsent.slab, static_cast<bool>(unsent.region));
  const auto region = it->second.leases.regions.extract(unsent.region);
  if (region.empty()) return;
  Spaces::forget(it->second, unsent.region);
  region_copies_.release(region.mapped());
  store_.tiers.scrub_slabs();
  claims_.serve_everyone();
}

}  // namespace kvd::core
