#include "client_lib/src/core/requests.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "client_lib/src/core/convert.hpp"
#include "client_lib/src/memory/fence.hpp"

namespace kvd::client {
namespace {

/// As many as fit a command.
constexpr std::size_t kMostNames = std::min<std::size_t>(
    wire::kMaxRequestsPerStep, (wire::kMaxCommandFrame - 256) / sizeof(wire::BlockName));

}  // namespace

Status Requests::command(const wire::CommandBody& body, Nanoseconds timeout) {
  return link_.on_requests(timeout, [&](const SessionPtr& session, TimePoint until) -> Status {
    KVD_TRY(session->call(body, until));
    return {};
  });
}

// The prompt's content follows at once, before a step can let the request run.
Status Requests::submit(const kvd_client::Request& request, Nanoseconds timeout) {
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
  return link_.on_requests(timeout, [&](const SessionPtr& session, TimePoint until) -> Status {
    KVD_TRY(session->call(to_wire(request), until));
    const RequestId id(request.id);
    link_.connector().on_submitted(id);
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

Status Requests::append_tokens(RequestId request, std::span<const std::uint32_t> tokens,
                               Nanoseconds timeout) {
  return link_.on_requests(timeout, [&](const SessionPtr& session, TimePoint until) -> Status {
    names_.follow(session->welcome().session_key);
    KVD_ASSIGN_OR_RETURN(const auto names, names_.extend(request, tokens));
    return tell(*session, names, until);
  });
}

Status Requests::name_blocks(RequestId request, std::uint32_t first,
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
  return link_.on_requests(timeout, [&](const SessionPtr& session, TimePoint until) {
    return tell(*session, names, until);
  });
}

Status Requests::tell(Session& session, std::span<const wire::BlockName> names,
                      TimePoint deadline) const {
  const auto fingerprint = fingerprint_of(model_, session.welcome().shape);
  while (!names.empty()) {
    const std::size_t count = std::min(names.size(), kMostNames);
    KVD_TRY(session.call(wire::NameCommand{fingerprint, names.first(count)}, deadline));
    names = names.subspan(count);
  }
  return {};
}

Status Requests::end(const wire::CommandBody& body, RequestId request, Nanoseconds timeout) {
  KVD_TRY(command(body, timeout));
  link_.connector().on_ended(request);
  names_.end(request);
  return {};
}

Status Requests::rotate(const wire::RotateBody& body, Nanoseconds timeout) {
  return command(body, timeout);
}

Result<kvd_client::StepResult> Requests::step(const wire::StepCommand& command,
                                              Nanoseconds timeout) {
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
        link_.connector().on_ended(RequestId(report.request));
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
  return link_.on_requests(timeout, run);
}

Status Requests::wait_for_ticket(Ticket ticket, Nanoseconds timeout) {
  return link_.wait_in_session(timeout, [&](Session& session, TimePoint until) {
    return client::wait_for_ticket(session.page(), ticket, until, link_.clock());
  });
}

Status Requests::wait_for_layer(std::uint64_t iteration, std::uint32_t group, Nanoseconds timeout) {
  return link_.wait_in_session(timeout, [&](Session& session, TimePoint until) -> Status {
    KVD_ASSIGN_OR_RETURN(const std::uint64_t mark, session.mark_of(iteration, group));
    return wait_for_layers(session.page(), mark, until, link_.clock());
  });
}

Status Requests::layer_done(std::uint64_t iteration, std::uint32_t group) {
  return link_.wait_in_session(Nanoseconds(0), [&](Session& session, TimePoint) {
    return session.layer_done(iteration, group);
  });
}

Status Requests::wait_for_room(Nanoseconds timeout) {
  return link_.wait_in_session(timeout, [&](Session& session, TimePoint until) {
    return wait_for_d2h(session.page(), until, link_.clock());
  });
}

Status Requests::wait_on_stream(Ticket ticket, void* stream) {
  return link_.wait_in_session(Nanoseconds(0), [&](Session& session, TimePoint) {
    return session.wait_on_stream(ticket, stream);
  });
}

Status Requests::wait_layer_on_stream(std::uint64_t iteration, std::uint32_t group, void* stream) {
  return link_.wait_in_session(Nanoseconds(0), [&](Session& session, TimePoint) {
    return session.wait_layer_on_stream(iteration, group, stream);
  });
}

Status Requests::layer_done_on_stream(std::uint64_t iteration, std::uint32_t group, void* stream) {
  return link_.wait_in_session(Nanoseconds(0), [&](Session& session, TimePoint) {
    return session.layer_done_on_stream(iteration, group, stream);
  });
}

Status Requests::confirm() {
  return link_.wait_in_session(
      Nanoseconds(0), [](Session& session, TimePoint) { return check_poison(session.page()); });
}

Result<std::byte*> Requests::block_address(std::uint32_t row, std::uint32_t group,
                                           std::uint32_t block) {
  KVD_TRY(link_.check_fork());
  KVD_ASSIGN_OR_RETURN(const auto session, link_.connector().session_with_requests());
  return session->block_address(row, group, block);
}

Status Requests::block_addresses(std::uint32_t row, std::uint32_t group,
                                 std::span<std::byte*> addresses) {
  KVD_TRY(link_.check_fork());
  KVD_ASSIGN_OR_RETURN(const auto session, link_.connector().session_with_requests());
  return session->block_addresses(row, group, addresses);
}

Result<std::uint32_t> Requests::allocate_blocks(RequestId request, Tokens tokens,
                                                Nanoseconds timeout) {
  wire::AllocateBody body;
  body.kind = static_cast<std::uint32_t>(wire::AllocateKind::kBlocks);
  body.request = request.value;
  body.amount = tokens.size();
  return link_.on_requests(
      timeout, [&](const SessionPtr& session, TimePoint until) -> Result<std::uint32_t> {
        KVD_ASSIGN_OR_RETURN(const auto reply, session->call(body, until));
        const auto* granted = std::get_if<wire::AllocateReplyBody>(&reply.body);
        if (granted == nullptr) return wrong_reply();
        return granted->count;
      });
}

Result<kvd_client::Placement> Requests::place(std::span<const std::uint64_t> requests,
                                              Nanoseconds timeout) {
  const wire::PlaceCommand body{requests};
  return link_.on_requests(timeout, [&](const SessionPtr& session, TimePoint until) {
    return answer_of<wire::PlaceReply>(
        session->call(body, until), [](const wire::PlaceReply& plan) { return to_public(plan); });
  });
}

Status Requests::set_gaps(std::span<const wire::RequestGap> gaps, Nanoseconds timeout) {
  return link_.in_a_step(timeout, [&](const SessionPtr& session, TimePoint until) -> Status {
    KVD_TRY(session->call(wire::GapsCommand{gaps}, until));
    return {};
  });
}

Result<kvd_client::ScheduleResult> Requests::schedule(const wire::ScheduleCommand& command,
                                                      Nanoseconds timeout) {
  return link_.in_a_step(timeout, [&](const SessionPtr& session, TimePoint until) {
    return answer_of<wire::ScheduleReply>(
        session->call(command, until),
        [](const wire::ScheduleReply& answer) { return to_public(answer); });
  });
}

}  // namespace kvd::client
