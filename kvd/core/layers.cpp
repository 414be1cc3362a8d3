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

std::uint32_t Controller::State::full_blocks(const Request& request) const {
  const Session& session = sessions.at(request.key.engine);
  return static_cast<std::uint32_t>(request.tokens.value / session.shape.block_tokens);
}

/// All its blocks are in HBM.
bool Controller::State::complete(const Request& request) {
  return !request.fetch && request.staging.empty() && request.table.all_in(Tier::kHbm);
}

// ---- copies made ahead ----

void Controller::State::sync_blocks(Session& session) {
  session.ahead.short_of_dram = false;
  std::erase_if(session.ahead.wanting, [](const Request* r) { return r->synced >= r->sealed; });
  const bool wanted =
      std::any_of(session.ahead.wanting.begin(), session.ahead.wanting.end(),
                  [&](const Request* r) { return tuning.rotation.eager || !r->away.empty(); });
  if (!wanted) return;
  // What is under way delays who really leaves: no more than a quarter of what a step may move.
  const Bytes whole_block = session.shape.slot_bytes() * std::int64_t{session.groups()};
  Bytes budget =
      std::max(whole_block, Bytes(transfer_budget().value / 4)) - session.ahead.under_way;
  const Bytes capacity = dram.config().slab_bytes * std::int64_t{dram.config().slabs};
  const double used = 1 - static_cast<double>(dram.available(session.info.domain).value) /
                              static_cast<double>(capacity.value);
  // Layers that shall leave come first: somebody waits for their room. While they find none, copies
  // ahead would only take again what was dropped for them.
  for (const bool away_only : {true, false}) {
    if (!away_only && (!tuning.rotation.eager || used > kEagerDramShare)) return;
    if (!away_only && short_of_dram(session.info.domain)) return;
    // One that loses copies to another meanwhile joins them.
    for (Request* r : session.ahead.wanting) {
      if (budget <= Bytes(0)) return;
      if (r->sync || r->leaving || (!r->runs() && !r->paused)) continue;
      if (away_only && r->away.empty()) continue;
      budget -= sync_request(session, *r, away_only, budget);
    }
  }
}

bool Controller::State::short_of_dram(DomainId domain) const {
  return std::any_of(sessions.begin(), sessions.end(), [&](const auto& entry) {
    const Session& session = entry.second;
    return session.info.domain == domain && session.ahead.short_of_dram && session.responsive &&
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
    if (blocks.has(request.table, i, Tier::kDram)) continue;
    const SlotId source = blocks.slot(request.table, i, Tier::kHbm);
    if (hbm.state(source) == pool::SlotState::kSealed) chosen.push_back(i);
  }
  if (chosen.empty()) return Bytes(0);
  const auto count = static_cast<std::uint32_t>(chosen.size());
  const pool::SlotGrant grant =
      away_only ? take_dram(session, count) : tiers.try_take(Tier::kDram, session.taker(), count);
  if (grant.code != ErrorCode::kOk) {
    session.ahead.short_of_dram = session.ahead.short_of_dram || away_only;
    return Bytes(0);
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    blocks.place(request.table, chosen[i], Tier::kDram, grant.slots[i]);
  }
  const auto done = [&](std::uint32_t block) {
    for (std::uint32_t group = 0; group < groups; ++group) {
      if (!blocks.has(request.table, block * groups + group, Tier::kDram)) return false;
    }
    return true;
  };
  while (request.synced < full && done(request.synced)) ++request.synced;
  counters.blocks_synced += count;
  request.sync = start(session, request, store::Purpose::kSync, std::move(chosen));
  session.ahead.under_way += slot_bytes * std::int64_t{count};
  return slot_bytes * std::int64_t{count};
}

Bytes Controller::State::spare_dram(DomainId domain) {
  Bytes copied;
  each_inside_in(domain, [&](Request& r) {
    if (r.table.doubled() > 0) copied += session_of(r).shape.slot_bytes() * spare_copies(r);
  });
  return dram.available(domain) + copied;
}

bool Controller::State::dram_takes(Request& request) {
  const std::int64_t moves = request.hbm_slots() - request.table.doubled() + spare_copies(request);
  const Session& session = session_of(request);
  return spare_dram(session.info.domain) >= session.shape.slot_bytes() * moves;
}

/// How many copies in DRAM the request can do without. Those of one that leaves, and of layers that
/// leave, are what it will read.
std::int64_t Controller::State::spare_copies(Request& request) const {
  if (!request.streams.empty() || request.sync || request.copy || request.fetch ||
      request.leaving) {
    return 0;
  }
  if (request.away.empty()) return request.table.doubled();
  LayersSeen now_seen = request.layers_seen();
  if (request.known.spare.seen != now_seen) {
    request.known.spare = {std::move(now_seen), std::ssize(spare_places(request))};
  }
  return request.known.spare.answer;
}

/// Which places those are.
std::vector<std::uint32_t> Controller::State::spare_places(const Request& request) const {
  std::vector<std::uint32_t> places;
  const std::uint32_t groups = request.table.groups();
  for (std::uint32_t i = 0; i < request.table.size(); ++i) {
    const bool leaves = !request.away.empty() && request.away[i % groups];
    if (!leaves && blocks.synced(request.table, i)) places.push_back(i);
  }
  return places;
}

// Of requests that run: the copy can be made again, and whoever asks has no other place to go.
void Controller::State::drop_copies(DomainId domain, Bytes needed) {
  each_inside_in(domain, [&](Request& r) {
    if (needed <= Bytes(0) || r.table.doubled() == 0 || spare_copies(r) == 0) return;
    const std::vector<std::uint32_t> spare = spare_places(r);
    if (spare.empty()) return;
    std::vector<SlotId> free;
    for (const std::uint32_t i : spare) {
      if (needed <= Bytes(0)) break;
      free.push_back(blocks.vacate(r.table, i, Tier::kDram));
      needed -= session_of(r).shape.slot_bytes();
    }
    tiers.free(Tier::kDram, free);
    r.synced = 0;
    session_of(r).ahead.wanting.insert(&r);
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
  if (request.fetch || request.known.evicted == request.layers_seen()) return;
  const std::uint32_t groups = session.groups();
  const std::uint32_t full = request.sealed;
  std::vector<SlotId> freed;
  std::vector<std::uint32_t> leaving;
  for (std::uint32_t group = 0; group < groups; ++group) {
    if (request.away[group]) leaving.push_back(group);
  }
  for (std::uint32_t block = 0; block < full; ++block) {
    for (const std::uint32_t group : leaving) {
      const std::uint32_t i = block * groups + group;
      if (!blocks.synced(request.table, i)) continue;
      const SlotId slot = blocks.vacate(request.table, i, Tier::kHbm);
      if (!request.staging.slot(block).none() || request.paused) {
        freed.push_back(slot);
        continue;
      }
      request.staging.put(block, slot);
      // The iteration that runs may still read the block there.
      request.staging_free =
          std::max(request.staging_free, layer_mark(request.last_iteration, groups));
      request.streamed_in = std::max(request.streamed_in, request.last_iteration);
    }
  }
  release_slots(request, std::move(freed));
  request.known.evicted = request.layers_seen();
}

void Controller::State::fetch_layers(Session& session, Request& request) {
  if (complete(request) || request.known.fetched == request.layers_seen()) return;
  const std::uint32_t groups = session.groups();
  std::vector<std::uint32_t> coming;
  bool short_of_hbm = false;
  for (std::uint32_t group = 0; group < groups; ++group) {
    if (!request.away.empty() && request.away[group]) continue;
    std::vector<std::uint32_t> wanted;
    for (std::uint32_t i = group; i < request.table.size(); i += groups) {
      if (!blocks.has(request.table, i, Tier::kHbm)) wanted.push_back(i);
    }
    if (wanted.empty()) continue;
    const auto count = static_cast<std::uint32_t>(wanted.size());
    const pool::SlotGrant grant = tiers.take(Tier::kHbm, session.taker(), count);
    short_of_hbm = grant.code != ErrorCode::kOk;
    if (short_of_hbm) break;
    for (std::uint32_t i = 0; i < count; ++i) {
      blocks.place(request.table, wanted[i], Tier::kHbm, grant.slots[i]);
    }
    coming.insert(coming.end(), wanted.begin(), wanted.end());
  }
  if (coming.empty()) {
    if (!short_of_hbm) request.known.fetched = request.layers_seen();
    return;
  }
  request.fetch = start(session, request, store::Purpose::kFetch, std::move(coming));
}

// ---- what an iteration stages ----

/// Whether every missing block has a staging slot.
bool Controller::State::stage(Session& session, Request& request) {
  if (complete(request) || request.known.staged == request.layers_seen()) return true;
  const std::uint32_t groups = session.groups();
  std::vector<std::uint32_t> unstaged;
  bool streams = false;
  for (std::uint32_t block = 0; block < request.table.blocks(); ++block) {
    bool gone = false;
    for (std::uint32_t group = 0; group < groups && !gone; ++group) {
      gone = blocks.missing(request.table, block * groups + group);
    }
    if (!gone) continue;
    streams = true;
    if (request.staging.slot(block).none()) unstaged.push_back(block);
  }
  if (!streams) {
    if (request.away.empty()) release_staging(request);
    request.known.staged = request.layers_seen();
    return true;
  }
  if (unstaged.empty()) {
    request.known.staged = request.layers_seen();
    return true;
  }
  const pool::SlotGrant grant =
      tiers.take(Tier::kHbm, session.taker(), static_cast<std::uint32_t>(unstaged.size()));
  if (grant.code != ErrorCode::kOk) return false;
  for (std::size_t i = 0; i < unstaged.size(); ++i) {
    request.staging.put(unstaged[i], grant.slots[i]);
  }
  request.known.staged = request.layers_seen();
  return true;
}

void Controller::State::release_staging(Request& request) {
  store::Hold hold = hold_for(request);
  hold.copies = request.streams;
  hold.hbm = request.staging.take();
  tiers.hold(std::move(hold));
}

void Controller::State::add_fetches(Request& request, std::uint64_t iteration,
                                    StreamLayers& stream) const {
  if (complete(request)) return;
  LayersSeen now_seen = request.layers_seen();
  if (request.known.fetches.seen != now_seen) {
    request.known.fetches = {std::move(now_seen), fetches_of(request)};
  }
  // An iteration that is over reads nothing more, however far its engine got.
  const Session& session = sessions.at(request.key.engine);
  std::uint64_t after = request.streamed_in > session.finished ? request.staging_free : 0;
  for (const StreamLayers::Fetch& fetch : request.known.fetches.answer) {
    stream.fetches.push_back(fetch);
    stream.fetches.back().after = std::exchange(after, layer_mark(iteration, fetch.group + 1));
  }
}

std::vector<StreamLayers::Fetch> Controller::State::fetches_of(const Request& request) const {
  std::vector<StreamLayers::Fetch> fetches;
  const std::uint32_t groups = request.table.groups();
  for (std::uint32_t group = 0; group < groups; ++group) {
    StreamLayers::Fetch fetch{group, 0, {}};
    for (std::uint32_t block = 0; block < request.table.blocks(); ++block) {
      const std::uint32_t i = block * groups + group;
      // Blocks arrive in a request that runs by a fetch only.
      if (!blocks.has(request.table, i, Tier::kHbm) ||
          (request.fetch && blocks.arriving(request.table, i))) {
        fetch.pairs.push_back(
            {request.staging.slot(block), blocks.slot(request.table, i, Tier::kDram)});
      }
    }
    if (!fetch.pairs.empty()) fetches.push_back(std::move(fetch));
  }
  return fetches;
}

void Controller::State::start_stream(Session& session, StreamLayers stream,
                                     const std::vector<Request*>& streamed) {
  stream.engine = session.id;
  stream.groups = session.groups();
  stream.slot_bytes = session.shape.slot_bytes();
  ++counters.streams;
  for (const auto& fetch : stream.fetches) counters.layers_fetched += fetch.pairs.size();
  const Ticket ticket = transfers.start(std::move(stream), session.info.domain);
  for (Request* r : streamed) r->streams.push_back(ticket);
}

// The engine has finished their iterations, or has gone: nobody waits for their fetches.
void Controller::State::end_streams(Session& session) {
  transfers.end_streams(session.id, session.dying ? UINT64_MAX : session.finished);
}

void Controller::State::finish_stream(Ticket ticket, const store::Stream& stream) {
  each_inside_of(stream.engine, [&](Request& r) { std::erase(r.streams, ticket); });
}

}  // namespace kvd::core
