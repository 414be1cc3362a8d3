// Tests which of those that wait may come in at all, what the policy is told of each, and what is
// done where nobody would ever come in.
#include <gmock/gmock.h>

#include "kvd/core/deciding/rotation.hpp"
#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

using std::chrono::seconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;
using ::testing::SizeIs;

/// HBM has 32 slots; so has DRAM where a test does not say otherwise.
class AdmissibleTest : public PartsTest {
 protected:
  explicit AdmissibleTest(Config config = small_config(4, 4)) : PartsTest(std::move(config)) {}

  std::vector<Request*> asked(Share share = kShareA) {
    std::vector<Request*> index;
    (void)sut.rotation_snapshot(share, index);
    return index;
  }
  planner::RotationSnapshot snapshot(std::vector<Request*>& index) {
    return sut.rotation_snapshot(kShareA, index);
  }
  /// A request that may grow to this many blocks of each group.
  Request& growing_to(Session& session, std::int64_t blocks) {
    return submit(session, blocks * kBlockTokens - 8, 8);
  }
  /// Another request that runs on the blocks of `request`.
  Request& sharing(Session& session, Request& request) {
    Request& other = submit(session, request.goal.prompt.value, request.goal.max_new.value);
    for (std::uint32_t block = 0; block < request.sealed; ++block) {
      ground.store.blocks.share(
          other.table, ground.store.blocks.name(request.table, block, store::EntryId(block + 1)));
    }
    other.place = Location::kIn;
    other.phase = Phase::kDecode;
    other.progress = request.progress;
    other.sealed = other.synced = request.sealed;
    ground.requests.requeue(other);
    return other;
  }
  void copy_all(Request& request) {
    for (std::uint32_t i = 0; i < request.table.size(); ++i) {
      const auto grant =
          ground.store.tiers.take(Tier::kDram, ground.requests.session_of(request).taker(), 1);
      ground.store.blocks.place(request.table, i, Tier::kDram, grant.slots.at(0));
      ground.store.blocks.settle(request.table, i, Tier::kDram, true);
    }
    request.synced = request.sealed;
  }
  void use(const char* rotation, const char* admission = "none") {
    Tuning wanted = ground.context.tuning;
    wanted.rotation.policy = rotation;
    wanted.admission.policy = admission;
    ground.context.retune(wanted);
  }

  DramCopies copies{ground};
  Needs needs{ground};
  Supply supply{ground, needs};
  Promises promises{ground, supply};
  Rotation sut{ground, copies, needs, supply, promises};
};

TEST_F(AdmissibleTest, AsManyComeInAsCanGrowToTheirEndWithOneOnItsWay) {
  // 6 slots are promised. With c more, 6 + c - 32 must fit into DRAM, and c besides for a whole
  // request.
  Session& session = attach(kA, 1);
  running(session, 16);
  Request& fits = growing_to(session, 29);
  EXPECT_THAT(asked(), Contains(&fits)) << "3 beyond HBM and 29 of 32";
  ground.memory.end(fits);
  Request& large = growing_to(session, 30);
  EXPECT_THAT(asked(), Not(Contains(&large)));
}

TEST_F(AdmissibleTest, OneAloneNeedsNoRoomToLeave) {
  Session& session = attach(kA, 1);
  Request& request = growing_to(session, 64);
  EXPECT_THAT(asked(), ElementsAre(&request)) << "HBM and DRAM together";
}

TEST_F(AdmissibleTest, ACopyOfABlockThatTwoShareIsNoRoom) {
  // 12 are promised and 4 of HBM's 32 counted twice: c more need 2c - 24 of DRAM.
  Session& session = attach(kA, 1);
  Request& request = running(session, 16);
  sharing(session, request);
  Request& before = growing_to(session, 28);
  EXPECT_THAT(asked(), Contains(&before)) << "all 32 slots are free";
  copy_all(request);
  EXPECT_THAT(asked(), Not(Contains(&before))) << "4 have a copy that nobody can drop";
  ground.memory.end(before);
  Request& fits = growing_to(session, 26);
  EXPECT_THAT(asked(), Contains(&fits));
  ground.memory.end(fits);
  Request& large = growing_to(session, 27);
  EXPECT_THAT(asked(), Not(Contains(&large)));
}

TEST_F(AdmissibleTest, ACopyOfABlockOfItsOwnIsRoom) {
  Session& session = attach(kA, 1);
  Request& request = running(session, 16);
  Request& fits = growing_to(session, 29);
  copy_all(request);
  EXPECT_THAT(asked(), Contains(&fits)) << "it is dropped when somebody needs it";
}

TEST_F(AdmissibleTest, NobodyOvertakesWhoHasToWait) {
  Session& session = attach(kA, 1);
  running(session, 16);
  Request& large = growing_to(session, 30);
  Request& small = growing_to(session, 3);
  EXPECT_THAT(asked(), Not(Contains(&small))) << "or the first would wait for ever";
  ground.memory.end(large);
  EXPECT_THAT(asked(), Contains(&small));
}

TEST_F(AdmissibleTest, WhoCouldNeverComeInMakesWayForOthers) {
  Session& session = attach(kA, 1);
  running(session, 16);
  Request& huge = growing_to(session, 65);
  Request& small = growing_to(session, 3);
  EXPECT_THAT(asked(), Not(Contains(&huge)));
  EXPECT_THAT(asked(), Contains(&small));
}

TEST_F(AdmissibleTest, ASilentEngineNeitherGrowsNorQueues) {
  Session& silent = attach(kA, 1);
  Session& session = attach(kA, 1);
  Request& holds = running(silent, 16, 96);  // may grow to 28
  growing_to(silent, 30);
  Request& request = growing_to(session, 20);
  EXPECT_THAT(asked(), Not(Contains(&request))) << "behind a queue, and beside what grows";
  silent.life.responsive = false;
  EXPECT_THAT(asked(), ElementsAre(&request));
  EXPECT_TRUE(holds.holds_hbm());
  silent.life.responsive = true;
}

/// Requests that announce far more than they are said to make. HBM and DRAM hold 32 blocks
/// together, as there are two groups.
class ReservationsTest : public AdmissibleTest {
 protected:
  /// A decoding request with this many blocks and all that it announced. Its client says that the
  /// answer ends with the next block.
  Request& announcing(Session& session, std::int64_t blocks, std::int64_t announced) {
    Request& request = running(session, blocks * kBlockTokens, (announced - blocks) * kBlockTokens);
    request.goal.predicted = PredictedLength{Tokens(1), Tokens(kBlockTokens)};
    request.times.has_token = false;
    return request;
  }
  Request& waiting(Session& session, std::int64_t blocks, std::int64_t announced) {
    Request& request =
        submit(session, blocks * kBlockTokens - 1, (announced - blocks) * kBlockTokens + 1);
    request.goal.predicted = PredictedLength{Tokens(1), Tokens(1)};
    return request;
  }
  Request& out(Session& session, std::int64_t blocks, std::int64_t announced) {
    Request& request = announcing(session, blocks, announced);
    request.leaving = true;
    swaps.start_leaving(session);
    EXPECT_TRUE(swaps.on_copy({request.moves.rotation, true, kSlot, Nanoseconds(1000)}));
    return request;
  }

  Streams streams{ground};
  Compactor compactor{ground};
  Swaps swaps{ground, copies, streams, compactor};
};

TEST_F(ReservationsTest, SoManyComeInAsTheirAnswersAreLikelyToNeed) {
  // Each request is likely to need 2 or 3 blocks, and announces 14. Three of them announce 42, and
  // there are 32.
  Session& session = attach(kA, 2);
  announcing(session, 2, 14);
  announcing(session, 2, 14);
  Request& third = waiting(session, 2, 14);
  EXPECT_THAT(asked(), Contains(&third));
}

TEST_F(ReservationsTest, NobodyComesInBesideWhomOneCouldNotEnd) {
  // 6 of 32 are held once both have grown, and each then lacks 13.
  Session& session = attach(kA, 2);
  announcing(session, 2, 16);
  announcing(session, 2, 16);
  Request& fits = waiting(session, 4, 16);
  EXPECT_THAT(asked(), Contains(&fits)) << "10 held, 13 for one to end, 4 for the largest to leave";
  ground.memory.end(fits);
  Request& large = waiting(session, 13, 16);
  EXPECT_THAT(asked(), Not(Contains(&large)))
      << "once out, it could not come back beside the others";
}

TEST_F(ReservationsTest, WhereNothingIsKnownABoundedAnswerIsKept) {
  Session& session = attach(kA, 2);
  Request& first = announcing(session, 2, 14);
  Request& second = announcing(session, 2, 14);
  Request& third = waiting(session, 2, 14);
  for (Request* r : {&first, &second, &third}) r->goal.predicted.reset();
  EXPECT_THAT(asked(), Not(Contains(&third))) << "less than the usual answer is announced";
  for (int i = 0; i < 8; ++i) session.costs.lengths.ended(Tokens(4));
  EXPECT_THAT(asked(), Contains(&third)) << "answers have four tokens";
}

TEST_F(ReservationsTest, OnlyWhoLacksTheLeastGrowsWhereThatLeavesTheOthersNoWay) {
  Session& session = attach(kA, 2);
  Request& third = out(session, 5, 22);
  Request& near = announcing(session, 8, 14);
  Request& far = announcing(session, 5, 22);
  EXPECT_THAT(asked(), Not(Contains(&third))) << "it would be out again at once";
  EXPECT_FALSE(near.order.curbed) << "it can always go on";
  EXPECT_TRUE(near.order.sheltered)
      << "19 held, 9 to come back and 5 to leave: it stays where it is";
  EXPECT_TRUE(far.order.curbed);
  EXPECT_TRUE(third.order.curbed);
  ground.memory.end(near);
  (void)asked();
  EXPECT_FALSE(far.order.curbed && third.order.curbed) << "one of them is next";
}

TEST_F(ReservationsTest, NobodyIsCurbedWhereAllThatWasAnnouncedFits) {
  Session& session = attach(kA, 2);
  Request& one = announcing(session, 7, 10);
  Request& other = announcing(session, 7, 10);
  (void)asked();
  EXPECT_FALSE(one.order.curbed || other.order.curbed || one.order.sheltered ||
               other.order.sheltered);
}

TEST_F(ReservationsTest, WhoDoesNotRunComesLast) {
  Session& session = attach(kA, 2);
  out(session, 5, 22).times.arrived = TimePoint(seconds(1));
  Request& near = announcing(session, 8, 14);
  Request& far = announcing(session, 5, 22);
  near.verdict = Verdict::kForcedOut;
  (void)asked();
  EXPECT_TRUE(near.order.curbed) << "it would end nowhere, and all wait for it";
  EXPECT_FALSE(far.order.curbed);
}

TEST_F(ReservationsTest, WhoWasCountedOnToEndFirstStaysTheFirst) {
  Session& session = attach(kA, 2);
  Request& back = out(session, 8, 11);
  Request& grown = announcing(session, 10, 16);
  out(session, 6, 16).times.arrived = TimePoint(seconds(1));
  grown.order.sheltered = true;
  (void)asked();
  EXPECT_FALSE(grown.order.curbed) << "24 held, and 8 of 32 for the 6 it lacks";
  EXPECT_TRUE(grown.order.sheltered);
  EXPECT_TRUE(back.order.curbed) << "it lacks less, and came back before its turn";
}

TEST_F(ReservationsTest, WhoAllWaitForIsNobodysVictim) {
  Session& session = attach(kA, 2);
  out(session, 5, 22);
  Request& near = announcing(session, 8, 14);
  announcing(session, 5, 22);
  std::vector<Request*> index;
  const auto told = snapshot(index);
  ASSERT_THAT(index, SizeIs(2));
  ASSERT_EQ(index.at(0), &near);
  EXPECT_FALSE(told.requests.at(0).made_token);
  EXPECT_TRUE(told.requests.at(1).made_token);
}

TEST_F(ReservationsTest, WithAllOutTheOneThatMayEndComesIn) {
  use("fcfs");
  Session& session = attach(kA, 2);
  Request& earlier = out(session, 5, 23);
  Request& third = out(session, 5, 23);
  pass(seconds(1));
  Request& near = out(session, 6, 12);
  sut.decide(session);
  EXPECT_TRUE(earlier.order.curbed && third.order.curbed);
  EXPECT_NE(near.order.claim, 0u);
  EXPECT_EQ(earlier.order.claim, 0u);
}

TEST_F(AdmissibleTest, ThePolicyIsToldWhatEachNeedsOrHas) {
  Session& session = attach();
  Request& runs = running(session, 8);
  runs.times.run_since = TimePoint(seconds(3));
  Request& fresh = running(session, 8);
  fresh.fresh = true;
  Request& prompt = running(session, 4);
  prompt.phase = Phase::kPrompt;
  Request& waits = submit(session, 7, 8);
  waits.order.skips = 5;
  std::vector<Request*> index;
  const auto asked_for = snapshot(index);
  ASSERT_THAT(index, ElementsAre(&runs, &fresh, &prompt, &waits));
  const auto& all = asked_for.requests;
  EXPECT_EQ(all[0].state, planner::RequestState::kRunning);
  EXPECT_EQ(all[0].bytes, kSlot * 4) << "what it holds";
  EXPECT_EQ(all[0].t_run, planner::Seconds(3));
  EXPECT_TRUE(all[0].made_token);
  EXPECT_FALSE(all[1].made_token) << "it makes a token before it may leave again";
  EXPECT_TRUE(all[2].prefilling);
  EXPECT_FALSE(all[0].prefilling);
  EXPECT_EQ(all[3].state, planner::RequestState::kWaiting);
  EXPECT_EQ(all[3].bytes, kSlot * 4) << "what it needs";
  EXPECT_EQ(all[3].skips, 5);
}

TEST_F(AdmissibleTest, OneThatIsOutSaysWhenItMadeItsLastToken) {
  Streams streams{ground};
  Compactor compactor{ground};
  Swaps swaps{ground, copies, streams, compactor};
  Session& session = attach();
  Request& out = parked(swaps, session, 8);
  std::vector<Request*> index;
  EXPECT_FALSE(snapshot(index).requests.at(0).t_last) << "it made none";
  out.times.has_token = true;
  out.times.last_token = TimePoint(seconds(2));
  index.clear();
  const auto told = snapshot(index);
  EXPECT_EQ(told.requests.at(0).state, planner::RequestState::kRotary);
  EXPECT_EQ(told.requests.at(0).t_last, planner::Seconds(2));
  EXPECT_EQ(told.requests.at(0).bytes, kSlot * 6) << "its 8 tokens and one more";
}

TEST_F(AdmissibleTest, WhoIsPassedOverIsCounted) {
  use("fcfs");
  Session& session = attach();
  running(session, 40);
  Request& large = submit(session, 24, 4);
  sut.decide(session);
  sut.decide(session);
  EXPECT_EQ(large.order.claim, 0u);
  EXPECT_EQ(large.order.skips, 2u);
}

TEST_F(AdmissibleTest, TheHeadComesInAtTheStepOfItsOwnEngine) {
  use("fcfs");
  Session& own = attach();
  Session& other = attach();
  Request& later = submit(other, 8, 8);
  Request& head = submit(own, 8, 8);
  later.times.arrived = TimePoint(seconds(1));
  for (Request* r : {&head, &later}) r->verdict = Verdict::kHeldBack;
  sut.decide(other);
  EXPECT_EQ(later.order.claim, 0u) << "it is not its turn";
  sut.decide(own);
  EXPECT_NE(head.order.claim, 0u);
  sut.decide(other);
  EXPECT_EQ(later.order.claim, 0u) << "somebody is about to come in";
}

TEST_F(AdmissibleTest, WhatOthersLeftEmptyIsZeroedForWhoQueues) {
  Session& foreign = attach(kB);
  ground.store.tiers.mappings().end_awaiting_mapped(foreign.id);
  Session& session = attach(kA, 2, false);
  ASSERT_EQ(free_hbm(kShareA), Bytes(0)) << "its empty slabs are the other domain's";
  submit(session, 8, 8);
  sut.decide(session);
  EXPECT_THAT(emitted<Scrub>(), SizeIs(1));
  EXPECT_EQ(ground.requests.count(foreign.info.domain), 0u);
}

/// DRAM of one slab: what does not fit HBM does not come in.
class ClassesTest : public AdmissibleTest {
 protected:
  ClassesTest() : AdmissibleTest(small_config(4, 1)) {}
};

TEST_F(ClassesTest, TheLastSlabOfEachFurtherClassMayBeAlmostEmpty) {
  Session& session = attach();
  running(session, 4, 8);  // grows to 6 of 32 slots
  Session& other = attach_other_class();
  Request& fits = growing_to(other, 4);  // 8 slots, each as large as two
  EXPECT_THAT(asked(), Contains(&fits)) << "6 and 16, and a slab of 8";
  ground.memory.end(fits);
  Request& large = growing_to(other, 5);
  EXPECT_THAT(asked(), Not(Contains(&large)));
  ground.memory.end(large);
  Request& same = growing_to(session, 13);
  EXPECT_THAT(asked(), Contains(&same)) << "one class alone fills every slab";
}

TEST_F(ClassesTest, AClassOfWhichNobodyMayComeInCostsNothing) {
  Session& session = attach();
  running(session, 4, 8);
  Session& other = attach_other_class();
  growing_to(session, 13).times.arrived = TimePoint(seconds(0));
  Request& last = growing_to(other, 2);
  last.goal.max_new = Tokens(0);
  EXPECT_THAT(asked(), SizeIs(2)) << "the other class comes after who fills HBM";
}

class LayerwiseTest : public AdmissibleTest {
 protected:
  LayerwiseTest() : AdmissibleTest(small_config(8, 16)) { use("fcfs", "layerkv"); }
};

TEST_F(LayerwiseTest, PromptsThatDoNotFitPrefillIntoDramWhileThereIsRoomForThat) {
  Session& session = attach(kA, 4);
  running(session, 40);  // 40 of 64 slots
  Request& first = submit(session, 32, 8);
  Request& second = submit(session, 32, 8);
  sut.decide(session);
  EXPECT_TRUE(first.layerwise) << "17 slots for a set, its open blocks and one to grow into";
  EXPECT_THAT(first.layers.away, ElementsAre(true, true, true, true));
  EXPECT_NE(first.order.claim, 0u);
  EXPECT_FALSE(second.layerwise);
  EXPECT_EQ(second.order.claim, 0u);
  EXPECT_EQ(ground.context.counters.layerwise, 1u);
}

TEST_F(LayerwiseTest, OfWhatFitsWholeNoLayersLeave) {
  Session& session = attach(kA, 4);
  running(session, 16);
  Request& request = submit(session, 8, 8);
  sut.decide(session);
  EXPECT_FALSE(request.layerwise);
  EXPECT_NE(request.order.claim, 0u);
}

}  // namespace
}  // namespace kvd::core
