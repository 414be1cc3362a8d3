#include "client_lib/engine/serve/scheduler.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace kvd::engine {
namespace {

constexpr Nanoseconds kIdlePing = std::chrono::seconds(1);
constexpr Nanoseconds kDaemonAway = std::chrono::milliseconds(50);
Error stopping() {
  return make_error(ErrorCode::kUnavailable, "the engine is stopping: ask another one");
}

}  // namespace

Scheduler::Scheduler(const Weights& weights, Transformer& model, KvMemory& memory,
                     Delivery& delivery, const Clock& clock, const Config& config)
    : weights_(weights),
      memory_(memory),
      delivery_(delivery),
      clock_(clock),
      config_(config),
      runner_(model, memory, clock, config.pipeline, config.least_iteration) {}

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
  Job job{std::move(completion), StopMatcher({}), {}, 0, 0, false, false};
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
    if (const Status status = iterate(); !status.ok()) {
      on_failure(status.error());
    } else {
      give_back_late();
    }
  }
  // The session ends next, which gives back whatever the requests hold.
  for (auto& [request, job] : jobs_) job.submitted = false;
  fail_jobs(stopping());
}

void Scheduler::take_arrivals() {
  const std::lock_guard lock(mutex_);
  jobs_.merge(arrived_);
}

/// Between iterations only: it ends jobs.
void Scheduler::take_inbox() {
  take_arrivals();
  std::vector<std::uint64_t> aborted;
  {
    const std::lock_guard lock(mutex_);
    aborted = std::exchange(aborted_, {});
  }
  for (const std::uint64_t request : aborted) {
    const auto job = jobs_.find(request);
    if (job != jobs_.end()) end_job(job, stopping());
  }
}

/// Gives the request's memory back and forgets the request. Its user, if still there, is told why.
void Scheduler::end_job(Jobs::iterator job, const Error& error) {
  if (job->second.submitted) give_back(job->first);
  std::erase_if(reports_, [&](const auto& report) { return report.request == job->first; });
  make_room();
  delivery_.fail(job->first, error);
  jobs_.erase(job);
}

/// A daemon that does not know the request has nothing to give back. One that is silent is not
/// waited for once for each request.
void Scheduler::give_back(std::uint64_t request) {
  if (silent_) {
    unreturned_.push_back(request);
    return;
  }
  const ErrorCode code = memory_.abort(request).code();
  lost_ = code == ErrorCode::kUnavailable || lost_;
  silent_ = code == ErrorCode::kUnavailable || code == ErrorCode::kDeadlineExceeded;
}

/// kvd answers again.
void Scheduler::give_back_late() {
  silent_ = false;
  for (const std::uint64_t request : std::exchange(unreturned_, {})) give_back(request);
}

/// This comes before the user hears the end, as a user who waits for an answer may ask again at
/// once.
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
  const bool answers = memory_.ping().ok();
  set_attached(answers);
  if (answers) give_back_late();
}

void Scheduler::on_failure(const Error& error) {
  next_.reset();
  if (error.code != ErrorCode::kUnavailable) {
    // Whatever the code says, no single request is to blame for an error that concerns all.
    fail_jobs(make_error(ErrorCode::kInternal, error.to_string()));
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

/// The daemon that knew the requests is gone. Their users keep what they have. One of them may be
/// with the next daemon already, if the loss was heard of by the thread that computes: the abort
/// makes sure that it is not.
void Scheduler::restart_jobs() {
  reports_.clear();
  bool any = false;
  bool away = false;
  for (auto& [id, job] : jobs_) {
    any = any || job.submitted;
    if (job.submitted && !away) away = memory_.abort(id).code() == ErrorCode::kUnavailable;
    job.computed = job.found = 0;
    job.submitted = false;
  }
  lost_ = false;
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
