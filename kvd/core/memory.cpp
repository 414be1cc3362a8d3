#include <algorithm>
#include <utility>

#include "kvd/core/state.hpp"

/// Blocks of requests: who gets free slots, who leaves, and who comes back.
namespace kvd::core {

// For what has no other place: copies of what HBM has make way.
pool::SlotGrant Controller::State::take_dram(const Session& session, std::uint32_t count) {
  pool::SlotGrant grant = tiers.try_take(Tier::kDram, session.taker(), count);
  const Bytes needed = session.shape.slot_bytes() * std::int64_t{count};
  if (grant.code == ErrorCode::kOk || spare_dram(session.info.domain) < needed) return grant;
  drop_copies(session.info.domain, needed);
  return tiers.try_take(Tier::kDram, session.taker(), count);
}

ErrorCode Controller::State::grow(Request& request, Tokens tokens) {
  Session& session = session_of(request);
  const auto wanted = static_cast<std::uint32_t>(session.blocks_for(tokens));
  if (wanted <= request.table.blocks()) return ErrorCode::kOk;
  const std::uint32_t count = (wanted - request.table.blocks()) * session.groups();
  const pool::SlotGrant grant = tiers.take(Tier::kHbm, session.taker(), count);
  if (grant.code != ErrorCode::kOk) return grant.code;
  std::uint32_t next = request.table.size();
  blocks.extend(request.table, session.taker(), count);
  for (const SlotId slot : grant.slots) blocks.place(request.table, next++, Tier::kHbm, slot);
  return ErrorCode::kOk;
}

// A prompt whose layers leave comes in chunk by chunk: what is full of one makes way for the next.
ErrorCode Controller::State::grow_prefill(Request& request) {
  if (request.away.empty()) return grow(request, request.room_to_run());
  constexpr std::int64_t kMostBlocks = 128;  // 2,048 tokens: more than keeps an engine busy
  constexpr std::int64_t kShare = 4;         // the chunk before is still on its way out
  Session& session = session_of(request);
  const Bytes block = session.shape.slot_bytes() * std::int64_t{session.groups()};
  const std::int64_t room = hbm.available(session.info.domain) / (block * kShare);
  std::int64_t more = std::clamp<std::int64_t>(room, 1, kMostBlocks);
  const std::int64_t whole = session.blocks_for(request.room_to_run());
  const std::int64_t begun = request.planned.value / session.shape.block_tokens;
  ErrorCode code = ErrorCode::kOk;
  for (; more > 0; more /= 2) {
    const std::int64_t wanted = std::min(whole, begun + more);
    if (wanted <= request.table.blocks()) return ErrorCode::kOk;
    code = grow(request, Tokens(wanted * session.shape.block_tokens));
    if (code != ErrorCode::kOutOfMemory) break;
  }
  if (code == ErrorCode::kOutOfMemory) session.crowded = true;
  return code;
}

ErrorCode Controller::State::serve_claim(Request& request) {
  if (request.state == RequestState::kRotary) return swap_in(request);
  const ErrorCode code = grow_prefill(request);
  if (code == ErrorCode::kOk) {
    request.state = RequestState::kPrefill;
    request.run_since = now;
  }
  return code;
}

void Controller::State::serve_claims(DomainId domain) {
  const auto found = domains.find(domain);
  if (found == domains.end() || found->second.claims.empty()) return;
  for (const auto& [order, request] : std::map(found->second.claims)) {
    const ErrorCode code = serve_claim(*request);
    const bool soon = code == ErrorCode::kWouldBlock;
    request->awaits_mapping = soon && tiers.mappings().awaited_by(request->key.engine);
    if (code == ErrorCode::kOk) {
      drop_claim(*request);
    } else if (soon && !request->awaits_mapping) {
      return;  // slabs that are being zeroed: whoever comes next would take them
    } else if (!request->awaits_mapping) {
      // Later claims must not overtake for ever. Two kinds of claims may be overtaken: one that
      // waits for a mapping, and one whose slots become free only when later requests have ended.
      if (relieve_class_pressure(*request)) return;
    }
  }
}

// The slab that is emptied with the least ado; a prompt that has begun cannot leave one. False when
// there are bytes enough, but nobody can leave the slabs they are in.
bool Controller::State::relieve_class_pressure(const Request& request) {
  const Session& session = session_of(request);
  const DomainId domain = session.info.domain;
  if (hbm.available(domain) < need_bytes(request)) return true;
  bool pinned = false;
  for (const SlabIndex slab : hbm.foreign_slabs(session.class_id, domain)) {
    std::vector<Request*> inside;
    bool under_way = false, stays = false;
    each_inside_in(domain, [&](Request& r) {
      bool uses = false;
      blocks.each_slot(r.table, Tier::kHbm, [&](SlotId slot) { uses |= slot.slab() == slab; });
      if (!uses) return;
      under_way |= r.leaving || r.promised || !r.runs();
      stays |= r.state == RequestState::kPrefill;
      // One that came in and was paused at once makes no token that it could be kept for.
      const bool may_leave = !r.fresh || (r.paused && dram_takes(r));
      if (r.state == RequestState::kRunning && may_leave) inside.push_back(&r);
    });
    if (under_way) return true;
    pinned = pinned || stays;
    if (stays || inside.empty()) continue;
    for (Request* r : inside) preempt(*r, request.key.engine, Promise::kForSlots);
    return true;
  }
  return !pinned;
}

ErrorCode Controller::State::grow_next(Request& request) {
  const bool prefill = request.state == RequestState::kPrefill && request.planned < request.prompt;
  return prefill ? grow_prefill(request) : grow(request, request.planned + Tokens(1));
}

// What waited for a slab to be mapped takes it at once: until the next step another could.
void Controller::State::feed_starved(Session& session) {
  each_inside_of(session.id, [&](Request& r) {
    if (r.starved && r.runs() && !r.leaving && !r.promised && !r.paused) {
      r.starved = grow_next(r) != ErrorCode::kOk || !stage(session, r);
    }
  });
}

void Controller::State::grow_running(Session& session) {
  Request* hungry = nullptr;
  each_inside_of(session.id, [&](Request& r) {
    r.starved = false;
    if (!r.runs() || r.leaving || r.promised || r.paused) return;
    const ErrorCode code = grow_next(r);
    r.starved = code != ErrorCode::kOk;
    if (code == ErrorCode::kWouldBlock) return;  // the slab is being mapped
    if (r.starved) {
      ++counters.rotation_blocked_growth;
      hungry = &r;
    }
  });
  if (!hungry || incoming(session.info.domain) > Bytes(0)) return;

  session.plan.steps_left = 0;  // what it foresaw did not come

  // Nothing is on its way out: whatever the policy, the latest arrival gives way, or nobody would
  // ever run again (vLLM's rule for a full cache).
  Request* victim = nullptr;
  Request* second = nullptr;  // that could not leave before, or came in and was hungry at once
  std::size_t running = 0;
  each_inside_in(session.info.domain, [&](Request& r) {
    if (!r.runs() || r.paused || !session_of(r).responsive) return;
    ++running;
    if (r.state != RequestState::kRunning || (r.fresh && !r.starved)) return;
    Request*& choice = r.fresh ? second : victim;
    if (!choice || r.arrived >= choice->arrived) choice = &r;
  });
  if (!victim && second && dram_takes(*second)) victim = second;
  if (victim && running > 1) {
    preempt(*victim, session.id, Promise::kForSlots);
  } else if (hungry->state == RequestState::kPrefill && layers_may_stream(session)) {
    // Nobody can leave for this prompt: what it has so far makes way for the rest.
    hungry->away.assign(session.groups(), true);
  }
}

// Blocks for tokens that no iteration was granted. A prompt that has none left has not begun.
void Controller::State::release_unwritten(Session& session, Request& request) {
  const auto kept = static_cast<std::uint32_t>(session.blocks_for(request.planned));
  if (kept >= request.table.blocks()) return;
  release_slots(request, std::move(blocks.truncate(request.table, kept)[0]));
  if (kept > 0) return;
  request.state = RequestState::kWaiting;
  requeue(request);
}

Ticket Controller::State::start(const Session& session, const Request& request,
                                store::Purpose purpose, std::vector<std::uint32_t> places) {
  return transfers.start(blocks, request.table,
                         {.purpose = purpose,
                          .request = request.key,
                          .domain = session.info.domain,
                          .slot_bytes = session.shape.slot_bytes(),
                          .places = std::move(places)});
}

void Controller::State::swap_out(Request& request) {
  Session& session = session_of(request);
  const auto kept = static_cast<std::uint32_t>(session.blocks_for(request.tokens));
  const std::uint32_t count = kept * session.groups();
  std::vector<std::uint32_t> unsynced;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (!blocks.has(request.table, i, Tier::kDram)) unsynced.push_back(i);
  }
  const auto wanted = static_cast<std::uint32_t>(unsynced.size());
  pool::SlotGrant grant;
  if (wanted > 0) grant = take_dram(session, wanted);
  if (grant.code != ErrorCode::kOk) {
    ++counters.rotation_blocked_dram;
    request.leaving = request.forced_out = false;
    request.fresh = true;  // asked again at every step, it would never run
    // Slabs that another domain left empty can be had once they are zeroed.
    tiers.reclaim(Tier::kDram, session.info.domain);
    return;
  }
  // Blocks beyond the last token hold nothing yet, and what is in DRAM already need not move.
  std::vector<SlotId> free = std::move(blocks.truncate(request.table, kept)[0]);
  release_staging(request);
  for (std::uint32_t i = 0; i < count; ++i) {
    if (!blocks.synced(request.table, i)) continue;
    free.push_back(blocks.vacate(request.table, i, Tier::kHbm));
  }
  tiers.free(Tier::kHbm, free);
  for (std::uint32_t i = 0; i < wanted; ++i) {
    blocks.place(request.table, unsynced[i], Tier::kDram, grant.slots[i]);
  }
  request.state = RequestState::kSwappingOut;
  request.out_since = now;
  request.leaving = request.paused = false;
  if (wanted == 0) return finish_out(request, {}, true);
  request.copy = start(session, request, store::Purpose::kRotateOut, std::move(unsynced));
}

ErrorCode Controller::State::swap_in(Request& request) {
  Session& session = session_of(request);
  const std::uint32_t groups = session.groups();
  const auto whole = static_cast<std::uint32_t>(session.blocks_for(request.room_to_run()));
  std::vector<std::uint32_t> wanted;
  wanted.reserve(std::size_t{whole} * groups);
  const std::uint32_t full = full_blocks(request);
  for (std::uint32_t i = 0; i < whole * groups; ++i) {
    const bool streams = !request.away.empty() && request.away[i % groups] && i / groups < full;
    if (!streams) wanted.push_back(i);
  }
  const pool::SlotGrant grant =
      tiers.take(Tier::kHbm, session.taker(), static_cast<std::uint32_t>(wanted.size()));
  if (grant.code != ErrorCode::kOk) return grant.code;

  blocks.extend(request.table, session.taker(), whole * groups - request.table.size());
  std::vector<std::uint32_t> moves;
  moves.reserve(wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    blocks.place(request.table, wanted[i], Tier::kHbm, grant.slots[i]);
    if (blocks.has(request.table, wanted[i], Tier::kDram)) moves.push_back(wanted[i]);
  }
  request.copy = start(session, request, store::Purpose::kRotateIn, std::move(moves));
  request.in_ticket = request.copy;
  request.state = RequestState::kSwappingIn;
  return ErrorCode::kOk;
}

void Controller::State::start_leaving(Session& session) {
  // A copy may read a block only after the iteration that filled it has finished (safety rule 3);
  // those under way end first.
  each_inside_of(session.id, [&](Request& r) {
    if (r.leaving && r.last_iteration <= session.finished && !r.sync && !r.fetch) swap_out(r);
  });
}

void Controller::State::seal_full_blocks(Request& request) {
  const Session& session = session_of(request);
  const std::uint32_t groups = session.groups();
  const std::uint32_t full = full_blocks(request);
  for (std::uint32_t i = request.sealed * groups; i < request.table.size(); ++i) {
    const std::uint32_t block = i / groups;
    if (request.tokens <= Tokens(std::int64_t{block} * session.shape.block_tokens)) break;
    if (!blocks.has(request.table, i, Tier::kHbm)) continue;
    blocks.settle(request.table, i, Tier::kHbm, block < full);
  }
  request.sealed = full;
  if (request.synced < full) session_of(request).ahead.wanting.insert(&request);
}

store::Hold Controller::State::hold_for(const Request& request) const {
  const Session& session = sessions.at(request.key.engine);
  return {.engine = session.id,
          .iteration = request.last_iteration,
          .domain = session.info.domain,
          .slot_bytes = session.shape.slot_bytes()};
}

void Controller::State::release_slots(const Request& request, std::vector<SlotId> hbm_slots) {
  store::Hold hold = hold_for(request);
  hold.hbm = std::move(hbm_slots);
  tiers.hold(std::move(hold));
}

// The slots of a transfer stay until it ends, and until the streams that read the same have.
void Controller::State::abandon(Request& request, Ticket ticket) {
  store::Hold hold = hold_for(request);
  hold.copies = request.streams;
  hold.copies.push_back(ticket);
  const std::vector<std::uint32_t> places = transfers.abandon(ticket);
  if (ticket == request.sync) {
    session_of(request).ahead.under_way -= hold.slot_bytes * std::ssize(places);
  }
  for (const std::uint32_t i : places) {
    hold.hbm.push_back(blocks.vacate(request.table, i, Tier::kHbm));
    hold.dram.push_back(blocks.vacate(request.table, i, Tier::kDram));
  }
  tiers.hold(std::move(hold));
}

void Controller::State::remove(Request& request) {
  Session& session = session_of(request);
  for (const Ticket ticket : {request.copy, request.sync, request.fetch}) {
    if (ticket) abandon(request, ticket);
  }
  auto slots = blocks.truncate(request.table, 0);
  store::Hold streamed = hold_for(request);
  streamed.copies = request.streams;
  streamed.hbm = request.staging.take();
  streamed.dram = std::move(slots[1]);
  tiers.hold(std::move(streamed));
  release_slots(request, std::move(slots[0]));
  session.plan.ended_since_pause = true;
  still.erase(session.info.domain);
  delist(request);
  requests.erase(RequestKey(request.key));
}

}  // namespace kvd::core
