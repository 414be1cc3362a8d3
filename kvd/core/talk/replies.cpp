#include "kvd/core/talk/replies.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "ipc/vocabulary/layer_mark.hpp"

namespace kvd::core {

StepReply Replies::build(Session& session) {
  Draft next;
  next.streams.resize(session.shape.ranks);
  for (StreamLayers& stream : next.streams) stream.iteration = session.iterations.granted + 1;
  session.iterations.granted_prefill = Tokens(0);
  bool promises = false;
  requests_.each_inside_in(session.info.domain,
                           [&](const Request& r) { promises |= r.promised.has_value(); });
  if (context_.config.publish_tables) next.rows.reserve(session.inside.size());
  for (Request* const each : in_order(session)) {
    Request& r = *each;
    const bool prefill = begins_with_prompt(r);
    const Tokens tokens = prefill ? prefill_tokens(session, r) : Tokens(1);
    const Hold hold = hold_or_none(session, r, tokens, promises);
    if (hold == Hold::kNone) {
      grant(session, r, tokens, next);
      continue;
    }
    if (hold == Hold::kPromised) ++context_.counters.rotation_blocked_promise;
    next.reply.hold.push_back({r.key.request, hold});
  }
  for (const HoldEntry& ended : std::exchange(session.given_up, {})) {
    next.reply.hold.push_back(ended);
  }
  publish(session, next);
  next.reply.iteration = session.iterations.granted;
  next.reply.table_version = PlanVersion(session.iterations.table_version);
  return std::move(next.reply);
}

// Lists requests by id, except for prompts that have begun: these share the chunk, so the one that
// is due first comes first.
std::vector<Request*> Replies::in_order(const Session& session) const {
  std::vector<Request*> order = session.active, begun;
  const auto has_begun = [](const Request* r) { return begins_with_prompt(*r); };
  std::copy_if(session.inside.begin(), session.inside.end(), std::back_inserter(begun), has_begun);
  if (begun.size() < 2) return order;
  line_.sort(begun);
  auto next = begun.begin();
  for (Request*& at : order) {
    if (has_begun(at)) at = *next++;
  }
  return order;
}

// With a pipelined engine the first decode is granted while the prefill still runs.
bool Replies::begins_with_prompt(const Request& request) {
  return request.prefills() && request.progress.planned < request.goal.prompt;
}

Hold Replies::hold_or_none(Session& session, Request& request, Tokens tokens, bool promises) {
  const Hold hold = hold_reason(request, promises);
  if (hold != Hold::kNone) return hold;
  if (tokens <= Tokens(0)) return Hold::kWaiting;  // its turn comes later
  const std::int64_t needs = session.blocks_for(request.progress.planned + tokens);
  const bool has_room = needs <= std::int64_t{request.table.blocks()};
  request.starved = !has_room || !streams_.stage(session, request);
  return request.starved ? Hold::kNoMemory : Hold::kNone;
}

void Replies::grant(Session& session, Request& request, Tokens tokens, Draft& next) {
  const bool prefill = begins_with_prompt(request);
  if (request.progress.last_iteration == 0) lateness_.entered(request);
  if (prefill) session.iterations.granted_prefill += tokens;
  const std::uint64_t iteration = session.iterations.granted + 1;
  const std::uint32_t through = streams_.add_fetches(request, iteration, next.streams);
  if (through > 0) {
    next.streamed.push_back(&request);
    request.layers.staging_free = layer_mark(iteration, through);
    request.layers.streamed_in = iteration;
  }
  const auto row = static_cast<std::uint32_t>(next.granted.size());
  next.granted.push_back(&request);
  next.reply.run.push_back({request.key.request, request.progress.planned, tokens, request.moves.in,
                            prefill, static_cast<bool>(request.moves.in), through > 0,
                            request.layers.distance, row});
  request.moves.in = Ticket();
  request.progress.granted = tokens;
  request.progress.planned += tokens;
  if (context_.config.publish_tables) next.rows.push_back(table_row(session, request));
}

// The fetches are ordered before the table is read: the blocks that the table names are on their
// way.
void Replies::publish(Session& session, Draft& next) {
  Iterations& iterations = session.iterations;
  if (!next.streamed.empty()) streams_.start(session, std::move(next.streams), next.streamed);
  iterations.stepping = !next.granted.empty();
  if (!iterations.stepping) return;
  const bool idle = iterations.finished == iterations.granted;
  ++iterations.granted;
  ++iterations.table_version;
  for (Request* r : next.granted) r->progress.last_iteration = iterations.granted;
  if (!context_.config.publish_tables) return;
  context_.emit(
      PublishTable{session.id, PlanVersion(iterations.table_version), std::move(next.rows), idle});
}

// How many tokens of its prompt the request may prefill now.
Tokens Replies::prefill_tokens(const Session& session, const Request& request) {
  Tokens tokens = request.goal.prompt - request.progress.planned;
  const Iterations& iterations = session.iterations;
  if (iterations.chunk) tokens = std::min(tokens, *iterations.chunk - iterations.granted_prefill);
  // A prompt that prefills chunk by chunk has blocks for no more.
  const Tokens room(std::int64_t{request.table.blocks()} * session.shape.block_tokens);
  return std::min(tokens, room - request.progress.planned);
}

TableRow Replies::table_row(const Session& session, Request& request) const {
  LayerAnswers::Row& row = request.layers.known.row;
  const bool complete = request.complete();
  const std::uint64_t version =
      complete ? request.table.moves(Tier::kHbm) : request.layers_version();
  if (row.complete != complete || row.version != version) {
    row = {complete, version, complete ? slots_in_hbm(request) : row_slots(request)};
  }
  return {request.key.request, request.progress.planned, request.table.blocks(), session.groups(),
          row.slots};
}

std::vector<SlotId> Replies::slots_in_hbm(const Request& request) const {
  const std::uint32_t groups = request.table.groups(), size = request.table.size();
  std::vector<SlotId> slots;
  slots.reserve(size);
  for (std::uint32_t group = 0; group < groups; ++group) {
    for (std::uint32_t i = group; i < size; i += groups) {
      slots.push_back(store_.blocks.slot(request.table, i, Tier::kHbm));
    }
  }
  return slots;
}

std::vector<SlotId> Replies::row_slots(const Request& request) const {
  const Session& session = *request.session;
  const std::uint32_t groups = request.table.groups(), count = request.table.blocks();
  std::vector<SlotId> slots(request.table.size());
  std::uint32_t i = 0;
  for (std::uint32_t block = 0; block < count; ++block) {
    for (std::uint32_t group = 0; group < groups; ++group, ++i) {
      const bool missing = store_.blocks.missing(request.table, i);
      slots[std::size_t{group} * count + block] =
          missing ? request.layers.staging.slot(session.staging_place(block, group))
                  : store_.blocks.slot(request.table, i, Tier::kHbm);
    }
  }
  return slots;
}

Hold Replies::hold_reason(const Request& request, bool promises) {
  if (request.forced_out()) return Hold::kForced;
  if (request.paused()) return Hold::kPaused;
  if (request.order.claim != 0) {
    if (request.order.awaits_mapping) return Hold::kSlabNotMapped;
    return promises ? Hold::kPromised : Hold::kNoMemory;
  }
  if (request.waits() || request.verdict == Verdict::kDrained) return Hold::kWaiting;
  if (!request.runs() || request.leaving || request.promised) return Hold::kSwappedOut;
  if (request.progress.planned >= request.goal.prompt + request.goal.max_new) {
    return Hold::kComplete;
  }
  return request.starved ? Hold::kNoMemory : Hold::kNone;
}

}  // namespace kvd::core
