#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "client_lib/src/abi/client_impl.hpp"
#include "client_lib/src/core/convert.hpp"
#include "client_lib/src/memory/fence.hpp"

/// The calls of level 3: requests that the daemon schedules, their steps and their blocks.
namespace kvd::client {
namespace {

/// The most entries that fit into one command.
constexpr std::size_t kMostNames = std::min<std::size_t>(
    wire::kMaxRequestsPerStep, (wire::kMaxCommandFrame - 256) / sizeof(wire::BlockName));

/// Tells the daemon, in as many commands as are needed.
Status tell(Session& session, const std::string& model, std::span<const wire::BlockName> names,
            TimePoint deadline) {
  const auto fingerprint = fingerprint_of(model, session.welcome().shape);
  while (!names.empty()) {
    const std::size_t count = std::min(names.size(), kMostNames);
    KVD_TRY(session.call(wire::NameCommand{fingerprint, names.first(count)}, deadline));
    names = names.subspan(count);
  }
  return {};
}

/// Ends a request by that command.
Status end(DaemonLink& link, BlockNames& names, RequestId request, const wire::CommandBody& command,
           Nanoseconds timeout) {
  return link.on_requests(timeout, [&](const SessionPtr& session, TimePoint until) -> Status {
    KVD_TRY(session->call(command, until));
    link.connector().on_ended(request);
    names.end(request);
    return {};
  });
}

}  // namespace
}  // namespace kvd::client

namespace kvd_client {

namespace wire = kvd::wire;
using kvd::RequestId;
using kvd::Ticket;
using kvd::TimePoint;
using kvd::Tokens;
using kvd::client::public_error;
using kvd::client::public_result;
using kvd::client::Session;
using kvd::client::SessionPtr;

// The prompt's content follows at once, before a step can let the request run.
Status Client::submit(const Request& request, Duration timeout) {
  const std::size_t told = request.content.tokens.size();
  if (told != 0 && told != request.prompt_tokens) {
    return Error{ErrorCode::kInvalidArgument,
                 std::to_string(told) + " tokens are told of a prompt of " +
                     std::to_string(request.prompt_tokens) + ": tell all of them, or none"};
  }
  const std::array<wire::RequestGap, 1> gap{
      {{request.id, static_cast<std::uint64_t>(request.gap_slo.count())}}};
  if (gap[0].gap_ns > std::uint64_t{wire::kMaxTimeoutNs}) {
    return Error{ErrorCode::kInvalidArgument, "a gap is 0 (the domain's) to 1 h"};
  }
  const auto submit = [&](const SessionPtr& session, TimePoint until) -> kvd::Status {
    KVD_TRY(session->call(kvd::client::to_wire(request), until));
    const RequestId id(request.id);
    impl_->link.connector().on_submitted(id);
    // A daemon that does not take the gap uses the one of the class.
    if (gap[0].gap_ns > 0)
      static_cast<void>(
          session->call(wire::GapsCommand{std::span<const wire::RequestGap>(gap)}, until));
    impl_->names.follow(session->welcome().session_key);
    if (told == 0 || impl_->model.empty()) return {};
    const Tokens prompt(static_cast<std::int64_t>(told));
    const Tokens block(session->welcome().shape.block_tokens);
    const auto names = impl_->names.begin(id, request.content, prompt, block);
    // The request is submitted even if this fails. Without names it only finds nothing.
    if (names.ok()) (void)kvd::client::tell(*session, impl_->model, *names, until);
    return {};
  };
  return public_result(impl_->link.on_requests(timeout, submit));
}

Status Client::append_tokens(std::uint64_t request, std::span<const std::uint32_t> tokens,
                             Duration timeout) {
  const auto append = [&](const SessionPtr& session, TimePoint until) -> kvd::Status {
    impl_->names.follow(session->welcome().session_key);
    KVD_ASSIGN_OR_RETURN(const auto names, impl_->names.extend(RequestId(request), tokens));
    return kvd::client::tell(*session, impl_->model, names, until);
  };
  return public_result(impl_->link.on_requests(timeout, append));
}

Status Client::name_blocks(std::uint64_t request, std::uint32_t first,
                           std::span<const Digest> digests, Duration timeout) {
  if (impl_->model.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 "the session has no model to tell blocks of others from its own: set "
                 "Options::model"};
  }
  std::vector<wire::BlockName> names;
  names.reserve(digests.size());
  for (const Digest& digest : digests) names.push_back({request, first++, 0, digest});
  const auto name = [&](const SessionPtr& session, TimePoint until) {
    return kvd::client::tell(*session, impl_->model, names, until);
  };
  return public_result(impl_->link.on_requests(timeout, name));
}

Result<StepResult> Client::step(std::span<const StepReport> reports,
                                std::uint64_t iteration_finished, std::uint64_t iteration_running,
                                Duration timeout) {
  const auto entries = kvd::client::to_wire(reports);
  const auto run = [&](const SessionPtr& session, TimePoint until) -> kvd::Result<StepResult> {
    wire::StepCommand command;
    command.body.iteration_finished = iteration_finished;
    command.body.iteration_running = iteration_running;
    command.reports = entries;
    if (iteration_running != 0) command.body.table_version = session->table_version().value;
    session->begin_step(iteration_finished, iteration_running);
    KVD_ASSIGN_OR_RETURN(const auto reply, session->call(command, until));
    for (const wire::StepReport report : entries) {
      if ((report.flags & wire::kReportFinished) != 0) {
        impl_->link.connector().on_ended(RequestId(report.request));
        impl_->names.end(RequestId(report.request));
      }
    }
    const auto* step = std::get_if<wire::StepReply>(&reply.body);
    if (step == nullptr) return kvd::client::wrong_reply();
    KVD_TRY(session->use_table(kvd::PlanVersion(step->body.table_version)));
    KVD_TRY(kvd::client::check_poison(session->page()));
    for (const wire::RunEntry entry : step->run) session->note_run(step->body.iteration, entry);
    return kvd::client::to_public(*step);
  };
  return public_result(impl_->link.on_requests(timeout, run));
}

Status Client::wait(std::uint64_t ticket, Duration timeout) {
  const auto wait = [&](Session& session, TimePoint until) {
    return kvd::client::wait_for_ticket(session.page(), Ticket(ticket), until, impl_->link.clock());
  };
  return public_result(impl_->link.wait_in_session(timeout, wait));
}

Status Client::wait_layer(std::uint64_t iteration, std::uint32_t group, Duration timeout) {
  const auto wait = [&](Session& session, TimePoint until) -> kvd::Status {
    KVD_ASSIGN_OR_RETURN(const std::uint64_t mark, session.mark_of(iteration, group));
    return kvd::client::wait_for_layers(session.page(), mark, until, impl_->link.clock());
  };
  return public_result(impl_->link.wait_in_session(timeout, wait));
}

Status Client::layer_done(std::uint64_t iteration, std::uint32_t group) {
  const auto done = [&](Session& session, TimePoint) {
    return session.layer_done(iteration, group);
  };
  return public_result(impl_->link.wait_in_session(Duration(0), done));
}

Status Client::wait_for_room(Duration timeout) {
  const auto wait = [&](Session& session, TimePoint until) {
    return kvd::client::wait_for_d2h(session.page(), until, impl_->link.clock());
  };
  return public_result(impl_->link.wait_in_session(timeout, wait));
}

Status Client::wait_on_stream(std::uint64_t ticket, void* stream) {
  const auto wait = [&](Session& session, TimePoint) {
    return session.wait_on_stream(Ticket(ticket), stream);
  };
  return public_result(impl_->link.wait_in_session(Duration(0), wait));
}

Status Client::wait_layer_on_stream(std::uint64_t iteration, std::uint32_t group, void* stream) {
  const auto wait = [&](Session& session, TimePoint) {
    return session.wait_layer_on_stream(iteration, group, stream);
  };
  return public_result(impl_->link.wait_in_session(Duration(0), wait));
}

Status Client::layer_done_on_stream(std::uint64_t iteration, std::uint32_t group, void* stream) {
  const auto done = [&](Session& session, TimePoint) {
    return session.layer_done_on_stream(iteration, group, stream);
  };
  return public_result(impl_->link.wait_in_session(Duration(0), done));
}

Status Client::confirm() {
  const auto check = [](Session& session, TimePoint) {
    return kvd::client::check_poison(session.page());
  };
  return public_result(impl_->link.wait_in_session(Duration(0), check));
}

Result<std::byte*> Client::block_address(std::uint32_t row, std::uint32_t group,
                                         std::uint32_t block) {
  const auto session = impl_->link.session_with_requests();
  if (!session.ok()) return public_error(session.error());
  return public_result((*session)->block_address(row, group, block));
}

Status Client::block_addresses(std::uint32_t row, std::uint32_t group,
                               std::span<std::byte*> addresses) {
  const auto session = impl_->link.session_with_requests();
  if (!session.ok()) return public_error(session.error());
  return public_result((*session)->block_addresses(row, group, addresses));
}

Status Client::finish(std::uint64_t request, Duration timeout) {
  const RequestId id(request);
  const wire::FinishCommand finish{kvd::client::target_of(id)};
  return public_result(kvd::client::end(impl_->link, impl_->names, id, finish, timeout));
}

Status Client::abort(std::uint64_t request, Duration timeout) {
  const RequestId id(request);
  const wire::AbortCommand abort{kvd::client::target_of(id)};
  return public_result(kvd::client::end(impl_->link, impl_->names, id, abort, timeout));
}

Status Client::rotate(std::uint64_t request, RotateDirection direction, Duration timeout) {
  const wire::RotateBody body{request, static_cast<std::uint32_t>(direction), 0};
  const auto rotate = [&](const SessionPtr& session, TimePoint until) -> kvd::Status {
    KVD_TRY(session->call(body, until));
    return {};
  };
  return public_result(impl_->link.on_requests(timeout, rotate));
}

Result<std::uint32_t> Client::allocate_blocks(std::uint64_t request, std::uint64_t tokens,
                                              Duration timeout) {
  wire::AllocateBody body;
  body.kind = static_cast<std::uint32_t>(wire::AllocateKind::kBlocks);
  body.request = request;
  body.amount = tokens;
  const auto allocate = [&](const SessionPtr& session, TimePoint until) {
    return kvd::client::answer_of<wire::AllocateReplyBody>(
        session->call(body, until),
        [](const wire::AllocateReplyBody& granted) { return granted.count; });
  };
  return public_result(impl_->link.on_requests(timeout, allocate));
}

Result<Placement> Client::place(std::span<const std::uint64_t> requests, Duration timeout) {
  const auto place = [&](const SessionPtr& session, TimePoint until) {
    return kvd::client::answer_of<wire::PlaceReply>(
        session->call(wire::PlaceCommand{requests}, until),
        [](const wire::PlaceReply& plan) { return kvd::client::to_public(plan); });
  };
  return public_result(impl_->link.on_requests(timeout, place));
}

Result<ScheduleResult> Client::schedule(const ScheduleInput& input, Duration timeout) {
  const auto requests = kvd::client::to_wire(input.requests);
  const wire::ScheduleCommand command{kvd::client::to_wire(input), requests};
  const auto schedule = [&](const SessionPtr& session, TimePoint until) {
    return kvd::client::answer_of<wire::ScheduleReply>(
        session->call(command, until),
        [](const wire::ScheduleReply& answer) { return kvd::client::to_public(answer); });
  };
  return public_result(impl_->link.in_a_step(timeout, schedule));
}

Result<Placement> Client::place_layers(const LayersInput& input, Duration timeout) {
  std::vector<wire::LayersRequest> requests;
  requests.reserve(input.requests.size());
  for (const LayersInput::Request& each : input.requests)
    requests.push_back({each.id, each.tokens});
  const wire::LayersCommand command{{input.capacity_blocks, input.block_bytes, input.step_ns,
                                     input.layers, input.block_tokens, 0, 0},
                                    requests};
  const auto place = [&](const SessionPtr& session, TimePoint until) {
    return kvd::client::answer_of<wire::PlaceReply>(
        session->call(command, until),
        [](const wire::PlaceReply& plan) { return kvd::client::to_public(plan); });
  };
  return public_result(impl_->link.in_a_step(timeout, place));
}

Status Client::set_gaps(std::span<const RequestGap> gaps, Duration timeout) {
  const auto entries = kvd::client::to_wire(gaps);
  const auto set = [&](const SessionPtr& session, TimePoint until) -> kvd::Status {
    KVD_TRY(session->call(wire::GapsCommand{entries}, until));
    return {};
  };
  return public_result(impl_->link.in_a_step(timeout, set));
}

}  // namespace kvd_client
