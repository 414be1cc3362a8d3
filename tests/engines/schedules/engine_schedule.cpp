#include "tests/engines/schedules/engine_schedule.hpp"

#include <algorithm>
#include <random>
#include <utility>

#include "tests/engines/schedules/faulty_daemon.hpp"
#include "tests/support/daemon_thread.hpp"

namespace kvd::test {
namespace {

using namespace std::chrono_literals;
using Random = std::mt19937_64;

constexpr std::size_t kRequests = 16;
constexpr Bytes kSlab = 2 * kMiB;

template <class T, std::size_t kCount>
T pick(Random& random, const T (&choices)[kCount]) {
  return choices[random() % kCount];
}

struct Wanted {
  std::size_t prompt = 0;
  std::uint64_t new_tokens = 1;
  std::uint64_t abort_after = 0;  ///< tokens; 0: it goes to its end
  std::uint64_t wait_for = 0;     ///< tokens that the first request has when this one comes
  Nanoseconds slo{1ms};
};

std::vector<Wanted> wanted_of(Random& random) {
  std::vector<Wanted> out(kRequests);
  for (std::size_t i = 0; i < kRequests; ++i) {
    Wanted& one = out[i];
    one.prompt = random() % References::kPrompts;
    one.new_tokens = 1 + random() % References::kMostNew;
    if (random() % 8 == 0) one.abort_after = 1 + random() % one.new_tokens;
    one.slo = pick(random, {Nanoseconds(100us), Nanoseconds(1ms), Nanoseconds(1s)});
  }
  // Some come while others run.
  out[0].new_tokens = References::kMostNew;
  out[0].abort_after = 0;
  for (std::size_t i = kRequests / 2; i < kRequests; ++i) {
    out[i].wait_for = out[i - 1].wait_for + random() % 5;
  }
  return out;
}

Bytes demand_of(const std::vector<Wanted>& wanted, const References& references) {
  Bytes sum;
  for (const Wanted& one : wanted) {
    const std::uint64_t tokens = references.prompt(one.prompt).size() + one.new_tokens;
    sum += Bytes(static_cast<std::int64_t>((tokens + 15) / 16 * 16 * kTokenBytes));
  }
  return sum;
}

/// Every kind that a device can do to a daemon without being broken.
kernels::FaultScript script_of(Random& random) {
  kernels::FaultScript script;
  script.seed = random();
  script.hold_copies = true;
  script.release_chance = 0.3;
  for (std::uint64_t copy = 1; copy < 400; ++copy) {
    if (random() % 24 == 0) script.fail_copies.insert(copy);
    if (random() % 8 == 0) script.duplicate_completions.insert(copy);
  }
  return script;
}

daemon::Config configured(const Schedule& schedule, Bytes demand, daemon::Config config) {
  const Bytes wanted(demand.value * schedule.pool_percent / 100);
  config.slab = kSlab;
  config.hbm = kSlab * std::max<std::int64_t>(1, pieces(wanted, kSlab));
  config.dram = kSlab * (2 * pieces(demand, kSlab) + 2);
  if (schedule.slow_link) config.link_bandwidth = BytesPerSecond{300e6};
  config.tuning.placement.policy = schedule.placement;
  config.tuning.rotation.policy = schedule.rotation;
  config.tuning.admission.policy = schedule.admission;
  return config;
}

std::string describe(const core::RequestStatus& request) {
  return "request " + std::to_string(request.key.request.value) + " of engine " +
         std::to_string(request.key.engine.value) + " is " + core::name(request.state) + " with " +
         std::to_string(request.tokens) + " of " +
         std::to_string(request.prompt_tokens + request.max_new_tokens) + " tokens";
}

/// Plays one schedule on a daemon of its own.
class Play {
 public:
  Play(const Schedule& schedule, const References& references)
      : schedule_(schedule), references_(references) {
    for (std::uint32_t i = 0; i < schedule.engines; ++i) {
      engines_.push_back(EngineThread::on_kvd(daemon_.endpoint(), schedule.layers_per_block,
                                              {.pipeline = schedule.pipeline},
                                              schedule.shares ? "the one of References" : ""));
    }
  }

  void submit_all() {
    for (const Wanted& one : wanted_) {
      if (one.wait_for > 0) wait_for(0, one.wait_for);
      engine::Completion completion{.prompt = references_.prompt(one.prompt),
                                    .max_tokens = one.new_tokens};
      completion.ttft_slo = one.slo;
      open_.push_back(engine_of(open_.size()).submit(std::move(completion)));
    }
  }

  void abort_some() {
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      if (wanted_[i].abort_after == 0) continue;
      wait_for(i, wanted_[i].abort_after);
      engine_of(i).scheduler().abort(open_[i].number);
    }
  }

  /// Every answer, once all have ended.
  void compare_all() {
    bool stuck = false;
    for (std::size_t i = 0; i < wanted_.size() && !stuck; ++i) {
      stuck = !poll_until([&] { return ended(i) || lost_session(); });
    }
    lost_ = lost_session();
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      const bool cut_short = lost_ || wanted_[i].abort_after != 0;
      const std::string difference = references_.difference(wanted_[i].prompt, open_[i].sink->now(),
                                                            wanted_[i].new_tokens, cut_short);
      if (!difference.empty()) fault("request " + std::to_string(i) + ": " + difference);
    }
    if (!stuck) return;
    for (const auto& request : daemon_.status().requests) fault(describe(request));
  }

  [[nodiscard]] ScheduleResult end() {
    engines_.clear();
    if (!lost_ && !left_nothing()) fault("memory is left behind");
    result_.counters = daemon_.status().counters;
    if (result_.counters.engines_died != 0 && !schedule_.faults) fault("an engine was dropped");
    if (result_.faults.empty()) return std::move(result_);
    for (const auto& happening : daemon_.daemon().happenings()) fault("kvd: " + happening.text);
    return std::move(result_);
  }

 private:
  daemon::Config configured_for(daemon::Config config) {
    script_faults(schedule_.faults ? std::optional(script_of(random_)) : std::nullopt);
    return configured(schedule_, demand_of(wanted_, references_), std::move(config));
  }
  EngineThread& engine_of(std::size_t i) { return *engines_[i % engines_.size()]; }
  /// A device that fails may cost an engine its session. The requests begin again in another, but
  /// what the old one had stays quarantined while its process lives, and that is this one: there
  /// may be no room to go on in. What users have by then is right all the same.
  bool lost_session() { return schedule_.faults && daemon_.status().counters.engines_died != 0; }
  void wait_for(std::size_t i, std::uint64_t tokens) {
    (void)poll_until([&] {
      const Answer answer = open_[i].sink->now();
      return answer.tokens.size() >= tokens || answer.reason || answer.error || lost_session();
    });
  }
  bool ended(std::size_t i) {
    const Answer answer = open_[i].sink->now();
    return wanted_[i].abort_after != 0 || answer.reason || answer.error;
  }
  bool left_nothing() {
    return daemon_.wait_all_free() && daemon_.daemon().clear_cache(kPatience).ok() &&
           daemon_.wait_all_free();
  }
  void fault(std::string what) { result_.faults.push_back(std::move(what)); }

  const Schedule& schedule_;
  const References& references_;
  Random random_{schedule_.seed ^ 0x5eedU};
  const std::vector<Wanted> wanted_ = wanted_of(random_);
  DaemonThread daemon_{
      [this](daemon::Config& config) { config = configured_for(std::move(config)); }};
  std::vector<std::unique_ptr<EngineThread>> engines_;
  std::vector<EngineThread::Open> open_;
  bool lost_ = false;
  ScheduleResult result_;
};

}  // namespace

Schedule Schedule::of(std::uint64_t seed) {
  Random random(seed);
  Schedule out;
  out.seed = seed;
  out.layers_per_block = pick(random, {1U, 2U, kModelLayers});
  out.engines = pick(random, {1U, 1U, 2U, 3U});
  out.pool_percent = pick(random, {100U, 50U, 25U, 12U});
  out.placement = pick(random, {"none", "orbitflow"});
  out.rotation = pick(random, {"unified", "unified", "lvf", "fcfs"});
  out.admission = pick(random, {"none", "layerkv"});
  out.pipeline = random() % 4 != 0;
  out.slow_link = random() % 4 == 0;
  out.faults = random() % 4 == 0;
  out.shares = random() % 2 == 0;
  return out;
}

std::string Schedule::describe() const {
  return "KVD_TEST_SEED=" + std::to_string(seed) + ": g=" + std::to_string(layers_per_block) + " " +
         std::to_string(engines) + " engines, HBM " + std::to_string(pool_percent) + " %, " +
         placement + ", " + rotation + ", " + admission + (pipeline ? ", pipeline" : ", in turn") +
         (slow_link ? ", slow link" : "") + (faults ? ", faulty device" : "") +
         (shares ? ", shared prefixes" : "");
}

ScheduleResult run_schedule(const Schedule& schedule, const References& references) {
  Play play(schedule, references);
  play.submit_all();
  play.abort_some();
  play.compare_all();
  return play.end();
}

}  // namespace kvd::test
