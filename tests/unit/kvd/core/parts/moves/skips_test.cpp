// The disk reads the end of a prompt while its head is computed, and the request goes on behind it.
#include "kvd/core/moves/skips.hpp"

#include <vector>

#include "tests/unit/kvd/core/parts/cache/disk_fixture.hpp"

namespace kvd::core {
namespace {

using std::chrono::milliseconds;

Config overlapping() {
  Config config = with_disk();
  config.tuning.load.policy = "overlap";
  return config;
}

/// A block takes 20 ms to compute and 5 ms to read, so of ten the first two are computed.
class SkipsTest : public DiskFixture {
 protected:
  static constexpr std::int64_t kHead = 2;
  static constexpr std::int64_t kPrompt = 41;

  SkipsTest() : DiskFixture(overlapping()), session(attach()) {
    session.info.skips_ahead = true;
    tell(submit(session, 9, 8), 1);
    open();
    session.costs.prefill_token_s = 5e-3;
    leave_on_disk(session, 8, 6);
    Request& first = asked(session, 9, 6);
    EXPECT_EQ(sut.find(first), Found::kSoon) << "nothing is known of the disk, so it reads all";
    pass(milliseconds(10));
    finish(read());
    ground.memory.end(first);
    ground.store.cache.clear();
    leave_on_disk(session, 40, 7);
    ground.context.counters.prefixes = {};
  }

  /// It has begun, and the head is ordered.
  Request& begun() {
    Request& request = asked(session, kPrompt, 7);
    EXPECT_EQ(sut.find(request), Found::kNothing) << "nobody waits";
    request.table.set_parked(false);
    EXPECT_EQ(ground.memory.grow(request, Tokens((kHead + 1) * kBlockTokens)), ErrorCode::kOk);
    begin(request);
    return request;
  }
  void compute(Request& request, std::uint32_t blocks) {
    request.progress.tokens = request.progress.planned =
        Tokens(std::int64_t{blocks} * kBlockTokens);
    ground.memory.seal_full_blocks(request);
  }
  void arrive(const Request& request, bool ok = true) {
    EXPECT_TRUE(swaps.on_copy({request.moves.rotation, ok, kSlot * 16, Nanoseconds(1000)}));
  }
  void end(Request& request) {
    ground.memory.end(request);
    ground.store.tiers.iteration_finished(session.id, session.iterations.granted);
    for (const ReadDisk& order : read())
      (void)disk.on_finished({order.ticket, false, 0, true, false});
  }

  Session& session;
  Skips skips{ground, swaps};
};

TEST_F(SkipsTest, TheHeadIsComputedWhileTheDiskReadsTheRest) {
  Request& request = begun();
  EXPECT_FALSE(request.content.awaits_disk);
  const auto orders = read();
  ASSERT_EQ(orders.size(), 8u);
  EXPECT_EQ(orders[0].block.name, test::plain_disk_name("domain-1", kModel, digest(7, kHead)));
  const StepReply reply = replies.build(session);
  ASSERT_EQ(reply.run.size(), 1u);
  EXPECT_EQ(reply.run[0].tokens, Tokens(kHead * kBlockTokens)) << "what is read is not computed";
  ground.store.tiers.iteration_finished(session.id, session.iterations.granted);
  session.iterations.finished = session.iterations.granted;
  compute(request, kHead);
  finish(orders);
  skips.go_on(session);
  EXPECT_EQ(request.place, Location::kComing);
  EXPECT_EQ(ground.context.counters.prefixes.found[1], 8u * kBlockTokens);
  arrive(request);
  EXPECT_EQ(request.place, Location::kIn);
  EXPECT_EQ(request.progress.planned, Tokens(40));
  EXPECT_TRUE(request.complete());
  const StepReply next = replies.build(session);
  ASSERT_EQ(next.run.size(), 0u) << "the last token needs a block";
  ASSERT_EQ(ground.memory.grow(request, Tokens(kPrompt)), ErrorCode::kOk);
  const StepReply last = replies.build(session);
  ASSERT_EQ(last.run.size(), 1u);
  EXPECT_EQ(last.run[0].present, Tokens(40));
  EXPECT_TRUE(last.run[0].ticket) << "the engine waits for the copy's fence";
  EXPECT_EQ(ground.context.counters.rotations_in, 0u);
  end(request);
  expect_nothing_left();
}

TEST_F(SkipsTest, WhatIsNotThereInTimeIsComputedPartByPart) {
  Request& request = begun();
  const auto orders = read();
  compute(request, kHead);
  skips.go_on(session);
  EXPECT_EQ(request.place, Location::kIn);
  ASSERT_EQ(ground.memory.grow(request, Tokens(kPrompt)), ErrorCode::kOk);
  const StepReply reply = replies.build(session);
  ASSERT_EQ(reply.run.size(), 1u);
  EXPECT_EQ(reply.run[0].tokens, Tokens(std::int64_t{2} * kBlockTokens)) << "then it looks again";
  session.iterations.finished = session.iterations.granted;
  ground.store.tiers.iteration_finished(session.id, session.iterations.granted);
  compute(request, kHead + 2);
  finish(orders);
  skips.go_on(session);
  ASSERT_EQ(request.place, Location::kComing);
  EXPECT_EQ(ground.context.counters.prefixes.found[1], 6u * kBlockTokens);
  arrive(request);
  EXPECT_EQ(request.progress.planned, Tokens(40));
  end(request);
  expect_nothing_left();
}

TEST_F(SkipsTest, WhatIsAboutToComeIsWaitedForAsLongAsAPartTakes) {
  Request& request = begun();
  const auto orders = read();
  compute(request, kHead);
  pass(milliseconds(30));  // of 40 that eight blocks take
  skips.go_on(session);
  EXPECT_TRUE(replies.build(session).run.empty());
  finish(orders);
  skips.on_read();
  ASSERT_EQ(request.place, Location::kComing) << "its engine need not ask first";
  arrive(request);
  EXPECT_EQ(request.progress.planned, Tokens(40));
  end(request);
  expect_nothing_left();
}

TEST_F(SkipsTest, WhatIsLateIsNotWaitedForLonger) {
  Request& request = begun();
  const auto orders = read();
  compute(request, kHead);
  pass(milliseconds(30));
  skips.go_on(session);
  ASSERT_TRUE(replies.build(session).run.empty());
  pass(milliseconds(60));  // 40, and 40 for two blocks
  EXPECT_EQ(replies.build(session).run.size(), 1u) << "though nobody has looked again";
  session.iterations.finished = session.iterations.granted;
  ground.store.tiers.iteration_finished(session.id, session.iterations.granted);
  finish(orders);
  end(request);
  expect_nothing_left();
}

TEST_F(SkipsTest, ItWaitsForItsOwnIterationToEnd) {
  Request& request = begun();
  const auto orders = read();
  finish(orders);
  request.progress.planned = Tokens(kHead * kBlockTokens);
  session.iterations.granted = request.progress.last_iteration = 2;
  skips.go_on(session);
  EXPECT_EQ(request.place, Location::kIn);
  EXPECT_TRUE(replies.build(session).run.empty()) << "it would compute what is there";
  session.iterations.finished = 2;
  ground.store.tiers.iteration_finished(session.id, 2);
  compute(request, kHead);
  skips.go_on(session);
  ASSERT_EQ(request.place, Location::kComing);
  arrive(request);
  EXPECT_EQ(request.progress.planned, Tokens(40));
  end(request);
  expect_nothing_left();
}

TEST_F(SkipsTest, WhoWaitedForItsIterationGoesOnUnderAnotherPolicy) {
  Request& request = begun();
  finish(read());
  request.progress.planned = Tokens(kHead * kBlockTokens);
  session.iterations.granted = request.progress.last_iteration = 2;
  skips.go_on(session);
  ASSERT_TRUE(request.content.awaits_skip);
  Tuning other = ground.context.tuning;
  other.load.policy = "always";
  ground.context.retune(other);
  session.iterations.finished = 2;
  ground.store.tiers.iteration_finished(session.id, 2);
  compute(request, kHead);
  skips.go_on(session);
  EXPECT_EQ(replies.build(session).run.size(), 1u);
  end(request);
  expect_nothing_left();
}

TEST_F(SkipsTest, BehindARowThatIsMissingItComputes) {
  Request& request = begun();
  const auto orders = read();
  compute(request, kHead);
  for (std::size_t i = 0; i < orders.size(); ++i) {
    (void)disk.on_finished({orders[i].ticket, i != 3, 0, i == 3, false});
  }
  skips.go_on(session);
  ASSERT_EQ(request.place, Location::kComing);
  arrive(request);
  EXPECT_EQ(request.progress.planned, Tokens((kHead + 3) * kBlockTokens));
  end(request);
  expect_nothing_left();
}

TEST_F(SkipsTest, WithoutRoomInHbmItGoesOnAsBefore) {
  Request& other = running(session, 40);  // ten blocks of sixteen
  Request& request = begun();
  const auto orders = read();
  compute(request, kHead);
  finish(orders);
  skips.go_on(session);
  EXPECT_EQ(request.place, Location::kIn);
  EXPECT_EQ(request.progress.planned, Tokens(kHead * kBlockTokens));
  EXPECT_EQ(request.content.named, kHead);
  EXPECT_EQ(request.table.blocks(), kHead);
  ground.memory.end(other);
  skips.go_on(session);
  EXPECT_EQ(request.place, Location::kIn) << "not twice at the same block";
  ASSERT_EQ(ground.memory.grow(request, Tokens((kHead + 1) * kBlockTokens)), ErrorCode::kOk);
  compute(request, kHead + 1);
  skips.go_on(session);
  ASSERT_EQ(request.place, Location::kComing);
  arrive(request);
  EXPECT_EQ(request.progress.planned, Tokens(40));
  end(request);
  expect_nothing_left();
}

TEST_F(SkipsTest, ACopyThatFailsLeavesItWhereItWas) {
  Request& request = begun();
  const auto orders = read();
  compute(request, kHead);
  finish(orders);
  skips.go_on(session);
  ASSERT_EQ(request.place, Location::kComing);
  arrive(request, false);
  EXPECT_EQ(request.place, Location::kIn);
  EXPECT_EQ(request.progress.planned, Tokens(kHead * kBlockTokens));
  EXPECT_TRUE(request.complete());
  EXPECT_FALSE(request.moves.in);
  end(request);
  expect_nothing_left();
}

TEST_F(SkipsTest, WhoEndsMeanwhileLeavesNothing) {
  Request& request = begun();
  const auto orders = read();
  compute(request, kHead);
  finish(orders);
  skips.go_on(session);
  ASSERT_EQ(request.place, Location::kComing);
  const Ticket ticket = request.moves.rotation;
  ground.memory.end(request);
  EXPECT_TRUE(swaps.on_copy({ticket, true, kSlot, Nanoseconds(1000)}));
  expect_nothing_left();
}

TEST_F(SkipsTest, WhoNeverBeginsLeavesWhatCame) {
  Request& request = asked(session, kPrompt, 7);
  ASSERT_EQ(sut.find(request), Found::kNothing);
  const auto orders = read();
  ground.memory.end(request);
  finish(orders);
  expect_nothing_left();
}

TEST_F(SkipsTest, WhatAnotherHasInHbmIsTakenAtOnce) {
  Request& request = begun();
  const auto orders = read();
  finish(orders, false);
  compute(request, kHead);
  Request& other = asked(attach(), 17, 7);
  ASSERT_EQ(sut.find(other), Found::kInHbm) << "of its head, which it shares";
  other.table.set_parked(false);
  ASSERT_EQ(ground.memory.grow(other, Tokens(16)), ErrorCode::kOk);
  begin(other);
  compute(other, 4);
  ground.memory.end(other);
  skips.go_on(session);
  EXPECT_EQ(request.place, Location::kIn);
  EXPECT_EQ(request.progress.planned, Tokens(16));
  EXPECT_EQ(ground.context.counters.prefixes.found[0], 2u * kBlockTokens);
  end(request);
  expect_nothing_left();
}

TEST_F(SkipsTest, AnEngineThatCannotSkipWaits) {
  session.info.skips_ahead = false;
  Request& request = asked(session, kPrompt, 7);
  EXPECT_EQ(sut.find(request), Found::kSoon);
  const auto orders = read();
  ASSERT_FALSE(orders.empty());
  EXPECT_EQ(orders[0].block.name, test::plain_disk_name("domain-1", kModel, digest(7, 0)));
  ground.memory.end(request);
  finish(orders);
  expect_nothing_left();
}

TEST_F(SkipsTest, WithAnotherPolicyNothingIsSkipped) {
  Request& request = begun();
  const auto orders = read();
  compute(request, kHead);
  finish(orders);
  Tuning other = ground.context.tuning;
  other.load.policy = "always";
  ground.context.retune(other);
  skips.go_on(session);
  EXPECT_EQ(request.place, Location::kIn);
  EXPECT_EQ(request.progress.planned, Tokens(kHead * kBlockTokens));
  end(request);
  expect_nothing_left();
}

}  // namespace
}  // namespace kvd::core
