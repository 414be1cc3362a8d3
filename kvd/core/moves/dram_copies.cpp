#include "kvd/core/moves/dram_copies.hpp"

#include <algorithm>
#include <utility>

namespace kvd::core {

namespace {

/// Above this share of DRAM nothing is copied ahead, and copies make way for what has no other
/// place.
constexpr double kEagerDramShare = 0.8;
/// The most blocks that a step copies ahead, and the most cached rows that make way for the blocks
/// of one request: the control thread has others to serve.
constexpr std::int64_t kMostAhead = 2048;

}  // namespace

void DramCopies::make_ahead(Session& session) {
  session.ahead.short_of_dram = false;
  std::erase_if(session.ahead.wanting, [](const Request* r) { return r->synced >= r->sealed; });
  const bool wanted = std::any_of(
      session.ahead.wanting.begin(), session.ahead.wanting.end(),
      [&](const Request* r) { return context_.tuning.rotation.eager || !r->layers.away.empty(); });
  if (!wanted) return;
  // Copies under way delay requests that really leave, so they are at most a quarter of what a step
  // may move.
  const Bytes whole_block = session.shape.slot_bytes() * std::int64_t{session.groups()};
  Bytes budget =
      std::max(whole_block, Bytes(budget_.per_step(session).value / 4)) - session.ahead.under_way;
  budget = std::min(budget, std::max(whole_block, session.shape.slot_bytes() * kMostAhead));
  const Bytes capacity = store_.dram.config().slab_bytes * std::int64_t{store_.dram.config().slabs};
  const double used =
      1 - static_cast<double>(store_.cache.available(session.info.domain, Tier::kDram).value) /
              static_cast<double>(capacity.value);
  // Layers that should leave come first, because requests wait for their room. While they find no
  // room, copies ahead would only take back what was dropped for them.
  for (const bool away_only : {true, false}) {
    if (!away_only && (!context_.tuning.rotation.eager || used > kEagerDramShare)) return;
    if (!away_only && short_of_dram(session.info.domain)) return;
    // A request that loses copies to another meanwhile joins them.
    for (Request* r : session.ahead.wanting) {
      if (budget <= Bytes(0)) return;
      if (r->moves.sync || r->moves.rotation || r->leaving || (!r->runs() && !r->paused()))
        continue;
      if (away_only && r->layers.away.empty()) continue;
      budget -= sync_request(session, *r, away_only, budget);
    }
  }
}

bool DramCopies::short_of_dram(DomainId domain) const {
  return std::any_of(requests_.sessions().begin(), requests_.sessions().end(),
                     [&](const auto& entry) {
                       const Session& session = entry.second;
                       return session.info.domain == domain && session.ahead.short_of_dram &&
                              session.life.responsive && !session.life.dying;
                     });
}

Bytes DramCopies::sync_request(Session& session, Request& request, bool away_only, Bytes budget) {
  const std::uint32_t groups = session.groups();
  const std::uint32_t full = request.sealed;
  if (request.synced >= full) return Bytes(0);
  LayerAnswers& known = request.layers.known;
  std::uint64_t& nothing_left = away_only ? known.copied_away : known.copied;
  if (nothing_left == request.layers_version()) return Bytes(0);
  const Bytes slot_bytes = session.shape.slot_bytes();
  const auto most = static_cast<std::size_t>(std::max<std::int64_t>(1, budget / slot_bytes));
  std::vector<std::uint32_t> chosen;
  bool busy = false;
  for (std::uint32_t i = request.synced * groups; i < full * groups && chosen.size() < most; ++i) {
    if (away_only && !request.layers.away[i % groups]) continue;
    if (store_.blocks.has(request.table, i, Tier::kDram)) continue;
    const SlotId source = store_.blocks.slot(request.table, i, Tier::kHbm);
    if (store_.hbm.state(source) == pool::SlotState::kSealed) {
      chosen.push_back(i);
    } else {
      busy = true;
    }
  }
  if (chosen.empty()) {
    // The end of another request's copy changes nothing of this request, so it is asked again.
    if (!busy) nothing_left = request.layers_version();
    return Bytes(0);
  }
  const auto count = static_cast<std::uint32_t>(chosen.size());
  const pool::SlotGrant grant =
      away_only ? take(session, count)
                : store_.cache.try_take(Tier::kDram, session.taker(), count, kMostAhead);
  if (grant.code != ErrorCode::kOk) {
    session.ahead.short_of_dram = session.ahead.short_of_dram || away_only;
    // A step makes way for at most this many rows; the next step goes on.
    return grant.code == ErrorCode::kWouldBlock && !away_only ? budget : Bytes(0);
  }
  store_.moves.place(request.table, chosen, Tier::kDram, grant.slots);
  const auto done = [&](std::uint32_t block) {
    for (std::uint32_t group = 0; group < groups; ++group) {
      if (!store_.blocks.has(request.table, block * groups + group, Tier::kDram)) return false;
    }
    return true;
  };
  while (request.synced < full && done(request.synced)) ++request.synced;
  context_.counters.blocks_synced += count;
  request.moves.sync = memory_.start(session, request, store::Purpose::kSync, std::move(chosen));
  session.ahead.under_way += slot_bytes * std::int64_t{count};
  return slot_bytes * std::int64_t{count};
}

Bytes DramCopies::spare(DomainId domain) {
  Bytes copied;
  requests_.each_inside_in(domain, [&](Request& r) {
    if (r.table.doubled_alone() > 0)
      copied += requests_.session_of(r).shape.slot_bytes() * spare_copies(r);
  });
  return store_.cache.available(domain, Tier::kDram) + copied;
}

bool DramCopies::takes(Request& request) {
  const std::int64_t moves = request.hbm_slots() - request.table.doubled() + spare_copies(request);
  const Session& session = requests_.session_of(request);
  return spare(session.info.domain) >= session.shape.slot_bytes() * moves;
}

/// How many copies in DRAM the request can do without. A request that leaves, or whose layers
/// leave, will read its copies; and another owner of a shared block may have nothing else.
std::int64_t DramCopies::spare_copies(const Request& request) const {
  if (!request.layers.streams.empty() || request.moves.sync || request.moves.rotation ||
      request.moves.fetch || request.leaving) {
    return 0;
  }
  if (request.layers.away.empty()) return request.table.doubled_alone();
  std::int64_t stay = 0;
  for (std::uint32_t group = 0; group < request.table.groups(); ++group) {
    if (!request.layers.away[group]) stay += request.table.doubled_alone(group);
  }
  return stay;
}

/// The places of those copies.
std::vector<std::uint32_t> DramCopies::spare_places(const Request& request) const {
  std::vector<std::uint32_t> places;
  const std::uint32_t groups = request.table.groups();
  for (std::uint32_t i = 0; i < request.table.size(); ++i) {
    const bool leaves = !request.layers.away.empty() && request.layers.away[i % groups];
    if (!leaves && store_.blocks.synced(request.table, i) &&
        !store_.blocks.shared(request.table, i)) {
      places.push_back(i);
    }
  }
  return places;
}

// Drops copies of running requests: such a copy can be made again, while the request that asks has
// no other place to go.
Bytes DramCopies::drop(DomainId domain, Bytes needed) {
  Bytes dropped;
  requests_.each_inside_in(domain, [&](Request& r) {
    if (dropped >= needed || spare_copies(r) == 0) return;
    const std::vector<std::uint32_t> spare = spare_places(r);
    if (spare.empty()) return;
    std::vector<SlotId> free;
    for (const std::uint32_t i : spare) {
      if (dropped >= needed) break;
      free.push_back(store_.blocks.vacate(r.table, i, Tier::kDram));
      dropped += requests_.session_of(r).shape.slot_bytes();
    }
    store_.tiers.free(Tier::kDram, free);
    r.synced = 0;
    requests_.session_of(r).ahead.wanting.insert(&r);
  });
  return dropped;
}

pool::SlotGrant DramCopies::take(const Session& session, std::uint32_t count) {
  pool::SlotGrant grant = store_.tiers.try_take(Tier::kDram, session.taker(), count);
  if (grant.code == ErrorCode::kOk) return grant;
  const Bytes needed = session.shape.slot_bytes() * std::int64_t{count};
  if (spare(session.info.domain) >= needed) {
    (void)drop(session.info.domain, needed);
    grant = store_.cache.try_take(Tier::kDram, session.taker(), count);
  }
  if (grant.code != ErrorCode::kOk) store_.compaction.want(session.taker(), needed);
  return grant;
}

}  // namespace kvd::core
