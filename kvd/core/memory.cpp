#include <algorithm>
#include <set>

#include "kvd/core/state.hpp"

/// Blocks of requests: who gets free slots, and the copies that move blocks between the tiers.
namespace kvd::core {

namespace {

/// A slot holds its last bytes as soon as its block's tokens are complete.
void settle(pool::TierPool& pool, SlotId slot, bool full) {
  if (full) {
    pool.seal(slot);
  } else {
    pool.mark_open(slot);
  }
}

}  // namespace

pool::SlotGrant Controller::State::take_hbm(Session& session, std::uint32_t count) {
  pool::SlotGrant grant =
      hbm.allocate({session.class_id, session.info.domain, session.id, count, &session.mapped});
  for (const SlabIndex slab : grant.to_map) {
    if (session.sent[slab.value]) continue;
    session.sent[slab.value] = true;
    hbm.set_mapped(slab, session.id, true);
    emit(SendSlab{session.id, slab, RegionId(0), 0, 0});
  }
  if (grant.code != ErrorCode::kOk && grant.to_map.empty()) {
    // Slabs that another domain left empty can be had once they are zeroed.
    hbm.reclaim_empty_slabs();
    scrub_dirty_slabs();
  }
  return grant;
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
  return ErrorCode::kOk;
}

ErrorCode Controller::State::serve_claim(Request& request) {
  if (request.state == RequestState::kRotary) return swap_in(request);
  const ErrorCode code = grow(request, request.room_to_run());
  if (code == ErrorCode::kOk) {
    request.state = RequestState::kPrefill;
    request.run_since = now;
  }
  return code;
}

void Controller::State::serve_claims(DomainId domain) {
  std::vector<Request*> claims;
  each_request_in(domain, [&](Request& r) {
    if (r.claim != 0) claims.push_back(&r);
  });
  std::sort(claims.begin(), claims.end(),
            [](const Request* a, const Request* b) { return a->claim < b->claim; });
  for (Request* request : claims) {
    const ErrorCode code = serve_claim(*request);
    request->awaits_mapping = code == ErrorCode::kWouldBlock;
    if (code == ErrorCode::kOk) {
      request->claim = 0;
    } else if (!request->awaits_mapping) {
      // Later claims must not overtake for ever; only one that waits for a mapping is passed by.
      relieve_class_pressure(*request);
      return;
    }
  }
}

void Controller::State::relieve_class_pressure(const Request& request) {
  const Session& session = session_of(request);
  if (hbm.available(session.info.domain) < need_bytes(request)) return;
  const auto slab = hbm.emptiest_foreign_slab(session.class_id, session.info.domain);
  if (!slab) return;
  std::vector<Request*> inside;
  bool under_way = false;
  each_request_in(session.info.domain, [&](Request& r) {
    const bool uses = std::any_of(r.places.begin(), r.places.end(), [&](const BlockPlace& p) {
      return !p.hbm.none() && p.hbm.slab() == *slab;
    });
    if (!uses) return;
    under_way |= r.leaving || r.promised || !r.runs();
    if (r.state == RequestState::kRunning && !r.fresh) inside.push_back(&r);
  });
  if (under_way) return;
  for (Request* r : inside) preempt(*r, request.key.engine);
}

void Controller::State::grow_running(Session& session) {
  Request* hungry = nullptr;
  each_request_of(session.id, [&](Request& r) {
    r.starved = false;
    if (r.state != RequestState::kRunning || r.leaving || r.promised) return;
    r.starved = grow(r, r.planned + Tokens(1)) != ErrorCode::kOk;
    if (r.starved) {
      ++counters.rotation_blocked_growth;
      hungry = &r;
    }
  });
  if (!hungry || incoming(session.info.domain) > Bytes(0)) return;

  // Nothing is on its way out: whatever the policy, the latest arrival gives way, or nobody would
  // ever run again (vLLM's rule for a full cache).
  Request* victim = nullptr;
  std::size_t running = 0;
  each_request_in(session.info.domain, [&](Request& r) {
    if (r.state != RequestState::kRunning || !session_of(r).responsive) return;
    ++running;
    if (!r.fresh && (!victim || r.arrived >= victim->arrived)) victim = &r;
  });
  if (victim && running > 1) preempt(*victim, session.id);
}

void Controller::State::swap_out(Request& request) {
  Session& session = session_of(request);
  const auto full = static_cast<std::uint32_t>(session.blocks_for(request.tokens));
  const std::uint32_t count = full * session.groups();
  const pool::SlotGrant grant =
      dram.allocate({session.class_id, session.info.domain, session.id, count, nullptr});
  if (grant.code != ErrorCode::kOk) {
    ++counters.rotation_blocked_dram;
    request.leaving = request.forced_out = false;
    // Slabs that another domain left empty can be had once they are zeroed.
    dram.reclaim_empty_slabs();
    scrub_dirty_slabs();
    return;
  }
  // Blocks beyond the last token hold nothing yet.
  for (std::size_t i = count; i < request.places.size(); ++i) hbm.release(request.places[i].hbm);
  request.places.resize(count);
  request.blocks = full;

  Copy copy{Copy::Kind::kOut, request.key, session.info.domain, session.shape.slot_bytes()};
  for (std::uint32_t i = 0; i < count; ++i) {
    request.places[i].dram = grant.slots[i];
    copy.pairs.push_back({request.places[i].hbm, grant.slots[i]});
  }
  const Ticket ticket = next_ticket();
  emit(CopySlots{ticket, session.id, false, copy.slot_bytes, copy.pairs});
  copies.emplace(ticket, std::move(copy));
  request.copy = ticket;
  request.state = RequestState::kSwappingOut;
  request.out_since = now;
  request.leaving = false;
}

ErrorCode Controller::State::swap_in(Request& request) {
  Session& session = session_of(request);
  const auto blocks = static_cast<std::uint32_t>(session.blocks_for(request.room_to_run()));
  const pool::SlotGrant grant = take_hbm(session, blocks * session.groups());
  if (grant.code != ErrorCode::kOk) return grant.code;

  Copy copy{Copy::Kind::kIn, request.key, session.info.domain, session.shape.slot_bytes()};
  request.places.resize(grant.slots.size());
  for (std::size_t i = 0; i < grant.slots.size(); ++i) {
    request.places[i].hbm = grant.slots[i];
    if (!request.places[i].dram.none()) {
      copy.pairs.push_back({grant.slots[i], request.places[i].dram});
    }
  }
  request.blocks = blocks;
  const Ticket ticket = next_ticket();
  emit(CopySlots{ticket, session.id, true, copy.slot_bytes, copy.pairs});
  copies.emplace(ticket, std::move(copy));
  request.copy = ticket;
  request.in_ticket = ticket;
  request.state = RequestState::kSwappingIn;
  return ErrorCode::kOk;
}

void Controller::State::start_leaving(Session& session) {
  // A copy may read a block only after the iteration that filled it has finished (safety rule 3).
  each_request_of(session.id, [&](Request& r) {
    if (r.leaving && r.last_iteration <= session.finished) swap_out(r);
  });
}

void Controller::State::seal_full_blocks(Request& request) {
  const Session& session = session_of(request);
  for (std::size_t i = 0; i < request.places.size(); ++i) {
    const auto block = static_cast<std::int64_t>(i / session.groups());
    const Tokens start(block * session.shape.block_tokens);
    const SlotId slot = request.places[i].hbm;
    if (slot.none() || request.tokens <= start) continue;
    const bool full = request.tokens >= start + Tokens(session.shape.block_tokens);
    const pool::SlotState state = hbm.state(slot);
    if (full && state != pool::SlotState::kSealed) hbm.seal(slot);
    if (!full && state == pool::SlotState::kFilling) hbm.mark_open(slot);
  }
}

void Controller::State::release_slots(Session& session, Request& request, std::vector<SlotId> slots,
                                      bool dirty) {
  const Bytes slot_bytes = session.shape.slot_bytes();
  if (dirty) {
    for (const SlotId slot : slots) {
      hbm.quarantine(slot);
      session.quarantined.emplace_back(slot_bytes, slot);
    }
  } else if (request.last_iteration > session.finished) {
    for (const SlotId slot : slots) hbm.drain(slot);
    session.late.push_back({request.last_iteration, slot_bytes, std::move(slots)});
  } else {
    for (const SlotId slot : slots) hbm.release(slot);
  }
}

void Controller::State::remove(Request& request, bool dirty) {
  Session& session = session_of(request);
  if (request.copy) {
    // The copy keeps its slots until it ends; the rest goes now.
    Copy& copy = copies.at(request.copy);
    copy.orphan = true;
    copy.dirty = dirty;
    for (const CopySlots::Pair& pair : copy.pairs) {
      hbm.drain(pair.hbm);
      dram.drain(pair.dram);
    }
    const auto copied = [&](const BlockPlace& place) {
      return !place.hbm.none() && !place.dram.none();
    };
    std::erase_if(request.places, copied);
  }
  std::vector<SlotId> slots;
  for (const BlockPlace& place : request.places) {
    if (!place.hbm.none()) slots.push_back(place.hbm);
    if (!place.dram.none()) dram.release(place.dram);
  }
  release_slots(session, request, std::move(slots), dirty);
  requests.erase(RequestKey(request.key));
}

void Controller::State::release_late(Session& session) {
  std::erase_if(session.late, [&](const LateRelease& late) {
    if (late.iteration > session.finished) return false;
    for (const SlotId slot : late.slots) hbm.release(slot);
    return true;
  });
}

void Controller::State::measure_link(const Copy& copy, const CopyFinished& finished) {
  const std::size_t direction = copy.kind == Copy::Kind::kIn ? 0 : 1;
  ++counters.copies[direction];
  counters.copy_bytes[direction] += static_cast<std::uint64_t>(finished.bytes.value);
  counters.copy_busy_ns[direction] += static_cast<std::uint64_t>(finished.busy.count());
  if (finished.busy.count() <= 0) return;
  constexpr double kWeight = 0.25;  // kvd design: follows a changed link within a few copies
  const double rate = static_cast<double>(finished.bytes.value) / to_seconds(finished.busy);
  double& measured = link_rate[direction];
  measured = measured == 0 ? rate : measured + kWeight * (rate - measured);
}

void Controller::State::on_copy(const CopyFinished& finished) {
  const auto it = copies.find(finished.ticket);
  if (it == copies.end()) return;  // a device may report twice; the first report counted
  Copy copy = std::move(it->second);
  copies.erase(it);
  if (!finished.ok) {
    ++counters.copy_failures;
    note(Note::Level::kError, copy.request.engine, "a copy failed and is undone");
  }
  switch (copy.kind) {
    case Copy::Kind::kOut:
    case Copy::Kind::kIn:
      if (finished.ok) measure_link(copy, finished);
      if (copy.orphan) {
        end_orphan(copy);
      } else if (copy.kind == Copy::Kind::kOut) {
        finish_out(copy, finished.ok);
      } else {
        finish_in(copy, finished.ok);
      }
      break;
    case Copy::Kind::kScrubSlabs:
    case Copy::Kind::kScrubSlots:
      if (finished.ok) {
        counters.bytes_scrubbed += static_cast<std::uint64_t>(finished.bytes.value);
      }
      end_scrub(copy, finished.ok);
      break;
  }
  serve_everyone();
}

void Controller::State::serve_everyone() {
  serve_regions();
  std::set<DomainId> domains;
  for (const auto& [id, session] : sessions) domains.insert(session.info.domain);
  for (const DomainId domain : domains) serve_claims(domain);
}

void Controller::State::finish_out(Copy& copy, bool ok) {
  Request& request = requests.at(copy.request);
  Session& session = session_of(request);
  request.copy = Ticket();
  for (std::size_t i = 0; i < request.places.size(); ++i) {
    BlockPlace& place = request.places[i];
    if (ok) {
      const auto end = static_cast<std::int64_t>(i / session.groups() + 1);
      settle(dram, place.dram, request.tokens >= Tokens(end * session.shape.block_tokens));
      hbm.release(std::exchange(place.hbm, SlotId()));
    } else {
      dram.release(std::exchange(place.dram, SlotId()));
    }
  }
  request.state = ok ? RequestState::kRotary : RequestState::kRunning;
  request.forced_out = request.forced_out && ok;
  if (!ok) return;
  ++request.rotations;
  ++session.rotations_out;
  ++counters.rotations_out;
}

void Controller::State::finish_in(Copy& copy, bool ok) {
  Request& request = requests.at(copy.request);
  Session& session = session_of(request);
  request.copy = Ticket();
  if (!ok) {
    for (BlockPlace& place : request.places) hbm.release(std::exchange(place.hbm, SlotId()));
    request.blocks = static_cast<std::uint32_t>(session.blocks_for(request.tokens));
    request.places.resize(std::size_t{request.blocks} * session.groups());
    request.state = RequestState::kRotary;
    request.in_ticket = Ticket();
    return;
  }
  for (BlockPlace& place : request.places) {
    if (!place.dram.none()) dram.release(std::exchange(place.dram, SlotId()));
  }
  request.state = RequestState::kRunning;
  request.run_since = now;
  request.fresh = true;
  note_return(request);
  seal_full_blocks(request);
  ++session.rotations_in;
  ++counters.rotations_in;
}

void Controller::State::end_orphan(Copy& copy) {
  const auto session = sessions.find(copy.request.engine);
  std::vector<SlotId> dirty;
  for (const CopySlots::Pair& pair : copy.pairs) {
    dram.release(pair.dram);
    if (!copy.dirty) {
      hbm.release(pair.hbm);
    } else {
      hbm.quarantine(pair.hbm);
      dirty.push_back(pair.hbm);
    }
  }
  if (dirty.empty()) return;
  if (session == sessions.end()) {
    scrub_slots(copy.domain, copy.slot_bytes, std::move(dirty));
  } else {
    for (const SlotId slot : dirty) session->second.quarantined.emplace_back(copy.slot_bytes, slot);
  }
}

void Controller::State::scrub_slots(DomainId domain, Bytes slot_bytes, std::vector<SlotId> slots) {
  for (const SlotId slot : slots) hbm.scrub(slot);
  const Ticket ticket = next_ticket();
  emit(Scrub{ticket, Tier::kHbm, {}, slots, slot_bytes});
  Copy copy{Copy::Kind::kScrubSlots, {}, domain, slot_bytes};
  copy.slots = std::move(slots);
  copies.emplace(ticket, std::move(copy));
}

void Controller::State::scrub_dirty_slabs() {
  for (const Tier tier : {Tier::kHbm, Tier::kDram}) {
    std::vector<SlabIndex> slabs = (tier == Tier::kHbm ? hbm : dram).take_dirty();
    if (slabs.empty()) continue;
    if (tier == Tier::kHbm) ask_unmap(slabs);
    const Ticket ticket = next_ticket();
    emit(Scrub{ticket, tier, slabs, {}, Bytes(0)});
    Copy copy{Copy::Kind::kScrubSlabs, {}, DomainId(), Bytes(0)};
    copy.slabs = std::move(slabs);
    copy.tier = tier;
    copies.emplace(ticket, std::move(copy));
  }
}

void Controller::State::ask_unmap(const std::vector<SlabIndex>& slabs) {
  for (const SlabIndex slab : slabs) {
    for (auto& [id, session] : sessions) {
      // No longer granted from here on; its fd may be sent anew once the engine has let go.
      if (session.mapped[slab.value]) emit(AskUnmap{id, slab});
      session.mapped[slab.value] = false;
    }
  }
}

void Controller::State::end_scrub(const Copy& copy, bool ok) {
  if (!ok) {  // bytes of another may still be there: try again, nobody gets it before
    const Ticket ticket = next_ticket();
    emit(Scrub{ticket, copy.tier, copy.slabs, copy.slots, copy.slot_bytes});
    copies.emplace(ticket, copy);
    return;
  }
  for (const SlabIndex slab : copy.slabs)
    (copy.tier == Tier::kHbm ? hbm : dram).slab_scrubbed(slab);
  for (const SlotId slot : copy.slots) hbm.scrubbed(slot);
  scrub_dirty_slabs();  // one that somebody stopped mapping meanwhile is to be zeroed again
}

}  // namespace kvd::core
