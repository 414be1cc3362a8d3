#include <algorithm>
#include <utility>

#include "kvd/core/state.hpp"

/// Blocks of requests: who gets free slots, who leaves, and who comes back.
namespace kvd::core {

pool::SlotGrant Controller::State::take_hbm(Session& session, std::uint32_t count) {
  pool::SlotGrant grant =
      hbm.allocate({session.class_id, session.info.domain, session.id, count, &session.mapped});
  session.maps = !grant.to_map.empty();
  for (const SlabIndex slab : grant.to_map) {
    if (session.sent[slab.value]) continue;
    session.sent[slab.value] = true;
    hbm.set_mapped(slab, session.id, true);
    emit(SendSlab{session.id, slab, RegionId(0), 0, 0});
  }
  if (grant.code != ErrorCode::kOk && grant.to_map.empty()) {
    // Slabs that another domain left empty can be had once they are zeroed.
    hbm.reclaim_empty_slabs(session.info.domain);
    scrub_dirty_slabs();
  }
  return grant;
}

// For what has no other place: copies of what HBM has make way.
pool::SlotGrant Controller::State::take_dram(const Session& session, std::uint32_t count) {
  const pool::SlotRequest ask{session.class_id, session.info.domain, session.id, count, nullptr};
  pool::SlotGrant grant = dram.allocate(ask);
  const Bytes needed = session.shape.slot_bytes() * std::int64_t{count};
  if (grant.code == ErrorCode::kOk || spare_dram(session.info.domain) < needed) return grant;
  drop_copies(session.info.domain, needed);
  return dram.allocate(ask);
}

ErrorCode Controller::State::grow(Request& request, Tokens tokens) {
  Session& session = session_of(request);
  const auto wanted = static_cast<std::uint32_t>(session.blocks_for(tokens));
  if (wanted <= request.blocks) return ErrorCode::kOk;
  const std::uint32_t count = (wanted - request.blocks) * session.groups();
  const pool::SlotGrant grant = take_hbm(session, count);
  if (grant.code != ErrorCode::kOk) return grant.code;
  for (const SlotId slot : grant.slots) request.places.push_back({slot, SlotId()});
  request.blocks = wanted;
  request.hbm_slots += count;
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
  std::int64_t blocks = std::clamp<std::int64_t>(room, 1, kMostBlocks);
  const std::int64_t whole = session.blocks_for(request.room_to_run());
  const std::int64_t begun = request.planned.value / session.shape.block_tokens;
  ErrorCode code = ErrorCode::kOk;
  for (; blocks > 0; blocks /= 2) {
    const std::int64_t wanted = std::min(whole, begun + blocks);
    if (wanted <= request.blocks) return ErrorCode::kOk;
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
    request->awaits_mapping = soon && session_of(*request).maps;
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
      const bool uses = std::any_of(r.places.begin(), r.places.end(), [&](const BlockPlace& p) {
        return !p.hbm.none() && p.hbm.slab() == slab;
      });
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
  if (kept >= request.blocks) return;
  const auto first = request.places.begin() + std::ptrdiff_t{kept} * session.groups();
  std::vector<SlotId> slots;
  for (auto place = first; place != request.places.end(); ++place) slots.push_back(place->hbm);
  request.places.erase(first, request.places.end());
  request.blocks = kept;
  release_slots(request, std::move(slots));
  recount(request);
  if (kept > 0) return;
  request.state = RequestState::kWaiting;
  requeue(request);
}

void Controller::State::swap_out(Request& request) {
  Session& session = session_of(request);
  const Bytes slot_bytes = session.shape.slot_bytes();
  const auto kept = static_cast<std::uint32_t>(session.blocks_for(request.tokens));
  const std::uint32_t count = kept * session.groups();
  std::vector<std::uint32_t> unsynced;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (request.places[i].dram.none()) unsynced.push_back(i);
  }
  const auto wanted = static_cast<std::uint32_t>(unsynced.size());
  pool::SlotGrant grant;
  if (wanted > 0) grant = take_dram(session, wanted);
  if (grant.code != ErrorCode::kOk) {
    ++counters.rotation_blocked_dram;
    request.leaving = request.forced_out = false;
    request.fresh = true;  // asked again at every step, it would never run
    // Slabs that another domain left empty can be had once they are zeroed.
    dram.reclaim_empty_slabs(session.info.domain);
    scrub_dirty_slabs();
    return;
  }
  // Blocks beyond the last token hold nothing yet, and what is in DRAM already need not move.
  std::vector<SlotId> free;
  for (std::size_t i = count; i < request.places.size(); ++i) free.push_back(request.places[i].hbm);
  request.places.resize(count);
  request.blocks = kept;
  release_staging(request);
  for (BlockPlace& place : request.places) {
    if (synced(place)) free.push_back(std::exchange(place.hbm, SlotId()));
  }
  hbm.release(free);

  Copy copy{Copy::Kind::kOut, request.key, session.info.domain, slot_bytes};
  for (std::uint32_t i = 0; i < wanted; ++i) {
    BlockPlace& place = request.places[unsynced[i]];
    place.dram = grant.slots[i];
    copy.pairs.push_back({place.hbm, place.dram});
  }
  copy.places = std::move(unsynced);
  recount(request);
  request.state = RequestState::kSwappingOut;
  request.out_since = now;
  request.leaving = request.paused = false;
  if (copy.pairs.empty()) return finish_out(copy, true);
  const Ticket ticket = next_ticket();
  emit(CopySlots{ticket, session.id, false, slot_bytes, copy.pairs});
  copies.emplace(ticket, std::move(copy));
  request.copy = ticket;
}

ErrorCode Controller::State::swap_in(Request& request) {
  Session& session = session_of(request);
  const std::uint32_t groups = session.groups();
  const auto blocks = static_cast<std::uint32_t>(session.blocks_for(request.room_to_run()));
  std::vector<std::uint32_t> wanted;
  wanted.reserve(std::size_t{blocks} * groups);
  const std::uint32_t full = full_blocks(request);
  for (std::uint32_t i = 0; i < blocks * groups; ++i) {
    const bool streams = !request.away.empty() && request.away[i % groups] && i / groups < full;
    if (!streams) wanted.push_back(i);
  }
  const pool::SlotGrant grant = take_hbm(session, static_cast<std::uint32_t>(wanted.size()));
  if (grant.code != ErrorCode::kOk) return grant.code;

  Copy copy{Copy::Kind::kIn, request.key, session.info.domain, session.shape.slot_bytes()};
  request.places.resize(std::size_t{blocks} * groups);
  request.blocks = blocks;
  copy.pairs.reserve(wanted.size());
  copy.places.reserve(wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    BlockPlace& place = request.places[wanted[i]];
    place.hbm = grant.slots[i];
    if (place.dram.none()) continue;
    copy.pairs.push_back({place.hbm, place.dram});
    copy.places.push_back(wanted[i]);
  }
  recount(request);
  const Ticket ticket = next_ticket();
  emit(CopySlots{ticket, session.id, true, copy.slot_bytes, copy.pairs});
  copies.emplace(ticket, std::move(copy));
  request.copy = ticket;
  request.in_ticket = ticket;
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
  for (std::size_t i = std::size_t{request.sealed} * groups; i < request.places.size(); ++i) {
    const auto block = static_cast<std::int64_t>(i / groups);
    if (request.tokens <= Tokens(block * session.shape.block_tokens)) break;
    const SlotId slot = request.places[i].hbm;
    if (slot.none()) continue;
    const pool::SlotState state = hbm.state(slot);
    if (block < full && state != pool::SlotState::kSealed) hbm.seal(slot);
    if (block >= full && state == pool::SlotState::kFilling) hbm.mark_open(slot);
  }
  request.sealed = full;
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
  holds.add(std::move(hold));
}

void Controller::State::remove(Request& request) {
  Session& session = session_of(request);
  for (const Ticket ticket : {request.copy, request.sync, request.fetch}) {
    if (!ticket) continue;
    // The copy's slots stay until it ends, and until the streams that read the same have.
    Copy& copy = copies.at(ticket);
    copy.abandoned = true;
    store::Hold hold = hold_for(request);
    hold.copies = request.streams;
    hold.copies.push_back(ticket);
    for (const CopySlots::Pair& pair : std::exchange(copy.pairs, {})) {
      hold.hbm.push_back(pair.hbm);
      hold.dram.push_back(pair.dram);
    }
    holds.add(std::move(hold));
    for (const std::uint32_t place : copy.places) request.places[place] = {};
  }
  std::vector<SlotId> slots;
  store::Hold streamed = hold_for(request);
  streamed.copies = request.streams;
  streamed.hbm = std::exchange(request.staging, {});
  std::erase_if(streamed.hbm, [](SlotId slot) { return slot.none(); });
  for (const BlockPlace& place : request.places) {
    if (!place.hbm.none()) slots.push_back(place.hbm);
    if (!place.dram.none()) streamed.dram.push_back(place.dram);
  }
  holds.add(std::move(streamed));
  release_slots(request, std::move(slots));
  session.plan.ended_since_pause = true;
  still.erase(session.info.domain);
  delist(request);
  requests.erase(RequestKey(request.key));
}

}  // namespace kvd::core
