#include <algorithm>
#include <string>
#include <utility>

#include "client_lib/engine/serve/scheduler.hpp"
#include "client_lib/engine/text/token_text.hpp"

/// One iteration: agreeing on it, computing it, and handing out its tokens.
namespace kvd::engine {
namespace {

Error lost() { return make_error(ErrorCode::kUnavailable, "kvd has gone"); }

}  // namespace

Status Scheduler::iterate() {
  if (std::exchange(lost_, false)) return lost();
  if (!next_) {
    KVD_TRY(submit_jobs());
    KVD_TRY(plan(false));
    if (!next_) return jobs_.empty() ? Status() : memory_.wait_for_room();
  }
  Iteration iteration{*std::exchange(next_, std::nullopt), {}};
  const std::vector<Run>& runs = iteration.grant.runs;
  drop_ended(iteration.grant.runs);
  if (runs.empty()) return {};
  iteration.batch = batch_of(runs);
  runner_.start(iteration);
  Status planned = config_.pipeline ? plan_next() : Status();
  const Outcome outcome = runner_.finish();
  count(outcome, runs.size());
  if (outcome.logits.ok()) {
    advance(runs, *outcome.logits);
    return planned;
  }
  // Either of the two may be the first to hear of the daemon's end, and that error is the one to
  // report.
  return planned.code() == ErrorCode::kUnavailable ? planned : outcome.logits.error();
}

Status Scheduler::plan_next() {
  take_arrivals();
  KVD_TRY(submit_jobs());
  return plan(true);
}

Status Scheduler::submit_jobs() {
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    const auto current = job++;
    Job& work = current->second;
    if (work.submitted) continue;
    Status status =
        memory_.submit({current->first,
                        work.tokens.size(),
                        work.asked.max_tokens - work.made(),
                        work.asked.ttft_slo,
                        work.asked.tbt_slo,
                        {.tokens = work.tokens, .adapter = {}, .salt = work.asked.cache_salt},
                        work.asked.gap_slo});
    if (status.code() == ErrorCode::kUnavailable) return status;
    if (!status.ok()) {
      end_job(current, status.error());
      continue;
    }
    work.submitted = true;
    work.told = work.tokens.size();
    if (!std::exchange(work.accepted, true)) delivery_.accepted(current->first);
  }
  return {};
}

/// Agrees upon what runs next.
Status Scheduler::plan(bool running) {
  KVD_ASSIGN_OR_RETURN(Grant grant, memory_.step(reports_, running));
  reports_.clear();
  end_jobs(grant.ended, make_error(ErrorCode::kUnavailable,
                                   "no memory became free for the request: ask again later, or "
                                   "enlarge kvd's pool.hbm"));
  end_jobs(grant.drained, make_error(ErrorCode::kDraining,
                                     "this engine is taken out of service: ask another one"));
  if (!grant.runs.empty()) next_ = std::move(grant);
  set_attached(true);
  return {};
}

/// None of these requests runs: kvd does not end a request that an iteration contains.
void Scheduler::end_jobs(const std::vector<std::uint64_t>& ended, const Error& error) {
  for (const std::uint64_t request : ended) {
    const auto job = jobs_.find(request);
    if (job == jobs_.end()) continue;
    job->second.submitted = false;  // kvd holds nothing of it any more
    end_job(job, error);
  }
}

/// Leaves out requests that ended since the grant was asked for. If a run does not continue its
/// request, only that request fails.
void Scheduler::drop_ended(std::vector<Run>& runs) {
  std::erase_if(runs, [&](const Run& run) {
    const std::uint64_t request = run.entry.request;
    const auto job = jobs_.find(request);
    if (job == jobs_.end()) {
      const bool reported = std::any_of(reports_.begin(), reports_.end(),
                                        [&](const auto& r) { return r.request == request; });
      if (!reported) give_back(request);
      return true;
    }
    begin_behind(request, job->second, run);
    const std::uint64_t after = run.entry.tokens_present + run.entry.tokens;
    if (run.entry.tokens_present == job->second.computed && run.entry.tokens > 0 &&
        after <= job->second.tokens.size()) {
      return false;
    }
    end_job(job, make_error(ErrorCode::kInternal,
                            "kvd runs the request from another token than it stands at"));
    return true;
  });
}

void Scheduler::begin_behind(std::uint64_t request, Job& job, const Run& run) {
  const std::uint64_t present = run.entry.tokens_present;
  if (!run.entry.prefill || present <= job.computed || present >= job.tokens.size()) return;
  job.found += present - std::exchange(job.computed, present);
  if (job.made() == 0) delivery_.found(request, job.found);
}

/// The next prompt of the conversation contains this answer, and another engine may continue it. So
/// each block is announced as soon as it is full.
void Scheduler::tell_answer(std::uint64_t request, Job& job, bool ended) {
  const std::uint64_t block = memory_.block_tokens();
  const bool fills = job.computed / block > job.told / block;
  if (job.computed <= job.told || (!ended && !fills)) return;
  const std::span<const Token> tokens(job.tokens);
  const Status told = memory_.extend(request, tokens.subspan(job.told, job.computed - job.told));
  job.told = job.computed;
  lost_ = lost_ || told.code() == ErrorCode::kUnavailable;
}

std::vector<Sequence> Scheduler::batch_of(const std::vector<Run>& runs) const {
  std::vector<Sequence> batch;
  for (const Run& run : runs) {
    const std::span<const Token> tokens(jobs_.at(run.entry.request).tokens);
    const std::uint64_t first = run.entry.tokens_present;
    batch.push_back({tokens.subspan(first, run.entry.tokens), first, run.slots, run.blocks,
                     first + run.entry.tokens == tokens.size()});
  }
  return batch;
}

void Scheduler::count(const Outcome& outcome, std::size_t runs) {
  const std::lock_guard lock(mutex_);
  health_.running = runs;
  ++health_.iterations;
  health_.iterating += outcome.took;
  health_.waiting += outcome.waited;
  health_.waited += outcome.waited > Nanoseconds(0) ? 1U : 0U;
}

void Scheduler::advance(const std::vector<Run>& runs,
                        const std::vector<std::vector<float>>& logits) {
  auto next = logits.begin();
  for (const Run& run : runs) {
    const auto found = jobs_.find(run.entry.request);
    Job& job = found->second;
    job.computed += run.entry.tokens;
    const bool at_end = job.computed == job.tokens.size();
    const bool ended = at_end && take_token(found->first, job, *next++);
    tell_answer(found->first, job, ended);
    reports_.push_back({found->first, job.computed, ended});
    if (ended) jobs_.erase(found);
  }
}

bool Scheduler::take_token(std::uint64_t request, Job& job, std::span<const float> logits) {
  const auto finish = [&](FinishReason reason, const std::string& tail) {
    make_room();
    delivery_.end(request, reason, tail);
    return true;
  };
  const Token token = greedy(logits);
  const auto& stops = job.asked.stop_tokens;
  const bool vocabulary_ends = !job.asked.ignore_end && weights_.end_token == token;
  if (vocabulary_ends || std::find(stops.begin(), stops.end(), token) != stops.end()) {
    return finish(FinishReason::kStop, job.matcher.flush());
  }
  job.tokens.push_back(token);
  Piece piece{token, job.matcher.feed(text_of(weights_, token)), std::nullopt};
  if (job.asked.wants_digests) piece.digest = digest(logits);
  {
    const std::lock_guard lock(mutex_);
    ++health_.tokens;
  }
  delivery_.token(request, std::move(piece));
  if (job.matcher.matched()) return finish(FinishReason::kStop, {});
  if (job.made() < job.asked.max_tokens) return false;
  return finish(FinishReason::kLength, job.matcher.flush());
}

}  // namespace kvd::engine
