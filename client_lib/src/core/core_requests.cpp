#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "client_lib/src/core/convert.hpp"
#include "client_lib/src/core/core.hpp"
#include "client_lib/src/memory/fence.hpp"
#include "ipc/digest/fingerprint.hpp"

/// The calls of level 3.
namespace kvd::client {
namespace {

/// As many as fit a command.
constexpr std::size_t kMostNames = std::min<std::size_t>(
    wire::kMaxRequestsPerStep, (wire::kMaxCommandFrame - 256) / sizeof(wire::BlockName));

std::array<std::uint8_t, 32> fingerprint_of(const std::string& model,
                                            const wire::ModelShape& shape) {
  digest::BlockFacts facts;
  facts.model = model;
  facts.layers = Layers(shape.layers);
  facts.block_tokens = Tokens(shape.block_tokens);
  return digest::fingerprint(facts).digest.bytes;
}

}  // namespace

template <class Wait>
Status Core::wait_in_session(Nanoseconds timeout, Wait wait) {
  const TimePoint until = deadline(timeout);
  KVD_TRY(check_fork());
  KVD_ASSIGN_OR_RETURN(const auto session, connector_.session_with_requests());
  Status status = wait(*session, until);
  if (!status.ok()) connector_.on_failed(status.error());
  return status;
}

Status Core::command(const wire::CommandBody& body, Nanoseconds timeout) {
  return on_requests(timeout, [&](const SessionPtr& session, TimePoint until) -> Status {
    KVD_TRY(session->call(body, until));
    return {};
  });
}

// The prompt's content follows at once, before a step can let the request run.
Status Core::submit(const kvd_client::Request& request, Nanoseconds timeout) {
  const std::size_t told = request.content.tokens.size();
  if (told != 0 && told != request.prompt_tokens) {
    return make_error(ErrorCode::kInvalidArgument,
                      std::to_string(told) + " tokens are told of a prompt of " +
                          std::to_string(request.prompt_tokens) + ": tell all of them, or none");
  }
  const std::array<wire::RequestGap, 1> gap{
      {{request.id, static_cast<std::uint64_t>(request.gap_slo.count())}}};
  if (gap[0].gap_ns > std::uint64_t{wire::kMaxTimeoutNs}) {
    return make_error(ErrorCode::kInvalidArgument, "a gap is 0 (the domain's) to 1 h");
  }
  return on_requests(timeout, [&](const SessionPtr& session, TimePoint until) -> Status {
    KVD_TRY(session->call(to_wire(request), until));
    const RequestId id(request.id);
    connector_.on_submitted(id);
    // A daemon that does not take the gap uses the one of the class.
    if (gap[0].gap_ns > 0)
      static_cast<void>(
          session->call(wire::GapsCommand{std::span<const wire::RequestGap>(gap)}, until));
    names_.follow(session->welcome().session_key);
    if (told == 0 || model_.empty()) return {};
    const Tokens prompt(static_cast<std::int64_t>(told));
    const Tokens block(session->welcome().shape.block_tokens);
    const auto names = names_.begin(id, request.content, prompt, block);
    // The request is submitted all the same. Without names it only finds nothing.
    if (names.ok()) (void)tell(*session, *names, until);
    return {};
  });
}

Status Core::append_tokens(RequestId request, std::span<const std::uint32_t> tokens,
                           Nanoseconds timeout) {
  return on_requests(timeout, [&](const SessionPtr& session, TimePoint until) -> Status {
    names_.follow(session->welcome().session_key);
    KVD_ASSIGN_OR_RETURN(const auto names, names_.extend(request, tokens));
    return tell(*session, names, until);
  });
}

Status Core::name_blocks(RequestId request, std::uint32_t first,
                         std::span<const kvd_client::Digest> digests, Nanoseconds timeout) {
  if (model_.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the session has no model to tell blocks of others from its own: set "
                      "Options::model");
  }
  std::vector<wire::BlockName> names;
  names.reserve(digests.size());
  for (const kvd_client::Digest& digest : digests) {
    names.push_back({request.value, first++, 0, digest});
  }
  return on_requests(timeout, [&](const SessionPtr& session, TimePoint until) {
    return tell(*session, names, until);
  });
}

Status Core::tell(Session& session, std::span<const wire::BlockName> names,
                  TimePoint deadline) const {
  const auto fingerprint = fingerprint_of(model_, session.welcome().shape);
  while (!names.empty()) {
    const std::size_t count = std::min(names.size(), kMostNames);
    KVD_TRY(session.call(wire::NameCommand{fingerprint, names.first(count)}, deadline));
    names = names.subspan(count);
  }
  return {};
}

Status Core::end_request(const wire::CommandBody& body, RequestId request, Nanoseconds timeout) {
  KVD_TRY(command(body, timeout));
  connector_.on_ended(request);
  names_.end(request);
  return {};
}

Status Core::rotate(const wire::RotateBody& body, Nanoseconds timeout) {
  return command(body, timeout);
}

Result<kvd_client::StepResult> Core::step(const wire::StepCommand& command, Nanoseconds timeout) {
  const auto run = [&](const SessionPtr& session,
                       TimePoint until) -> Result<kvd_client::StepResult> {
    wire::StepCommand full = command;
    if (full.body.iteration_running != 0) {
      full.body.table_version = session->table_version().value;
    }
    session->begin_step(full.body.iteration_finished, full.body.iteration_running);
    KVD_ASSIGN_OR_RETURN(const auto reply, session->call(full, until));
    for (const wire::StepReport report : full.reports) {
      if ((report.flags & wire::kReportFinished) != 0) {
        connector_.on_ended(RequestId(report.request));
        names_.end(RequestId(report.request));
      }
    }
    const auto* step = std::get_if<wire::StepReply>(&reply.body);
    if (step == nullptr) return wrong_reply();
    KVD_TRY(session->use_table(PlanVersion(step->body.table_version)));
    KVD_TRY(check_poison(session->page()));
    for (const wire::RunEntry entry : step->run) session->note_run(step->body.iteration, entry);
    return to_public(*step);
  };
  return on_requests(timeout, run);
}

Status Core::wait_for_ticket(Ticket ticket, Nanoseconds timeout) {
  return wait_in_session(timeout, [&](Session& session, TimePoint until) {
    return client::wait_for_ticket(session.page(), ticket, until, clock_);
  });
}

Status Core::wait_for_layer(std::uint64_t iteration, std::uint32_t group, Nanoseconds timeout) {
  return wait_in_session(timeout, [&](Session& session, TimePoint until) -> Status {
    KVD_ASSIGN_OR_RETURN(const std::uint64_t mark, session.mark_of(iteration, group));
    return wait_for_layers(session.page(), mark, until, clock_);
  });
}

Status Core::layer_done(std::uint64_t iteration, std::uint32_t group) {
  return wait_in_session(Nanoseconds(0), [&](Session& session, TimePoint) {
    return session.layer_done(iteration, group);
  });
}

Status Core::wait_for_room(Nanoseconds timeout) {
  return wait_in_session(timeout, [&](Session& session, TimePoint until) {
    return wait_for_d2h(session.page(), until, clock_);
  });
}

Status Core::wait_on_stream(Ticket ticket, void* stream) {
  return wait_in_session(Nanoseconds(0), [&](Session& session, TimePoint) {
    return session.wait_on_stream(ticket, stream);
  });
}

Status Core::wait_layer_on_stream(std::uint64_t iteration, std::uint32_t group, void* stream) {
  return wait_in_session(Nanoseconds(0), [&](Session& session, TimePoint) {
    return session.wait_layer_on_stream(iteration, group, stream);
  });
}

Status Core::layer_done_on_stream(std::uint64_t iteration, std::uint32_t group, void* stream) {
  return wait_in_session(Nanoseconds(0), [&](Session& session, TimePoint) {
    return session.layer_done_on_stream(iteration, group, stream);
  });
}

Status Core::confirm() {
  return wait_in_session(Nanoseconds(0),
                         [](Session& session, TimePoint) { return check_poison(session.page()); });
}

Result<std::byte*> Core::block_address(std::uint32_t row, std::uint32_t group,
                                       std::uint32_t block) {
  KVD_TRY(check_fork());
  KVD_ASSIGN_OR_RETURN(const auto session, connector_.session_with_requests());
  return session->block_address(row, group, block);
}

Status Core::block_addresses(std::uint32_t row, std::uint32_t group,
                             std::span<std::byte*> addresses) {
  KVD_TRY(check_fork());
  KVD_ASSIGN_OR_RETURN(const auto session, connector_.session_with_requests());
  return session->block_addresses(row, group, addresses);
}

Result<std::uint32_t> Core::allocate_blocks(RequestId request, Tokens tokens, Nanoseconds timeout) {
  wire::AllocateBody body;
  body.kind = static_cast<std::uint32_t>(wire::AllocateKind::kBlocks);
  body.request = request.value;
  body.amount = tokens.size();
  return on_requests(timeout,
                     [&](const SessionPtr& session, TimePoint until) -> Result<std::uint32_t> {
                       KVD_ASSIGN_OR_RETURN(const auto reply, session->call(body, until));
                       const auto* granted = std::get_if<wire::AllocateReplyBody>(&reply.body);
                       if (granted == nullptr) return wrong_reply();
                       return granted->count;
                     });
}

Result<kvd_client::Placement> Core::place(std::span<const std::uint64_t> requests,
                                          Nanoseconds timeout) {
  const wire::PlaceCommand body{requests};
  return on_requests(timeout, [&](const SessionPtr& session, TimePoint until) {
    return answer_of<wire::PlaceReply>(
        session->call(body, until), [](const wire::PlaceReply& plan) { return to_public(plan); });
  });
}

template <class Body>
auto Core::in_a_step(Nanoseconds timeout, Body body)
    -> decltype(body(std::declval<const SessionPtr&>(), TimePoint())) {
  const TimePoint until = deadline(timeout);
  KVD_ASSIGN_OR_RETURN(const auto turn, enter(until));
  const SessionPtr session = connector_.session();
  if (session->gone()) {
    return make_error(ErrorCode::kUnavailable,
                      "the daemon is gone: go on without it; a ping attaches again");
  }
  return body(session, until);
}

Status Core::set_gaps(std::span<const wire::RequestGap> gaps, Nanoseconds timeout) {
  return in_a_step(timeout, [&](const SessionPtr& session, TimePoint until) -> Status {
    KVD_TRY(session->call(wire::GapsCommand{gaps}, until));
    return {};
  });
}

Result<kvd_client::ScheduleResult> Core::schedule(const wire::ScheduleCommand& command,
                                                  Nanoseconds timeout) {
  return in_a_step(timeout, [&](const SessionPtr& session, TimePoint until) {
    return answer_of<wire::ScheduleReply>(
        session->call(command, until),
        [](const wire::ScheduleReply& answer) { return to_public(answer); });
  });
}

}  // namespace kvd::client
