#include <algorithm>
#include <utility>

#include "kvd/core/state.hpp"

/// What a copy that ended means: for its request, for slots that only waited for it, for memory
/// that was zeroed.
namespace kvd::core {

void Controller::State::measure_link(Tier to, const CopyFinished& finished) {
  const std::size_t direction = to == Tier::kDram ? 1 : 0;
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
  const auto failed = [&](EngineId engine, const char* what) {
    if (finished.ok) return;
    ++counters.copy_failures;
    note(Note::Level::kError, engine, what);
  };
  if (tiers.scrub_ended(finished.ticket, finished.ok)) {
    failed(EngineId(), "memory could not be zeroed, and is zeroed again");
    if (finished.ok) counters.bytes_scrubbed += static_cast<std::uint64_t>(finished.bytes.value);
  } else if (const auto transfer = transfers.ended(finished.ticket)) {
    still.erase(transfer->domain);
    failed(transfer->request.engine, "a copy failed and is undone");
    if (finished.ok) measure_link(transfer->to(), finished);
    if (!transfer->abandoned) finish(*transfer, finished.ok);
    tiers.copy_ended(finished.ticket);
  } else if (const auto stream = transfers.stream_ended(finished.ticket)) {
    still.erase(stream->domain);
    failed(stream->engine, "a layer could not be fetched");
    if (finished.ok) measure_link(Tier::kHbm, finished);
    finish_stream(finished.ticket, *stream);
    tiers.copy_ended(finished.ticket);
  } else {
    return;  // a device may report twice; the first report counted
  }
  serve_everyone();
}

void Controller::State::serve_everyone() {
  serve_regions();
  for (const auto& [domain, kept] : domains) serve_claims(domain);
}

// The target has the bytes now, or is given up.
void Controller::State::finish(const store::Transfer& transfer, bool ok) {
  Request& request = requests.at(transfer.request);
  const std::uint32_t full = full_blocks(request) * request.table.groups();
  std::vector<SlotId> free;
  for (const std::uint32_t i : transfer.places) {
    if (ok) {
      blocks.settle(request.table, i, transfer.to(), i < full);
    } else {
      free.push_back(blocks.vacate(request.table, i, transfer.to()));
    }
  }
  tiers.free(transfer.to(), free);
  switch (transfer.purpose) {
    case store::Purpose::kRotateOut:
      return finish_out(request, transfer, ok);
    case store::Purpose::kRotateIn:
      return finish_in(request, transfer, ok);
    case store::Purpose::kSync:
      return finish_sync(request, transfer, ok);
    case store::Purpose::kFetch:
      return finish_fetch(request);
  }
}

void Controller::State::finish_out(Request& request, const store::Transfer& transfer, bool ok) {
  Session& session = session_of(request);
  request.copy = Ticket();
  request.state = ok ? RequestState::kRotary : RequestState::kRunning;
  request.forced_out = request.forced_out && ok;
  if (!ok) return;  // what did leave is streamed, or comes back
  std::vector<SlotId> free;
  free.reserve(transfer.places.size());
  for (const std::uint32_t i : transfer.places) {
    free.push_back(blocks.vacate(request.table, i, Tier::kHbm));
  }
  tiers.free(Tier::kHbm, free);
  request.synced = full_blocks(request);
  request.layerwise = false;
  request.away.clear();
  request.distance = 0;
  ++request.rotations;
  ++session.rotations_out;
  ++counters.rotations_out;
}

void Controller::State::finish_in(Request& request, const store::Transfer& transfer, bool ok) {
  Session& session = session_of(request);
  request.copy = Ticket();
  request.sealed = 0;
  if (!ok) {
    const auto kept = static_cast<std::uint32_t>(session.blocks_for(request.tokens));
    tiers.free(Tier::kHbm, blocks.truncate(request.table, kept)[0]);
    request.state = RequestState::kRotary;
    request.in_ticket = Ticket();
    return;
  }
  // The copies of full blocks stay good: who leaves again soon need not move them.
  const std::uint32_t full = full_blocks(request);
  const bool keep = tuning.rotation.eager || !request.away.empty() || !request.streams.empty();
  std::vector<SlotId> free;
  for (const std::uint32_t i : transfer.places) {
    if (keep && i / session.groups() < full) continue;
    free.push_back(blocks.vacate(request.table, i, Tier::kDram));
  }
  tiers.free(Tier::kDram, free);
  request.synced = keep ? full : 0;
  request.state = RequestState::kRunning;
  request.run_since = now;
  request.fresh = true;
  note_return(request);
  seal_full_blocks(request);
  ++session.rotations_in;
  ++counters.rotations_in;
}

void Controller::State::finish_sync(Request& request, const store::Transfer& transfer, bool ok) {
  Session& session = session_of(request);
  request.sync = Ticket();
  session.ahead.under_way -= transfer.slot_bytes * std::ssize(transfer.places);
  if (!ok) {
    request.synced = 0;
    session.ahead.wanting.insert(&request);
  }
  if (request.leaving) start_leaving(session);
  sync_blocks(session);
}

void Controller::State::finish_fetch(Request& request) {
  request.fetch = Ticket();
  if (request.leaving) start_leaving(session_of(request));
}

void Controller::State::on_slab_renewed(SlabIndex slab) {
  tiers.renewed(slab);
  serve_everyone();
}

}  // namespace kvd::core
