#include "kvd/core/deciding/layer_plans.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <utility>

#include "planner/policy/placement/pause.hpp"

namespace kvd::core {

namespace {

constexpr const char* kFallback = "batch_uniform";
/// CPU time of a plan for an engine that places its blocks: any engine may ask, and others wait for
/// the solver.
constexpr Nanoseconds kLayersTime = std::chrono::milliseconds(50);

void take_figures(LayerPlan& plan, const planner::PlacementDecision& decision) {
  plan.step_s = decision.latency.count();
  plan.stall_s = 0;
  for (const planner::Seconds stall : decision.stalls) plan.stall_s += stall.count();
  plan.gap = plan.step_s > 0 ? 1 - decision.lower_bound.count() / plan.step_s : 0;
}

/// What the policy is asked, and of whom: LayersPlaced::asked_for.
planner::PlacementSnapshot ask_layers(LayersPlaced& own, const PlanLayers& asked,
                                      double fetch_rate) {
  planner::PlacementSnapshot snapshot;
  snapshot.model.compute.assign(asked.layers,
                                planner::Seconds(asked.step) / static_cast<double>(asked.layers));
  snapshot.model.per_block =
      planner::Seconds(static_cast<double>(asked.block_bytes.value) / fetch_rate);
  snapshot.capacity = asked.capacity;
  snapshot.block_tokens = asked.block_tokens;
  snapshot.open_blocks = true;
  std::map<RequestId, std::uint32_t> before;
  if (own.layers == asked.layers) {
    for (const PlaceReply::Entry& entry : own.plan) before[entry.request] = entry.distance;
  }
  own.layers = asked.layers;
  own.asked_for.clear();
  for (const PlanLayers::Request& each : asked.requests) {
    planner::PlacementRequest& one = snapshot.requests.emplace_back();
    one.tokens = each.tokens;
    one.blocks =
        Blocks((each.tokens + asked.block_tokens - Tokens(1)).value / asked.block_tokens.value);
    own.asked_for.push_back({each.request, 0, one.blocks});
    const auto known = before.find(each.request);
    if (known == before.end()) continue;
    one.current.emplace();
    if (known->second == 0) continue;
    one.current = planner::distance_layers(static_cast<std::int32_t>(asked.layers),
                                           static_cast<std::int32_t>(known->second));
  }
  return snapshot;
}

}  // namespace

void LayerPlans::renew(Session& session) {
  LayerPlan& plan = session.plan;
  if (!session.streaming) return;
  std::vector<RequestKey> batch = batch_of(session);
  if (plan.asked) return;
  // Counts even where nobody could run: what the plan was made for may have changed.
  --plan.steps_left;
  // Within one instant nothing has changed: an engine that is woken by its plan and can run nobody
  // would otherwise ask for the same plan for ever.
  const bool worn = plan.steps_left <= 0 && context_.now > plan.adopted_at;
  const bool stale = batch != plan.batch || worn || plan.mismatch;
  std::optional<RequestKey> resuming;
  if (plan.ended_since_pause || batch.empty()) {
    const Request* first = nullptr;
    requests_.each_request_of(session.id, [&](const Request& r) {
      if (r.paused() && (!first || r.order.paused < first->order.paused)) first = &r;
    });
    if (first) resuming = first->key;
  }
  if (!resuming && (batch.empty() || !stale)) return;
  if (resuming) batch.push_back(*resuming);
  plan.asked_for = std::move(batch);
  plan.resuming = resuming;
  ask_plan(session, context_.tuning.placement.policy);
}

std::vector<RequestKey> LayerPlans::batch_of(Session& session) {
  std::vector<const Request*> batch;
  requests_.each_inside_of(session.id, [&](const Request& r) {
    const bool runs = r.runs() && !r.leaving && !r.promised;
    const bool comes = r.order.claim != 0 || r.place == Location::kComing;
    const bool stays = !r.paused() && r.verdict != Verdict::kHopeless;
    if ((runs || comes) && stays && !r.layerwise) batch.push_back(&r);
  });
  std::stable_sort(batch.begin(), batch.end(), [](const auto* a, const auto* b) {
    return a->times.arrived < b->times.arrived;
  });
  std::vector<RequestKey> keys;
  keys.reserve(batch.size());
  for (const Request* r : batch) keys.push_back(r->key);
  return keys;
}

void LayerPlans::ask_plan(Session& session, const std::string& policy) {
  LayerPlan& plan = session.plan;
  plan.asked = true;
  plan.policy = policy;
  ++plan.number;
  ++context_.counters.plans;
  PlacementInput input = placement_input(session, plan.asked_for);
  plan.asked_for = std::move(input.requests);
  context_.emit(SolvePlacement{session.id, plan.number, false, policy, std::move(input.snapshot),
                               placement_config()});
}

// Requests that ended meanwhile are dropped from the plan; one for another batch is discarded.
void LayerPlans::on_plan(const PlanReady& ready) {
  const auto it = requests_.sessions().find(ready.engine);
  if (it == requests_.sessions().end() || it->second.life.dying) return;
  Session& session = it->second;
  if (ready.query) return answer_place(session, ready.decision);
  LayerPlan& plan = session.plan;
  if (!plan.asked || plan.number != ready.number) return;
  plan.asked = false;
  if (auto* own = std::get_if<LayersPlaced>(&session.layers)) {
    return adopt_layers(session, *own, ready.decision);
  }
  if (!session.streaming) return;
  const auto unknown = [&](const RequestKey& key) {
    return std::find(plan.asked_for.begin(), plan.asked_for.end(), key) == plan.asked_for.end();
  };
  const std::vector<RequestKey> batch = batch_of(session);
  if (std::any_of(batch.begin(), batch.end(), unknown)) return renew(session);
  if (!ready.decision.ok()) {
    context_.note(Note::Level::kWarning, session.id,
                  "no placement plan: " + ready.decision.error().message + "; the old one stays");
    plan.batch = plan.asked_for;
    plan.steps_left = context_.tuning.placement.window_min;
    return;
  }
  const planner::PlacementDecision& decision = *ready.decision;
  if (!decision.feasible && plan.resuming && plan.asked_for.size() > 1) {
    plan.ended_since_pause = false;  // it waits for the next end
    return;
  }
  const bool too_large =
      !decision.feasible && decision.reason == planner::InfeasibleReason::kMemory;
  if (too_large && plan.policy != kFallback && !context_.placement->traits().counts_staging) {
    // The policy's rule of thumb forgets about staging, so the fastest uniform distance that fits
    // takes its place.
    return ask_plan(session, kFallback);
  }
  const bool pauses = context_.tuning.placement.pause && context_.placement->traits().pauses;
  if (!decision.feasible && (too_large || pauses) && decision.victim && plan.asked_for.size() > 1) {
    Request* victim = requests_.find(session.id, plan.asked_for[*decision.victim].request);
    if (victim) pause(session, *victim);
    return renew(session);
  }
  adopt_plan(session, decision);
}

// The layers themselves change sides at the next step boundaries (streams.hpp).
void LayerPlans::adopt_plan(Session& session, const planner::PlacementDecision& decision) {
  LayerPlan& plan = session.plan;
  const PlacementInput before = placement_input(session, plan.asked_for);
  for (std::size_t i = 0; i < plan.asked_for.size() && i < decision.placement.size(); ++i) {
    Request* request = requests_.find(session.id, plan.asked_for[i].request);
    if (!request || request->leaving) continue;
    const planner::Candidate& side = decision.placement[i];
    request->lift(Verdict::kPaused);
    request->layers.away.clear();
    request->layers.distance = static_cast<std::uint32_t>(side.distance.value_or(0));
    if (side.offloaded.empty()) continue;
    request->layers.away.assign(session.groups(), false);
    for (const std::int32_t layer : side.offloaded) send_away(session, *request, layer);
  }
  // The batch is one request, left when all others pause, and still too large: none of its layers
  // stays.
  if (decision.placement.empty()) {
    for (const RequestKey& key : plan.asked_for) {
      Request* request = requests_.find(session.id, key.request);
      if (!request || request->leaving) continue;
      request->lift(Verdict::kPaused);
      request->layers.away.assign(session.groups(), true);
      request->layers.distance = 1;
    }
  }
  evict_paused(session, decision, before.snapshot.capacity);
  plan.batch = plan.asked_for;
  plan.adopted = plan.policy;
  plan.adopted_at = context_.now;
  plan.steps_left =
      std::clamp<std::int64_t>(decision.expires_in, 1, context_.tuning.placement.window_max);
  take_figures(plan, decision);
  plan.mismatch = false;
  if (plan.resuming) plan.ended_since_pause = true;  // the next paused one may follow
}

void LayerPlans::pause(Session& session, Request& request) {
  request.lift(Verdict::kHeldBack);
  // A request that a command keeps out, or that ends, has no seat to keep.
  if (request.verdict == Verdict::kNone) request.verdict = Verdict::kPaused;
  request.order.paused = ++last_pause_;
  if (request.runs() && !request.leaving) memory_.release_unwritten(session, request);
  requests_.drop_claim(request);
  request.layers.away.clear();
  request.layers.distance = 0;
  session.plan.ended_since_pause = false;
  session.plan.batch.clear();
  ++context_.counters.pauses;
}

// Paused requests keep what nobody needs: their layers leave on demand, the last ones first.
void LayerPlans::evict_paused(Session& session, const planner::PlacementDecision& decision,
                              Blocks capacity) {
  std::vector<Request*> paused;
  std::vector<planner::PausedLayers> layers;
  Blocks theirs;
  requests_.each_inside_of(session.id, [&](Request& r) {
    if (!r.paused() || r.hbm_slots() == 0) return;
    if (r.layers.away.empty()) r.layers.away.assign(session.groups(), false);
    planner::PausedLayers one{Blocks(r.sealed), {}};
    for (std::uint32_t group = 0; group < session.shape.rank_groups(); ++group) {
      if (!r.layers.away[group]) one.resident.push_back(static_cast<std::int32_t>(group + 1));
    }
    theirs += one.blocks * static_cast<std::int64_t>(one.resident.size());
    paused.push_back(&r);
    layers.push_back(std::move(one));
  });
  const Blocks used = decision.memory.resident + decision.memory.staging_strict;
  const Blocks needed = used - (capacity - theirs);
  if (paused.empty() || needed <= Blocks(0)) return;
  for (const planner::Eviction& eviction : planner::evict_paused(layers, needed)) {
    send_away(session, *paused[eviction.request], eviction.layer);
  }
}

// The layer leaves on all ranks.
void LayerPlans::send_away(const Session& session, Request& request, std::int32_t layer) {
  for (auto group = static_cast<std::uint32_t>(layer - 1); group < session.groups();
       group += session.shape.rank_groups()) {
    request.layers.away[group] = true;
  }
}

void LayerPlans::forget(Session& session) {
  if (session.plan.number == 0) return;
  const std::uint64_t number = session.plan.number;
  session.plan = {};
  session.plan.number = number;
  requests_.each_request_of(session.id, [](Request& r) {
    r.lift(Verdict::kPaused);
    // A prompt that starves for its next block goes on chunk by chunk (Claims::make_way).
    if (r.layerwise || (r.prefills() && r.starved)) return;
    r.layers.away.clear();
    r.layers.distance = 0;
  });
}

// The solver solves it, as it does plans: the control thread never waits for it.
void LayerPlans::on_place(const Command& command, const Place& place) {
  Session& session = requests_.sessions().at(command.engine);
  if (!session.class_id) {
    context_.refuse(command, ErrorCode::kInvalidArgument,
                    "a session without a model class has no blocks");
    return;
  }
  if (std::holds_alternative<PendingPlace>(session.layers)) {
    context_.refuse(command, ErrorCode::kWouldBlock,
                    "the answer to the last place is being worked out: wait");
    return;
  }
  std::vector<RequestKey> keys;
  std::set<RequestId> seen;
  for (const RequestId id : place.requests) {
    const std::string name = "request " + std::to_string(id.value);
    if (!requests_.find(session.id, id)) {
      context_.refuse(command, ErrorCode::kNotFound, name + " is not this session's");
      return;
    }
    if (!seen.insert(id).second) {
      context_.refuse(command, ErrorCode::kInvalidArgument,
                      name + " is named twice: name each once");
      return;
    }
    keys.push_back({session.id, id});
  }
  if (place.requests.empty()) {
    requests_.each_request_of(session.id, [&](Request& r) {
      if (r.runs()) keys.push_back(r.key);
    });
  }
  PlacementInput input = placement_input(session, keys);
  if (keys.empty()) {
    PlaceReply out;
    out.budget = input.snapshot.capacity * session.shape.ranks;
    context_.reply(command, std::move(out));
    return;
  }
  context_.emit(SolvePlacement{session.id, 0, true, context_.tuning.placement.policy,
                               input.snapshot, placement_config()});
  session.layers =
      PendingPlace{command.reply_to, context_.tuning.placement.policy, std::move(input)};
}

void LayerPlans::on_layers(const Command& command, const PlanLayers& asked) {
  Session& session = requests_.sessions().at(command.engine);
  if (session.class_id) {
    context_.refuse(command, ErrorCode::kInvalidArgument,
                    "kvd places the layers of a session with a model class: attach without one");
    return;
  }
  std::set<RequestId> named;
  for (const PlanLayers::Request& each : asked.requests) {
    if (named.insert(each.request).second) continue;
    context_.refuse(
        command, ErrorCode::kInvalidArgument,
        "request " + std::to_string(each.request.value) + " is named twice: name each once");
    return;
  }
  auto* const before = std::get_if<LayersPlaced>(&session.layers);
  LayersPlaced& own = before ? *before : session.layers.emplace<LayersPlaced>();
  std::erase_if(own.plan, [&](const auto& entry) { return !named.contains(entry.request); });
  context_.reply(command, PlaceReply{own.plan, asked.capacity});
  LayerPlan& plan = session.plan;
  if (own.plan.empty()) plan.adopted.clear();
  if (plan.asked || asked.requests.empty()) return;
  plan.asked = true;
  plan.policy = context_.tuning.placement.policy;
  ++plan.number;
  ++context_.counters.plans;
  planner::PlacementConfig config = placement_config();
  config.budget_time = kLayersTime;
  const double rate = knowledge_.fetch_rate(session.info.devices.first());
  context_.emit(SolvePlacement{session.id, plan.number, false, plan.policy,
                               ask_layers(own, asked, rate), config});
}

// A batch that does not fit has no plan: the engine goes by its own rule.
void LayerPlans::adopt_layers(Session& session, LayersPlaced& own,
                              const Result<planner::PlacementDecision>& decision) {
  LayerPlan& plan = session.plan;
  own.plan.clear();
  plan.adopted.clear();
  if (!decision.ok()) {
    context_.note(Note::Level::kWarning, session.id,
                  "no placement plan: " + decision.error().message);
    return;
  }
  if (!decision->feasible) return;
  const auto layers = std::int64_t{own.layers};
  own.plan = std::move(own.asked_for);
  for (std::size_t i = 0; i < own.plan.size() && i < decision->placement.size(); ++i) {
    const planner::Candidate& placed = decision->placement[i];
    own.plan[i].distance = static_cast<std::uint32_t>(placed.distance.value_or(0));
    const auto resident = layers - static_cast<std::int64_t>(placed.offloaded.size());
    own.plan[i].resident = own.plan[i].resident * resident;
  }
  plan.adopted = plan.policy;
  plan.steps_left = decision->expires_in;
  take_figures(plan, *decision);
}

void LayerPlans::answer_place(Session& session,
                              const Result<planner::PlacementDecision>& decision) {
  auto* const pending = std::get_if<PendingPlace>(&session.layers);
  if (!pending) return;
  const PendingPlace place = std::move(*pending);
  session.layers = {};
  const auto answer = [&](decltype(Reply::body) body) {
    context_.emit(Reply{session.id, place.reply_to, std::move(body)});
  };
  if (!decision.ok()) return answer(decision.error());
  const PlacementInput& input = place.input;
  PlaceReply out;
  const std::int64_t ranks = session.shape.ranks;
  out.budget = input.snapshot.capacity * ranks;
  const auto layers = static_cast<std::int64_t>(input.snapshot.model.layers());
  const bool late_only = !decision->feasible && !decision->placement.empty() &&
                         decision->reason == planner::InfeasibleReason::kSlo;
  if (!decision->feasible && !late_only) {
    std::string message = "the batch does not fit the " + std::to_string(out.budget.value) +
                          " blocks in HBM that can be had under placement policy \"" +
                          place.policy + "\": place fewer requests";
    if (decision->victim) {
      message += ", first without request " +
                 std::to_string(input.requests[*decision->victim].request.value);
    }
    return answer(make_error(ErrorCode::kInfeasible, std::move(message)));
  }
  for (std::size_t i = 0; i < input.requests.size(); ++i) {
    const auto& placed = decision->placement[i];
    const auto resident = layers - static_cast<std::int64_t>(placed.offloaded.size());
    out.entries.push_back({input.requests[i].request,
                           static_cast<std::uint32_t>(placed.distance.value_or(0)),
                           input.snapshot.requests[i].blocks * (resident * ranks)});
  }
  answer(std::move(out));
}

// Until a step has been measured it is taken to last as long as its goal allows.
PlacementInput LayerPlans::placement_input(Session& session, const std::vector<RequestKey>& keys) {
  PlacementInput input;
  auto& snapshot = input.snapshot;
  Nanoseconds step = Nanoseconds::max();
  Tokens tokens;
  for (const RequestKey& key : keys) {
    Request* const found = requests_.find(key.engine, key.request);
    if (!found) continue;
    Request& r = *found;
    input.requests.push_back(key);
    step = std::min(step, r.goal.slo.tbt);
    planner::PlacementRequest one;
    one.tokens = r.room_to_run();
    one.blocks = Blocks(session.blocks_for(*one.tokens));
    one.slo = planner::Seconds(r.goal.slo.tbt);
    one.deposit = context_.tuning.placement.deposit ? knowledge_.saved_up(r) : 0;
    if (!r.layers.away.empty()) one.current = offloaded_layers(r);
    tokens += *one.tokens;
    snapshot.requests.push_back(std::move(one));
  }
  const planner::Seconds whole =
      session.costs.compute.measured()
          ? planner::Seconds(
                std::max(1e-6, session.costs.compute.at(static_cast<double>(tokens.value))))
          : planner::Seconds(step);
  const std::uint32_t layers = session.shape.rank_groups();
  snapshot.model.compute.assign(layers, whole / static_cast<double>(layers));
  snapshot.model.per_block = fetch_time(session);
  snapshot.capacity = room_for(session, keys);
  snapshot.block_tokens = Tokens(session.shape.block_tokens);
  snapshot.open_blocks = true;
  return input;
}

// The time for a layer's block of all ranks: devices fetch side by side.
planner::Seconds LayerPlans::fetch_time(const Session& session) {
  planner::Seconds longest{0};
  for (const DeviceId device : session.devices().all()) {
    const std::int64_t ranks = session.info.devices.ranks_on(device, session.shape.ranks);
    const auto bytes = static_cast<double>((session.shape.slot_bytes() * ranks).value);
    longest = std::max(longest, planner::Seconds(bytes / knowledge_.fetch_rate(device)));
  }
  return longest;
}

// Blocks of a layer, each of all ranks, that every device has room for with all of these requests
// out. Paused ones make way but for their open blocks.
Blocks LayerPlans::room_for(Session& session, const std::vector<RequestKey>& keys) {
  const Bytes slot = session.shape.slot_bytes();
  std::int64_t least = INT64_MAX;
  for (const DeviceId device : session.devices().all()) {
    Bytes bytes = store_.cache.available(session.info.domain, Tier::kHbm, device);
    for (const RequestKey& key : keys) {
      const Request* const r = requests_.find(key.engine, key.request);
      if (r) bytes += memory_.hbm_bytes(*r, device);
    }
    requests_.each_request_of(session.id, [&](const Request& r) {
      if (!r.paused() || std::find(keys.begin(), keys.end(), r.key) != keys.end()) return;
      const Bytes open = slot * std::int64_t{session.groups_on(device)};
      bytes += std::max(Bytes(0), memory_.hbm_bytes(r, device) - open);
    });
    const std::int64_t ranks = session.info.devices.ranks_on(device, session.shape.ranks);
    least = std::min(least, std::max(Bytes(0), bytes) / (slot * ranks));
  }
  return Blocks(least);
}

// Lists the layers that the first rank has away: all ranks have the same away.
std::vector<std::int32_t> LayerPlans::offloaded_layers(const Request& request) {
  std::vector<std::int32_t> layers;
  const std::uint32_t groups = request.session->shape.rank_groups();
  for (std::uint32_t group = 0; group < groups; ++group) {
    if (request.layers.away[group]) layers.push_back(static_cast<std::int32_t>(group + 1));
  }
  return layers;
}

planner::PlacementConfig LayerPlans::placement_config() const {
  planner::PlacementConfig out;
  out.alpha = context_.tuning.placement.alpha;
  out.window_min = context_.tuning.placement.window_min;
  out.window_max = context_.tuning.placement.window_max;
  out.budget_nodes = kPlaceNodes;
  return out;
}

}  // namespace kvd::core
