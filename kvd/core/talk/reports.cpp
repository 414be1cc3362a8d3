#include "kvd/core/talk/reports.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace kvd::core {

Status Reports::check(const Session& session, const Step& step) {
  if (!session.class_id) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a session without a model class cannot step: attach with a model shape");
  }
  const bool idle =
      step.iteration_running == 0 && step.iteration_finished == session.iterations.granted;
  const bool pipelined = step.iteration_running == session.iterations.granted &&
                         session.iterations.granted > 0 &&
                         step.iteration_finished + 1 == session.iterations.granted;
  // The reply with this grant was lost: the engine never ran it.
  const bool lost =
      step.iteration_running == 0 && step.iteration_finished + 1 == session.iterations.granted;
  if (!idle && !pipelined && !lost) {
    return make_error(ErrorCode::kInvalidArgument,
                      "iteration numbers do not fit the last reply (" +
                          std::to_string(session.iterations.granted) +
                          "): report it as finished, or as running with the one before finished");
  }
  std::vector<RequestId> seen;
  seen.reserve(step.reports.size());
  std::size_t next = 0;
  for (const StepReport& report : step.reports) {
    const auto fault = [&](ErrorCode code, const std::string& what) {
      return make_error(code, "request " + std::to_string(report.request.value) + what);
    };
    const Request* request = requests_.find(session, report.request, next);
    if (!request && session.ranks) continue;  // another rank has ended it
    if (!request) return fault(ErrorCode::kNotFound, " is unknown: submit it first");
    seen.push_back(report.request);
    const bool counted = request->progress.last_iteration <= step.iteration_finished;
    // What the iteration that still runs was granted cannot be there yet.
    const Tokens most =
        request->progress.planned - (counted ? Tokens(0) : request->progress.granted);
    if (report.tokens < request->progress.tokens || report.tokens > most) {
      return fault(ErrorCode::kInvalidArgument,
                   " reports " + std::to_string(report.tokens.value) + " tokens, between " +
                       std::to_string(request->progress.tokens.value) + " and " +
                       std::to_string(most.value) + " are possible");
    }
  }
  // They usually come in order.
  if (!std::is_sorted(seen.begin(), seen.end())) std::sort(seen.begin(), seen.end());
  const auto twice = std::adjacent_find(seen.begin(), seen.end());
  if (twice == seen.end()) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "request " + std::to_string(twice->value) + " is reported twice in one step");
}

void Reports::take(Session& session, const Step& step) {
  session.iterations.reported =
      step.iteration_running == 0 ? session.iterations.granted : step.iteration_finished;
  if (!session.ranks)
    session.iterations.finished = session.iterations.reported;  // else when the last rank says so
  store_.tiers.iteration_finished(session.id, session.iterations.finished);
  session.iterations.reported_prefill = Tokens(0);
  std::size_t next = 0;
  for (const StepReport& report : step.reports) {
    if (Request* request = requests_.find(session, report.request, next))
      take_report(session, *request, report);
  }
  requests_.each_inside_of(session.id, [&](Request& r) {
    if (r.progress.last_iteration <= session.iterations.reported)
      r.progress.planned = r.progress.tokens;
  });
}

void Reports::take_report(Session& session, Request& request, const StepReport& report) {
  const Tokens made = report.tokens - request.progress.tokens;
  if (made > Tokens(0)) {
    const Tokens prompt_left = std::max(Tokens(0), request.goal.prompt - request.progress.tokens);
    session.iterations.reported_prefill += std::min(made, prompt_left);
    request.progress.tokens = report.tokens;
    session.totals.tokens += static_cast<std::uint64_t>(made.value);
    session.totals.served += made;
    context_.counters.tokens += static_cast<std::uint64_t>(made.value);
    requests_.progressed(session.id, session.info.domain);
    if (request.progress.tokens >= request.goal.prompt) {
      const bool first = lateness_.made(request);
      // The daemon stamps tokens on receipt.
      Knowledge::pace(request, first ? Tokens(1) : made, context_.now, context_.now);
      if (request.times.due)
        context_.counters.deposit.add(static_cast<double>(knowledge_.saved_up(request)));
      request.phase = Phase::kDecode;
      // All but its last layers are in DRAM: it comes back whole.
      if (request.layerwise && !request.leaving) {
        request.leaving = copies_.spare(session.info.domain) >= memory_.hbm_bytes(request);
      }
    }
    request.fresh = false;
    const Tokens before = request.progress.tokens - made;
    const Tokens block(session.shape.block_tokens);
    // A token within a block changes no slot's state.
    const bool within = session.blocks_for(before) == session.blocks_for(request.progress.tokens) &&
                        before.value / block.value == request.progress.tokens.value / block.value;
    // Other ranks may still write what the first one reports.
    if (!within && session.iterations.finished >= session.iterations.reported)
      memory_.seal_full_blocks(request);
  }
  if (report.finished) {
    ++context_.counters.requests_finished;
    knowledge_.ended(session, request);
    memory_.end(request);
  }
}

}  // namespace kvd::core
