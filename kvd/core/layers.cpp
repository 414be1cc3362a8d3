#include <algorithm>
#include <utility>

#include "ipc/vocabulary/layer_mark.hpp"
#include "kvd/core/state.hpp"

/// Blocks that are in DRAM while their request runs: copies made ahead (eager rotation), layers
/// that go and come back as a plan says, and what is staged for an iteration.
/// Source: SuperInfer sec. 5; OrbitFlow sec. 4.1; kvd/DESIGN.md "Blocks that come and go".
namespace kvd::core {

namespace {

/// Above it nothing is copied ahead, and copies make way for what has no other place.
constexpr double kEagerDramShare = 0.8;

}  // namespace

void Controller::State::recount(Request& request) const {
  request.hbm_slots = request.dram_slots = request.doubled = 0;
  for (const BlockPlace& place : request.places) {
    const bool in_hbm = !place.hbm.none(), in_dram = !place.dram.none();
    request.hbm_slots += in_hbm ? 1 : 0;
    request.dram_slots += in_dram ? 1 : 0;
    request.doubled += in_hbm && in_dram ? 1 : 0;
  }
  for (const SlotId slot : request.staging) request.hbm_slots += slot.none() ? 0 : 1;
}

std::uint32_t Controller::State::full_blocks(const Request& request) const {
  const Session& session = sessions.at(request.key.engine);
  return static_cast<std::uint32_t>(request.tokens.value / session.shape.block_tokens);
}

/// All its blocks are in HBM.
bool Controller::State::complete(const Request& request) {
  return !request.fetch && request.staging.empty() &&
         request.hbm_slots == std::ssize(request.places);
}

bool Controller::State::arriving(const BlockPlace& place) const {
  return !place.hbm.none() && !place.dram.none() &&
         hbm.state(place.hbm) == pool::SlotState::kFilling;
}

bool Controller::State::missing(const BlockPlace& place) const {
  return place.hbm.none() || arriving(place);
}

bool Controller::State::synced(const BlockPlace& place) const {
  return !place.hbm.none() && !place.dram.none() &&
         hbm.state(place.hbm) == pool::SlotState::kSealed &&
         dram.state(place.dram) == pool::SlotState::kSealed;
}

// ---- copies made ahead ----

void Controller::State::sync_blocks(Session& session) {
  Bytes under_way;
  bool wanted = tuning.rotation.eager;
  each_inside_of(session.id, [&](Request& r) {
    if (r.sync) under_way += session.shape.slot_bytes() * std::ssize(copies.at(r.sync).pairs);
    wanted = wanted || !r.away.empty();
  });
  if (!wanted) return;
  // What is under way delays who really leaves: no more than a quarter of what a step may move.
  const Bytes whole_block = session.shape.slot_bytes() * std::int64_t{session.groups()};
  Bytes budget = std::max(whole_block, Bytes(transfer_budget().value / 4)) - under_way;
  const Bytes capacity = dram.config().slab_bytes * std::int64_t{dram.config().slabs};
  const double used = 1 - static_cast<double>(dram.available(session.info.domain).value) /
                              static_cast<double>(capacity.value);
  session.short_of_dram = false;
  // Layers that shall leave come first: somebody waits for their room. While they find none, copies
  // ahead would only take again what was dropped for them.
  for (const bool away_only : {true, false}) {
    if (!away_only && (!tuning.rotation.eager || used > kEagerDramShare)) return;
    if (!away_only && short_of_dram(session.info.domain)) return;
    each_inside_of(session.id, [&](Request& r) {
      if (budget <= Bytes(0) || r.sync || r.leaving || (!r.runs() && !r.paused)) return;
      if (away_only && r.away.empty()) return;
      budget -= sync_request(session, r, away_only, budget);
    });
  }
}

bool Controller::State::short_of_dram(DomainId domain) const {
  return std::any_of(sessions.begin(), sessions.end(), [&](const auto& entry) {
    const Session& session = entry.second;
    return session.info.domain == domain && session.short_of_dram && session.responsive &&
           !session.dying;
  });
}

Bytes Controller::State::sync_request(Session& session, Request& request, bool away_only,
                                      Bytes budget) {
  const std::uint32_t groups = session.groups();
  const std::uint32_t full = request.sealed;
  if (request.synced >= full) return Bytes(0);
  const Bytes slot_bytes = session.shape.slot_bytes();
  const auto most = static_cast<std::size_t>(std::max<std::int64_t>(1, budget / slot_bytes));
  std::vector<std::uint32_t> chosen;
  for (std::uint32_t i = request.synced * groups; i < full * groups && chosen.size() < most; ++i) {
    if (away_only && !request.away[i % groups]) continue;
    const BlockPlace& place = request.places[i];
    if (place.dram.none() && hbm.state(place.hbm) == pool::SlotState::kSealed) chosen.push_back(i);
  }
  if (chosen.empty()) return Bytes(0);
  const auto count = static_cast<std::uint32_t>(chosen.size());
  const pool::SlotGrant grant =
      away_only
          ? take_dram(session, count)
          : dram.allocate({session.class_id, session.info.domain, session.id, count, nullptr});
  if (grant.code != ErrorCode::kOk) {
    session.short_of_dram = session.short_of_dram || away_only;
    return Bytes(0);
  }

  Copy copy{Copy::Kind::kSync, request.key, session.info.domain, slot_bytes};
  for (std::uint32_t i = 0; i < count; ++i) {
    BlockPlace& place = request.places[chosen[i]];
    place.dram = grant.slots[i];
    copy.pairs.push_back({place.hbm, place.dram});
  }
  copy.places = std::move(chosen);
  const auto done = [&](std::uint32_t block) {
    for (std::uint32_t group = 0; group < groups; ++group) {
      if (request.places[std::size_t{block} * groups + group].dram.none()) return false;
    }
    return true;
  };
  while (request.synced < full && done(request.synced)) ++request.synced;
  request.dram_slots += count;  // they are in HBM, too
  request.doubled += count;
  counters.blocks_synced += count;
  const Ticket ticket = next_ticket();
  emit(CopySlots{ticket, session.id, false, slot_bytes, copy.pairs, true});
  request.sync = ticket;
  copies.emplace(ticket, std::move(copy));
  return slot_bytes * std::int64_t{count};
}

Bytes Controller::State::spare_dram(DomainId domain) {
  Bytes copied;
  each_inside_in(domain, [&](Request& r) {
    if (r.doubled > 0) copied += session_of(r).shape.slot_bytes() * spare_copies(r, nullptr);
  });
  return dram.available(domain) + copied;
}

bool Controller::State::dram_takes(const Request& request) {
  const std::int64_t moves = request.hbm_slots - request.doubled + spare_copies(request, nullptr);
  const Session& session = session_of(request);
  return spare_dram(session.info.domain) >= session.shape.slot_bytes() * moves;
}

/// How many copies in DRAM the request can do without, and on demand of which places. Those of one
/// that leaves, and of layers that leave, are what it will read.
std::int64_t Controller::State::spare_copies(const Request& request,
                                             std::vector<std::uint32_t>* places) const {
  if (!request.streams.empty() || request.sync || request.copy || request.fetch ||
      request.leaving) {
    return 0;
  }
  if (request.away.empty() && places == nullptr) return request.doubled;
  const std::uint32_t groups = sessions.at(request.key.engine).groups();
  std::int64_t count = 0;
  for (std::uint32_t i = 0; i < request.places.size(); ++i) {
    const bool leaves = !request.away.empty() && request.away[i % groups];
    if (leaves || !synced(request.places[i])) continue;
    ++count;
    if (places != nullptr) places->push_back(i);
  }
  return count;
}

// Of requests that run: the copy can be made again, and whoever asks has no other place to go.
void Controller::State::drop_copies(DomainId domain, Bytes needed) {
  each_inside_in(domain, [&](Request& r) {
    if (needed <= Bytes(0) || r.doubled == 0) return;
    std::vector<std::uint32_t> spare;
    if (spare_copies(r, &spare) == 0) return;
    for (const std::uint32_t i : spare) {
      if (needed <= Bytes(0)) break;
      dram.release(std::exchange(r.places[i].dram, SlotId()));
      needed -= session_of(r).shape.slot_bytes();
    }
    r.synced = 0;
    recount(r);
  });
}

// ---- layers that go and come back ----

void Controller::State::install_layers(Session& session) {
  each_inside_of(session.id, [&](Request& r) {
    if (r.leaving || (!r.runs() && !r.paused)) return;
    if (r.paused) release_staging(r);
    // A prompt on its way to DRAM keeps its blocks until somebody is short of them: its next chunk
    // would have to fetch them again.
    if (!r.away.empty() && (!r.layerwise || session.crowded)) evict_layers(session, r);
    if (!r.paused && !r.fetch && !r.layerwise) fetch_layers(session, r);
  });
  session.crowded = false;
}

// The first slots that leave become staging; a paused request needs none.
void Controller::State::evict_layers(Session& session, Request& request) {
  if (request.fetch) return;
  const std::uint32_t groups = session.groups();
  const std::uint32_t full = request.sealed;
  std::vector<SlotId> freed;
  bool moved = false;
  std::vector<std::uint32_t> leaving;
  for (std::uint32_t group = 0; group < groups; ++group) {
    if (request.away[group]) leaving.push_back(group);
  }
  for (std::uint32_t block = 0; block < full; ++block) {
    for (const std::uint32_t group : leaving) {
      BlockPlace& place = request.places[std::size_t{block} * groups + group];
      if (!synced(place)) continue;
      moved = true;
      if (request.staging.size() <= block) request.staging.resize(block + 1);
      const SlotId slot = std::exchange(place.hbm, SlotId());
      if (request.staging[block].none() && !request.paused) {
        request.staging[block] = slot;
        // The iteration that runs may still read the block there.
        request.staging_free =
            std::max(request.staging_free, layer_mark(request.last_iteration, groups));
        request.streamed_in = std::max(request.streamed_in, request.last_iteration);
      } else {
        freed.push_back(slot);
      }
    }
  }
  release_slots(request, std::move(freed));
  if (moved) recount(request);
}

void Controller::State::fetch_layers(Session& session, Request& request) {
  if (complete(request)) return;
  const std::uint32_t groups = session.groups();
  Copy copy{Copy::Kind::kFetch, request.key, session.info.domain, session.shape.slot_bytes()};
  for (std::uint32_t group = 0; group < groups; ++group) {
    if (!request.away.empty() && request.away[group]) continue;
    std::vector<std::uint32_t> wanted;
    for (std::uint32_t block = 0; block < request.blocks; ++block) {
      const std::uint32_t i = block * groups + group;
      if (request.places[i].hbm.none()) wanted.push_back(i);
    }
    if (wanted.empty()) continue;
    const pool::SlotGrant grant = take_hbm(session, static_cast<std::uint32_t>(wanted.size()));
    if (grant.code != ErrorCode::kOk) break;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      BlockPlace& place = request.places[wanted[i]];
      place.hbm = grant.slots[i];
      copy.pairs.push_back({place.hbm, place.dram});
      copy.places.push_back(wanted[i]);
    }
  }
  if (copy.pairs.empty()) return;
  recount(request);
  const Ticket ticket = next_ticket();
  emit(CopySlots{ticket, session.id, true, copy.slot_bytes, copy.pairs, true});
  request.fetch = ticket;
  copies.emplace(ticket, std::move(copy));
}

// ---- what an iteration stages ----

/// Whether every missing block has a staging slot.
bool Controller::State::stage(Session& session, Request& request) {
  if (complete(request)) return true;
  const std::uint32_t groups = session.groups();
  std::vector<std::uint32_t> unstaged;
  bool streams = false;
  for (std::uint32_t block = 0; block < request.blocks; ++block) {
    bool gone = false;
    for (std::uint32_t group = 0; group < groups && !gone; ++group) {
      gone = missing(request.places[std::size_t{block} * groups + group]);
    }
    if (!gone) continue;
    streams = true;
    if (block >= request.staging.size() || request.staging[block].none()) unstaged.push_back(block);
  }
  if (!streams) {
    if (request.away.empty()) release_staging(request);
    return true;
  }
  if (unstaged.empty()) return true;
  const pool::SlotGrant grant = take_hbm(session, static_cast<std::uint32_t>(unstaged.size()));
  if (grant.code != ErrorCode::kOk) return false;
  if (request.staging.size() <= unstaged.back()) request.staging.resize(unstaged.back() + 1);
  for (std::size_t i = 0; i < unstaged.size(); ++i) request.staging[unstaged[i]] = grant.slots[i];
  recount(request);
  return true;
}

void Controller::State::release_staging(Request& request) {
  store::Hold hold = hold_for(request);
  hold.copies = request.streams;
  hold.hbm = std::exchange(request.staging, {});
  std::erase_if(hold.hbm, [](SlotId slot) { return slot.none(); });
  if (hold.hbm.empty()) return;
  holds.add(std::move(hold));
  recount(request);
}

void Controller::State::add_fetches(const Request& request, std::uint64_t iteration,
                                    StreamLayers& stream) const {
  if (complete(request)) return;
  const Session& session = sessions.at(request.key.engine);
  const std::uint32_t groups = session.groups();
  // An iteration that is over reads nothing more, however far its engine got.
  std::uint64_t after = request.streamed_in > session.finished ? request.staging_free : 0;
  for (std::uint32_t group = 0; group < groups; ++group) {
    StreamLayers::Fetch fetch{group, after, {}};
    for (std::uint32_t block = 0; block < request.blocks; ++block) {
      const BlockPlace& place = request.places[std::size_t{block} * groups + group];
      // Blocks arrive in a request that runs by a fetch only.
      if (place.hbm.none() || (request.fetch && arriving(place))) {
        fetch.pairs.push_back({request.staging[block], place.dram});
      }
    }
    if (fetch.pairs.empty()) continue;
    stream.fetches.push_back(std::move(fetch));
    after = layer_mark(iteration, group + 1);
  }
}

void Controller::State::start_stream(Session& session, StreamLayers stream,
                                     const std::vector<Request*>& streamed) {
  std::stable_sort(stream.fetches.begin(), stream.fetches.end(),
                   [](const auto& a, const auto& b) { return a.group < b.group; });
  stream.ticket = next_ticket();
  stream.engine = session.id;
  stream.groups = session.groups();
  stream.slot_bytes = session.shape.slot_bytes();
  Copy copy{Copy::Kind::kStream, {session.id, RequestId()}, session.info.domain, stream.slot_bytes};
  copy.iteration = stream.iteration;
  copies.emplace(stream.ticket, std::move(copy));
  for (Request* r : streamed) r->streams.push_back(stream.ticket);
  ++counters.streams;
  for (const auto& fetch : stream.fetches) counters.layers_fetched += fetch.pairs.size();
  emit(std::move(stream));
}

// The engine has finished their iterations, or has gone: nobody waits for their fetches.
void Controller::State::end_streams(Session& session) {
  for (auto& [ticket, copy] : copies) {
    const bool over = copy.kind == Copy::Kind::kStream && copy.request.engine == session.id &&
                      (session.dying || copy.iteration <= session.finished);
    if (!over || copy.ending) continue;
    copy.ending = true;
    emit(EndStream{ticket});
  }
}

void Controller::State::finish_stream(Ticket ticket, const Copy& copy) {
  each_inside_of(copy.request.engine, [&](Request& r) { std::erase(r.streams, ticket); });
}

}  // namespace kvd::core
