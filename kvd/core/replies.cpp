#include "kvd/core/replies.hpp"

#include <algorithm>
#include <utility>

#include "ipc/vocabulary/layer_mark.hpp"

namespace kvd::core {

StepReply Replies::build(Session& session) {
  StepReply out;
  PublishTable table{session.id,
                     PlanVersion(session.iterations.table_version + 1),
                     {},
                     session.iterations.finished == session.iterations.granted};
  bool promises = false;
  requests_.each_inside_in(session.info.domain,
                           [&](const Request& r) { promises |= r.promised.has_value(); });
  session.iterations.granted_prefill = Tokens(0);
  const std::uint64_t iteration = session.iterations.granted + 1;
  StreamLayers stream;
  stream.iteration = iteration;
  std::vector<Request*> streamed, granted;
  if (context_.config.publish_tables) table.rows.reserve(session.inside.size());
  requests_.each_request_of(session.id, [&](Request& r) {
    Hold hold = hold_reason(r, promises);
    // With a pipelined engine the first decode is granted while the prefill still runs.
    const bool prefill = r.prefills() && r.progress.planned < r.goal.prompt;
    const Tokens tokens = prefill ? prefill_tokens(session, r) : Tokens(1);
    if (hold == Hold::kNone && tokens <= Tokens(0)) hold = Hold::kWaiting;  // its turn comes later
    const bool has_room =
        session.blocks_for(r.progress.planned + tokens) <= std::int64_t{r.table.blocks()};
    if (hold == Hold::kNone && (!has_room || !streams_.stage(session, r))) {
      r.starved = true;
      hold = Hold::kNoMemory;
    }
    if (hold != Hold::kNone) {
      if (hold == Hold::kPromised) ++context_.counters.rotation_blocked_promise;
      out.hold.push_back({r.key.request, hold});
      return;
    }
    if (prefill) session.iterations.granted_prefill += tokens;
    const std::size_t fetches = stream.fetches.size();
    streams_.add_fetches(r, iteration, stream);
    const bool streams = stream.fetches.size() > fetches;
    if (streams) {
      streamed.push_back(&r);
      r.layers.staging_free = layer_mark(iteration, stream.fetches.back().group + 1);
      r.layers.streamed_in = iteration;
    }
    const auto row = static_cast<std::uint32_t>(granted.size());
    granted.push_back(&r);
    out.run.push_back({r.key.request, r.progress.planned, tokens, r.moves.in, prefill,
                       static_cast<bool>(r.moves.in), streams, r.layers.distance, row});
    r.moves.in = Ticket();
    r.progress.granted = tokens;
    r.progress.planned += tokens;
    if (context_.config.publish_tables) table.rows.push_back(table_row(session, r));
  });
  if (!streamed.empty()) streams_.start(session, std::move(stream), streamed);
  for (const RequestId ended : std::exchange(session.given_up, {})) {
    out.hold.push_back({ended, Hold::kOutOfMemory});
  }
  session.iterations.stepping = !out.run.empty();
  if (session.iterations.stepping) {
    ++session.iterations.granted;
    for (Request* r : granted) r->progress.last_iteration = session.iterations.granted;
    session.iterations.table_version = table.version.value;
    if (context_.config.publish_tables) context_.emit(std::move(table));
  }
  out.iteration = session.iterations.granted;
  out.table_version = PlanVersion(session.iterations.table_version);
  return out;
}

// What of its prompt the request may prefill now.
Tokens Replies::prefill_tokens(const Session& session, const Request& request) {
  Tokens tokens = request.goal.prompt - request.progress.planned;
  if (session.iterations.chunk)
    tokens = std::min(tokens, *session.iterations.chunk - session.iterations.granted_prefill);
  // One that prefills chunk by chunk has blocks for no more.
  const Tokens room(std::int64_t{request.table.blocks()} * session.shape.block_tokens);
  return std::min(tokens, room - request.progress.planned);
}

TableRow Replies::table_row(const Session& session, Request& request) const {
  LayersSeen now_seen = request.layers_seen();
  if (request.layers.known.row.seen != now_seen) {
    request.layers.known.row = {std::move(now_seen), RowSlots(row_slots(request))};
  }
  return {request.key.request, request.progress.planned, request.table.blocks(), session.groups(),
          request.layers.known.row.answer};
}

std::vector<SlotId> Replies::row_slots(const Request& request) const {
  const std::uint32_t groups = request.table.groups(), count = request.table.blocks();
  std::vector<SlotId> slots(request.table.size());
  const bool whole = request.complete();
  for (std::uint32_t i = 0; i < slots.size(); ++i) {
    const std::uint32_t block = i / groups;
    const bool staged = !whole && store_.blocks.missing(request.table, i);
    slots[std::size_t{i % groups} * count + block] =
        staged ? request.layers.staging.slot(block)
               : store_.blocks.slot(request.table, i, Tier::kHbm);
  }
  return slots;
}

Hold Replies::hold_reason(const Request& request, bool promises) {
  if (request.forced_out()) return Hold::kForced;
  if (request.paused()) return Hold::kPaused;
  if (request.order.claim != 0) {
    if (request.awaits_mapping) return Hold::kSlabNotMapped;
    return promises ? Hold::kPromised : Hold::kNoMemory;
  }
  if (request.waits()) return Hold::kWaiting;
  if (!request.runs() || request.leaving || request.promised) return Hold::kSwappedOut;
  if (request.progress.planned >= request.goal.prompt + request.goal.max_new) {
    return Hold::kComplete;
  }
  return request.starved ? Hold::kNoMemory : Hold::kNone;
}

}  // namespace kvd::core
