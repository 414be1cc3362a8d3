#include "kvd/core/talk/status_builder.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace kvd::core {

namespace {

/// Adds the time it has waited, if it waits.
void add_wait(const RequestStatus::Goals& goals, WaitReason reason, ClassService::Oldest& oldest) {
  if (reason == WaitReason::kNone || !goals.late_s) return;
  const double goal_s = goals.next ? goals.tbt_s : goals.ttft_s;
  const double wait_s = *goals.late_s + goal_s;
  oldest.wait_s = std::max(oldest.wait_s, wait_s);
  if (goal_s > 0) oldest.goals = std::max(oldest.goals, wait_s / goal_s);
}

}  // namespace

void StatusBuilder::add_inputs(ControllerStatus& out) {
  std::map<Share, std::string> names;
  for (auto& [id, session] : requests_.sessions()) {
    if (!session.class_id || session.life.dying) continue;
    for (const DeviceId device : session.devices().all()) {
      names.emplace(Share{session.info.domain, device}, session.info.domain_name);
    }
    std::vector<Request*> queue;
    out.admission_inputs.push_back(admission_.admission_input(session, queue));
    std::vector<RequestKey> running;
    requests_.each_request_of(id, [&](Request& r) {
      if (r.runs()) running.push_back(r.key);
    });
    if (!running.empty()) out.placement_inputs.push_back(plans_.placement_input(session, running));
  }
  for (const auto& [share, name] : names) {
    RotationInput input;
    std::vector<Request*> index;
    input.domain = name;
    input.device = share.device;
    input.now = context_.now;
    input.snapshot = rotation_.rotation_snapshot(share, index);
    input.config = context_.rotation_config();
    for (const Request* r : index) input.requests.push_back(r->key);
    out.rotation_inputs.push_back(std::move(input));
  }
}

DeviceStatus StatusBuilder::device_status(DeviceId device) const {
  DeviceStatus d;
  d.device = device;
  d.hbm = store_.hbm.of(device).stats();
  d.slabs = store_.hbm.of(device).slabs();
  d.b_xfer = budget_.per_step(device);
  std::copy_n(knowledge_.link_rates(device).begin(), 2, d.link_rate);
  d.mean_step_s = knowledge_.mean_step_s(device);
  return d;
}

EngineStatus StatusBuilder::engine_status(const Session& session) const {
  EngineStatus e;
  e.id = session.id;
  e.name = session.info.name;
  e.domain = session.info.domain_name;
  e.pid = session.info.pid;
  e.uid = session.info.uid;
  e.generation = session.generation;
  e.level = {session.class_id || session.placed ? 3u : 1u, session.placed.has_value()};
  e.ranks = {session.shape.ranks, session.devices().all()};
  e.responsive = session.life.responsive;
  e.dying = session.life.dying;
  e.service.drain = drains_.status(session);
  e.region = regions_.region_bytes(session);
  e.steps = session.totals.steps;
  e.rotations.in = session.totals.rotations_in;
  e.rotations.out = session.totals.rotations_out;
  e.tokens = session.totals.tokens;
  if (e.level.number == 3) e.service.classes = session.totals.services.all();
  e.orphaned = session.info.orphaned;
  for (const auto& [id, cache] : session.leases.caches) {
    if (!cache.space.placed_by_engines()) continue;
    const auto& remote_name = context_.config.remote.name;
    e.kv.caches.push_back(
        {cache.model, cache.block_bytes, cache.block_tokens, cache.space.fingerprint.digest,
         remote_name ? remote_name(e.domain, cache.space.fingerprint, Digest()) : Digest()});
  }
  if (session.class_id) {
    const ModelClass& shape = session.shape;
    e.kv.token_bytes =
        Bytes((shape.slot_bytes() * std::int64_t{session.groups()}).value / shape.block_tokens);
    e.kv.prefill_token_s = session.costs.prefill_token_s;
  }
  e.service.idle_s =
      to_seconds(context_.now - std::max(session.life.last_step, session.life.last_beat));
  return e;
}

RequestStatus StatusBuilder::seen_status(const Seen& request, bool runs,
                                         std::optional<TimePoint> passes) const {
  const Slo& slo = request.goal.slo;
  const bool begun = request.times.has_token;
  RequestStatus row;
  row.key = request.key;
  row.state = request.state();
  row.prompt_tokens = request.goal.prompt.value;
  row.tokens = request.progress.tokens.value;
  row.max_new_tokens = request.goal.max_new.value;
  planner::RotationRequest seen = Knowledge::as_timed(request);
  seen.t_run = request.times.run_since;
  if (runs) seen.state = planner::RequestState::kRunning;
  row.vlt_s = virtual_lag(seen, planner::Seconds(context_.now), context_.rotation_config());
  row.goals = {request.goal.slo_class,        begun, to_seconds(slo.ttft), to_seconds(slo.tbt),
               to_seconds(slo.longest_gap()), {}};
  if (passes) row.goals.late_s = to_seconds(context_.now - *passes);
  row.rotations = request.order.rotations;
  row.skips = request.order.skips;
  row.age_s = to_seconds(context_.now - request.times.arrived);
  return row;
}

RequestStatus StatusBuilder::request_status(const Request& request, const Waits& waits) const {
  RequestStatus row = seen_status(request, request.runs(), request.goal_passes());
  row.hbm = memory_.hbm_bytes(request);
  row.dram = requests_.session_of(request).shape.slot_bytes() * request.dram_slots();
  row.waits_for = waits.of(request);
  row.promised = request.promised.has_value();
  return row;
}

// Its blocks are in a region, or wherever its engine keeps them.
RequestStatus StatusBuilder::placed_status(const Session& session,
                                           const PlacedRequest& request) const {
  const bool runs = request.let_in || request.runs();
  // While nobody waits, no call tells of the tokens of running requests, nor which ones have gone.
  const bool told = !runs && session.placed->is_news(context_.now);
  RequestStatus row = seen_status(request, runs, told ? request.goal_passes() : std::nullopt);
  if (runs) row.state = request.times.has_token ? RequestState::kRunning : RequestState::kPrefill;
  row.tokens = request.progress.planned.value;
  row.waits_for = session.life.responsive ? request.waits_for : WaitReason::kSilent;
  if (session.life.responsive && !runs && !told) row.waits_for = WaitReason::kStep;
  return row;
}

PlanStatus StatusBuilder::plan_status(const Session& session) const {
  const LayerPlan& plan = session.plan;
  PlanStatus p;
  p.engine = session.id;
  p.number = plan.number;
  p.policy = plan.adopted;
  p.fallback = !plan.adopted.empty() && plan.adopted != context_.tuning.placement.policy;
  p.solving = plan.asked;
  p.steps_left = std::max<std::int64_t>(0, plan.steps_left);
  p.step_s = plan.step_s;
  p.stall_s = plan.stall_s;
  p.gap = plan.gap;
  for (const Request* r : session.active) {
    const bool planned =
        std::find(plan.batch.begin(), plan.batch.end(), r->key) != plan.batch.end();
    if (!planned && !r->paused()) continue;
    PlanStatus::Entry entry{r->key.request, r->layers.distance, {}, r->paused()};
    // A tensor-parallel group shows the layers of one rank, because all ranks have the same ones
    // away.
    const std::uint32_t groups = r->layers.away.empty() ? 0 : session.shape.rank_groups();
    for (std::uint32_t group = 0; group < groups; ++group) {
      if (r->layers.away[group]) entry.in_dram.push_back(group + 1);
    }
    p.requests.push_back(std::move(entry));
  }
  if (const auto* own = std::get_if<LayersPlaced>(&session.layers)) {
    for (const PlaceReply::Entry& entry : own->plan) {
      PlanStatus::Entry& shown = p.requests.emplace_back();
      shown.request = entry.request;
      shown.distance = entry.distance;
      for (std::uint32_t layer = entry.distance; layer != 0 && layer <= own->layers;
           layer += entry.distance) {
        shown.in_dram.push_back(layer);
      }
    }
  }
  return p;
}

ControllerStatus StatusBuilder::build() {
  ControllerStatus out;
  out.counters = context_.counters;
  for (const Tier tier : {Tier::kHbm, Tier::kDram}) {
    const auto t = static_cast<std::size_t>(tier);
    out.held[t] = store_.blocks.usage().owned[t];
    out.cached[t] = store_.cache.cached(tier);
    out.counters.prefixes.evicted_bytes[t] = store_.cache.evicted(tier);
  }
  out.cached[kTiers] = disk_.bytes();
  const store::Retained retained = store::retained(store_.cache);
  out.retained = {retained.bytes, retained.evicted, ground_.engine_caches.hints().prefetched()};
  out.drain = drains_.status();
  out.to_remote = drains_.to_remote();
  out.disk_rates = disk_.rates();
  out.disk_models = disk_.models();
  for (std::uint32_t device = 0; device < store_.hbm.count(); ++device) {
    out.devices.push_back(device_status(DeviceId(device)));
    out.tiers[0] += out.devices.back().hbm;
    const auto& slabs = out.devices.back().slabs;
    out.slabs[0].insert(out.slabs[0].end(), slabs.begin(), slabs.end());
  }
  out.tiers[1] = store_.dram.stats();
  out.slabs[1] = store_.dram.slabs();
  out.tuning = context_.tuning;
  std::map<EngineId, EngineStatus> engines;
  for (const auto& [id, session] : requests_.sessions()) {
    engines[id] = engine_status(session);
    const bool asks = std::holds_alternative<LayersPlaced>(session.layers);
    if (session.streaming || asks) out.plans.push_back(plan_status(session));
    out.orphaned += session.info.orphaned;
  }
  add_inputs(out);
  add_requests(out, engines);
  for (auto& [id, engine] : engines) out.engines.push_back(std::move(engine));
  return out;
}

void StatusBuilder::add_requests(ControllerStatus& out, std::map<EngineId, EngineStatus>& engines) {
  const auto add = [&](EngineStatus& engine, const RequestStatus& r) {
    add_wait(r.goals, r.waits_for, engine.service.classes.at(r.goals.slo_class).oldest);
    ++engine.requests;
    out.requests.push_back(r);
  };
  const Waits waits(ground_, out.rotation_inputs);
  for (const auto& [key, request] : requests_.all()) {
    const RequestStatus r = request_status(request, waits);
    EngineStatus& engine = engines[key.engine];
    engine.hbm += r.hbm;
    engine.dram += r.dram;
    add(engine, r);
  }
  for (auto& [id, engine] : engines) {
    const Session& session = requests_.sessions().at(id);
    if (!session.placed) continue;
    for (const PlacedRequest& each : session.placed->all) add(engine, placed_status(session, each));
  }
}

}  // namespace kvd::core
