#include "kvd/core/moves/streams.hpp"

#include <algorithm>
#include <utility>

#include "ipc/vocabulary/layer_mark.hpp"

namespace kvd::core {

void Streams::install(Session& session) {
  requests_.each_inside_of(session.id, [&](Request& r) {
    if (r.leaving || (!r.runs() && !r.paused())) return;
    if (r.paused()) memory_.release_staging(r);
    // A prompt that prefills into DRAM keeps its HBM blocks until others are short of them, because
    // its next chunk would have to fetch them again.
    if (!r.layers.away.empty() && (!r.layerwise || session.ahead.crowded)) evict_layers(session, r);
    if (!r.paused() && !r.moves.fetch && !r.layerwise) fetch_layers(session, r);
  });
  session.ahead.crowded = false;
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
      // Others may run on a shared block, and staging is written over. A block that is being read
      // for its checksum is free once that has ended.
      if (!store_.blocks.synced(request.table, i)) continue;
      if (store::wanted_by_others(store_.blocks, request.table, i)) {
        wanted = true;
        continue;
      }
      const SlotId slot = store_.blocks.vacate(request.table, i, Tier::kHbm);
      const std::uint32_t place = session.staging_place(block, group);
      const bool staged = !request.layers.staging.slot(place).none();
      if (staged || request.paused() || store::is_read(store_.tiers, Tier::kHbm, slot)) {
        freed.push_back(slot);
        continue;
      }
      request.layers.staging.put(place, slot);
      // The running iteration may still read the block there.
      request.layers.staging_free =
          std::max(request.layers.staging_free,
                   layer_mark(request.progress.last_iteration, session.shape.rank_groups()));
      request.layers.streamed_in =
          std::max(request.layers.streamed_in, request.progress.last_iteration);
    }
  }
  memory_.release_slots(request, std::move(freed));
  // Others that stop wanting a block change nothing of this request, so it is asked again.
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
  const std::uint32_t layers = session.shape.rank_groups();
  std::vector<std::uint32_t> unstaged;  // the first group of a rank's layers of a block
  bool streams = false;
  for (std::uint32_t i = 0; i < request.table.size(); i += layers) {
    bool gone = false;
    for (std::uint32_t layer = 0; layer < layers && !gone; ++layer) {
      gone = store_.blocks.missing(request.table, i + layer);
    }
    if (!gone) continue;
    streams = true;
    if (request.layers.staging.slot(i / layers).none()) unstaged.push_back(i);
  }
  if (!streams) {
    if (request.layers.away.empty()) memory_.release_staging(request);
    request.layers.known.staged = request.layers_version();
    return true;
  }
  // Where its engine waits for no layer, blocks that are missing after a failed copy are fetched
  // first.
  if (!session.info.streams_layers) return false;
  if (unstaged.empty()) {
    request.layers.known.staged = request.layers_version();
    return true;
  }
  const pool::SlotGrant grant = memory_.take(session, unstaged);
  if (grant.code != ErrorCode::kOk) return false;
  for (std::size_t i = 0; i < unstaged.size(); ++i) {
    request.layers.staging.put(unstaged[i] / layers, grant.slots[i]);
  }
  request.layers.known.staged = request.layers_version();
  return true;
}

std::uint32_t Streams::add_fetches(Request& request, std::uint64_t iteration,
                                   std::vector<StreamLayers>& by_rank) const {
  if (request.complete()) return 0;
  LayerAnswers::Fetches& known = request.layers.known.fetches;
  if (const std::uint64_t version = request.layers_version(); known.version != version) {
    known = {version, fetches_of(request)};
  }
  // An ended iteration reads nothing more, however far its engine got.
  const Session& session = requests_.session_of(request);
  const std::uint64_t free =
      request.layers.streamed_in > session.iterations.finished ? request.layers.staging_free : 0;
  const std::uint32_t layers = session.shape.rank_groups();
  std::uint32_t through = 0, rank = 0;
  std::uint64_t after = free;
  for (const StreamLayers::Fetch& fetch : known.list) {
    if (std::exchange(rank, fetch.group / layers) != rank) after = free;
    StreamLayers::Fetch own{fetch.group % layers, 0, fetch.pairs};
    through = std::max(through, own.group + 1);
    own.after = std::exchange(after, layer_mark(iteration, own.group + 1));
    by_rank[rank].fetches.push_back(std::move(own));
  }
  return through;
}

// Lists the fetches of all ranks, in the order in which the table counts their groups.
std::vector<StreamLayers::Fetch> Streams::fetches_of(const Request& request) const {
  const Session& session = requests_.session_of(request);
  std::vector<StreamLayers::Fetch> fetches;
  const std::uint32_t groups = request.table.groups();
  for (std::uint32_t group = 0; group < groups; ++group) {
    std::vector<CopySlots::Pair> pairs;
    for (std::uint32_t block = 0; block < request.table.blocks(); ++block) {
      const std::uint32_t i = block * groups + group;
      if (store_.blocks.missing(request.table, i)) {
        pairs.push_back({request.layers.staging.slot(session.staging_place(block, group)),
                         store_.blocks.slot(request.table, i, Tier::kDram)});
      }
    }
    if (!pairs.empty()) fetches.push_back({group, 0, std::move(pairs)});
  }
  return fetches;
}

void Streams::start(Session& session, std::vector<StreamLayers> by_rank,
                    const std::vector<Request*>& streamed) {
  ++context_.counters.streams;
  std::uint32_t rank = 0;
  for (StreamLayers& stream : by_rank) {
    stream.engine = session.id;
    stream.rank = rank;
    stream.groups = session.shape.rank_groups();
    stream.slot_bytes = session.shape.slot_bytes();
    for (const auto& fetch : stream.fetches) context_.counters.layers_fetched += fetch.pairs.size();
    const Ticket ticket = store_.transfers.start(std::move(stream), session.info.domain,
                                                 session.devices().of_rank(rank++));
    for (Request* r : streamed) r->layers.streams.push_back(ticket);
  }
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
