#include "kvd/core/talk/commands.hpp"

#include <algorithm>
#include <string>

#include "ipc/vocabulary/overloaded.hpp"

namespace kvd::core {

namespace {

std::string named(RequestId request) { return "request " + std::to_string(request.value); }

}  // namespace

void Commands::on_command(const Command& command) {
  const auto session = requests_.sessions().find(command.engine);
  if (session == requests_.sessions().end() || session->second.life.dying) {
    context_.refuse(command, ErrorCode::kStaleSession, "the session has ended: attach again");
    return;
  }
  // A timeout of zero asks for an answer at once.
  if (context_.now > command.deadline) {
    context_.refuse(command, ErrorCode::kDeadlineExceeded,
                    "the command's timeout passed before it began");
    return;
  }
  std::visit(Overloaded{
                 [&](const Submit& body) { on_submit(command, body); },
                 [&](const Step& body) { on_step(command, body); },
                 [&](const AllocateRegion& body) { regions_.on_allocate(command, body); },
                 [&](const AllocateBlocks& body) { on_blocks(command, body); },
                 [&](const Place& body) { plans_.on_place(command, body); },
                 [&](const PlanLayers& body) { plans_.on_layers(command, body); },
                 [&](const NameBlocks& body) { on_name(command, body); },
                 [&](const Rotate& body) { on_rotate(command, body); },
                 [&](const Finish& body) { on_end(command, body.request, true); },
                 [&](const Abort& body) { on_end(command, body.request, false); },
                 [&](const ReleaseRegion& body) {
                   if (regions_.on_release(command, body)) claims_.serve_everyone();
                 },
                 [&](const ClaimRegion& body) { regions_.left().on_claim(command, body); },
                 [&](const ReleaseOrphaned& body) {
                   Bytes& left = session->second.info.orphaned;
                   left -= std::min(left, body.bytes);
                   context_.reply(command, Done{});
                 },
                 [&](const Schedule& body) { placed_.on_schedule(command, body); },
                 [&](const OpenCache& body) { caches_.on_open(command, body); },
                 [&](const CloseCache& body) { caches_.on_close(command, body); },
                 [&](const DescribeCache& body) { caches_.on_describe(command, body); },
                 [&](const LabelBlocks& body) { labels_.on_label(command, body); },
                 [&](const AskChanges& body) { labels_.on_changes(command, body); },
                 [&](const CacheBlocks& body) {
                   if (caches_.on_blocks(command, body)) claims_.serve_everyone();
                 },
                 [&](const OpenSpace& body) { spaces_.on_open(command, body); },
                 [&](const CloseSpace& body) { spaces_.on_close(command, body); },
                 [&](const PlaceRegion& body) { spaces_.on_place(command, body); },
                 [&](const ShareSpace& body) { on_share(command, body); },
                 [&](const SetGaps& body) { on_gaps(command, body); },
                 [&](const Stats&) { on_stats(command); },
                 [&](const Ping&) { context_.reply(command, Done{}); },
             },
             command.body);
}

void Commands::on_end(const Command& command, RequestId id, bool finished) {
  Request* request = requests_.find(command.engine, id);
  if (!request) {
    context_.refuse(command, ErrorCode::kNotFound, named(id) + " is not this session's");
    return;
  }
  ++(finished ? context_.counters.requests_finished : context_.counters.requests_aborted);
  if (finished) knowledge_.ended(requests_.sessions().at(command.engine), *request);
  memory_.end(*request);
  context_.reply(command, Done{});
  claims_.serve_everyone();
}

void Commands::on_submit(const Command& command, const Submit& submit) {
  Session& session = requests_.sessions().at(command.engine);
  const std::size_t active = session.active.size();
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;

  if (!session.class_id) {
    context_.refuse(command, ErrorCode::kInvalidArgument,
                    "a session without a model class cannot submit: attach with a model shape");
  } else if (drains_.drains(session)) {
    context_.refuse(command, ErrorCode::kDraining, Drains::kRefusal);
  } else if (submit.request.value == 0 || submit.prompt_tokens < Tokens(1) ||
             submit.max_new_tokens < Tokens(1) || submit.prompt_tokens.value > kMostTokens ||
             submit.max_new_tokens.value > kMostTokens || submit.ttft_slo.count() < 0 ||
             submit.tbt_slo.count() < 0) {
    context_.refuse(
        command, ErrorCode::kInvalidArgument,
        "a request needs an id, a prompt and at least one new token (each at most 2^40), and "
        "SLOs that are not negative");
  } else if (requests_.find(session.id, submit.request)) {
    context_.refuse(command, ErrorCode::kInvalidArgument,
                    named(submit.request) + " is submitted already: finish or abort it first");
  } else if (active >= context_.config.max_requests_per_engine) {
    context_.refuse(
        command, ErrorCode::kQuotaExceeded,
        std::to_string(active) + " requests are open, the most a session may have: finish some");
  } else if (requests_.count(session.info.domain) >= context_.config.max_requests_per_domain) {
    context_.refuse(command, ErrorCode::kQuotaExceeded,
                    std::to_string(context_.config.max_requests_per_domain) +
                        " requests of the domain are open, the most it may have: finish some");
  } else if (submit.prompt_tokens + submit.max_new_tokens > needs_.most_tokens(session)) {
    context_.refuse(
        command, ErrorCode::kOutOfMemory,
        named(submit.request) + " can grow to " +
            std::to_string((submit.prompt_tokens + submit.max_new_tokens).value) +
            " tokens, HBM holds " + std::to_string(needs_.most_tokens(session).value) +
            " of this model and domain: lower max_new_tokens, or enlarge pool.hbm or the quota");
  } else if (const Status fits = requests_.may_keep(session.info.domain, Bytes(sizeof(Request)));
             !fits.ok()) {
    context_.refuse(command, fits.error().code, fits.error().message);
  } else {
    Request request;
    request.key = {session.id, submit.request};
    request.goal.prompt = submit.prompt_tokens;
    request.goal.max_new = submit.max_new_tokens;
    const auto slo = context_.tuning.slo.find(session.info.slo_class);
    if (slo != context_.tuning.slo.end()) request.goal.slo = slo->second;
    if (submit.ttft_slo.count() > 0) request.goal.slo.ttft = submit.ttft_slo;
    if (submit.tbt_slo.count() > 0) request.goal.slo.tbt = submit.tbt_slo;
    if (submit.ttft_slo.count() > 0 || submit.tbt_slo.count() > 0)
      request.goal.slo_class = session.totals.services.place_of(kOwnGoals);
    request.goal.predicted = submit.predicted;
    request.table = store::BlockTable(session.groups());
    request.times.arrived = context_.now;
    requests_.add(std::move(request));
    ++context_.counters.requests_submitted;
    context_.reply(command, Done{});
  }
}

void Commands::on_step(const Command& command, const Step& step) {
  Session& session = requests_.sessions().at(command.engine);
  if (session.ranks) return ranks_.on_step(command, step);
  auto next = steps_.next(session, step);
  if (next.ok()) {
    context_.reply(command, std::move(*next));
  } else {
    context_.reply(command, next.error());
  }
}

void Commands::on_blocks(const Command& command, const AllocateBlocks& wanted) {
  Request* request = requests_.find(command.engine, wanted.request);
  if (!request) {
    context_.refuse(command, ErrorCode::kNotFound,
                    named(wanted.request) + " is not this session's");
    return;
  }
  const Tokens most = request->goal.prompt + request->goal.max_new - request->progress.planned;
  if (!request->runs() || wanted.tokens < Tokens(1) || wanted.tokens > most) {
    context_.refuse(command, ErrorCode::kInvalidArgument,
                    named(wanted.request) + " must run and may get room for 1 to " +
                        std::to_string(most.value) + " more tokens");
    return;
  }
  const std::uint32_t before = request->table.blocks();
  const ErrorCode grown = memory_.grow(*request, request->progress.planned + wanted.tokens);
  if (grown != ErrorCode::kOk && requests_.is_behind()) {
    context_.refuse(command, ErrorCode::kWouldBlock,
                    "memory of requests that have ended is being given up: repeat the command");
    return;
  }
  switch (grown) {
    case ErrorCode::kOk:
      context_.reply(command, BlocksReply{request->table.blocks() - before});
      break;
    case ErrorCode::kWouldBlock:
      context_.refuse(command, ErrorCode::kWouldBlock,
                      "the slab is being mapped: repeat the command");
      break;
    case ErrorCode::kQuotaExceeded:
      context_.refuse(command, ErrorCode::kQuotaExceeded,
                      "the domain's maximum is reached: raise its quota or finish requests");
      break;
    default:
      if (const std::string silent = silent_holder(requests_.session_of(*request));
          !silent.empty()) {
        context_.refuse(command, ErrorCode::kWouldBlock, silent);
        break;
      }
      context_.refuse(command, ErrorCode::kOutOfMemory,
                      "no free block in HBM: step, so that others can be rotated out");
  }
}

std::string Commands::silent_holder(const Session& session) {
  for (const DeviceId device : session.devices().all()) {
    std::string silent = supply_.silent_holder({session.info.domain, device});
    if (!silent.empty()) return silent;
  }
  return {};
}

void Commands::on_name(const Command& command, const NameBlocks& names) {
  // This limit concerns mainly requests that only wait: memory bounds those that run, too.
  const DomainId domain = requests_.sessions().at(command.engine).info.domain;
  const Bytes more = Requests::bytes_of_digests(names.blocks.size());
  if (const Status fits = requests_.may_keep(domain, more); !fits.ok()) {
    return context_.refuse(command, fits.error().code,
                           fits.error().message + "; what is not named runs, and is not found");
  }
  for (const NameBlocks::Block& block : names.blocks) {
    Request* request = requests_.find(command.engine, block.request);
    if (!request || prefixes_.tell(*request, names.fingerprint, block.number, block.digest))
      continue;
    context_.refuse(command, ErrorCode::kInvalidArgument,
                    "block " + std::to_string(block.number) + " of " + named(block.request) +
                        " is told out of order, twice, of another fingerprint than those before, "
                        "or beyond its last token: tell each once, from 0 on");
    return;
  }
  for (const NameBlocks::Block& block : names.blocks) {
    if (Request* request = requests_.find(command.engine, block.request)) prefixes_.name(*request);
  }
  context_.reply(command, Done{});
}

void Commands::on_rotate(const Command& command, const Rotate& rotate) {
  Session& session = requests_.sessions().at(command.engine);
  Request* request = requests_.find(session.id, rotate.request);
  if (!request) {
    context_.refuse(command, ErrorCode::kNotFound,
                    named(rotate.request) + " is not this session's");
    return;
  }
  if (rotate.out && request->order.sheltered) {
    context_.refuse(command, ErrorCode::kWouldBlock,
                    named(rotate.request) + " stays until it has ended: all others wait for that");
    return;
  }
  const bool out = rotate.out && request->decodes() && !request->leaving;
  const bool in = !rotate.out && request->place == Location::kParked;
  if (!out && !in) {
    context_.refuse(command, ErrorCode::kInvalidArgument,
                    named(rotate.request) + " is " + name(request->state()) +
                        ": only a running request " + "rotates out and only a rotary one in");
    return;
  }
  ++context_.counters.rotations_forced;
  request->lift(Verdict::kForcedOut);
  // A request that ends does so wherever it is.
  if (out && request->verdict != Verdict::kHopeless) request->verdict = Verdict::kForcedOut;
  if (out) {
    request->promised.reset();
    request->leaving = true;
    swaps_.start_leaving(session);
  } else if (request->order.claim == 0 &&
             !request->paused()) {  // a plan brings a paused request back
    requests_.make_claim(*request);
    claims_.serve(session.info.domain);
  }
  context_.reply(command, Done{});
}

// The first request in a line of kvd's, and regions that wait, want of the same memory.
void Commands::on_share(const Command& command, const ShareSpace& share) {
  const DeviceId device = requests_.sessions().at(command.engine).share().device;
  std::map<DomainId, Bytes> awaited = regions_.awaited(device);
  for (const auto& [engine, session] : requests_.sessions()) {
    if (!session.line.empty() && session.on(device)) {
      awaited[session.info.domain] += needs_.to_run(**session.line.begin(), device);
    }
  }
  spaces_.on_share(command, share, awaited);
}

// Requests that have ended meanwhile, and those that never existed, are skipped.
void Commands::on_gaps(const Command& command, const SetGaps& named) {
  Session& session = requests_.sessions().at(command.engine);
  const auto of_class = context_.tuning.slo.find(session.info.slo_class);
  for (const auto& [id, gap] : named.gaps) {
    PlacedRequest* placed = session.placed ? session.placed->find(id) : nullptr;
    if (placed != nullptr) placed->own_gap = gap;
    Request* request = requests_.find(session.id, id);
    if (request == nullptr) continue;
    request->goal.slo.gap = gap;
    if (gap > Nanoseconds(0)) continue;
    request->goal.slo.gap =
        of_class == context_.tuning.slo.end() ? std::nullopt : of_class->second.gap;
  }
  context_.reply(command, Done{});
}

void Commands::on_stats(const Command& command) {
  Session& session = requests_.sessions().at(command.engine);
  StatsReply out;
  out.region = regions_.region_bytes(session);
  requests_.each_request_of(session.id, [&](Request& r) {
    out.hbm += memory_.hbm_bytes(r);
    out.dram += session.shape.slot_bytes() * r.dram_slots();
    out.waiting += r.waits() ? 1u : 0u;
    out.running += r.runs() ? 1u : 0u;
    out.rotary += !r.runs() && !r.waits() ? 1u : 0u;
  });
  out.rotations_out = session.totals.rotations_out;
  out.rotations_in = session.totals.rotations_in;
  context_.reply(command, out);
}

}  // namespace kvd::core
