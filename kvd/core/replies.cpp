#include "kvd/core/replies.hpp"

#include <algorithm>
#include <utility>

#include "ipc/vocabulary/layer_mark.hpp"

namespace kvd::core {

StepReply Replies::build(Session& session) {
  StepReply out;
  PublishTable table{session.id,
                     PlanVersion(session.table_version + 1),
                     {},
                     session.finished == session.iteration};
  bool promises = false;
  requests_.each_inside_in(session.info.domain, [&](const Request& r) { promises |= r.promised; });
  session.granted_prefill = Tokens(0);
  const std::uint64_t iteration = session.iteration + 1;
  StreamLayers stream;
  stream.iteration = iteration;
  std::vector<Request*> streamed, granted;
  if (context_.config.publish_tables) table.rows.reserve(session.inside.size());
  requests_.each_request_of(session.id, [&](Request& r) {
    Hold hold = hold_reason(r, promises);
    // With a pipelined engine the first decode is granted while the prefill still runs.
    const bool prefill = r.state == RequestState::kPrefill && r.planned < r.prompt;
    const Tokens tokens = prefill ? prefill_tokens(session, r) : Tokens(1);
    if (hold == Hold::kNone && tokens <= Tokens(0)) hold = Hold::kWaiting;  // its turn comes later
    const bool has_room = session.blocks_for(r.planned + tokens) <= std::int64_t{r.table.blocks()};
    if (hold == Hold::kNone && (!has_room || !streams_.stage(session, r))) {
      r.starved = true;
      hold = Hold::kNoMemory;
    }
    if (hold != Hold::kNone) {
      if (hold == Hold::kPromised) ++context_.counters.rotation_blocked_promise;
      out.hold.push_back({r.key.request, hold});
      return;
    }
    if (prefill) session.granted_prefill += tokens;
    const std::size_t fetches = stream.fetches.size();
    streams_.add_fetches(r, iteration, stream);
    const bool streams = stream.fetches.size() > fetches;
    if (streams) {
      streamed.push_back(&r);
      r.staging_free = layer_mark(iteration, stream.fetches.back().group + 1);
      r.streamed_in = iteration;
    }
    const auto row = static_cast<std::uint32_t>(granted.size());
    granted.push_back(&r);
    out.run.push_back({r.key.request, r.planned, tokens, r.in_ticket, prefill,
                       static_cast<bool>(r.in_ticket), streams, r.distance, row});
    r.in_ticket = Ticket();
    r.granted = tokens;
    r.planned += tokens;
    if (context_.config.publish_tables) table.rows.push_back(table_row(session, r));
  });
  if (!streamed.empty()) streams_.start(session, std::move(stream), streamed);
  for (const RequestId ended : std::exchange(session.given_up, {})) {
    out.hold.push_back({ended, Hold::kOutOfMemory});
  }
  session.stepping = !out.run.empty();
  if (session.stepping) {
    ++session.iteration;
    for (Request* r : granted) r->last_iteration = session.iteration;
    session.table_version = table.version.value;
    if (context_.config.publish_tables) context_.emit(std::move(table));
  }
  out.iteration = session.iteration;
  out.table_version = PlanVersion(session.table_version);
  return out;
}

// What of its prompt the request may prefill now.
Tokens Replies::prefill_tokens(const Session& session, const Request& request) {
  Tokens tokens = request.prompt - request.planned;
  if (session.chunk) tokens = std::min(tokens, *session.chunk - session.granted_prefill);
  // One that prefills chunk by chunk has blocks for no more.
  const Tokens room(std::int64_t{request.table.blocks()} * session.shape.block_tokens);
  return std::min(tokens, room - request.planned);
}

TableRow Replies::table_row(const Session& session, Request& request) const {
  LayersSeen now_seen = request.layers_seen();
  if (request.known.row.seen != now_seen) {
    request.known.row = {std::move(now_seen), RowSlots(row_slots(request))};
  }
  return {request.key.request, request.planned, request.table.blocks(), session.groups(),
          request.known.row.answer};
}

std::vector<SlotId> Replies::row_slots(const Request& request) const {
  const std::uint32_t groups = request.table.groups(), count = request.table.blocks();
  std::vector<SlotId> slots(request.table.size());
  const bool whole = request.complete();
  for (std::uint32_t i = 0; i < slots.size(); ++i) {
    const std::uint32_t block = i / groups;
    const bool staged = !whole && store_.blocks.missing(request.table, i);
    slots[std::size_t{i % groups} * count + block] =
        staged ? request.staging.slot(block) : store_.blocks.slot(request.table, i, Tier::kHbm);
  }
  return slots;
}

Hold Replies::hold_reason(const Request& request, bool promises) {
  if (request.forced_out) return Hold::kForced;
  if (request.paused) return Hold::kPaused;
  if (request.claim != 0) {
    if (request.awaits_mapping) return Hold::kSlabNotMapped;
    return promises ? Hold::kPromised : Hold::kNoMemory;
  }
  switch (request.state) {
    case RequestState::kWaiting:
      return Hold::kWaiting;
    case RequestState::kPrefill:
    case RequestState::kRunning:
      if (request.leaving || request.promised) return Hold::kSwappedOut;
      if (request.planned >= request.prompt + request.max_new) return Hold::kComplete;
      return request.starved ? Hold::kNoMemory : Hold::kNone;
    default:
      return Hold::kSwappedOut;
  }
}

}  // namespace kvd::core
