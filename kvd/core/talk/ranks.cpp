#include "kvd/core/talk/ranks.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace kvd::core {

namespace {

/// The first rank that has not asked for the answer yet; the number of ranks: there is none.
std::uint32_t first_behind(const RankAnswer& answer) {
  return static_cast<std::uint32_t>(std::find(answer.taken.begin(), answer.taken.end(), false) -
                                    answer.taken.begin());
}

bool taken_by_all(const RankAnswer& answer) { return first_behind(answer) == answer.taken.size(); }

bool same_iterations(const RankAnswer& answer, const Step& step) {
  return answer.finished == step.iteration_finished && answer.running == step.iteration_running;
}

// A rank that has not taken the newest answer may not have seen the one before either.
bool repeats_previous(const RankSteps& ranks, std::uint32_t rank, const Step& step) {
  return ranks.previous && !ranks.answer->taken[rank] && same_iterations(*ranks.previous, step);
}

std::string named(std::uint32_t rank) { return "rank " + std::to_string(rank); }

}  // namespace

void Ranks::on_step(const Command& command, const Step& step) {
  Session& session = requests_.sessions().at(command.engine);
  RankSteps& ranks = *session.ranks;
  if (const Status status = check(session, command.rank, step); !status.ok()) {
    context_.reply(command, status.error());
    return;
  }
  if (ranks.answer && same_iterations(*ranks.answer, step)) {
    // The rank took this answer before: its reply was lost, or there was nothing to run and the
    // rank asks again.
    if (!ranks.answer->taken[command.rank] || !ranks.answer->reply.run.empty()) {
      return take_answer(session, command);
    }
  }
  // This reply was lost as well, but another rank has asked for the next one since.
  if (repeats_previous(ranks, command.rank, step)) {
    context_.reply(command, ranks.previous->reply);
    return;
  }
  if (ranks.answer && !taken_by_all(*ranks.answer)) {
    if (context_.now < command.deadline) {
      ranks.ahead.push_back(command);
    } else {
      refuse_ahead(session, command);
    }
    return;
  }
  auto next = steps_.next(session, step);
  if (!next.ok()) {
    context_.reply(command, next.error());
    return;
  }
  ranks.previous = std::move(ranks.answer);
  ranks.answer = RankAnswer{step.iteration_finished, step.iteration_running, std::move(*next),
                            std::vector<bool>(ranks.finished.size(), false)};
  take_answer(session, command);
}

Status Ranks::check(const Session& session, std::uint32_t rank, const Step& step) const {
  const RankSteps& ranks = *session.ranks;
  const auto fault = [&](const std::string& why) {
    return make_error(ErrorCode::kInvalidArgument, named(rank) + " of the group " + why);
  };
  if (rank >= ranks.finished.size()) return fault("does not exist");
  const auto waits = [&](const Command& command) { return command.rank == rank; };
  if (std::any_of(ranks.ahead.begin(), ranks.ahead.end(), waits)) {
    return make_error(ErrorCode::kWouldBlock,
                      named(rank) +
                          " has a step that waits for the other ranks already: wait for "
                          "its answer");
  }
  if (!ranks.answer) return {};
  const RankAnswer& answer = *ranks.answer;
  if (same_iterations(answer, step) || repeats_previous(ranks, rank, step)) return {};
  const auto iterations = [](std::uint64_t finished, std::uint64_t running) {
    return std::to_string(finished) + " as finished and " + std::to_string(running) + " as running";
  };
  if (!answer.taken[rank]) {
    return fault("names iterations " + iterations(step.iteration_finished, step.iteration_running) +
                 ", another rank " + iterations(answer.finished, answer.running) +
                 ": all ranks step alike");
  }
  // One rank can no longer say whether it ran what it was granted: other ranks may run it.
  if (step.iteration_running == 0 && step.iteration_finished + 1 == session.iterations.granted) {
    return fault(
        "gives up an iteration that the others may run: ask again with the numbers of "
        "the step before");
  }
  return {};
}

void Ranks::take_answer(Session& session, const Command& command) {
  RankAnswer& answer = *session.ranks->answer;
  answer.taken[command.rank] = true;
  context_.reply(command, answer.reply);
  note_finished(session, command.rank, answer.finished);
  if (taken_by_all(answer)) serve_ahead(session);
}

void Ranks::note_finished(Session& session, std::uint32_t rank, std::uint64_t iteration) {
  std::vector<std::uint64_t>& finished = session.ranks->finished;
  finished[rank] = std::max(finished[rank], iteration);
  const std::uint64_t by_all = *std::min_element(finished.begin(), finished.end());
  if (by_all <= session.iterations.finished) return;
  session.iterations.finished = by_all;
  store_.tiers.iteration_finished(session.id, session.iterations.finished);
  // No rank is ahead by more than one answer, so nothing newer has been reported.
  requests_.each_inside_of(session.id, [&](Request& r) { memory_.seal_full_blocks(r); });
  swaps_.start_leaving(session);
  claims_.serve_everyone();
}

void Ranks::serve_ahead(Session& session) {
  std::vector<Command> ahead = std::move(session.ranks->ahead);
  session.ranks->ahead.clear();
  for (const Command& command : ahead) {
    if (context_.now < command.deadline) {
      on_step(command, std::get<Step>(command.body));
    } else {
      refuse_ahead(session, command);  // nobody waits for the answer, so it must not count as taken
    }
  }
}

void Ranks::refuse_ahead(const Session& session, const Command& command) {
  const RankAnswer& answer = *session.ranks->answer;
  context_.refuse(
      command, ErrorCode::kDeadlineExceeded,
      taken_by_all(answer)
          ? "the other ranks of the group asked for the step before too late"
          : named(first_behind(answer)) +
                " of the group has not asked for the step before: it is slow, or stuck");
}

void Ranks::expire_ahead(Session& session) {
  if (!session.ranks || session.ranks->ahead.empty()) return;
  std::erase_if(session.ranks->ahead, [&](const Command& command) {
    if (context_.now < command.deadline) return false;
    refuse_ahead(session, command);
    return true;
  });
}

}  // namespace kvd::core
