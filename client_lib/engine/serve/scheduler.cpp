#include "client_lib/engine/serve/scheduler.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace kvd::engine {
namespace {

constexpr Nanoseconds kIdlePing = std::chrono::seconds(1);
constexpr Nanoseconds kDaemonAway = std::chrono::milliseconds(50);
/// A text is bytes and a byte is a token where the model brings no vocabulary.
constexpr Token kBytes = 256;

Error stopping() {
  return make_error(ErrorCode::kUnavailable, "the engine is stopping: ask another one");
}

}  // namespace

Scheduler::Scheduler(const Weights& weights, Transformer& model, KvMemory& memory,
                     Delivery& delivery, const Clock& clock, const Config& config)
    : weights_(weights),
      model_(model),
      memory_(memory),
      delivery_(delivery),
      clock_(clock),
      config_(config) {}

Status Scheduler::check(const Completion& completion) const {
  const auto refuse = [](const std::string& why) {
    return make_error(ErrorCode::kInvalidArgument, why);
  };
  if (completion.prompt.empty()) return refuse("the prompt is empty");
  if (completion.max_tokens < 1) return refuse("max_tokens must be at least 1");
  const std::uint64_t context = weights_.model.context;
  if (completion.max_tokens > context ||
      completion.prompt.size() > context - completion.max_tokens) {
    return refuse("the prompt's " + std::to_string(completion.prompt.size()) +
                  " tokens and max_tokens " + std::to_string(completion.max_tokens) +
                  " exceed the model's context of " + std::to_string(context));
  }
  const auto foreign = [&](Token token) { return token >= weights_.model.vocabulary; };
  if (std::any_of(completion.prompt.begin(), completion.prompt.end(), foreign)) {
    return refuse("the prompt has a token outside the vocabulary of " +
                  std::to_string(weights_.model.vocabulary));
  }
  return {};
}

Result<std::uint64_t> Scheduler::submit(Completion completion, std::shared_ptr<TokenSink> sink) {
  KVD_TRY(check(completion));
  if (completion.ttft_slo == Nanoseconds(0)) completion.ttft_slo = config_.ttft_slo;
  if (completion.tbt_slo == Nanoseconds(0)) completion.tbt_slo = config_.tbt_slo;
  const std::lock_guard lock(mutex_);
  if (stop_) return stopping();
  if (away_since_ && clock_.now() - *away_since_ > config_.away_limit) {
    return make_error(ErrorCode::kUnavailable, "kvd is away: start it, or ask another engine");
  }
  if (health_.open >= config_.max_open) {
    return make_error(ErrorCode::kQuotaExceeded, std::to_string(health_.open) +
                                                     " requests are open, the most this engine "
                                                     "takes (--max-requests): try again later");
  }
  ++health_.open;
  const std::uint64_t id = ++last_request_;
  delivery_.open(id, std::move(sink), completion.tbt_slo);
  Job job{std::move(completion), StopMatcher({}), {}, 0, false, false};
  job.matcher = StopMatcher(job.asked.stops);
  job.tokens = job.asked.prompt;
  arrived_.emplace(id, std::move(job));
  changed_.notify_all();
  return id;
}

void Scheduler::abort(std::uint64_t request) {
  delivery_.drop(request);
  const std::lock_guard lock(mutex_);
  aborted_.push_back(request);
  changed_.notify_all();
}

Health Scheduler::health() const {
  const std::lock_guard lock(mutex_);
  return health_;
}

void Scheduler::stop() {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  changed_.notify_all();
}

void Scheduler::run() {
  for (;;) {
    take_inbox();
    {
      const std::lock_guard lock(mutex_);
      if (stop_) break;
    }
    if (jobs_.empty() && reports_.empty()) {
      idle();
      continue;
    }
    if (const Status status = iterate(); !status.ok()) on_failure(status.error());
  }
  fail_jobs(stopping());
}

void Scheduler::take_inbox() {
  std::vector<std::uint64_t> aborted;
  {
    const std::lock_guard lock(mutex_);
    jobs_.merge(arrived_);
    aborted = std::exchange(aborted_, {});
  }
  for (const std::uint64_t request : aborted) {
    const auto job = jobs_.find(request);
    if (job != jobs_.end()) end_job(job, stopping());
  }
}

/// Gives the request's memory back and forgets it; its user, if still there, hears why.
void Scheduler::end_job(Jobs::iterator job, const Error& error) {
  // A daemon that is gone or does not know the request has nothing to give back.
  if (job->second.submitted) (void)memory_.abort(job->first);
  std::erase_if(reports_, [&](const auto& report) { return report.request == job->first; });
  make_room();
  delivery_.fail(job->first, error);
  jobs_.erase(job);
}

/// Before the user hears the end: who waits for an answer may ask again at once.
void Scheduler::make_room() {
  const std::lock_guard lock(mutex_);
  --health_.open;
}

void Scheduler::idle() {
  {
    std::unique_lock lock(mutex_);
    health_.running = 0;
    changed_.wait_for(lock, kIdlePing,
                      [&] { return stop_ || !arrived_.empty() || !aborted_.empty(); });
    if (stop_ || !arrived_.empty()) return;
  }
  set_attached(memory_.ping().ok());
}

Status Scheduler::iterate() {
  KVD_TRY(submit_jobs());
  KVD_ASSIGN_OR_RETURN(const std::vector<Run> runs, step());
  set_attached(true);
  {
    const std::lock_guard lock(mutex_);
    health_.running = runs.size();
    health_.iterations += runs.empty() ? 0U : 1U;
  }
  if (!runs.empty()) return compute(runs);
  return jobs_.empty() ? Status() : memory_.wait_for_room();
}

Status Scheduler::submit_jobs() {
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    const auto current = job++;
    Job& work = current->second;
    if (work.submitted) continue;
    const Status status =
        memory_.submit({current->first, work.tokens.size(), work.asked.max_tokens - work.made(),
                        work.asked.ttft_slo, work.asked.tbt_slo});
    if (status.code() == ErrorCode::kUnavailable) return status;
    if (!status.ok()) {
      end_job(current, status.error());
      continue;
    }
    work.submitted = true;
    if (!std::exchange(work.accepted, true)) delivery_.accepted(current->first);
  }
  return {};
}

/// What runs next. A run that does not continue its request is an error of that request alone.
Result<std::vector<Run>> Scheduler::step() {
  KVD_ASSIGN_OR_RETURN(std::vector<Run> runs, memory_.step(reports_));
  reports_.clear();
  std::erase_if(runs, [&](const Run& run) {
    const auto job = jobs_.find(run.entry.request);
    if (job == jobs_.end()) {
      (void)memory_.abort(run.entry.request);
      return true;
    }
    const std::uint64_t after = run.entry.tokens_present + run.entry.tokens;
    if (run.entry.tokens_present == job->second.computed && run.entry.tokens > 0 &&
        after <= job->second.tokens.size()) {
      return false;
    }
    end_job(job, make_error(ErrorCode::kInternal,
                            "kvd runs the request from another token than it stands at"));
    return true;
  });
  return runs;
}

Status Scheduler::compute(const std::vector<Run>& runs) {
  std::vector<Sequence> batch;
  for (const Run& run : runs) {
    const Job& job = jobs_.at(run.entry.request);
    const std::span<const Token> tokens(job.tokens);
    const std::uint64_t first = run.entry.tokens_present;
    batch.push_back({tokens.subspan(first, run.entry.tokens), first, run.slots, run.blocks,
                     first + run.entry.tokens == tokens.size()});
  }
  const auto gate = [&](std::uint32_t layer) -> Status {
    for (const Run& run : runs) KVD_TRY(memory_.ready(run, layer));
    return {};
  };
  KVD_ASSIGN_OR_RETURN(const auto logits, model_.forward(batch, gate));
  KVD_TRY(memory_.intact());
  advance(runs, logits);
  return {};
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
  Piece piece{token, job.matcher.feed(text_of(token)), std::nullopt};
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

std::string Scheduler::text_of(Token token) const {
  if (weights_.has_vocabulary || token >= kBytes) return {};
  return std::string(1, static_cast<char>(token));
}

void Scheduler::on_failure(const Error& error) {
  if (error.code != ErrorCode::kUnavailable) {
    fail_jobs(error);
    return;
  }
  set_attached(false);
  restart_jobs();
  std::unique_lock lock(mutex_);
  const bool too_long = clock_.now() - *away_since_ > config_.away_limit;
  if (!too_long) {
    changed_.wait_for(lock, kDaemonAway, [&] { return stop_ || !aborted_.empty(); });
    return;
  }
  lock.unlock();
  fail_jobs(make_error(ErrorCode::kUnavailable, "kvd has been away for too long: start it"));
}

/// The daemon knows none of the requests any more. Their users keep what they have.
void Scheduler::restart_jobs() {
  reports_.clear();
  bool any = false;
  for (auto& [id, job] : jobs_) {
    any = any || job.submitted;
    job.computed = 0;
    job.submitted = false;
  }
  const std::lock_guard lock(mutex_);
  health_.restarts += any ? 1U : 0U;
}

void Scheduler::fail_jobs(const Error& error) {
  take_inbox();
  while (!jobs_.empty()) end_job(jobs_.begin(), error);
}

void Scheduler::set_attached(bool attached) {
  const std::lock_guard lock(mutex_);
  health_.attached = attached;
  if (attached) {
    away_since_.reset();
  } else if (!away_since_) {
    away_since_ = clock_.now();
  }
}

}  // namespace kvd::engine
