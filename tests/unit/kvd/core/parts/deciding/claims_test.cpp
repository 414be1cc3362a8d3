// Tests who gets the HBM that is free, and who gives way when nobody could go on.
#include "kvd/core/deciding/claims.hpp"

#include <gmock/gmock.h>

#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

class ClaimsTest : public PartsTest {
 protected:
  explicit ClaimsTest(Config config = small_config()) : PartsTest(std::move(config)) {}

  Request& claiming(Session& session, std::int64_t prompt) {
    Request& request = submit(session, prompt, 8);
    ground.requests.make_claim(request);
    return request;
  }

  Compactor compactor{ground};
  DramCopies copies{ground};
  Streams streams{ground};
  Needs needs{ground};
  Supply supply{ground, needs};
  Swaps swaps{ground, copies, streams, compactor};
  Promises promises{ground, supply};
  Regions regions{ground, copies, needs, supply, promises};
  LayerPlans plans{ground};
  Claims sut{ground, copies, streams, needs, supply, swaps, promises, regions, plans};
};

TEST_F(ClaimsTest, AClaimThatFitsBecomesAPromptThatRuns) {
  Session& session = attach();
  Request& request = claiming(session, 8);
  request.verdict = Verdict::kHeldBack;
  pass(std::chrono::seconds(1));
  sut.serve(kA);
  EXPECT_TRUE(request.prefills());
  EXPECT_EQ(request.order.claim, 0u);
  EXPECT_EQ(request.table.blocks(), 3u) << "8 tokens and one to come";
  EXPECT_EQ(request.times.run_since, TimePoint(std::chrono::seconds(1)));
  EXPECT_EQ(request.verdict, Verdict::kNone);
}

TEST_F(ClaimsTest, NobodyOvertakesAClaimThatWaitsForBytes) {
  Session& session = attach();
  running(session, 40);
  Request& large = claiming(session, 40);
  Request& small = claiming(session, 4);
  sut.serve(kA);
  EXPECT_TRUE(large.waits());
  EXPECT_TRUE(small.waits()) << "or the large one would wait for ever";
}

TEST_F(ClaimsTest, OneThatWasOutComesBackByItsClaim) {
  Session& session = attach();
  Request& request = running(session, 8);
  copies.make_ahead(session);
  CopyFinished finished;
  finished.ticket = request.moves.sync;
  ASSERT_TRUE(swaps.on_copy(finished));
  request.leaving = true;
  swaps.start_leaving(session);
  ASSERT_EQ(request.place, Location::kParked);
  ground.requests.make_claim(request);
  sut.serve_everyone();
  EXPECT_EQ(request.place, Location::kComing);
}

TEST_F(ClaimsTest, ARunningRequestGetsABlockForItsNextToken) {
  Session& session = attach();
  Request& request = running(session, 8);
  sut.grow_running(session);
  EXPECT_EQ(request.table.blocks(), 3u);
  EXPECT_FALSE(request.starved);
  sut.grow_running(session);
  EXPECT_EQ(request.table.blocks(), 3u) << "it has room";
}

TEST_F(ClaimsTest, WhenNobodyCanGrowTheLatestArrivalGivesWay) {
  Session& session = attach();
  Request& early = running(session, 32);
  pass(std::chrono::seconds(1));
  Request& late = running(session, 32);
  ASSERT_EQ(free_hbm(), Bytes(0));
  sut.grow_running(session);
  EXPECT_TRUE(early.starved);
  EXPECT_FALSE(early.leaving);
  EXPECT_TRUE(late.leaving);
  EXPECT_EQ(ground.context.counters.rotation_blocked_growth, 2u);
}

TEST_F(ClaimsTest, NobodyElseGivesWayWhileOneIsOnItsWayOut) {
  Session& session = attach();
  Request& early = running(session, 32);
  pass(std::chrono::seconds(1));
  Request& late = running(session, 32);
  early.leaving = true;
  sut.grow_running(session);
  EXPECT_FALSE(late.leaving);
}

TEST_F(ClaimsTest, OneThatCameInAndMadeNoTokenIsNoVictim) {
  Session& session = attach();
  Request& early = running(session, 32);
  pass(std::chrono::seconds(1));
  Request& late = running(session, 30);
  late.fresh = true;
  ASSERT_EQ(free_hbm(), Bytes(0));
  sut.grow_running(session);
  EXPECT_FALSE(late.leaving) << "it has room for its next token";
  EXPECT_TRUE(early.leaving);
}

TEST_F(ClaimsTest, APausedRequestLeavesWhereNobodyElseCould) {
  Session& session = attach();
  Request& paused = running(session, 4);
  paused.verdict = Verdict::kPaused;
  Request& hungry = running(session, 60);
  ASSERT_EQ(free_hbm(), Bytes(0));
  sut.grow_running(session);
  EXPECT_TRUE(hungry.starved);
  EXPECT_TRUE(paused.leaving);
}

// No block of either request fits into DRAM.
TEST_F(ClaimsTest, WhereDramIsFullTooTheLatestWhoseLayersStreamIsPaused) {
  Session& session = attach();
  session.streaming = true;
  ASSERT_EQ(ground.store.tiers.take(Tier::kDram, session.taker(), 64).code, ErrorCode::kOk);
  Request& early = running(session, 28);
  pass(std::chrono::seconds(1));
  Request& late = running(session, 28);
  for (Request* request : {&early, &late}) {
    request->fresh = true;
    const auto staging = ground.store.tiers.take(Tier::kHbm, session.taker(), 2);
    ASSERT_EQ(staging.code, ErrorCode::kOk);
    for (std::uint32_t i = 0; i < 2; ++i) request->layers.staging.put(i, staging.slots[i]);
  }
  ASSERT_EQ(free_hbm(), Bytes(0));
  sut.grow_running(session);
  EXPECT_TRUE(late.paused());
  EXPECT_FALSE(early.paused());
  streams.install(session);
  sut.grow_running(session);
  EXPECT_FALSE(early.starved) << "what the other one streamed through is its next block";
}

TEST_F(ClaimsTest, APausedRequestLeavesForAClaimWhereNobodyRuns) {
  Session& session = attach();
  session.streaming = true;
  Request& paused = running(session, 64);
  paused.verdict = Verdict::kPaused;
  claiming(session, 40);
  sut.serve(kA);
  EXPECT_TRUE(paused.leaving || paused.promised);
}

TEST_F(ClaimsTest, APausedRequestStaysWhereSomebodyRuns) {
  Session& session = attach();
  session.streaming = true;
  Request& paused = running(session, 56);
  paused.verdict = Verdict::kPaused;
  running(session, 8);
  claiming(session, 40);
  sut.serve(kA);
  EXPECT_FALSE(paused.leaving || paused.promised) << "the end of the other gives it its turn";
}

TEST_F(ClaimsTest, AParkedRequestIsNotOnItsWayOutOfWhatItShares) {
  Session& session = attach();
  Request& prompt = running(session, 4);  // its blocks are in the slab that the other class needs
  Request& parked = submit(session, 8, 4);
  store::Blocks& blocks = ground.store.blocks;
  blocks.share(parked.table, blocks.name(prompt.table, 0, store::EntryId(1)));
  prompt.phase = Phase::kPrompt;
  parked.place = Location::kParked;
  parked.table.set_parked(true);
  ground.requests.requeue(parked);
  Request& large = submit(attach_other_class(), 24, 8);
  ground.requests.make_claim(large);
  Request& small = claiming(session, 4);
  sut.serve(kA);
  EXPECT_TRUE(large.waits());
  EXPECT_TRUE(small.prefills()) << "the prompt cannot make way, so nobody waits for that";
}

TEST_F(ClaimsTest, PausedRequestsDoNotGrow) {
  Session& session = attach();
  Request& request = running(session, 8);
  request.verdict = Verdict::kPaused;
  sut.grow_running(session);
  EXPECT_EQ(request.table.blocks(), 2u);
}

TEST_F(ClaimsTest, WhatStarvedIsFedAsSoonAsThereIsASlab) {
  Session& session = attach();
  Request& request = running(session, 8);
  request.starved = true;
  sut.feed_starved(session);
  EXPECT_FALSE(request.starved);
  EXPECT_EQ(request.table.blocks(), 3u);
}

}  // namespace
}  // namespace kvd::core
