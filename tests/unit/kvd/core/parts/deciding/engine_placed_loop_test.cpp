// A small engine that places its blocks itself, under random loads, and kvd deciding its steps:
// everybody ends, nobody waits for ever, nobody is moved for nothing. KVD_TEST_SEED plays one load.
#include <gmock/gmock.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <deque>
#include <map>
#include <random>
#include <string>

#include "kvd/core/deciding/engine_placed.hpp"
#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

using State = Schedule::State;

constexpr std::int64_t kBlocks = 60;
constexpr Tokens kBlockOf{16};
constexpr Tokens kBatch{128};

struct Job {
  Schedule::Request told;
  std::int64_t length = 1;  ///< of its answer
  bool fresh = false;       ///< came in, and has made no token since
  std::int64_t passed = 0;  ///< prompts that arrived later and began before it
  std::int64_t ahead = 0;   ///< how many waited already when it arrived
};

/// What vLLM does in a step, as far as memory and time go.
class Engine {
 public:
  explicit Engine(std::uint64_t seed) : random_(seed) {
    rate_ = std::uniform_real_distribution<>(0.5, 2.5)(random_);
    for (int i = 0; i < 40; ++i) {
      at_ += std::exponential_distribution<>(rate_ * 4)(random_);
      arrivals_.push_back(at_);
    }
  }

  [[nodiscard]] bool done() const { return arrivals_.empty() && jobs_.empty(); }
  [[nodiscard]] const std::map<std::uint64_t, Job>& jobs() const { return jobs_; }
  [[nodiscard]] Job& job(RequestId id) { return jobs_.at(id.value); }
  [[nodiscard]] std::int64_t forced() const { return forced_; }
  [[nodiscard]] std::int64_t most_passed_beyond_bound() const { return beyond_; }

  /// Requests that have come by now; time skips to the next one where there is none.
  void arrive(TimePoint& now) {
    if (jobs_.empty() && !arrivals_.empty()) now = std::max(now, time_of(arrivals_.front()));
    for (; !arrivals_.empty() && time_of(arrivals_.front()) <= now; arrivals_.pop_front()) {
      Job job;
      job.told.request = RequestId(++last_id_);
      job.told.prompt = Tokens(between(8, 400));
      job.length = between(1, 120);
      job.told.max_new = Tokens(between(job.length, 200));
      job.told.arrived = time_of(arrivals_.front());
      for (const auto& [id, other] : jobs_) job.ahead += other.told.generated == Tokens(0);
      jobs_.emplace(last_id_, job);
    }
  }

  [[nodiscard]] Schedule told() const {
    Schedule out;
    out.total_blocks = kBlocks;
    out.free_blocks = free();
    out.block_tokens = kBlockOf;
    out.max_batched_tokens = kBatch;
    out.max_running = 32;
    out.last_step = last_step_;
    out.last_step_prefill = Tokens(last_prefill_);
    out.last_step_decodes = last_decodes_;
    for (const auto& [id, job] : jobs_) out.requests.push_back(job.told);
    std::shuffle(out.requests.begin(), out.requests.end(), shuffle_);
    return out;
  }

  void preempt(RequestId id) {
    Job& job = jobs_.at(id.value);
    job.told.state = job.told.computed > Tokens(0) ? State::kParked : State::kWaiting;
    job.told.blocks = 0;
    std::erase(running_, id.value);
  }

  void admit(RequestId id) {
    Job& job = jobs_.at(id.value);
    const Tokens need =
        job.told.state == State::kParked ? job.told.computed + Tokens(1) : Tokens(1);
    const std::int64_t blocks = pieces(need, kBlockOf);
    if (blocks > free()) return;  // it stays out, and is asked for again later
    const bool starts =
        job.told.generated == Tokens(0) && !job.fresh && job.told.computed == Tokens(0);
    job.told.state = State::kRunning;
    job.told.blocks = blocks;
    job.fresh = true;
    running_.push_back(id.value);
    if (!starts) return;
    for (auto& [other_id, other] : jobs_) {
      const bool waits = other.told.state == State::kWaiting && other.told.generated == Tokens(0);
      if (!waits || other.told.arrived >= job.told.arrived) continue;
      beyond_ = std::max(beyond_, ++other.passed - 33 * (other.ahead + 1));
    }
  }

  /// One iteration; `chunk` bounds its prompt tokens. Returns the tokens made.
  std::int64_t step(std::uint32_t chunk, TimePoint& now) {
    std::int64_t budget = std::min<std::int64_t>(kBatch.value, chunk), made = 0;
    last_prefill_ = last_decodes_ = 0;
    for (std::size_t i = 0; i < running_.size();) {
      const std::uint64_t id = running_[i];
      Schedule::Request& told = jobs_.at(id).told;
      const Tokens all = told.prompt + told.generated;
      const bool decodes = told.generated > Tokens(0) && told.computed + Tokens(1) >= all;
      const std::int64_t tokens = decodes ? 1 : std::min(budget, (all - told.computed).value);
      if (tokens == 0) {
        ++i;
        continue;
      }
      if (!grow(id, told.computed + Tokens(tokens)))
        continue;  // it was the last one in the list, and left itself
      told.computed += Tokens(tokens);
      (decodes ? last_decodes_ : last_prefill_) += tokens;
      budget -= decodes ? 0 : tokens;
      i = static_cast<std::size_t>(std::find(running_.begin(), running_.end(), id) -
                                   running_.begin()) +
          1;
    }
    last_step_ = std::chrono::microseconds(5000 + 500 * last_decodes_ + 100 * last_prefill_);
    now += last_step_;
    for (const std::uint64_t id : std::vector(running_)) made += emit(id, now);
    return made;
  }

 private:
  static TimePoint time_of(double s) {
    return TimePoint(static_cast<std::int64_t>((100 + s) * 1e9));
  }
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  [[nodiscard]] std::int64_t free() const {
    std::int64_t used = 0;
    for (const auto& [id, job] : jobs_) used += job.told.blocks;
    return kBlocks - used;
  }
  /// Acts as vLLM does: the latest in its list gives way until there is room. False: it gave way
  /// itself.
  bool grow(std::uint64_t id, Tokens tokens) {
    Schedule::Request& told = jobs_.at(id).told;
    const std::int64_t blocks = pieces(tokens, kBlockOf);
    while (blocks - told.blocks > free()) {
      ++forced_;
      const std::uint64_t victim = running_.back();
      preempt(RequestId(victim));
      if (victim == id) return false;
    }
    told.blocks = std::max(told.blocks, blocks);
    return true;
  }
  std::int64_t emit(std::uint64_t id, TimePoint now) {
    Job& job = jobs_.at(id);
    if (job.told.computed < job.told.prompt + job.told.generated) return 0;
    job.told.generated += Tokens(1);
    job.fresh = false;
    job.told.last_token = now;
    if (!job.told.first_token) job.told.first_token = now;
    if (job.told.generated.value == job.length) {
      std::erase(running_, id);
      jobs_.erase(id);
    }
    return 1;
  }

  std::mt19937_64 random_;
  mutable std::mt19937_64 shuffle_{1};
  double rate_ = 1, at_ = 0;
  std::deque<double> arrivals_;
  std::map<std::uint64_t, Job> jobs_;
  std::vector<std::uint64_t> running_;
  std::uint64_t last_id_ = 0;
  std::int64_t forced_ = 0, beyond_ = 0;
  Nanoseconds last_step_{0};
  std::int64_t last_prefill_ = 0, last_decodes_ = 0;
};

struct Setting {
  const char* rotation;
  const char* overload;
  const char* admission;
};

class EnginePlacedLoopTest : public PartsTest, public ::testing::WithParamInterface<Setting> {
 protected:
  EnginePlacedLoopTest() {
    Tuning wanted = ground.context.tuning;
    wanted.rotation.policy = GetParam().rotation;
    wanted.rotation.overload = GetParam().overload;
    wanted.rotation.b_xfer.reset();
    wanted.admission.policy = GetParam().admission;
    wanted.slo["default"] = {std::chrono::milliseconds(800), std::chrono::milliseconds(30),
                             std::chrono::milliseconds(60)};
    ground.context.retune(wanted);
  }
  ScheduleReply ask(const Session& session, const Schedule& told) {
    effects.clear();
    Command command;
    command.engine = session.id;
    command.reply_to = ReplyTo(1);
    sut.on_schedule(command, told);
    return std::get<ScheduleReply>(emitted<Reply>().back().body);
  }
  /// Blocks that those who run take in the next step, at most.
  static std::int64_t growth(const Schedule& told) {
    std::int64_t blocks = 0;
    for (const Schedule::Request& r : told.requests) {
      if (r.state != State::kRunning) continue;
      const Tokens all = r.prompt + r.generated;
      const Tokens next = std::min(kBatch, std::max(Tokens(1), all - r.computed));
      blocks += pieces(r.computed + next, kBlockOf) - pieces(r.computed, kBlockOf);
    }
    return blocks;
  }
  /// Its policy says how many may pass a prompt; the baselines' do not.
  static bool ordered() {
    const std::string rotation = GetParam().rotation;
    return rotation == "unified" || rotation == "fcfs";
  }
  void check(Engine& engine, const Schedule& told, const ScheduleReply& reply) {
    const bool lacks = growth(told) > told.free_blocks;
    bool queues = false;
    for (const Schedule::Request& r : told.requests) queues |= r.state != State::kRunning;
    if (!lacks && !queues) {
      EXPECT_THAT(reply.preempt, testing::IsEmpty()) << "nobody waits";
    }
    for (const RequestId id : reply.preempt) {
      EXPECT_EQ(engine.job(id).told.state, State::kRunning);
      if (!lacks) {
        EXPECT_FALSE(engine.job(id).fresh) << "moved for nothing";
      }
      EXPECT_EQ(std::count(reply.admit.begin(), reply.admit.end(), id), 0);
    }
    for (const RequestId id : reply.admit) EXPECT_NE(engine.job(id).told.state, State::kRunning);
  }
  void play(std::uint64_t seed) {
    Session& session = attach(kA, 2, false);
    session.class_id = ClassId();
    session.info.slo_class = "default";
    ground.context.now = TimePoint(std::chrono::seconds(100));
    Engine engine(seed);
    int idle = 0;
    for (int steps = 0; !engine.done(); ++steps) {
      ASSERT_LT(steps, 40'000) << "seed " << seed << ": somebody does not end";
      engine.arrive(ground.context.now);
      const Schedule told = engine.told();
      const ScheduleReply reply = ask(session, told);
      check(engine, told, reply);
      for (const RequestId id : reply.preempt) engine.preempt(id);
      for (const RequestId id : reply.admit) engine.admit(id);
      const std::int64_t made = engine.step(reply.prefill_tokens, ground.context.now);
      idle = made > 0 ? 0 : idle + 1;
      ASSERT_LT(idle, 200) << "seed " << seed << ": nobody gets on";
      if (HasFailure()) FAIL() << "seed " << seed;
    }
    if (ordered()) {
      EXPECT_LE(engine.most_passed_beyond_bound(), 0) << "seed " << seed << ": waited too long";
    }
    rotations += session.totals.rotations_out;
    forced += engine.forced();
  }

  Needs needs{ground};
  EnginePlaced sut{ground, needs};
  std::uint64_t rotations = 0;
  std::int64_t forced = 0;
};

TEST_P(EnginePlacedLoopTest, EverybodyEndsAndNobodyIsMovedForNothing) {
  const char* given = std::getenv("KVD_TEST_SEED");
  const std::uint64_t first = given ? std::strtoull(given, nullptr, 10) : 1;
  std::printf("seeds from %llu\n", static_cast<unsigned long long>(first));
  for (std::uint64_t seed = first; seed < first + (given ? 1 : 30); ++seed) {
    play(seed);
    if (HasFailure()) return;
  }
  std::printf("%llu left, %lld of them by the engine itself\n",
              static_cast<unsigned long long>(rotations), static_cast<long long>(forced));
  if (!given && std::string(GetParam().rotation) != "fcfs") {
    EXPECT_GT(rotations, 0u) << "the loads ask for nothing";
  }
}

std::string name_of(const testing::TestParamInfo<Setting>& info) {
  std::string name =
      std::string(info.param.rotation) + "_" + info.param.overload + "_" + info.param.admission;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(
    Policies, EnginePlacedLoopTest,
    testing::Values(Setting{"unified", "goodput", "none"}, Setting{"unified", "ttft", "none"},
                    Setting{"unified", "goodput", "layerkv"}, Setting{"lvf", "goodput", "none"},
                    Setting{"lvf", "goodput", "layerkv"}, Setting{"fcfs", "goodput", "none"},
                    Setting{"si_code", "goodput", "past_future"},
                    Setting{"srtf", "goodput", "whole_request"}),
    name_of);

}  // namespace
}  // namespace kvd::core
