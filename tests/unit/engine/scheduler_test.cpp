#include "client_lib/engine/serve/scheduler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <random>
#include <thread>

#include "client_lib/engine/serve/own_memory.hpp"
#include "client_lib/engine/text/token_text.hpp"
#include "tests/unit/engine/recording_sink.hpp"
#include "tests/unit/engine/small_model.hpp"

namespace kvd::engine {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr std::size_t kNeverIntact = 1 << 30;

/// OwnMemory that loses everything now and then, like a daemon that dies. The thread that asks next
/// is told, once.
class LosingMemory final : public KvMemory {
 public:
  LosingMemory(const kernels::KvLayout& layout, std::uint32_t layers)
      : layout_(layout), layers_(layers) {
    begin_life();
  }

  /// Every n-th call of a kind says that all is lost; 0: none.
  std::atomic<std::size_t> lose_in_step{0}, lose_in_ready{0}, lose_in_done{0}, lose_in_intact{0};
  std::atomic<bool> away{false};
  std::atomic<bool> stopped{false};  ///< stopped as by SIGSTOP: no answer comes in time
  std::atomic<ErrorCode> fail_step{ErrorCode::kOk};  ///< the next step fails with it
  std::atomic<bool> no_room{false};                  ///< steps let nobody run
  std::atomic<std::size_t> losses{0}, aborts{0}, steps_beside{0};
  std::atomic<std::uint64_t> refuse_request{0};  ///< submit() of it fails for good
  std::atomic<bool> skip_a_token{false};         ///< the next step runs from the wrong token

  [[nodiscard]] std::uint32_t layers_per_block() const override { return layout_.layers_per_block; }
  [[nodiscard]] std::uint32_t block_tokens() const override { return layout_.block_tokens; }
  Status submit(const kvd_client::Request& request) override {
    const std::lock_guard lock(mutex_);
    if (away) return lost();
    if (request.id == refuse_request) return make_error(ErrorCode::kOutOfMemory, "too large");
    return life().submit(request);
  }
  Status extend(std::uint64_t, std::span<const Token>) override { return {}; }
  Status abort(std::uint64_t request) override {
    const std::lock_guard lock(mutex_);
    ++aborts;
    if (stopped) return late();
    return away ? Status(lost()) : life().abort(request);
  }
  Result<Grant> step(std::span<const kvd_client::StepReport> reports, bool running) override {
    const std::lock_guard lock(mutex_);
    steps_beside += running ? 1U : 0U;
    if (stopped) return late();
    if (away || strikes(lose_in_step, steps_)) return lost();
    const ErrorCode failure = fail_step.exchange(ErrorCode::kOk);
    if (failure != ErrorCode::kOk) return make_error(failure, "of a step");
    if (no_room) return Grant{};
    auto grant = life().step(reports, running);
    if (grant.ok() && !grant->runs.empty() && skip_a_token.exchange(false)) {
      ++grant->runs.front().entry.tokens_present;
    }
    return grant;
  }
  Result<Waited> ready(const Grant&, std::uint32_t) override {
    const std::lock_guard lock(mutex_);
    if (strikes(lose_in_ready, readies_)) return lost();
    return Waited::kNo;
  }
  Status done(const Grant&, std::uint32_t) override { return maybe_lost(lose_in_done, dones_); }
  Status intact() override { return maybe_lost(lose_in_intact, intacts_); }
  Status wait_for_room() override { return {}; }
  Status ping() override {
    if (stopped) return late();
    return away ? Status(lost()) : Status();
  }

 private:
  static bool strikes(std::size_t every, std::size_t& count) {
    return every != 0 && ++count % every == 0;
  }
  Status maybe_lost(std::size_t every, std::size_t& count) {
    const std::lock_guard lock(mutex_);
    return strikes(every, count) ? Status(lost()) : Status();
  }
  static Error late() { return make_error(ErrorCode::kDeadlineExceeded, "no reply"); }
  OwnMemory& life() { return *lives_.back(); }
  void begin_life() { lives_.push_back(std::make_unique<OwnMemory>(layout_, layers_, 0)); }
  Error lost() {
    ++losses;
    begin_life();
    return make_error(ErrorCode::kUnavailable, "lost");
  }

  const kernels::KvLayout layout_;
  const std::uint32_t layers_;
  std::mutex mutex_;
  /// The iteration that computes reads on in the life that was lost.
  std::vector<std::unique_ptr<OwnMemory>> lives_;
  std::size_t steps_ = 0, readies_ = 0, dones_ = 0, intacts_ = 0;
};

/// A scheduler at work on a thread of its own.
class Engine {
 public:
  explicit Engine(Scheduler::Config config = {})
      : scheduler_(model_.weights(), model_.transformer(), memory, delivery_, clock_, config),
        thread_([this] { scheduler_.run(); }) {}
  ~Engine() { stop(); }

  void stop() {
    scheduler_.stop();
    if (thread_.joinable()) thread_.join();
  }
  Scheduler& scheduler() { return scheduler_; }

  std::shared_ptr<RecordingSink> submit(Completion completion) {
    completion.wants_digests = true;
    auto sink = std::make_shared<RecordingSink>();
    const auto id = scheduler_.submit(std::move(completion), sink);
    if (!id.ok()) sink->failed(id.error());
    return sink;
  }

 private:
  SmallModel model_;

 public:
  LosingMemory memory{model_.layout(), model_.weights().model.layers};

 private:
  const SteadyClock clock_;
  Delivery delivery_{clock_};
  Scheduler scheduler_;
  std::thread thread_;
};

Completion completion(std::uint32_t seed, std::uint64_t max_tokens = 60) {
  std::mt19937 random(seed);
  Completion out;
  out.prompt.resize(5 + random() % 60);
  for (Token& token : out.prompt) token = random() % 256;
  out.max_tokens = max_tokens;
  return out;
}

std::vector<RecordingSink::Record> run_all(Engine& engine) {
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (std::uint32_t seed = 0; seed < 6; ++seed) sinks.push_back(engine.submit(completion(seed)));
  std::vector<RecordingSink::Record> out;
  out.reserve(sinks.size());
  for (const auto& sink : sinks) out.push_back(sink->end());
  return out;
}

void expect_same(const std::vector<RecordingSink::Record>& a,
                 const std::vector<RecordingSink::Record>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].tokens, b[i].tokens) << i;
    EXPECT_EQ(a[i].digests, b[i].digests) << i;
    EXPECT_EQ(a[i].tokens.size(), 60U);
    EXPECT_FALSE(a[i].error || b[i].error);
  }
}

TEST(Scheduler, APipelineChangesNoTokenAndNoBit) {
  Engine in_turn({.pipeline = false}), pipelined;
  const auto expected = run_all(in_turn);
  expect_same(run_all(pipelined), expected);
  EXPECT_EQ(in_turn.memory.steps_beside, 0U);
  EXPECT_GE(pipelined.memory.steps_beside, 60U);
}

TEST(Scheduler, LossesChangeNoTokenAndNoBit) {
  Engine undisturbed;
  const auto expected = run_all(undisturbed);
  for (const bool pipeline : {true, false}) {
    for (const std::size_t every : {11U, 23U}) {
      Engine engine({.pipeline = pipeline});
      engine.memory.lose_in_step = every;
      engine.memory.lose_in_ready = 20 * every + 1;
      engine.memory.lose_in_done = 30 * every + 2;
      engine.memory.lose_in_intact = every + 2;
      expect_same(run_all(engine), expected);
      EXPECT_GE(engine.memory.losses, 3U);
      EXPECT_GE(engine.scheduler().health().restarts, 3U);
    }
  }
}

TEST(Scheduler, DropsTokensOfAnIterationThatWasNotIntact) {
  Engine engine;
  engine.memory.lose_in_intact = 1;
  const auto sink = engine.submit(completion(1));
  ASSERT_TRUE(test::poll_until([&] { return engine.memory.losses > 3; }));
  EXPECT_TRUE(sink->now().tokens.empty());
  engine.memory.lose_in_intact = kNeverIntact;
  EXPECT_EQ(sink->end().tokens.size(), 60U);
}

TEST(Scheduler, EndsAtMaxTokensStopTextsAndStopTokens) {
  Engine engine;
  const auto whole = engine.submit(completion(2))->end();
  EXPECT_EQ(whole.reason, FinishReason::kLength);
  ASSERT_EQ(whole.tokens.size(), 60U);

  Completion with_text = completion(2);
  with_text.stops = {whole.text.substr(30, 3)};
  const auto at = whole.text.find(with_text.stops[0]);
  const auto cut = engine.submit(with_text)->end();
  EXPECT_EQ(cut.reason, FinishReason::kStop);
  EXPECT_EQ(cut.text, whole.text.substr(0, at));
  const SmallModel model;
  std::string shown;
  std::size_t needed = 0;
  while (shown.size() < at + 3) shown += text_of(model.weights(), whole.tokens[needed++]);
  EXPECT_EQ(cut.tokens.size(), needed);

  Completion with_token = completion(2);
  with_token.stop_tokens = {whole.tokens[20]};
  const auto first = std::find(whole.tokens.begin(), whole.tokens.end(), whole.tokens[20]);
  const auto stopped = engine.submit(with_token)->end();
  EXPECT_EQ(stopped.reason, FinishReason::kStop);
  EXPECT_EQ(stopped.tokens, std::vector<Token>(whole.tokens.begin(), first));
}

TEST(Scheduler, HeldBackTextIsNotLostAtTheEnd) {
  Engine engine;
  const auto whole = engine.submit(completion(3))->end();
  Completion held = completion(3);
  held.stops = {whole.text.substr(whole.text.size() - 2) + "never"};
  const auto out = engine.submit(held)->end();
  EXPECT_EQ(out.reason, FinishReason::kLength);
  EXPECT_EQ(out.text, whole.text);
}

TEST(Scheduler, RefusesWhatTheModelCannotDo) {
  Engine engine;
  const auto refusal = [&](Completion asked) {
    const auto record = engine.submit(std::move(asked))->end();
    return record.error ? record.error->to_string() : "taken";
  };
  EXPECT_THAT(refusal(Completion{}), HasSubstr("prompt is empty"));
  EXPECT_THAT(refusal(Completion{.prompt = {256}}), HasSubstr("vocabulary of 256"));
  EXPECT_THAT(refusal(completion(1, 0)), HasSubstr("at least 1"));
  EXPECT_THAT(refusal(completion(1, 512)), HasSubstr("context of 512"));
  EXPECT_THAT(refusal(completion(1, ~std::uint64_t{0})), HasSubstr("context of 512"));
}

TEST(Scheduler, BoundsItsQueue) {
  Engine engine({.max_open = 2});
  engine.memory.away = true;
  const auto a = engine.submit(completion(1)), b = engine.submit(completion(2));
  const auto c = engine.submit(completion(3))->end();
  ASSERT_TRUE(c.error);
  EXPECT_EQ(c.error->code, ErrorCode::kQuotaExceeded);
  engine.memory.away = false;
  EXPECT_EQ(a->end().tokens.size(), 60U);
  EXPECT_EQ(b->end().tokens.size(), 60U);
  EXPECT_EQ(engine.submit(completion(3))->end().tokens.size(), 60U);
}

TEST(Scheduler, GivesUpOnADaemonThatStaysAway) {
  Engine engine({.away_limit = 1ms});
  engine.memory.away = true;
  const auto record = engine.submit(completion(1))->end();
  ASSERT_TRUE(record.error);
  EXPECT_EQ(record.error->code, ErrorCode::kUnavailable);
  EXPECT_FALSE(engine.scheduler().health().attached);
  engine.memory.away = false;
  EXPECT_TRUE(test::poll_until([&] { return engine.scheduler().health().attached; }));
  EXPECT_EQ(engine.submit(completion(1))->end().tokens.size(), 60U);
}

TEST(Scheduler, ARefusedOrMisledRequestFailsAlone) {
  Engine engine;
  engine.memory.refuse_request = 1;
  const auto refused = engine.submit(completion(1));
  const auto other = engine.submit(completion(2));
  ASSERT_TRUE(refused->end().error);
  EXPECT_EQ(refused->end().error->code, ErrorCode::kOutOfMemory);
  EXPECT_FALSE(refused->now().accepted);
  EXPECT_EQ(other->end().tokens.size(), 60U);

  engine.memory.skip_a_token = true;
  const auto misled = engine.submit(completion(3))->end();
  ASSERT_TRUE(misled.error);
  EXPECT_EQ(misled.error->code, ErrorCode::kInternal);
  EXPECT_EQ(engine.submit(completion(4))->end().tokens.size(), 60U);
}

TEST(Scheduler, AnAbortedRequestGivesItsMemoryBack) {
  Engine engine;
  const auto sink = std::make_shared<RecordingSink>();
  const auto id = engine.scheduler().submit(completion(1, 400), sink);
  ASSERT_TRUE(id.ok());
  ASSERT_TRUE(sink->wait([](const auto& record) { return record.tokens.size() > 3; }));
  engine.scheduler().abort(*id);
  EXPECT_TRUE(test::poll_until([&] { return engine.scheduler().health().open == 0; }));
  EXPECT_EQ(engine.memory.aborts, 1U);
  EXPECT_FALSE(sink->now().reason);
}

/// Requests that the memory has taken and never lets run.
std::vector<std::shared_ptr<RecordingSink>> open_some(Engine& engine) {
  engine.memory.no_room = true;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (std::uint32_t seed = 0; seed < 4; ++seed) sinks.push_back(engine.submit(completion(seed)));
  for (const auto& sink : sinks) {
    EXPECT_TRUE(sink->wait([](const auto& record) { return record.accepted; }));
  }
  return sinks;
}

TEST(Scheduler, AsksADaemonThatIsLateOnceAndGivesTheRestBackLater) {
  Engine engine;
  const auto sinks = open_some(engine);
  engine.memory.stopped = true;
  for (const auto& sink : sinks) EXPECT_TRUE(sink->end().error);
  EXPECT_TRUE(test::poll_until([&] { return engine.scheduler().health().open == 0; }));
  EXPECT_EQ(engine.memory.aborts, 1U);
  engine.memory.stopped = false;
  EXPECT_TRUE(test::poll_until([&] { return engine.memory.aborts == 4; }));
}

TEST(Scheduler, StoppingGivesNothingBackOneByOne) {
  Engine engine;
  const auto sinks = open_some(engine);
  engine.stop();
  for (const auto& sink : sinks) EXPECT_TRUE(sink->end().error);
  EXPECT_EQ(engine.memory.aborts, 0U) << "the session's end gives all of it back";
}

TEST(Scheduler, AFailedStepIsNobodysRequestAtFault) {
  for (const ErrorCode code : {ErrorCode::kOutOfMemory, ErrorCode::kInvalidArgument}) {
    Engine engine;
    const auto sinks = open_some(engine);
    engine.memory.fail_step = code;
    for (const auto& sink : sinks) {
      const auto record = sink->end();
      ASSERT_TRUE(record.error);
      EXPECT_EQ(record.error->code, ErrorCode::kInternal);
    }
  }
}

TEST(Scheduler, StoppingEndsEveryRequest) {
  Engine engine;
  engine.memory.away = true;
  const auto sink = engine.submit(completion(1));
  engine.stop();
  ASSERT_TRUE(sink->end().error);
  EXPECT_EQ(sink->end().error->code, ErrorCode::kUnavailable);
  EXPECT_TRUE(engine.submit(completion(2))->end().error);
}

}  // namespace
}  // namespace kvd::engine
