#include <algorithm>

#include "kvd/core/state.hpp"

/// Sessions: attach, the two stages of a death, silence, and a change of tuning.
namespace kvd::core {

namespace {

/// Far more shapes than one machine serves at a time; engines choose theirs, so there is a bound.
constexpr std::size_t kMaxClasses = 256;

}  // namespace

Result<ClassId> Controller::State::class_for(const ModelClass& shape) {
  const auto known = classes.find(shape);
  const bool fresh = known == classes.end();
  if (fresh && classes.size() >= kMaxClasses) forget_classes();
  if (fresh && classes.size() >= kMaxClasses) {
    return make_error(ErrorCode::kQuotaExceeded,
                      std::to_string(kMaxClasses) +
                          " model shapes are in use, the most there can be: end sessions of some");
  }
  // A known one may be forgotten in one tier already while slabs of the other still have it.
  const ClassId id = fresh ? ClassId(++last.model_class) : known->second;
  KVD_TRY(tiers.add_class(id, shape.slot_bytes()));
  classes[shape] = id;
  return id;
}

void Controller::State::forget_classes() {
  std::set<ClassId> used;
  for (const auto& [id, session] : sessions) used.insert(session.class_id);
  std::erase_if(classes, [&](const auto& entry) {
    const ClassId id = entry.second;
    return !used.contains(id) && tiers.remove_class(id);
  });
}

Result<AttachGrant> Controller::State::attach(const Attach& attach) {
  Session session;
  session.info = attach;
  session.last_beat = now;
  if (attach.model_class) {
    const ModelClass& shape = *attach.model_class;
    KVD_ASSIGN_OR_RETURN(session.class_id, class_for(shape));
    session.shape = shape;
  }
  session.id = EngineId(++last.engine);
  session.generation = Generation(++last.generation);
  if (session.shape.ranks > 1) {
    session.ranks.emplace().finished.assign(session.shape.ranks, 0);
    session.info.streams_layers = false;  // the plan of one rank's layers does not fit a group's
    last.engine += session.shape.ranks - 1;
    last.generation += session.shape.ranks - 1;
  }
  ++counters.engines_attached;
  tiers.engine_came(session.id);
  AttachGrant grant{session.id, session.generation, session.class_id, session.shape,
                    config.max_requests_per_engine};
  sessions.emplace(session.id, std::move(session));
  return grant;
}

void Controller::State::drop_claims(Session& session) {
  each_request_of(session.id, [&](Request& r) {
    drop_claim(r);
    r.awaits_mapping = false;
    if (r.state != RequestState::kWaiting) return;
    r.layerwise = false;
    r.away.clear();
  });
  tiers.mappings().stop_awaiting(session.id);
}

void Controller::State::on_detach(EngineId engine) {
  const auto it = sessions.find(engine);
  if (it == sessions.end() || it->second.dying) return;
  Session& session = it->second;
  drop_regions(engine);
  session.finished = session.iteration;  // it said goodbye: it maps and writes nothing any more
  tiers.mappings().forget(engine);
  tiers.iteration_finished(engine, session.finished);
  for (Request* r : std::vector(session.active)) remove(*r);
  end_streams(session);
  for (const auto& [id, region] : session.regions) tiers.release_region(id);
  sessions.erase(it);
  tiers.engine_gone(engine);
  tiers.scrub_slabs();
  serve_everyone();
}

void Controller::State::on_dying(EngineId engine, bool parting) {
  const auto it = sessions.find(engine);
  if (it == sessions.end()) return;
  Session& session = it->second;
  const bool dies = !parting && (!session.dying || session.parting);
  if (dies) {
    ++counters.engines_died;
    note(Note::Level::kWarning, engine,
         "engine '" + session.info.name +
             "' died; its memory is quarantined until the process ends");
  }
  session.parting = parting || (session.parting && !dies);
  if (session.dying) return;
  session.dying = true;
  drop_regions(engine);
  tiers.engine_dying(engine);
  for (Request* r : std::vector(session.active)) remove(*r);
  end_streams(session);
  for (const auto& [id, region] : session.regions) tiers.quarantine_region(id);
  serve_everyone();
}

void Controller::State::on_dead(EngineId engine) {
  tiers.mappings().forget(engine);
  const auto parting = sessions.find(engine);
  on_dying(engine, parting != sessions.end() && parting->second.parting);
  const auto it = sessions.find(engine);
  if (it != sessions.end()) {
    Session session = std::move(it->second);
    sessions.erase(it);
    for (const auto& [id, region] : session.regions) tiers.release_region(id);
    tiers.engine_gone(engine);
    note(Note::Level::kInfo, engine,
         "engine '" + session.info.name + "' is gone; its memory is being zeroed and returned");
  }
  tiers.scrub_slabs();
  serve_everyone();
}

void Controller::State::check_responsive(Session& session) {
  // Silence counts only while the engine owes something: its heartbeat (level 1), or a step, for
  // work it was given or for requests it queued (level 3).
  bool owes = !session.class_id || session.stepping;
  TimePoint since = session.class_id ? session.last_step : session.last_beat;
  TimePoint queued = session.line.empty() ? TimePoint::max() : (*session.line.begin())->arrived;
  owes |= std::any_of(session.line.begin(), session.line.end(),
                      [](const Request* r) { return r->queues(); });
  each_inside_of(session.id, [&](Request& r) {
    owes |= r.queues() || r.claim != 0 || r.holds_hbm();
    queued = std::min(queued, r.arrived);
  });
  // One that has not stepped for want of requests is not late with its first ones.
  if (session.class_id && !session.stepping && owes) since = std::max(since, queued);
  if (!session.responsive || session.dying || !owes || now - since < config.step_timeout) return;
  session.responsive = false;
  drop_claims(session);
  note(Note::Level::kWarning, session.id,
       "engine '" + session.info.name + "' has been silent for " +
           std::to_string(to_seconds(now - since)) +
           " s; its blocks leave the supply until it steps again");
}

void Controller::State::on_tick() {
  expire_regions();
  if (classes.size() > kMaxClasses / 2) {
    // Empty slabs remember their class; what nobody uses need not.
    tiers.reclaim(DomainId());
    forget_classes();
  }
  for (auto& [id, session] : sessions) {
    expire_ahead(session);
    check_responsive(session);
    evict_silent(session);
  }
  watch_standstills();
}

void Controller::State::on_beat(EngineId engine) {
  const auto it = sessions.find(engine);
  if (it == sessions.end()) return;
  it->second.last_beat = now;
  if (!it->second.class_id) it->second.responsive = true;
}

void Controller::State::on_slab_mapped(EngineId engine, SlabIndex slab) {
  const auto it = sessions.find(engine);
  if (it == sessions.end() || !tiers.mappings().mapped(engine, slab)) return;
  Session& session = it->second;
  feed_starved(session);
  serve_claims(session.info.domain);
  tiers.mappings().end_awaiting_mapped(engine);
}

void Controller::State::on_slab_unmapped(EngineId engine, SlabIndex slab) {
  if (tiers.mappings().unmapped(engine, slab)) serve_everyone();
}

// Slabs of the region that did leave stay the engine's until its session ends: nobody else gets
// them.
void Controller::State::on_slab_unsent(const SlabUnsent& unsent) {
  const auto it = sessions.find(unsent.engine);
  if (it == sessions.end() || it->second.dying) return;
  tiers.mappings().unsent(unsent.engine, unsent.slab, static_cast<bool>(unsent.region));
  if (it->second.regions.erase(unsent.region) == 0) return;
  tiers.release_region(unsent.region);
  tiers.scrub_slabs();
  serve_everyone();
}

void Controller::State::retune(const Tuning& wanted) {
  if (wanted.rotation.policy != tuning.rotation.policy) {
    rotation = planner::make_rotation_policy(wanted.rotation.policy).value();
  }
  if (wanted.admission.policy != tuning.admission.policy) {
    admission = planner::make_admission_policy(wanted.admission.policy).value();
  }
  if (wanted.placement.policy != tuning.placement.policy) {
    placement = planner::make_placement_policy(wanted.placement.policy).value();
  }
  tuning = wanted;
  bucket_filled = now;
  for (auto& [id, session] : sessions) session.plan.steps_left = 0;  // plans follow the new tuning
}

void Controller::State::requota(const Requota& wanted) {
  for (const auto& [tier, quotas] :
       {std::pair{Tier::kHbm, &wanted.hbm}, std::pair{Tier::kDram, &wanted.dram}}) {
    const Status status = tiers.set_quotas(tier, *quotas);
    if (status.ok()) {
      (tier == Tier::kHbm ? config.hbm_quotas : config.dram_quotas) = *quotas;
      continue;
    }
    note(Note::Level::kError, EngineId(),
         std::string("the quotas of ") + name(tier) + " stay: " + status.error().message);
  }
  serve_everyone();
}

}  // namespace kvd::core
