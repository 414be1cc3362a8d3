#include <algorithm>
#include <utility>
#include <vector>

#include "ipc/vocabulary/layer_mark.hpp"
#include "kvd/core/state.hpp"

/// One step of an engine: what it did comes in, what it shall do next goes out.
namespace kvd::core {

void Controller::State::on_step(const Command& command, const Step& step) {
  Session& session = sessions.at(command.engine);
  if (session.ranks) return on_rank_step(command, step);
  auto next = next_step(session, step);
  if (next.ok()) {
    reply(command, std::move(*next));
  } else {
    reply(command, next.error());
  }
}

Result<StepReply> Controller::State::next_step(Session& session, const Step& step) {
  KVD_TRY(check_step(session, step));
  ++counters.steps;
  ++session.steps;
  if (session.last_step.count() != 0) {
    constexpr double kWeight = 0.25;  // kvd design: as for the link rate
    const double gap = to_seconds(now - session.last_step);
    mean_step_s = mean_step_s == 0 ? gap : mean_step_s + kWeight * (gap - mean_step_s);
  }
  const double took = to_seconds(now - session.last_step);
  const bool measured = session.stepping;
  session.last_step = now;
  session.responsive = true;
  session.streaming = layers_stream(session);
  if (!session.streaming) forget_plan(session);  // before who is no longer paused grows

  take_reports(session, step);
  end_given_up(session);
  if (measured) measure_step(session, took);
  end_streams(session);
  expire_promises(session.info.domain);
  acknowledge_promises(session);
  yield_to_regions(session.info.domain, session.id);
  install_layers(session);
  admit(session);
  decide(session);
  start_leaving(session);
  grow_running(session);
  start_leaving(session);
  plan_layers(session);
  sync_blocks(session);
  serve_everyone();
  return build_reply(session);
}

Status Controller::State::check_step(const Session& session, const Step& step) {
  if (!session.class_id) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a session without a model class cannot step: attach with a model shape");
  }
  const bool idle = step.iteration_running == 0 && step.iteration_finished == session.iteration;
  const bool pipelined = step.iteration_running == session.iteration && session.iteration > 0 &&
                         step.iteration_finished + 1 == session.iteration;
  // A grant whose reply was lost: the engine never ran it.
  const bool lost = step.iteration_running == 0 && step.iteration_finished + 1 == session.iteration;
  if (!idle && !pipelined && !lost) {
    return make_error(ErrorCode::kInvalidArgument,
                      "iteration numbers do not fit the last reply (" +
                          std::to_string(session.iteration) +
                          "): report it as finished, or as running with the one before finished");
  }
  std::vector<RequestId> seen;
  seen.reserve(step.reports.size());
  for (const StepReport& report : step.reports) {
    const auto fault = [&](ErrorCode code, const std::string& what) {
      return make_error(code, "request " + std::to_string(report.request.value) + what);
    };
    const Request* request = find(session.id, report.request);
    if (!request && session.ranks) continue;  // another rank has ended it
    if (!request) return fault(ErrorCode::kNotFound, " is unknown: submit it first");
    seen.push_back(report.request);
    const bool counted = request->last_iteration <= step.iteration_finished;
    // What the iteration still running was granted cannot be there yet.
    const Tokens most = request->planned - (counted ? Tokens(0) : request->granted);
    if (report.tokens < request->tokens || report.tokens > most) {
      return fault(ErrorCode::kInvalidArgument,
                   " reports " + std::to_string(report.tokens.value) + " tokens, between " +
                       std::to_string(request->tokens.value) + " and " +
                       std::to_string(most.value) + " are possible");
    }
  }
  std::sort(seen.begin(), seen.end());
  const auto twice = std::adjacent_find(seen.begin(), seen.end());
  if (twice == seen.end()) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "request " + std::to_string(twice->value) + " is reported twice in one step");
}

void Controller::State::take_reports(Session& session, const Step& step) {
  session.reported = step.iteration_running == 0 ? session.iteration : step.iteration_finished;
  if (!session.ranks) session.finished = session.reported;  // else once its last rank says so
  tiers.iteration_finished(session.id, session.finished);
  session.reported_prefill = Tokens(0);
  for (const StepReport& report : step.reports) {
    if (Request* request = find(session.id, report.request)) take_report(session, *request, report);
  }
  each_inside_of(session.id, [&](Request& r) {
    if (r.last_iteration <= session.reported) r.planned = r.tokens;
  });
}

// The daemon stamps tokens on receipt; the client paces by the same function.
void Controller::State::count_deposit(Request& request, Tokens made) {
  if (request.slo.tbt <= Nanoseconds(0)) return;
  const auto ignore = [](Nanoseconds) {};
  if (!request.deposit) {
    request.deposit.emplace(request.slo.tbt, now);
  } else {
    for (Tokens i(0); i < made; i += Tokens(1)) request.deposit->generated(now, ignore);
  }
  counters.deposit.add(static_cast<double>(request.deposit->left()));
}

void Controller::State::take_report(Session& session, Request& request, const StepReport& report) {
  const Tokens made = report.tokens - request.tokens;
  if (made > Tokens(0)) {
    const Tokens prompt_left = std::max(Tokens(0), request.prompt - request.tokens);
    session.reported_prefill += std::min(made, prompt_left);
    request.tokens = report.tokens;
    session.tokens += static_cast<std::uint64_t>(made.value);
    counters.tokens += static_cast<std::uint64_t>(made.value);
    still.erase(session.info.domain);
    if (request.tokens >= request.prompt) {
      const bool first = !request.has_token;
      const Nanoseconds gap = now - (first ? request.arrived : request.last_token);
      const bool met = gap <= (first ? request.slo.ttft : request.slo.tbt);
      if (first) {
        ++(met ? counters.ttft_met : counters.ttft_missed);
      } else {
        ++(met ? counters.tbt_met : counters.tbt_missed);
      }
      if (first) request.first_token = now;
      count_deposit(request, first ? Tokens(1) : made);
      request.has_token = true;
      request.last_token = now;
      if (request.state == RequestState::kPrefill) request.state = RequestState::kRunning;
      // Its layers are in DRAM but for the last ones: it comes back whole.
      if (request.layerwise && !request.leaving) {
        request.leaving = spare_dram(session.info.domain) >= hbm_bytes(request);
      }
    }
    request.fresh = false;
    const Tokens before = request.tokens - made;
    const Tokens block(session.shape.block_tokens);
    // A token within a block changes no slot's state.
    const bool within = session.blocks_for(before) == session.blocks_for(request.tokens) &&
                        before.value / block.value == request.tokens.value / block.value;
    // Other ranks may still write what the first one reports.
    if (!within && session.finished >= session.reported) seal_full_blocks(request);
  }
  if (report.finished) {
    ++counters.requests_finished;
    note_end(session, request);
    remove(request);
  }
}

// What of its prompt the request may prefill now.
Tokens Controller::State::prefill_tokens(const Session& session, const Request& request) {
  Tokens tokens = request.prompt - request.planned;
  if (session.chunk) tokens = std::min(tokens, *session.chunk - session.granted_prefill);
  // One that prefills chunk by chunk has blocks for no more.
  const Tokens room(std::int64_t{request.table.blocks()} * session.shape.block_tokens);
  return std::min(tokens, room - request.planned);
}

TableRow Controller::State::table_row(const Session& session, Request& request) const {
  LayersSeen now_seen = request.layers_seen();
  if (request.known.row.seen != now_seen) {
    request.known.row = {std::move(now_seen), RowSlots(row_slots(request))};
  }
  return {request.key.request, request.planned, request.table.blocks(), session.groups(),
          request.known.row.answer};
}

std::vector<SlotId> Controller::State::row_slots(const Request& request) const {
  const std::uint32_t groups = request.table.groups(), count = request.table.blocks();
  std::vector<SlotId> slots(request.table.size());
  const bool whole = complete(request);
  for (std::uint32_t i = 0; i < slots.size(); ++i) {
    const std::uint32_t block = i / groups;
    const bool staged = !whole && blocks.missing(request.table, i);
    slots[std::size_t{i % groups} * count + block] =
        staged ? request.staging.slot(block) : blocks.slot(request.table, i, Tier::kHbm);
  }
  return slots;
}

StepReply Controller::State::build_reply(Session& session) {
  StepReply out;
  PublishTable table{session.id,
                     PlanVersion(session.table_version + 1),
                     {},
                     session.finished == session.iteration};
  bool promises = false;
  each_inside_in(session.info.domain, [&](const Request& r) { promises |= r.promised; });
  session.granted_prefill = Tokens(0);
  const std::uint64_t iteration = session.iteration + 1;
  StreamLayers stream;
  stream.iteration = iteration;
  std::vector<Request*> streamed, granted;
  if (config.publish_tables) table.rows.reserve(session.inside.size());
  each_request_of(session.id, [&](Request& r) {
    Hold hold = hold_reason(r, promises);
    // With a pipelined engine the first decode is granted while the prefill still runs.
    const bool prefill = r.state == RequestState::kPrefill && r.planned < r.prompt;
    const Tokens tokens = prefill ? prefill_tokens(session, r) : Tokens(1);
    if (hold == Hold::kNone && tokens <= Tokens(0)) hold = Hold::kWaiting;  // its turn comes later
    const bool has_room = session.blocks_for(r.planned + tokens) <= std::int64_t{r.table.blocks()};
    if (hold == Hold::kNone && (!has_room || !stage(session, r))) {
      r.starved = true;
      hold = Hold::kNoMemory;
    }
    if (hold != Hold::kNone) {
      if (hold == Hold::kPromised) ++counters.rotation_blocked_promise;
      out.hold.push_back({r.key.request, hold});
      return;
    }
    if (prefill) session.granted_prefill += tokens;
    const std::size_t fetches = stream.fetches.size();
    add_fetches(r, iteration, stream);
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
    if (config.publish_tables) table.rows.push_back(table_row(session, r));
  });
  if (!streamed.empty()) start_stream(session, std::move(stream), streamed);
  for (const RequestId ended : std::exchange(session.given_up, {})) {
    out.hold.push_back({ended, Hold::kOutOfMemory});
  }
  session.stepping = !out.run.empty();
  if (session.stepping) {
    ++session.iteration;
    for (Request* r : granted) r->last_iteration = session.iteration;
    session.table_version = table.version.value;
    if (config.publish_tables) emit(std::move(table));
  }
  out.iteration = session.iteration;
  out.table_version = PlanVersion(session.table_version);
  return out;
}

Hold Controller::State::hold_reason(const Request& request, bool promises) {
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
