#include <algorithm>

#include "ipc/vocabulary/overloaded.hpp"
#include "kvd/core/state.hpp"

/// Commands of an engine other than step and regions.
namespace kvd::core {

namespace {

std::string named(RequestId request) { return "request " + std::to_string(request.value); }

}  // namespace

void Controller::State::on_command(const Command& command) {
  const auto session = sessions.find(command.engine);
  if (session == sessions.end() || session->second.dying) {
    refuse(command, ErrorCode::kStaleSession, "the session has ended: attach again");
    return;
  }
  // A timeout of zero asks for whatever can be said at once.
  if (now > command.deadline) {
    refuse(command, ErrorCode::kDeadlineExceeded, "the command's timeout passed before it began");
    return;
  }
  const auto end = [&](RequestId id, bool finished) {
    Request* request = find(command.engine, id);
    if (!request) {
      refuse(command, ErrorCode::kNotFound, named(id) + " is not this session's");
      return;
    }
    ++(finished ? counters.requests_finished : counters.requests_aborted);
    if (finished) note_end(sessions.at(command.engine), *request);
    remove(*request);
    reply(command, Done{});
    serve_everyone();
  };
  std::visit(Overloaded{
                 [&](const Submit& body) { on_submit(command, body); },
                 [&](const Step& body) { on_step(command, body); },
                 [&](const AllocateRegion& body) { on_region(command, body); },
                 [&](const AllocateBlocks& body) { on_blocks(command, body); },
                 [&](const Place& body) { on_place(command, body); },
                 [&](const Rotate& body) { on_rotate(command, body); },
                 [&](const Finish& body) { end(body.request, true); },
                 [&](const Abort& body) { end(body.request, false); },
                 [&](const ReleaseRegion& body) { on_release_region(command, body); },
                 [&](const ReleaseOrphaned& body) {
                   Bytes& left = session->second.info.orphaned;
                   left -= std::min(left, body.bytes);
                   reply(command, Done{});
                 },
                 [&](const Stats&) { on_stats(command); },
                 [&](const Ping&) { reply(command, Done{}); },
             },
             command.body);
}

void Controller::State::on_submit(const Command& command, const Submit& submit) {
  Session& session = sessions.at(command.engine);
  const std::size_t active = session.active.size();
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;

  if (!session.class_id) {
    refuse(command, ErrorCode::kInvalidArgument,
           "a session without a model class cannot submit: attach with a model shape");
  } else if (submit.request.value == 0 || submit.prompt_tokens < Tokens(1) ||
             submit.max_new_tokens < Tokens(1) || submit.prompt_tokens.value > kMostTokens ||
             submit.max_new_tokens.value > kMostTokens || submit.ttft_slo.count() < 0 ||
             submit.tbt_slo.count() < 0) {
    refuse(command, ErrorCode::kInvalidArgument,
           "a request needs an id, a prompt and at least one new token (each at most 2^40), and "
           "SLOs that are not negative");
  } else if (find(session.id, submit.request)) {
    refuse(command, ErrorCode::kInvalidArgument,
           named(submit.request) + " is submitted already: finish or abort it first");
  } else if (active >= config.max_requests_per_engine) {
    refuse(command, ErrorCode::kQuotaExceeded,
           std::to_string(active) + " requests are open, the most a session may have: finish some");
  } else if (requests_of(session.info.domain) >= config.max_requests_per_domain) {
    refuse(command, ErrorCode::kQuotaExceeded,
           std::to_string(config.max_requests_per_domain) +
               " requests of the domain are open, the most it may have: finish some");
  } else if (submit.prompt_tokens + submit.max_new_tokens > most_tokens(session)) {
    refuse(command, ErrorCode::kOutOfMemory,
           named(submit.request) + " can grow to " +
               std::to_string((submit.prompt_tokens + submit.max_new_tokens).value) +
               " tokens, HBM holds " + std::to_string(most_tokens(session).value) +
               " of this model and domain: lower max_new_tokens, or enlarge pool.hbm or the quota");
  } else {
    Request request;
    request.key = {session.id, submit.request};
    request.prompt = submit.prompt_tokens;
    request.max_new = submit.max_new_tokens;
    const auto slo = tuning.slo.find(session.info.slo_class);
    if (slo != tuning.slo.end()) request.slo = slo->second;
    if (submit.ttft_slo.count() > 0) request.slo.ttft = submit.ttft_slo;
    if (submit.tbt_slo.count() > 0) request.slo.tbt = submit.tbt_slo;
    request.predicted = submit.predicted;
    request.table = store::BlockTable(session.groups());
    request.arrived = now;
    enlist(requests.emplace(request.key, std::move(request)).first->second);
    ++counters.requests_submitted;
    reply(command, Done{});
  }
}

void Controller::State::on_blocks(const Command& command, const AllocateBlocks& wanted) {
  Request* request = find(command.engine, wanted.request);
  if (!request) {
    refuse(command, ErrorCode::kNotFound, named(wanted.request) + " is not this session's");
    return;
  }
  const Tokens most = request->prompt + request->max_new - request->planned;
  if (!request->runs() || wanted.tokens < Tokens(1) || wanted.tokens > most) {
    refuse(command, ErrorCode::kInvalidArgument,
           named(wanted.request) + " must run and may get room for 1 to " +
               std::to_string(most.value) + " more tokens");
    return;
  }
  const std::uint32_t before = request->table.blocks();
  switch (grow(*request, request->planned + wanted.tokens)) {
    case ErrorCode::kOk:
      reply(command, BlocksReply{request->table.blocks() - before});
      break;
    case ErrorCode::kWouldBlock:
      refuse(command, ErrorCode::kWouldBlock, "the slab is being mapped: repeat the command");
      break;
    case ErrorCode::kQuotaExceeded:
      refuse(command, ErrorCode::kQuotaExceeded,
             "the domain's maximum is reached: raise its quota or finish requests");
      break;
    default:
      if (const std::string silent = silent_holder(session_of(*request).info.domain);
          !silent.empty()) {
        refuse(command, ErrorCode::kWouldBlock, silent);
        break;
      }
      refuse(command, ErrorCode::kOutOfMemory,
             "no free block in HBM: step, so that others can be rotated out");
  }
}

// Blocks of a silent engine come back when it steps, or is evicted; nobody can rotate them out.
std::string Controller::State::silent_holder(DomainId domain) {
  std::string text;
  each_inside_in(domain, [&](Request& r) {
    const Session& owner = session_of(r);
    if (!text.empty() || owner.responsive || !r.holds_hbm()) return;
    text = "engine '" + owner.info.name + "' holds blocks in HBM and has been silent for " +
           std::to_string(to_seconds(now - owner.last_step)) +
           " s: repeat the command once it steps again or has ended (engine.evict_after)";
  });
  return text;
}

void Controller::State::on_rotate(const Command& command, const Rotate& rotate) {
  Session& session = sessions.at(command.engine);
  Request* request = find(session.id, rotate.request);
  if (!request) {
    refuse(command, ErrorCode::kNotFound, named(rotate.request) + " is not this session's");
    return;
  }
  const bool out = rotate.out && request->state == RequestState::kRunning && !request->leaving;
  const bool in = !rotate.out && request->state == RequestState::kRotary;
  if (!out && !in) {
    refuse(command, ErrorCode::kInvalidArgument,
           named(rotate.request) + " is " + name(request->state) + ": only a running request " +
               "rotates out and only a rotary one in");
    return;
  }
  ++counters.rotations_forced;
  request->forced_out = out;
  if (out) {
    request->promised = false;
    request->leaving = true;
    start_leaving(session);
  } else if (request->claim == 0 && !request->paused) {  // the plan brings a paused one back
    make_claim(*request);
    serve_claims(session.info.domain);
  }
  reply(command, Done{});
}

void Controller::State::on_stats(const Command& command) {
  Session& session = sessions.at(command.engine);
  StatsReply out;
  out.region = region_bytes(session);
  each_request_of(session.id, [&](Request& r) {
    out.hbm += hbm_bytes(r);
    out.dram += session.shape.slot_bytes() * r.dram_slots();
    out.waiting += r.state == RequestState::kWaiting ? 1u : 0u;
    out.running += r.runs() ? 1u : 0u;
    out.rotary += !r.runs() && r.state != RequestState::kWaiting ? 1u : 0u;
  });
  out.rotations_out = session.rotations_out;
  out.rotations_in = session.rotations_in;
  reply(command, out);
}

}  // namespace kvd::core
