#include <algorithm>

#include "kvd/core/state.hpp"
#include "planner/policy/pause.hpp"

/// The placement plan in force: when to make a new one, what it changes, and who pauses.
/// Source: OrbitFlow sec. 3.4 and 4.3 (expiry, batch change and mismatch as triggers; pause the
///         largest, resume after an end); kvd/DESIGN.md "Blocks that come and go".
namespace kvd::core {

namespace {

/// Where a rotation policy streams large requests only: layers stream while HBM holds fewer
/// requests than this, because a whole one is then too coarse to rotate. With more, each is small,
/// and the link carries a small part of a step's blocks.
constexpr std::int64_t kFewRequests = 16;
constexpr const char* kFallback = "batch_uniform";

}  // namespace

bool Controller::State::layers_may_stream(const Session& session) const {
  return session.class_id && session.info.streams_layers && placement->traits().streams &&
         session.groups() >= kLeastGroups;
}

bool Controller::State::layers_stream(const Session& session) const {
  if (session.dying || !layers_may_stream(session)) return false;
  if (!rotation->traits().streams_only_large_requests) return true;
  const Bytes limit = hbm_limit(session.info.domain);
  Bytes wanted;
  std::int64_t count = 0;
  bool too_large = false;
  for (const Request* r : session.active) {
    const Bytes needs = session.bytes_for(r->room_to_run());
    wanted += needs;
    ++count;
    too_large = too_large || needs > limit - Bytes(limit.value / kLayerwiseShare);
  }
  return too_large || (count > 0 && limit < Bytes(wanted.value / count) * kFewRequests);
}

// A staging set, the open block of every group, and one to grow into.
Bytes Controller::State::streamed_bytes(const Request& request) const {
  const Session& session = sessions.at(request.key.engine);
  const std::int64_t slots =
      session.blocks_for(request.room_to_run()) + 2 * std::int64_t{session.groups()};
  return std::min(session.bytes_for(request.room_to_run()), session.shape.slot_bytes() * slots);
}

Bytes Controller::State::need_bytes(const Request& request) const {
  const Session& session = sessions.at(request.key.engine);
  if (session.streaming || request.layerwise) return streamed_bytes(request);
  return session.bytes_for(request.room_to_run());
}

// What plans could still make free, less what prompts that come in chunk by chunk will need.
Bytes Controller::State::yieldable(DomainId domain) {
  Bytes sum;
  each_inside_in(domain, [&](Request& r) {
    const Session& session = session_of(r);
    if (!session.responsive || (!session.streaming && !r.layerwise)) return;
    if (r.paused) {
      const std::int64_t open = session.groups();
      sum += session.shape.slot_bytes() * std::max<std::int64_t>(0, r.hbm_slots() - open);
    } else if (r.runs() && !r.leaving && !r.promised) {
      const Bytes more = hbm_bytes(r) - streamed_bytes(r);
      if (session.streaming || more < Bytes(0)) sum += more;
    }
  });
  return sum;
}

std::vector<RequestKey> Controller::State::batch_of(Session& session) {
  std::vector<const Request*> batch;
  each_inside_of(session.id, [&](const Request& r) {
    const bool runs = r.runs() && !r.leaving && !r.promised;
    const bool comes = r.claim != 0 || r.state == RequestState::kSwappingIn;
    if ((runs || comes) && !r.paused && !r.layerwise) batch.push_back(&r);
  });
  std::stable_sort(batch.begin(), batch.end(),
                   [](const auto* a, const auto* b) { return a->arrived < b->arrived; });
  std::vector<RequestKey> keys;
  for (const Request* r : batch) keys.push_back(r->key);
  return keys;
}

void Controller::State::plan_layers(Session& session) {
  LayerPlan& plan = session.plan;
  if (!session.streaming) return;
  std::vector<RequestKey> batch = batch_of(session);
  if (plan.asked) return;
  // Also where nobody could run: what the plan was made for has perhaps changed.
  --plan.steps_left;
  const bool stale = batch != plan.batch || plan.steps_left <= 0 || plan.mismatch;
  std::optional<RequestKey> resuming;
  if (plan.ended_since_pause || batch.empty()) {
    const Request* first = nullptr;
    each_request_of(session.id, [&](const Request& r) {
      if (r.paused && (!first || r.pause_order < first->pause_order)) first = &r;
    });
    if (first) resuming = first->key;
  }
  if (!resuming && (batch.empty() || !stale)) return;
  if (resuming) batch.push_back(*resuming);
  plan.asked_for = std::move(batch);
  plan.resuming = resuming;
  ask_plan(session, tuning.placement.policy);
}

void Controller::State::ask_plan(Session& session, const std::string& policy) {
  LayerPlan& plan = session.plan;
  plan.asked = true;
  plan.policy = policy;
  ++plan.number;
  ++counters.plans;
  PlacementInput input = placement_input(session, plan.asked_for);
  plan.asked_for = std::move(input.requests);
  emit(SolvePlacement{session.id, plan.number, false, policy, std::move(input.snapshot),
                      placement_config()});
}

// Requests that ended meanwhile are dropped from the plan; one for another batch is discarded.
void Controller::State::on_plan(const PlanReady& ready) {
  const auto it = sessions.find(ready.engine);
  if (it == sessions.end() || it->second.dying) return;
  Session& session = it->second;
  if (ready.query) return answer_place(session, ready.decision);
  LayerPlan& plan = session.plan;
  if (!plan.asked || plan.number != ready.number) return;
  plan.asked = false;
  if (!session.streaming) return;
  const auto unknown = [&](const RequestKey& key) {
    return std::find(plan.asked_for.begin(), plan.asked_for.end(), key) == plan.asked_for.end();
  };
  const std::vector<RequestKey> batch = batch_of(session);
  if (std::any_of(batch.begin(), batch.end(), unknown)) return plan_layers(session);
  if (!ready.decision.ok()) {
    note(Note::Level::kWarning, session.id,
         "no placement plan: " + ready.decision.error().message + "; the old one stays");
    plan.batch = plan.asked_for;
    plan.steps_left = tuning.placement.window_min;
    return;
  }
  const planner::PlacementDecision& decision = *ready.decision;
  if (!decision.feasible && plan.resuming && plan.asked_for.size() > 1) {
    plan.ended_since_pause = false;  // it waits for the next one to end
    return;
  }
  const bool too_large =
      !decision.feasible && decision.reason == planner::InfeasibleReason::kMemory;
  if (too_large && plan.policy != kFallback && !placement->traits().counts_staging) {
    // A rule of thumb that forgets about staging: the fastest uniform distance that fits instead.
    return ask_plan(session, kFallback);
  }
  const bool pauses = tuning.placement.pause && placement->traits().pauses;
  if (!decision.feasible && (too_large || pauses) && decision.victim && plan.asked_for.size() > 1) {
    Request* victim = find(session.id, plan.asked_for[*decision.victim].request);
    if (victim) pause(session, *victim);
    return plan_layers(session);
  }
  adopt_plan(session, decision);
}

void Controller::State::pause(Session& session, Request& request) {
  request.paused = true;
  request.pause_order = ++last.pause;
  if (request.runs() && !request.leaving) release_unwritten(session, request);
  drop_claim(request);
  request.away.clear();
  request.distance = 0;
  session.plan.ended_since_pause = false;
  session.plan.batch.clear();
  ++counters.pauses;
}

// The layers themselves change sides at the next step boundaries (layers.cpp).
void Controller::State::adopt_plan(Session& session, const planner::PlacementDecision& decision) {
  LayerPlan& plan = session.plan;
  const PlacementInput before = placement_input(session, plan.asked_for);
  for (std::size_t i = 0; i < plan.asked_for.size() && i < decision.placement.size(); ++i) {
    Request* request = find(session.id, plan.asked_for[i].request);
    if (!request || request->leaving) continue;
    const planner::Candidate& side = decision.placement[i];
    request->paused = false;
    request->away.clear();
    request->distance = static_cast<std::uint32_t>(side.distance.value_or(0));
    if (side.offloaded.empty()) continue;
    request->away.assign(session.groups(), false);
    for (const std::int32_t layer : side.offloaded) {
      request->away[static_cast<std::size_t>(layer - 1)] = true;
    }
  }
  // The one that is left when all others pause, and still too large: no layer of it stays.
  if (decision.placement.empty()) {
    for (const RequestKey& key : plan.asked_for) {
      Request* request = find(session.id, key.request);
      if (!request || request->leaving) continue;
      request->paused = false;
      request->away.assign(session.groups(), true);
      request->distance = 1;
    }
  }
  evict_paused(session, decision, before.snapshot.capacity);
  plan.batch = plan.asked_for;
  plan.adopted = plan.policy;
  plan.steps_left = std::clamp<std::int64_t>(decision.expires_in, 1, tuning.placement.window_max);
  plan.step_s = decision.latency.count();
  plan.stall_s = 0;
  for (const planner::Seconds stall : decision.stalls) plan.stall_s += stall.count();
  plan.gap = plan.step_s > 0 ? 1 - decision.lower_bound.count() / plan.step_s : 0;
  plan.mismatch = false;
  if (plan.resuming) plan.ended_since_pause = true;  // the next paused one may follow
}

// Paused requests keep what nobody needs: their layers leave on demand, the last ones first.
void Controller::State::evict_paused(Session& session, const planner::PlacementDecision& decision,
                                     Blocks capacity) {
  std::vector<Request*> paused;
  std::vector<planner::PausedLayers> layers;
  Blocks theirs;
  each_inside_of(session.id, [&](Request& r) {
    if (!r.paused || r.hbm_slots() == 0) return;
    if (r.away.empty()) r.away.assign(session.groups(), false);
    planner::PausedLayers one{Blocks(r.sealed), {}};
    for (std::uint32_t group = 0; group < session.groups(); ++group) {
      if (!r.away[group]) one.resident.push_back(static_cast<std::int32_t>(group + 1));
    }
    theirs += one.blocks * static_cast<std::int64_t>(one.resident.size());
    paused.push_back(&r);
    layers.push_back(std::move(one));
  });
  const Blocks used = decision.memory.resident + decision.memory.staging_strict;
  const Blocks needed = used - (capacity - theirs);
  if (paused.empty() || needed <= Blocks(0)) return;
  for (const planner::Eviction& eviction : planner::evict_paused(layers, needed)) {
    paused[eviction.request]->away[static_cast<std::size_t>(eviction.layer - 1)] = true;
  }
}

void Controller::State::forget_plan(Session& session) {
  if (session.plan.number == 0) return;
  const std::uint64_t number = session.plan.number;
  session.plan = {};
  session.plan.number = number;
  each_request_of(session.id, [](Request& r) {
    r.paused = false;
    if (r.layerwise) return;
    r.away.clear();
    r.distance = 0;
  });
}

}  // namespace kvd::core
