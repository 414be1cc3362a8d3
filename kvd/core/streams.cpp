#include "kvd/core/streams.hpp"

#include <algorithm>
#include <utility>

#include "ipc/vocabulary/layer_mark.hpp"

namespace kvd::core {

void Streams::install(Session& session) {
  requests_.each_inside_of(session.id, [&](Request& r) {
    if (r.leaving || (!r.runs() && !r.paused())) return;
    if (r.paused()) memory_.release_staging(r);
    // A prompt on its way to DRAM keeps its blocks until somebody is short of them: its next chunk
    // would have to fetch them again.
    if (!r.layers.away.empty() && (!r.layerwise || session.crowded)) evict_layers(session, r);
    if (!r.paused() && !r.moves.fetch && !r.layerwise) fetch_layers(session, r);
  });
  session.crowded = false;
}

// The first slots that leave become staging; a paused request needs none.
void Streams::evict_layers(Session& session, Request& request) {
  if (request.moves.fetch || request.layers.known.evicted == request.layers_version()) return;
  const std::uint32_t groups = session.groups();
  const std::uint32_t full = request.sealed;
  std::vector<SlotId> freed;
  std::vector<std::uint32_t> leaving;
  for (std::uint32_t group = 0; group < groups; ++group) {
    if (request.layers.away[group]) leaving.push_back(group);
  }
  bool wanted = false;
  for (std::uint32_t block = 0; block < full; ++block) {
    for (const std::uint32_t group : leaving) {
      const std::uint32_t i = block * groups + group;
      // Others may run on a shared block, and what becomes staging is written over. What is being
      // read for its sum is free once that has ended.
      if (!store_.blocks.synced(request.table, i)) continue;
      if (store::wanted_by_others(store_.blocks, request.table, i)) {
        wanted = true;
        continue;
      }
      const SlotId slot = store_.blocks.vacate(request.table, i, Tier::kHbm);
      const bool staged = !request.layers.staging.slot(block).none();
      if (staged || request.paused() || store::is_read(store_.tiers, Tier::kHbm, slot)) {
        freed.push_back(slot);
        continue;
      }
      request.layers.staging.put(block, slot);
      // The iteration that runs may still read the block there.
      request.layers.staging_free = std::max(request.layers.staging_free,
                                             layer_mark(request.progress.last_iteration, groups));
      request.layers.streamed_in =
          std::max(request.layers.streamed_in, request.progress.last_iteration);
    }
  }
  memory_.release_slots(request, std::move(freed));
  // That the others want a block no more changes nothing of this request: it is asked again.
  if (!wanted) request.layers.known.evicted = request.layers_version();
}

void Streams::fetch_layers(Session& session, Request& request) {
  if (request.complete() || request.layers.known.fetched == request.layers_version()) return;
  const std::uint32_t groups = session.groups();
  std::vector<std::uint32_t> coming;
  bool short_of_hbm = false;
  for (std::uint32_t group = 0; group < groups; ++group) {
    if (!request.layers.away.empty() && request.layers.away[group]) continue;
    std::vector<std::uint32_t> wanted;
    for (std::uint32_t i = group; i < request.table.size(); i += groups) {
      if (!store_.blocks.has(request.table, i, Tier::kHbm)) wanted.push_back(i);
    }
    if (wanted.empty()) continue;
    const pool::SlotGrant grant = memory_.take(session, wanted);
    short_of_hbm = grant.code != ErrorCode::kOk;
    if (short_of_hbm) break;
    store_.moves.place(request.table, wanted, Tier::kHbm, grant.slots);
    coming.insert(coming.end(), wanted.begin(), wanted.end());
  }
  if (coming.empty()) {
    if (!short_of_hbm) request.layers.known.fetched = request.layers_version();
    return;
  }
  request.moves.fetch = memory_.start(session, request, store::Purpose::kFetch, std::move(coming));
}

bool Streams::stage(Session& session, Request& request) {
  if (request.complete() || request.layers.known.staged == request.layers_version()) return true;
  // Its ranks cannot share a slot: what it lacks, after a copy that failed, is fetched first.
  if (session.devices().several()) return false;
  const std::uint32_t groups = session.groups();
  std::vector<std::uint32_t> unstaged;
  bool streams = false;
  for (std::uint32_t block = 0; block < request.table.blocks(); ++block) {
    bool gone = false;
    for (std::uint32_t group = 0; group < groups && !gone; ++group) {
      gone = store_.blocks.missing(request.table, block * groups + group);
    }
    if (!gone) continue;
    streams = true;
    if (request.layers.staging.slot(block).none()) unstaged.push_back(block);
  }
  if (!streams) {
    if (request.layers.away.empty()) memory_.release_staging(request);
    request.layers.known.staged = request.layers_version();
    return true;
  }
  if (unstaged.empty()) {
    request.layers.known.staged = request.layers_version();
    return true;
  }
  const pool::SlotGrant grant =
      store_.cache.take(Tier::kHbm, session.taker(), static_cast<std::uint32_t>(unstaged.size()));
  if (grant.code != ErrorCode::kOk) return false;
  for (std::size_t i = 0; i < unstaged.size(); ++i) {
    request.layers.staging.put(unstaged[i], grant.slots[i]);
  }
  request.layers.known.staged = request.layers_version();
  return true;
}

void Streams::add_fetches(Request& request, std::uint64_t iteration, StreamLayers& stream) const {
  if (request.complete()) return;
  LayerAnswers::Fetches& known = request.layers.known.fetches;
  if (const std::uint64_t version = request.layers_version(); known.version != version) {
    known = {version, fetches_of(request)};
  }
  // An iteration that is over reads nothing more, however far its engine got.
  const Session& session = requests_.session_of(request);
  std::uint64_t after =
      request.layers.streamed_in > session.iterations.finished ? request.layers.staging_free : 0;
  for (const StreamLayers::Fetch& fetch : known.list) {
    stream.fetches.push_back(fetch);
    stream.fetches.back().after = std::exchange(after, layer_mark(iteration, fetch.group + 1));
  }
}

std::vector<StreamLayers::Fetch> Streams::fetches_of(const Request& request) const {
  std::vector<StreamLayers::Fetch> fetches;
  const std::uint32_t groups = request.table.groups();
  for (std::uint32_t group = 0; group < groups; ++group) {
    std::vector<CopySlots::Pair> pairs;
    for (std::uint32_t block = 0; block < request.table.blocks(); ++block) {
      const std::uint32_t i = block * groups + group;
      if (store_.blocks.missing(request.table, i)) {
        pairs.push_back({request.layers.staging.slot(block),
                         store_.blocks.slot(request.table, i, Tier::kDram)});
      }
    }
    if (!pairs.empty()) fetches.push_back({group, 0, std::move(pairs)});
  }
  return fetches;
}

void Streams::start(Session& session, StreamLayers stream, const std::vector<Request*>& streamed) {
  stream.engine = session.id;
  stream.groups = session.groups();
  stream.slot_bytes = session.shape.slot_bytes();
  ++context_.counters.streams;
  for (const auto& fetch : stream.fetches) context_.counters.layers_fetched += fetch.pairs.size();
  const Ticket ticket =
      store_.transfers.start(std::move(stream), session.info.domain, session.devices().first());
  for (Request* r : streamed) r->layers.streams.push_back(ticket);
}

void Streams::end(Session& session) {
  store_.transfers.end_streams(session.id,
                               session.life.dying ? UINT64_MAX : session.iterations.finished);
}

void Streams::ended(Ticket ticket, const store::Stream& stream) {
  requests_.each_inside_of(stream.engine,
                           [&](Request& r) { std::erase(r.layers.streams, ticket); });
}

}  // namespace kvd::core
