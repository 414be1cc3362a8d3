#include "kvd/core/moves/swaps.hpp"

#include <algorithm>
#include <utility>

namespace kvd::core {

void Swaps::swap_out(Request& request) {
  Session& session = requests_.session_of(request);
  const auto kept = static_cast<std::uint32_t>(session.blocks_for(request.progress.tokens));
  const std::uint32_t count = kept * session.groups();
  store::BlockMoves::Copied copied = store_.moves.copied(request.table, count);
  std::vector<std::uint32_t>& unsynced = copied.lacking;
  const auto wanted = static_cast<std::uint32_t>(unsynced.size());
  pool::SlotGrant grant;
  if (wanted > 0) grant = copies_.take(session, wanted);
  if (grant.code != ErrorCode::kOk) {
    ++context_.counters.rotation_blocked_dram;
    request.leaving = false;
    request.lift(Verdict::kForcedOut);
    request.fresh = true;  // a request that is asked again at every step would never run
    // Slabs that another domain left empty can be had once they are zeroed.
    store_.tiers.reclaim(Tier::kDram, session.info.domain);
    return;
  }
  // Blocks beyond the last token hold nothing yet, and blocks in DRAM need not move.
  std::vector<SlotId> free = std::move(store_.blocks.truncate(request.table, kept)[0]);
  memory_.release_staging(request);
  const auto left = store_.moves.vacate_own(request.table, copied.synced, Tier::kHbm);
  free.insert(free.end(), left.begin(), left.end());
  store_.tiers.free(Tier::kHbm, std::move(free));
  store_.moves.place(request.table, unsynced, Tier::kDram, grant.slots);
  request.place = Location::kGoing;
  request.leaving = false;
  request.lift(Verdict::kPaused);
  if (wanted == 0) return finish_out(request, {}, true);
  request.moves.rotation =
      memory_.start(session, request, store::Purpose::kRotateOut, std::move(unsynced));
}

std::vector<std::uint32_t> Swaps::lacking_in_hbm(const Request& request,
                                                 std::uint32_t whole) const {
  const std::uint32_t groups = request.table.groups();
  const std::uint32_t full = memory_.full_blocks(request);
  const std::uint32_t known = request.table.size();
  std::vector<std::uint32_t> wanted =
      store_.moves.lacking(request.table, std::min(known, whole * groups), Tier::kHbm);
  if (!request.layers.away.empty()) {
    std::erase_if(wanted, [&](std::uint32_t i) {
      return request.layers.away[i % groups] && i / groups < full;
    });
  }
  for (std::uint32_t i = known; i < whole * groups; ++i) wanted.push_back(i);
  return wanted;
}

// Blocks that others share with it and have in HBM need not be brought there. Claims ask at each
// step: where HBM has none of its blocks, what it lacks is not listed before there is room.
ErrorCode Swaps::swap_in(Request& request) {
  Session& session = requests_.session_of(request);
  if (prefixes_.is_arriving(request, Tier::kHbm) || !prefixes_.is_mapped(request)) {
    return ErrorCode::kWouldBlock;
  }
  const std::uint32_t groups = session.groups();
  const auto whole = static_cast<std::uint32_t>(session.blocks_for(request.room_to_run()));
  const std::uint32_t known = request.table.size();
  const bool all_in_dram = request.table.all_in(Tier::kDram);
  const bool lacks_all = request.table.in(Tier::kHbm) == 0 && request.layers.away.empty();
  std::vector<std::uint32_t> wanted;
  if (!lacks_all) wanted = lacking_in_hbm(request, whole);
  const pool::SlotGrant grant =
      lacks_all ? memory_.take(session, 0, whole * groups) : memory_.take(session, wanted);
  if (grant.code != ErrorCode::kOk) return grant.code;
  if (lacks_all) wanted = lacking_in_hbm(request, whole);

  store_.blocks.extend(request.table, session.taker(), whole * groups - request.table.size());
  store_.moves.place(request.table, wanted, Tier::kHbm, grant.slots);
  std::vector<std::uint32_t> moves = std::move(wanted);
  std::erase_if(moves, [&](std::uint32_t i) {
    return i >= known || !(all_in_dram || store_.blocks.has(request.table, i, Tier::kDram));
  });
  request.table.set_parked(false);
  request.place = Location::kComing;
  if (moves.empty()) {
    finish_in(request, {}, true);
    return ErrorCode::kOk;
  }
  request.moves.rotation =
      memory_.start(session, request, store::Purpose::kRotateIn, std::move(moves));
  request.moves.in = request.moves.rotation;
  return ErrorCode::kOk;
}

void Swaps::start_leaving(Session& session) {
  // A copy may read a block only after the iteration that filled it has finished (safety rule 3);
  // iterations under way end first.
  requests_.each_inside_of(session.id, [&](Request& r) {
    if (r.leaving && r.progress.last_iteration <= session.iterations.finished && !r.moves.sync &&
        !r.moves.fetch && !prefixes_.is_arriving(r, Tier::kDram))
      swap_out(r);
  });
}

void Swaps::count_copy(const std::vector<DeviceId>& devices, Tier to,
                       const CopyFinished& finished) {
  const std::size_t direction = to == Tier::kDram ? 1 : 0;
  ++context_.counters.copies[direction];
  context_.counters.copy_bytes[direction] += static_cast<std::uint64_t>(finished.bytes.value);
  context_.counters.copy_busy_ns[direction] += static_cast<std::uint64_t>(finished.busy.count());
  knowledge_.measure_link(devices, to, finished);
}

bool Swaps::on_copy(const CopyFinished& finished) {
  const auto failed = [&](EngineId engine, const char* what) {
    if (finished.ok || finished.dropped) return;
    ++context_.counters.copy_failures;
    context_.note(Note::Level::kError, engine, what);
  };
  if (store_.tiers.scrub_ended(finished.ticket, finished.ok)) {
    failed(EngineId(), "memory could not be zeroed, and is zeroed again");
    if (finished.ok)
      context_.counters.slabs.bytes_scrubbed += static_cast<std::uint64_t>(finished.bytes.value);
  } else if (auto transfer = store_.transfers.ended(finished.ticket)) {
    requests_.progressed(transfer->request.engine, transfer->domain);
    failed(transfer->request.engine, "a copy failed and is undone");
    if (finished.ok) count_copy(transfer->devices, transfer->to(), finished);
    if (!transfer->abandoned) finish(std::move(*transfer), finished.ok);
    store_.tiers.copy_ended(finished.ticket);
  } else if (const auto round = store_.compaction.ended(finished.ticket)) {
    requests_.progressed(EngineId(), round->domain);
    failed(EngineId(), "blocks could not be moved within DRAM, and stay");
    compactor_.finish(*round, finished.ok);
    store_.tiers.copy_ended(finished.ticket);
  } else if (const auto stream = store_.transfers.stream_ended(finished.ticket)) {
    requests_.progressed(stream->engine, stream->domain);
    failed(stream->engine, "a layer could not be fetched");
    if (finished.ok) count_copy({stream->device}, Tier::kHbm, finished);
    streams_.ended(finished.ticket, *stream);
    store_.tiers.copy_ended(finished.ticket);
  } else {
    return false;  // a device may report twice; the first report counted
  }
  return true;
}

// The target slots have their bytes now, or are given up.
void Swaps::finish(store::Transfer transfer, bool ok) {
  Request& request = requests_.at(transfer.request);
  const std::uint32_t full = memory_.full_blocks(request) * request.table.groups();
  std::vector<SlotId> free;
  if (ok) {
    store_.moves.settle(request.table, transfer.places, transfer.to(), full);
  } else {
    for (const std::uint32_t i : transfer.places)
      free.push_back(store_.blocks.vacate(request.table, i, transfer.to()));
  }
  store_.tiers.free(transfer.to(), std::move(free));
  switch (transfer.purpose) {
    case store::Purpose::kRotateOut:
      return finish_out(request, transfer, ok);
    case store::Purpose::kRotateIn:
      return finish_in(request, std::move(transfer), ok);
    case store::Purpose::kSync:
      return finish_sync(request, transfer, ok);
    case store::Purpose::kFetch:
      return finish_fetch(request);
  }
}

void Swaps::finish_out(Request& request, const store::Transfer& transfer, bool ok) {
  Session& session = requests_.session_of(request);
  request.moves.rotation = Ticket();
  request.place = ok ? Location::kParked : Location::kIn;
  if (!ok) request.lift(Verdict::kForcedOut);
  if (!ok) return;  // layers that did leave are streamed, or come back
  store_.tiers.free(Tier::kHbm,
                    store_.moves.vacate_own(request.table, transfer.places, Tier::kHbm));
  request.table.set_parked(true);
  store_.tiers.free(Tier::kHbm, prefixes_.vacate_parked(prefixes_.rows(request)));
  request.synced = memory_.full_blocks(request);
  request.layerwise = false;
  request.layers.away.clear();
  request.layers.distance = 0;
  ++request.order.rotations;
  ++session.totals.rotations_out;
  ++context_.counters.rotations_out;
}

void Swaps::finish_in(Request& request, store::Transfer transfer, bool ok) {
  Session& session = requests_.session_of(request);
  request.moves.rotation = Ticket();
  const bool begins = request.begins_with_found();
  if (!ok && begins) {
    prefixes_.give_back(request);
    request.place = Location::kOut;
    request.moves.in = Ticket();
    requests_.requeue(request);
    return;
  }
  if (!ok) {
    const auto kept = static_cast<std::uint32_t>(session.blocks_for(request.progress.tokens));
    store_.tiers.free(Tier::kHbm, store_.blocks.truncate(request.table, kept)[0]);
    request.place = Location::kParked;
    request.moves.in = Ticket();
    request.table.set_parked(true);
    store_.tiers.free(Tier::kHbm, prefixes_.vacate_parked(prefixes_.rows(request)));
    return;
  }
  // The copies of full blocks stay valid: a request that leaves again soon need not move them.
  const std::uint32_t full = memory_.full_blocks(request);
  const std::uint32_t stay = full * session.groups();
  const bool keep = context_.tuning.rotation.eager || !request.layers.away.empty() ||
                    !request.layers.streams.empty();
  std::vector<std::uint32_t> unneeded = std::move(transfer.places);
  if (keep) std::erase_if(unneeded, [stay](std::uint32_t i) { return i < stay; });
  store_.tiers.free(Tier::kDram, store_.moves.vacate_own(request.table, unneeded, Tier::kDram));
  request.synced = keep ? full : 0;
  request.place = Location::kIn;
  request.times.run_since = context_.now;
  request.fresh = true;
  memory_.seal_full_blocks(request);
  if (begins) {
    request.lift(Verdict::kHeldBack);
    return;
  }
  knowledge_.returned(request);
  ++session.totals.rotations_in;
  ++context_.counters.rotations_in;
}

void Swaps::finish_sync(Request& request, const store::Transfer& transfer, bool ok) {
  Session& session = requests_.session_of(request);
  request.moves.sync = Ticket();
  session.ahead.under_way -= transfer.slot_bytes * std::ssize(transfer.places);
  if (!ok) {
    request.synced = 0;
    session.ahead.wanting.insert(&request);
  }
  if (request.leaving) start_leaving(session);
  copies_.make_ahead(session);
}

void Swaps::finish_fetch(Request& request) {
  request.moves.fetch = Ticket();
  if (request.leaving) start_leaving(requests_.session_of(request));
}

}  // namespace kvd::core
