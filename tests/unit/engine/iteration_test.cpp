#include "client_lib/engine/serve/iteration.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "client_lib/engine/serve/own_memory.hpp"
#include "tests/unit/engine/small_model.hpp"

namespace kvd::engine {
namespace {

/// Own memory that looks into the slots at every call.
class WatchedMemory final : public KvMemory {
 public:
  WatchedMemory(const kernels::KvLayout& layout, std::uint32_t layers)
      : inside_(layout, layers, 0), slot_bytes_(layout.slot_bytes()) {}

  std::vector<std::string> log;
  bool intact_at_the_end = true;
  Waited answer = Waited::kNo;

  [[nodiscard]] std::uint32_t layers_per_block() const override {
    return inside_.layers_per_block();
  }
  [[nodiscard]] std::uint32_t block_tokens() const override { return inside_.block_tokens(); }
  Status submit(const kvd_client::Request& request) override { return inside_.submit(request); }
  Status abort(std::uint64_t request) override { return inside_.abort(request); }
  Status extend(std::uint64_t request, std::span<const Token> tokens) override {
    return inside_.extend(request, tokens);
  }
  Result<Grant> step(std::span<const kvd_client::StepReport> reports, bool running) override {
    return inside_.step(reports, running);
  }
  Result<Waited> ready(const Grant& grant, std::uint32_t group) override {
    note("ready", grant, group);
    return answer;
  }
  Status done(const Grant& grant, std::uint32_t group) override {
    note("done", grant, group);
    return {};
  }
  Status intact() override {
    log.emplace_back("intact");
    return intact_at_the_end ? Status() : Status(make_error(ErrorCode::kUnavailable, "gone"));
  }
  Status wait_for_room() override { return {}; }
  Status ping() override { return {}; }

 private:
  void note(const std::string& what, const Grant& grant, std::uint32_t group) {
    const Run& run = grant.runs.front();
    const std::byte* slot = run.slots[std::size_t{group} * run.blocks];
    const bool written =
        std::any_of(slot, slot + slot_bytes_, [](std::byte b) { return b != std::byte{0}; });
    log.push_back(what + " " + std::to_string(group) + (written ? " written" : " empty"));
  }

  OwnMemory inside_;
  const std::size_t slot_bytes_;
};

class IterationRunnerTest : public testing::TestWithParam<bool> {
 protected:
  Outcome compute(Nanoseconds least = Nanoseconds{0}) {
    const std::vector<Token> prompt = {1, 2, 3};
    EXPECT_TRUE(memory_.submit({.id = 1, .prompt_tokens = 3, .max_new_tokens = 1}).ok());
    Iteration iteration{*memory_.step({}, false), {}};
    const auto& granted = iteration.grant.runs.front();
    iteration.batch.push_back({prompt, 0, granted.slots, granted.blocks, true});
    IterationRunner runner(model_.transformer(), memory_, clock_, GetParam(), least);
    runner.start(iteration);
    return runner.finish();
  }

  SmallModel model_{1};
  WatchedMemory memory_{model_.layout(), 3};
  const SteadyClock clock_{};
};

TEST_P(IterationRunnerTest, AsksForAGroupBeforeAndTellsOfItAfterItsWrites) {
  const Outcome outcome = compute();
  ASSERT_TRUE(outcome.logits.ok());
  EXPECT_EQ(outcome.logits->size(), 1U);
  EXPECT_EQ(outcome.waited, Nanoseconds(0));
  EXPECT_THAT(memory_.log,
              testing::ElementsAre("ready 0 empty", "done 0 written", "ready 1 empty",
                                   "done 1 written", "ready 2 empty", "done 2 written", "intact"));
}

TEST_P(IterationRunnerTest, CountsWhatItWaited) {
  memory_.answer = Waited::kYes;
  const Outcome outcome = compute();
  EXPECT_GT(outcome.waited, Nanoseconds(0));
  EXPECT_LE(outcome.waited, outcome.took);
}

TEST_P(IterationRunnerTest, TakesAsLongAsItShallAtLeast) {
  constexpr Nanoseconds kLeast = std::chrono::milliseconds(20);
  const Outcome outcome = compute(kLeast);
  ASSERT_TRUE(outcome.logits.ok());
  EXPECT_GE(outcome.took, kLeast);
  EXPECT_EQ(outcome.waited, Nanoseconds(0));
}

TEST_P(IterationRunnerTest, GivesNoLogitsOfWhatWasNotIntact) {
  memory_.intact_at_the_end = false;
  const Outcome outcome = compute();
  ASSERT_FALSE(outcome.logits.ok());
  EXPECT_EQ(outcome.logits.error().code, ErrorCode::kUnavailable);
}

INSTANTIATE_TEST_SUITE_P(Threads, IterationRunnerTest, testing::Bool(), [](const auto& test) {
  return test.param ? "BesideItsOwner" : "InFinish";
});

}  // namespace
}  // namespace kvd::engine
