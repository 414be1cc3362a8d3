#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "client_lib/engine/model/transformer.hpp"
#include "client_lib/engine/serve/completion.hpp"
#include "client_lib/engine/serve/delivery.hpp"
#include "client_lib/engine/serve/iteration.hpp"
#include "client_lib/engine/serve/kv_memory.hpp"
#include "client_lib/engine/text/stop_matcher.hpp"
#include "ipc/vocabulary/clock.hpp"

namespace kvd::engine {

/// What /health tells.
struct Health {
  bool attached = true;  ///< requests would be taken now
  std::uint64_t open = 0;
  std::uint64_t running = 0;  ///< in the last iteration
  std::uint64_t iterations = 0;
  std::uint64_t tokens = 0;    ///< made for users
  std::uint64_t restarts = 0;  ///< times all requests went back because the daemon had gone
  std::uint64_t waited = 0;    ///< iterations that waited for a copy
  Nanoseconds waiting{0};      ///< what they waited
  Nanoseconds iterating{0};    ///< all iterations, from their first layer to their last logits
};

/// Runs requests to their end: continuous batching, as KvMemory's run list says. In a pipeline the
/// next iteration is agreed upon while one computes; a request that ends in this one is then left
/// out of the next.
///
/// When the daemon goes away, requests keep the tokens their users have; their KV is computed again
/// from these, so that the tokens that follow are those of an undisturbed run.
/// Owner:  run() belongs to one thread; the others are for any thread.
/// Errors: of submit(): InvalidArgument for what this model cannot do, QuotaExceeded when the queue
///         is full, Unavailable when kvd is away for longer than away_limit, or stop() was called.
class Scheduler {
 public:
  struct Config {
    std::size_t max_open = 64;
    Nanoseconds away_limit = std::chrono::seconds(60);
    Nanoseconds tbt_slo{0};  ///< of requests that name none
    Nanoseconds ttft_slo{0};
    bool pipeline = true;  ///< false: compute and step in turn
    /// What an iteration takes at least. A GPU's takes nearly the same for few requests as for
    /// many.
    Nanoseconds least_iteration{0};
  };
  /// All references outlive it.
  Scheduler(const Weights& weights, Transformer& model, KvMemory& memory, Delivery& delivery,
            const Clock& clock, const Config& config);

  /// Returns the request's number, for abort(); the sink hears of everything else.
  Result<std::uint64_t> submit(Completion completion, std::shared_ptr<TokenSink> sink);
  void abort(std::uint64_t request);
  [[nodiscard]] Health health() const;

  /// Returns after stop(), with every request ended.
  void run();
  void stop();

 private:
  struct Job {
    Completion asked;
    StopMatcher matcher;
    std::vector<Token> tokens;   ///< the prompt and what was made
    std::uint64_t computed = 0;  ///< tokens whose KV is in the blocks
    std::uint64_t found = 0;     ///< how many of them another one has computed
    std::uint64_t told = 0;      ///< leading tokens that the memory knows
    bool submitted = false;
    bool accepted = false;

    [[nodiscard]] std::uint64_t made() const { return tokens.size() - asked.prompt.size(); }
  };
  using Jobs = std::map<std::uint64_t, Job>;

  [[nodiscard]] Status check(const Completion& completion) const;
  void take_inbox();
  void take_arrivals();
  void idle();
  Status iterate();
  Status submit_jobs();
  Status plan(bool running);
  void end_jobs(const std::vector<std::uint64_t>& ended, const Error& error);
  void drop_ended(std::vector<Run>& runs);
  /// A run of its prompt may begin behind tokens that were found computed.
  void begin_behind(std::uint64_t request, Job& job, const Run& run);
  void tell_answer(std::uint64_t request, Job& job, bool ended);
  /// Runs beside the iteration that computes, unless that is switched off.
  Status plan_next();
  [[nodiscard]] std::vector<Sequence> batch_of(const std::vector<Run>& runs) const;
  void advance(const std::vector<Run>& runs, const std::vector<std::vector<float>>& logits);
  /// Whether the request has ended with this token.
  bool take_token(std::uint64_t request, Job& job, std::span<const float> logits);
  void end_job(Jobs::iterator job, const Error& error);
  void give_back(std::uint64_t request);
  void give_back_late();
  void make_room();
  void restart_jobs();
  void fail_jobs(const Error& error);
  void on_failure(const Error& error);
  void set_attached(bool attached);
  void count(const Outcome& outcome, std::size_t runs);

  const Weights& weights_;
  KvMemory& memory_;
  Delivery& delivery_;
  const Clock& clock_;
  const Config config_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Under the mutex.
  Jobs arrived_;
  std::vector<std::uint64_t> aborted_;
  Health health_;
  std::uint64_t last_request_ = 0;
  std::optional<TimePoint> away_since_;
  bool stop_ = false;

  // These belong to the thread that runs.
  Jobs jobs_;
  std::vector<kvd_client::StepReport> reports_;
  std::optional<Grant> next_;              ///< agreed upon and not begun; has something to run
  bool silent_ = false;                    ///< kvd did not answer the last give-back
  std::vector<std::uint64_t> unreturned_;  ///< these were not asked of it, because it was silent
  bool lost_ = false;       ///< a call whose answer nobody waits for heard that kvd had gone
  IterationRunner runner_;  ///< last: its thread uses the jobs
};

}  // namespace kvd::engine
