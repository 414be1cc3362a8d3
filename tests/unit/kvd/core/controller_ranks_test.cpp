// Tensor-parallel groups: several processes that are one engine.
#include <gtest/gtest.h>

#include "tests/support/controller_world.hpp"

namespace kvd::test {
namespace {

using std::chrono::milliseconds;

/// Two ranks of a model of 2 layers in 2 groups, 4 tokens a block.
ModelClass two_ranks() { return {2, 1, 4, Bytes(128), 2}; }

Step idle(std::uint64_t finished) { return {finished, 0, {}, {}}; }

/// Request 1 has this many tokens after the iteration.
Step reported(std::uint64_t iteration, std::int64_t tokens, bool finished = false) {
  return {iteration, 0, {}, {{RequestId(1), Tokens(tokens), finished}}};
}

class Ranks : public testing::Test {
 protected:
  std::optional<Reply> step(std::uint32_t rank, const Step& body,
                            Nanoseconds timeout = milliseconds(100)) {
    return world.command(group, body, timeout, rank);
  }
  static const StepReply& answer(const std::optional<Reply>& reply) {
    return std::get<StepReply>(reply->body);
  }
  [[nodiscard]] std::size_t slots(pool::SlotState state) const {
    return world.controller->status(world.now)
        .tiers[0]
        .slots_by_state[static_cast<std::size_t>(state)];
  }
  /// Makes each rank step until slabs are mapped, and then a step that grants something.
  void begin(std::int64_t prompt, std::int64_t max_new) {
    EXPECT_EQ(world.submit(group, 1, prompt, max_new), ErrorCode::kOk);
    for (int i = 0; i < 3; ++i) {
      const auto first = step(0, idle(0));
      (void)step(1, idle(0));
      if (!answer(first).run.empty()) return;
    }
    ADD_FAILURE() << "nothing is granted";
  }

  World world{small_pool()};
  EngineId group = world.attach(two_ranks());
};

TEST_F(Ranks, AllGetTheAnswerOfTheFirstThatAsks) {
  ASSERT_EQ(world.submit(group, 1, 6, 4), ErrorCode::kOk);
  std::optional<Reply> first, second;
  do {
    first = step(1, idle(0));
    world.submit(group, 2, 6, 4);  // comes between the two
    second = step(0, idle(0));
    ASSERT_EQ(answer(first).iteration, answer(second).iteration);
    ASSERT_EQ(answer(first).run.size(), answer(second).run.size());
  } while (answer(first).run.empty());
  EXPECT_EQ(answer(first).run[0].request, RequestId(1));
  EXPECT_EQ(answer(first).table_version, answer(second).table_version);
  EXPECT_EQ(world.controller->status(world.now).counters.tokens, 0u);
}

TEST_F(Ranks, ATableShowsTheSlotsOfAllRanks) {
  begin(6, 4);
  const auto& table = world.engines.at(group).next_table;
  ASSERT_EQ(table.size(), 1u);
  EXPECT_EQ(table[0].groups, 4u) << "two ranks with two layer groups each";
  EXPECT_EQ(table[0].slots.size(), 4u * table[0].blocks);
}

TEST_F(Ranks, TheReportsOfTheFirstCount) {
  begin(6, 4);
  Step done = reported(1, 6);
  EXPECT_EQ(world.code(step(0, done)), ErrorCode::kOk);
  EXPECT_EQ(world.code(step(1, done)), ErrorCode::kOk);
  EXPECT_EQ(world.controller->status(world.now).counters.tokens, 6u);
}

TEST_F(Ranks, ALostReplyIsSaidAgain) {
  begin(6, 4);
  const auto again = step(0, idle(0));
  ASSERT_EQ(world.code(again), ErrorCode::kOk);
  EXPECT_EQ(answer(again).iteration, 1u);
  EXPECT_EQ(answer(again).run.size(), 1u);
}

// Rank 1 asked on while rank 0 had not seen the answer to its last step.
TEST_F(Ranks, ALostReplyIsSaidAgainAlsoWhenAnotherRankHasAskedOn) {
  begin(6, 4);
  Step done = reported(1, 6);
  for (const std::uint32_t rank : {0u, 1u}) {
    ASSERT_EQ(world.code(step(rank, done)), ErrorCode::kOk);
  }
  Step more = reported(2, 7);
  ASSERT_EQ(answer(step(1, more)).iteration, 3u);
  const auto again = step(0, done);
  ASSERT_EQ(world.code(again), ErrorCode::kOk);
  EXPECT_EQ(answer(again).iteration, 2u);
  EXPECT_EQ(answer(step(0, more)).iteration, 3u);
  EXPECT_EQ(world.code(step(0, done)), ErrorCode::kInvalidArgument) << "it has moved on";
}

TEST_F(Ranks, AStepThatNobodyWaitsForAnyMoreTakesNoAnswer) {
  begin(6, 4);
  Step done = reported(1, 6);
  ASSERT_EQ(world.code(step(0, done)), ErrorCode::kOk);
  Step more = reported(2, 7);
  EXPECT_EQ(world.code(step(0, more, Nanoseconds(0))), ErrorCode::kDeadlineExceeded) << "at once";
  EXPECT_FALSE(step(0, more).has_value());
  world.pass(milliseconds(100));  // its time is over, but no tick has come yet
  ASSERT_EQ(world.code(step(1, done)), ErrorCode::kOk);
  EXPECT_EQ(world.code(world.latest), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(answer(step(0, more)).iteration, 3u) << "its next try is a step of its own";
}

TEST_F(Ranks, WhoIsAheadWaitsForTheOthers) {
  begin(6, 4);
  Step done = reported(1, 6);
  ASSERT_EQ(world.code(step(0, done)), ErrorCode::kOk);
  Step more = reported(2, 7);
  EXPECT_FALSE(step(0, more).has_value()) << "rank 1 has not asked for iteration 2";
  EXPECT_EQ(world.code(step(0, more)), ErrorCode::kWouldBlock) << "one at a time";
  ASSERT_EQ(world.code(step(1, done)), ErrorCode::kOk);
  EXPECT_EQ(std::get<StepReply>(world.latest->body).iteration, 3u) << "and now it is answered";
}

TEST_F(Ranks, WhoWaitsForTheOthersWaitsForItsTimeout) {
  begin(6, 4);
  Step done = reported(1, 6);
  ASSERT_EQ(world.code(step(0, done)), ErrorCode::kOk);
  EXPECT_FALSE(step(0, idle(2)).has_value());
  world.pass(milliseconds(101));
  world.feed(Tick{});
  ASSERT_EQ(world.code(world.latest), ErrorCode::kDeadlineExceeded);
  EXPECT_NE(std::get<Error>(world.latest->body).message.find("rank 1"), std::string::npos);
  EXPECT_EQ(world.code(step(1, done)), ErrorCode::kOk) << "the group goes on";
}

TEST_F(Ranks, RanksThatDisagreeAreToldSo) {
  begin(6, 4);
  Step done = idle(1);
  ASSERT_EQ(world.code(step(0, done)), ErrorCode::kOk);
  EXPECT_EQ(world.code(step(1, {0, 1, {}, {}})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(world.code(step(7, done)), ErrorCode::kInvalidArgument) << "no such rank";
  EXPECT_EQ(world.code(step(1, done)), ErrorCode::kOk);
}

TEST_F(Ranks, NoRankGivesUpWhatOthersMayRun) {
  begin(6, 4);
  // Pipelined: iteration 1 runs, 2 is granted; then rank 0 says it never ran 2.
  const Step ahead{0, 1, {}, {}};
  const auto second = step(0, ahead);
  ASSERT_EQ(world.code(second), ErrorCode::kOk);
  ASSERT_EQ(answer(second).iteration, 2u);
  ASSERT_EQ(world.code(step(1, ahead)), ErrorCode::kOk);
  EXPECT_EQ(world.code(step(0, idle(1))), ErrorCode::kInvalidArgument);
}

TEST_F(Ranks, ReportsOfWhatAnotherRankHasAbortedArePassedOver) {
  begin(6, 4);
  ASSERT_EQ(world.code(world.command(group, Abort{RequestId(1)}, milliseconds(100), 1)),
            ErrorCode::kOk);
  Step done = reported(1, 6);
  EXPECT_EQ(world.code(step(0, done)), ErrorCode::kOk) << "it cannot know";
}

TEST_F(Ranks, BlocksAreSealedWhenTheLastRankHasWrittenThem) {
  begin(6, 4);
  Step done = reported(1, 6);
  ASSERT_EQ(world.code(step(0, done)), ErrorCode::kOk);
  EXPECT_EQ(slots(pool::SlotState::kSealed), 0u) << "rank 1 may still write";
  ASSERT_EQ(world.code(step(1, done)), ErrorCode::kOk);
  EXPECT_EQ(slots(pool::SlotState::kSealed), 4u) << "the full block of four groups";
}

TEST_F(Ranks, BlocksAreFreeWhenTheLastRankHasFinished) {
  begin(6, 4);
  Step done = reported(1, 6, true);
  ASSERT_EQ(world.code(step(0, done)), ErrorCode::kOk);
  const auto free = [&] {
    const auto stats = world.controller->status(world.now).tiers[0];
    std::uint64_t used = 0;
    for (std::size_t s = 1; s < pool::kSlotStates; ++s) used += stats.slots_by_state[s];
    return used == 0;
  };
  EXPECT_FALSE(free()) << "rank 1 may still write";
  ASSERT_EQ(world.code(step(1, done)), ErrorCode::kOk);
  EXPECT_TRUE(free());
}

TEST_F(Ranks, AVictimLeavesWhenTheLastRankHasFinished) {
  begin(6, 4);
  Step done = reported(1, 6);
  for (const std::uint32_t rank : {0u, 1u}) {
    ASSERT_EQ(world.code(step(rank, done)), ErrorCode::kOk);
  }
  ASSERT_EQ(world.code(world.command(group, Rotate{RequestId(1), true})), ErrorCode::kOk);
  world.finish_copies();
  world.last_copied = 0;
  done = reported(2, 7);
  ASSERT_EQ(world.code(step(0, done)), ErrorCode::kOk);
  EXPECT_EQ(world.last_copied, 0u) << "rank 1 may still write";
  ASSERT_EQ(world.code(step(1, done)), ErrorCode::kOk);
  EXPECT_EQ(world.last_copied, 8u) << "both blocks of four groups";
}

TEST_F(Ranks, AGroupThatPartsHoldsItsMemoryAndHasNotDied) {
  begin(6, 4);
  world.feed(Dying{group, true});
  const auto free = [&] {
    const auto stats = world.controller->status(world.now).tiers[0];
    return stats.free == stats.capacity;
  };
  EXPECT_FALSE(free());
  EXPECT_EQ(world.code(step(1, idle(0))), ErrorCode::kStaleSession);
  world.bury(group);
  world.finish_copies();
  EXPECT_TRUE(free());
  EXPECT_EQ(world.controller->status(world.now).counters.engines_died, 0u);
}

TEST_F(Ranks, AGroupWhoseLastRankDiesHasDied) {
  begin(6, 4);
  world.feed(Dying{group, true});
  world.feed(Dying{group});
  world.feed(Dying{group});
  world.bury(group);
  EXPECT_EQ(world.controller->status(world.now).counters.engines_died, 1u);
}

TEST_F(Ranks, RentNoRegions) {
  EXPECT_EQ(world.code(world.command(group, AllocateRegion{Bytes(4096)})), ErrorCode::kUnsupported);
}

TEST_F(Ranks, TheNumbersOfTheOtherRanksAreTheirs) {
  EXPECT_EQ(world.attach(small_model()).value, group.value + 2);
}

/// Three ranks beside another engine, and more requests than HBM holds.
void submit_too_much(World& world, bool pipelined) {
  const EngineId group = world.attach({2, 1, 4, Bytes(128), 3});
  const EngineId other = world.attach(small_model());
  world.engines.at(group).pipelined = pipelined;
  for (std::uint64_t id = 1; id <= 4; ++id) {
    ASSERT_EQ(world.submit(group, id, 5, 6), ErrorCode::kOk);
    ASSERT_EQ(world.submit(other, id, 9, 12), ErrorCode::kOk);
  }
}

// What each rank reads of its share is what it wrote, while requests rotate and ranks drift apart.
TEST(RanksAtWork, RotateAndLoseNothing) {
  for (const bool pipelined : {false, true}) {
    World world(small_pool(3));
    submit_too_much(world, pipelined);
    EXPECT_TRUE(run_to_end(world));
    EXPECT_EQ(world.errors, 0u);
    EXPECT_GT(world.controller->status(world.now).counters.rotations_out, 0u);
  }
}

TEST(RanksAtWork, TheControlSeesABlockThatIsWrong) {
  Controller::Config config = small_pool(3);
  config.tuning.rotation.eager = false;  // the first copy belongs to a request that comes back
  World world(config);
  submit_too_much(world, false);
  world.corrupt_next = true;
  EXPECT_TRUE(run_to_end(world));
  EXPECT_GT(world.errors, 0u);
}

}  // namespace
}  // namespace kvd::test
