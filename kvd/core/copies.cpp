#include <algorithm>
#include <utility>

#include "kvd/core/state.hpp"

/// What a copy that ended means: for its request, for slots that only waited for it, for memory
/// that was zeroed.
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

void Controller::State::measure_link(const Copy& copy, const CopyFinished& finished) {
  const bool out = copy.kind == Copy::Kind::kOut || copy.kind == Copy::Kind::kSync;
  const std::size_t direction = out ? 1 : 0;
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
  still.erase(copy.domain);
  if (!finished.ok) {
    ++counters.copy_failures;
    const bool stream = copy.kind == Copy::Kind::kStream;
    note(Note::Level::kError, copy.request.engine,
         stream ? "a layer could not be fetched" : "a copy failed and is undone");
  }
  const bool scrub = copy.kind == Copy::Kind::kScrubSlabs || copy.kind == Copy::Kind::kScrubSlots;
  if (scrub) {
    if (finished.ok) counters.bytes_scrubbed += static_cast<std::uint64_t>(finished.bytes.value);
    end_scrub(copy, finished.ok);
  } else {
    if (finished.ok) measure_link(copy, finished);
    if (!copy.abandoned) finish(finished.ticket, copy, finished.ok);
    holds.copy_ended(finished.ticket);
    scrub_dirty_slots();
  }
  serve_everyone();
}

void Controller::State::serve_everyone() {
  serve_regions();
  for (const auto& [domain, kept] : domains) serve_claims(domain);
}

void Controller::State::finish(Ticket ticket, Copy& copy, bool ok) {
  switch (copy.kind) {
    case Copy::Kind::kOut:
      return finish_out(copy, ok);
    case Copy::Kind::kIn:
      return finish_in(copy, ok);
    case Copy::Kind::kSync:
      return finish_sync(copy, ok);
    case Copy::Kind::kFetch:
      return finish_fetch(copy, ok);
    default:
      return finish_stream(ticket, copy);
  }
}

void Controller::State::finish_out(Copy& copy, bool ok) {
  Request& request = requests.at(copy.request);
  Session& session = session_of(request);
  request.copy = Ticket();
  const std::uint32_t full = full_blocks(request);
  std::vector<SlotId> free;
  free.reserve(copy.places.size());
  for (const std::uint32_t i : copy.places) {
    BlockPlace& place = request.places[i];
    if (ok) settle(dram, place.dram, i / session.groups() < full);
    free.push_back(std::exchange(ok ? place.hbm : place.dram, SlotId()));
  }
  (ok ? hbm : dram).release(free);
  recount(request);
  request.state = ok ? RequestState::kRotary : RequestState::kRunning;
  request.forced_out = request.forced_out && ok;
  if (!ok) return;  // what did leave is streamed, or comes back
  request.synced = full;
  request.layerwise = false;
  request.away.clear();
  request.distance = 0;
  ++request.rotations;
  ++session.rotations_out;
  ++counters.rotations_out;
}

void Controller::State::finish_in(Copy& copy, bool ok) {
  Request& request = requests.at(copy.request);
  Session& session = session_of(request);
  request.copy = Ticket();
  request.sealed = 0;
  if (!ok) {
    for (BlockPlace& place : request.places) {
      if (!place.hbm.none()) hbm.release(std::exchange(place.hbm, SlotId()));
    }
    request.blocks = static_cast<std::uint32_t>(session.blocks_for(request.tokens));
    request.places.resize(std::size_t{request.blocks} * session.groups());
    recount(request);
    request.state = RequestState::kRotary;
    request.in_ticket = Ticket();
    return;
  }
  // The copies of full blocks stay good: who leaves again soon need not move them.
  const std::uint32_t full = full_blocks(request);
  const bool keep = tuning.rotation.eager || !request.away.empty() || !request.streams.empty();
  std::vector<SlotId> free;
  for (const std::uint32_t i : copy.places) {
    if (keep && i / session.groups() < full) continue;
    free.push_back(std::exchange(request.places[i].dram, SlotId()));
  }
  dram.release(free);
  request.synced = keep ? full : 0;
  recount(request);
  request.state = RequestState::kRunning;
  request.run_since = now;
  request.fresh = true;
  note_return(request);
  seal_full_blocks(request);
  ++session.rotations_in;
  ++counters.rotations_in;
}

void Controller::State::finish_sync(Copy& copy, bool ok) {
  Request& request = requests.at(copy.request);
  request.sync = Ticket();
  for (const std::uint32_t i : copy.places) {
    BlockPlace& place = request.places[i];
    if (ok) {
      dram.seal(place.dram);
    } else {
      dram.release(std::exchange(place.dram, SlotId()));
    }
  }
  if (!ok) {
    request.synced = 0;
    recount(request);
  }
  Session& session = session_of(request);
  start_leaving(session);
  sync_blocks(session);
}

void Controller::State::finish_fetch(Copy& copy, bool ok) {
  Request& request = requests.at(copy.request);
  request.fetch = Ticket();
  for (const std::uint32_t i : copy.places) {
    SlotId& slot = request.places[i].hbm;
    if (ok) {
      hbm.seal(slot);
    } else {
      hbm.release(std::exchange(slot, SlotId()));
    }
  }
  recount(request);
  start_leaving(session_of(request));
}

// Those of processes that are gone.
void Controller::State::scrub_dirty_slots() {
  for (store::DirtySlots& dirty : holds.take_dirty()) {
    for (const SlotId slot : dirty.slots) hbm.scrub(slot);
    const Ticket ticket = next_ticket();
    emit(Scrub{ticket, Tier::kHbm, {}, dirty.slots, dirty.slot_bytes});
    Copy copy{Copy::Kind::kScrubSlots, {}, dirty.domain, dirty.slot_bytes};
    copy.slots = std::move(dirty.slots);
    copies.emplace(ticket, std::move(copy));
  }
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

// What the event in hand found out to be needed.
void Controller::State::renew_slabs() {
  for (const SlabIndex slab : hbm.take_renewals()) {
    ++counters.slabs_renewed;
    emit(RenewSlab{slab});
  }
}

void Controller::State::on_slab_renewed(SlabIndex slab) {
  hbm.slab_renewed(slab);
  serve_everyone();
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
