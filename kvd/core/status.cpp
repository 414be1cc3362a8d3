#include "kvd/core/status.hpp"

#include "kvd/core/state.hpp"

namespace kvd::core {

ControllerStatus Controller::status(TimePoint now) const {
  const State& s = *state_;
  ControllerStatus out;
  out.counters = s.counters;
  const pool::TierPool* tiers[kTiers] = {&s.hbm, &s.dram};
  for (std::size_t tier = 0; tier < kTiers; ++tier) {
    out.tiers[tier] = tiers[tier]->stats();
    out.slabs[tier] = tiers[tier]->slabs();
    out.link_rate[tier] = s.link_rate[tier];
  }
  out.tuning = s.tuning;
  out.b_xfer = s.transfer_budget();
  out.mean_step_s = s.mean_step_s;

  std::map<EngineId, EngineStatus> engines;
  for (const auto& [id, session] : s.sessions) {
    EngineStatus& e = engines[id];
    e.id = id;
    e.name = session.info.name;
    e.domain = session.info.domain_name;
    e.pid = session.info.pid;
    e.uid = session.info.uid;
    e.generation = session.generation;
    e.level = session.class_id ? 3 : 1;
    e.responsive = session.responsive;
    e.dying = session.dying;
    e.region = region_bytes(id);
    e.steps = session.steps;
    e.rotations_in = session.rotations_in;
    e.rotations_out = session.rotations_out;
    e.tokens = session.tokens;
    e.orphaned = session.info.orphaned;
    const TimePoint heard = std::max(session.last_step, session.last_beat);
    e.idle_s = to_seconds(now - heard);
    out.orphaned += e.orphaned;
  }
  for (const auto& [key, request] : s.requests) {
    const Session& session = s.sessions.at(key.engine);
    RequestStatus r;
    r.key = key;
    r.state = request.state;
    r.prompt_tokens = request.prompt.value;
    r.tokens = request.tokens.value;
    r.max_new_tokens = request.max_new.value;
    r.hbm = s.hbm_bytes(request);
    for (const BlockPlace& place : request.places) {
      if (!place.dram.none()) r.dram += session.shape.slot_bytes();
    }
    r.vlt_s = request.vlt_s;
    r.rotations = request.rotations;
    r.skips = request.skips;
    r.age_s = to_seconds(now - request.arrived);
    r.promised = request.promised;
    EngineStatus& e = engines[key.engine];
    e.hbm += r.hbm;
    e.dram += r.dram;
    ++e.requests;
    out.requests.push_back(r);
  }
  for (auto& [id, engine] : engines) out.engines.push_back(std::move(engine));
  return out;
}

}  // namespace kvd::core
