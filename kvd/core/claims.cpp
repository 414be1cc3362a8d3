#include "kvd/core/claims.hpp"

#include <algorithm>
#include <map>

namespace kvd::core {

void Claims::serve_everyone() {
  regions_.serve();
  for (const auto& [domain, kept] : requests_.domains()) serve(domain);
}

void Claims::serve(DomainId domain) {
  const auto found = requests_.domains().find(domain);
  if (found == requests_.domains().end() || found->second.claims.empty()) return;
  for (const auto& [order, request] : std::map(found->second.claims)) {
    const ErrorCode code = serve_claim(*request);
    const bool soon = code == ErrorCode::kWouldBlock;
    request->awaits_mapping = soon && store_.tiers.mappings().awaited_by(request->key.engine);
    if (code == ErrorCode::kOk) {
      requests_.drop_claim(*request);
    } else if (soon && !request->awaits_mapping) {
      return;  // slabs that are being zeroed: whoever comes next would take them
    } else if (!request->awaits_mapping) {
      // Later claims must not overtake for ever. Two kinds of claims may be overtaken: one that
      // waits for a mapping, and one whose slots become free only when later requests have ended.
      if (relieve_class_pressure(*request)) return;
    }
  }
}

ErrorCode Claims::serve_claim(Request& request) {
  if (request.place == Location::kParked) return swaps_.swap_in(request);
  const ErrorCode code = grow_prefill(request);
  if (code == ErrorCode::kOk) {
    request.place = Location::kIn;
    request.lift(Verdict::kHeldBack);
    request.times.run_since = context_.now;
  }
  return code;
}

// The slab that is emptied with the least ado; a prompt that has begun cannot leave one. False when
// there are bytes enough, but nobody can leave the slabs they are in.
bool Claims::relieve_class_pressure(const Request& request) {
  const Session& session = requests_.session_of(request);
  const DomainId domain = session.info.domain;
  if (store_.hbm.available(domain) < needs_.to_run(request)) return true;
  bool pinned = false;
  for (const SlabIndex slab : store_.hbm.foreign_slabs(session.class_id, domain)) {
    std::vector<Request*> inside;
    bool under_way = false, stays = false;
    requests_.each_inside_in(domain, [&](Request& r) {
      bool uses = false;
      store_.blocks.each_slot(r.table, Tier::kHbm,
                              [&](SlotId slot) { uses |= slot.slab() == slab; });
      if (!uses) return;
      under_way |= r.leaving || r.promised || !r.runs();
      stays |= r.prefills();
      // One that came in and was paused at once makes no token that it could be kept for.
      const bool may_leave = !r.fresh || (r.paused() && copies_.takes(r));
      if (r.decodes() && may_leave) inside.push_back(&r);
    });
    if (under_way) return true;
    pinned = pinned || stays;
    if (stays || inside.empty()) continue;
    for (Request* r : inside) promises_.preempt(*r, request.key.engine, Promise::kForSlots);
    return true;
  }
  return !pinned;
}

// A prompt whose layers leave comes in chunk by chunk: what is full of one makes way for the next.
ErrorCode Claims::grow_prefill(Request& request) {
  if (request.layers.away.empty()) return memory_.grow(request, request.room_to_run());
  constexpr std::int64_t kMostBlocks = 128;  // 2,048 tokens: more than keeps an engine busy
  constexpr std::int64_t kShare = 4;         // the chunk before is still on its way out
  Session& session = requests_.session_of(request);
  const Bytes block = session.shape.slot_bytes() * std::int64_t{session.groups()};
  const std::int64_t room = store_.hbm.available(session.info.domain) / (block * kShare);
  std::int64_t more = std::clamp<std::int64_t>(room, 1, kMostBlocks);
  const std::int64_t whole = session.blocks_for(request.room_to_run());
  const std::int64_t begun = request.progress.planned.value / session.shape.block_tokens;
  ErrorCode code = ErrorCode::kOk;
  for (; more > 0; more /= 2) {
    const std::int64_t wanted = std::min(whole, begun + more);
    if (wanted <= request.table.blocks()) return ErrorCode::kOk;
    code = memory_.grow(request, Tokens(wanted * session.shape.block_tokens));
    if (code != ErrorCode::kOutOfMemory) break;
  }
  if (code == ErrorCode::kOutOfMemory) session.crowded = true;
  return code;
}

ErrorCode Claims::grow_next(Request& request) {
  const bool prefill = request.prefills() && request.progress.planned < request.goal.prompt;
  return prefill ? grow_prefill(request)
                 : memory_.grow(request, request.progress.planned + Tokens(1));
}

void Claims::feed_starved(Session& session) {
  requests_.each_inside_of(session.id, [&](Request& r) {
    if (r.starved && r.runs() && !r.leaving && !r.promised && !r.paused()) {
      r.starved = grow_next(r) != ErrorCode::kOk || !streams_.stage(session, r);
    }
  });
}

void Claims::grow_running(Session& session) {
  Request* hungry = nullptr;
  requests_.each_inside_of(session.id, [&](Request& r) {
    r.starved = false;
    if (!r.runs() || r.leaving || r.promised || r.paused()) return;
    const ErrorCode code = grow_next(r);
    r.starved = code != ErrorCode::kOk;
    if (code == ErrorCode::kWouldBlock) return;  // the slab is being mapped
    if (r.starved) {
      ++context_.counters.rotation_blocked_growth;
      hungry = &r;
    }
  });
  if (!hungry || supply_.incoming(session.info.domain) > Bytes(0)) return;

  session.plan.steps_left = 0;  // what it foresaw did not come

  // Nothing is on its way out: whatever the policy, the latest arrival gives way, or nobody would
  // ever run again (vLLM's rule for a full cache).
  Request* victim = nullptr;
  Request* second = nullptr;  // that could not leave before, or came in and was hungry at once
  std::size_t running = 0;
  requests_.each_inside_in(session.info.domain, [&](Request& r) {
    if (!r.runs() || r.paused() || !requests_.session_of(r).life.responsive) return;
    ++running;
    if (!r.decodes() || (r.fresh && !r.starved)) return;
    Request*& choice = r.fresh ? second : victim;
    if (!choice || r.times.arrived >= choice->times.arrived) choice = &r;
  });
  if (!victim && second && copies_.takes(*second)) victim = second;
  if (victim && running > 1) {
    promises_.preempt(*victim, session.id, Promise::kForSlots);
  } else if (hungry->prefills() && needs_.layers_may_stream(session)) {
    // Nobody can leave for this prompt: what it has so far makes way for the rest.
    hungry->layers.away.assign(session.groups(), true);
  }
}

}  // namespace kvd::core
