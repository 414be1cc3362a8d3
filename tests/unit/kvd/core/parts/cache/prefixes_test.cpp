// Requests that begin with tokens whose KV somebody has computed.
#include "kvd/core/cache/prefixes.hpp"

#include <vector>

#include "tests/unit/kvd/core/parts/cache/prefixes_fixture.hpp"

namespace kvd::core {
namespace {

class PrefixesTest : public PrefixesFixture {};

TEST_F(PrefixesTest, ARequestGetsTheBlocksOfOneThatHasEnded) {
  Session& session = attach();
  Request& first = computed(session, 12, 7);
  const std::vector<SlotId> slots = in_hbm(first);
  ground.memory.end(first);
  EXPECT_EQ(ground.store.cache.evictable(kA, Tier::kHbm), kSlot * 6);

  Request& second = asked(attach(), 14, 7);
  EXPECT_EQ(sut.find(second), Found::kInHbm);
  EXPECT_EQ(in_hbm(second), slots);
  EXPECT_EQ(second.progress.planned, Tokens(12)) << "what is there counts as computed";
  EXPECT_EQ(ground.store.cache.evictable(kA, Tier::kHbm), Bytes(0));
  begin(second);
}

TEST_F(PrefixesTest, TwoThatRunHaveTheSameBlocks) {
  Session& session = attach();
  Request& first = computed(session, 8, 7);
  Request& second = asked(session, 9, 7);
  EXPECT_EQ(sut.find(second), Found::kInHbm);
  EXPECT_EQ(in_hbm(second), in_hbm(first));
  begin(second);
  ground.memory.end(first);
  EXPECT_EQ(in_hbm(second).size(), 4u) << "they stay for who is left";
}

TEST_F(PrefixesTest, OneTokenIsLeftToCompute) {
  Session& session = attach();
  ground.memory.end(computed(session, 8, 7));
  Request& same = asked(session, 8, 7);
  EXPECT_EQ(sut.find(same), Found::kInHbm);
  EXPECT_EQ(same.progress.planned, Tokens(4));
  begin(same);
}

TEST_F(PrefixesTest, NothingIsFoundAcrossDomainsAndModels) {
  ground.memory.end(computed(attach(kA), 8, 7));
  EXPECT_EQ(sut.find(asked(attach(kB), 9, 7)), Found::kNothing);
  EXPECT_EQ(sut.find(asked(attach(kA), 9, 7, Fingerprint{Digest{{2}}})), Found::kNothing);
  EXPECT_EQ(sut.find(asked(attach(kA), 9, 8)), Found::kNothing);
  Request& untold = submit(attach(kA), 9, 8);
  EXPECT_EQ(sut.find(untold), Found::kNothing);
  EXPECT_TRUE(untold.table.empty());
}

TEST_F(PrefixesTest, WhatIsToldComesInOrderOnceAndOfOneModel) {
  Request& request = submit(attach(), 8, 1);
  EXPECT_FALSE(sut.tell(request, kModel, 1, digest(7, 1)));
  EXPECT_TRUE(sut.tell(request, kModel, 0, digest(7, 0)));
  EXPECT_FALSE(sut.tell(request, kModel, 0, digest(7, 0)));
  EXPECT_FALSE(sut.tell(request, Fingerprint{Digest{{2}}}, 1, digest(7, 1)));
  EXPECT_TRUE(sut.tell(request, kModel, 1, digest(7, 1)));
  EXPECT_TRUE(sut.tell(request, kModel, 2, digest(7, 2)));
  EXPECT_FALSE(sut.tell(request, kModel, 3, digest(7, 3))) << "it never has as many blocks";
}

TEST_F(PrefixesTest, ABlockWhoseDigestAnotherHasStaysItsOwn) {
  Session& session = attach();
  Request& first = computed(session, 8, 7);
  Request& second = computed(session, 8, 7);
  EXPECT_NE(in_hbm(first), in_hbm(second));
  EXPECT_TRUE(second.content.apart);
  ground.memory.end(second);
  EXPECT_EQ(ground.store.cache.evictable(kA, Tier::kHbm), Bytes(0));
}

TEST_F(PrefixesTest, WhoLeavesHbmLeavesSharedBlocksToTheOthers) {
  Session& session = attach();
  Request& first = computed(session, 8, 7);
  Request& second = asked(session, 9, 7);
  ASSERT_EQ(sut.find(second), Found::kInHbm);
  begin(second);
  park(first);
  EXPECT_EQ(first.place, Location::kParked);
  EXPECT_EQ(in_hbm(second).size(), 4u);
  EXPECT_EQ(first.table.in(Tier::kDram), 4);
  // The last that runs on them takes them along.
  ground.memory.end(second);
  EXPECT_EQ(in_hbm(first).size(), 0u);
  EXPECT_EQ(free_hbm(), kSlab * 4);
  ASSERT_EQ(swaps.swap_in(first), ErrorCode::kOk);
  EXPECT_TRUE(swaps.on_copy({first.moves.rotation, true, kSlot, Nanoseconds(1000)}));
  EXPECT_EQ(first.place, Location::kIn);
}

TEST_F(PrefixesTest, WhoComesBackNeedsNotBringWhatOthersHave) {
  Session& session = attach();
  Request& first = computed(session, 8, 7);
  Request& second = asked(session, 9, 7);
  ASSERT_EQ(sut.find(second), Found::kInHbm);
  begin(second);
  park(first);
  ASSERT_EQ(swaps.swap_in(first), ErrorCode::kOk);
  EXPECT_EQ(first.place, Location::kIn) << "without a copy";
  EXPECT_EQ(in_hbm(first).size(), 6u) << "and room for one token more";
}

TEST_F(PrefixesTest, WhatDramHasIsLoadedWhereThatIsFaster) {
  Session& session = attach();
  leave_in_dram(session, 8, 7);
  EXPECT_EQ(ground.store.cache.evictable(kA, Tier::kDram), kSlot * 4);
  session.costs.prefill_token_s = 1e-3;
  Request& loads = asked(session, 9, 7);
  ASSERT_EQ(sut.find(loads), Found::kInDram);
  ASSERT_EQ(swaps.swap_in(loads), ErrorCode::kOk);
  ground.requests.requeue(loads);
  EXPECT_EQ(loads.place, Location::kComing);
  EXPECT_TRUE(swaps.on_copy({loads.moves.rotation, true, kSlot, Nanoseconds(1000)}));
  EXPECT_EQ(loads.place, Location::kIn);
  EXPECT_EQ(loads.progress.planned, Tokens(8));
  EXPECT_EQ(ground.context.counters.rotations_in, 0u) << "it has never been out";
}

TEST_F(PrefixesTest, WhatDramHasIsComputedAgainWhereThatIsFaster) {
  Session& session = attach();
  leave_in_dram(session, 8, 7);
  session.costs.prefill_token_s = 1e-12;
  Request& request = asked(session, 9, 7);
  EXPECT_EQ(sut.find(request), Found::kNothing);
  EXPECT_TRUE(request.table.empty());
  EXPECT_EQ(request.progress.planned, Tokens(0));
}

TEST_F(PrefixesTest, ALoadThatFailsLeavesTheRequestAsItWas) {
  Session& session = attach();
  leave_in_dram(session, 8, 7);
  Request& loads = asked(session, 9, 7);
  ASSERT_EQ(sut.find(loads), Found::kInDram);
  ASSERT_EQ(swaps.swap_in(loads), ErrorCode::kOk);
  ground.requests.requeue(loads);
  EXPECT_TRUE(swaps.on_copy({loads.moves.rotation, false, kSlot, Nanoseconds(1000)}));
  EXPECT_EQ(loads.place, Location::kOut);
  EXPECT_TRUE(loads.table.empty());
  EXPECT_EQ(loads.progress.planned, Tokens(0));
  EXPECT_EQ(free_hbm(), kSlab * 4);
}

TEST_F(PrefixesTest, WhoAsksWhileAnotherLoadsWaitsForIt) {
  Session& session = attach();
  leave_in_dram(session, 8, 7);
  Request& loads = asked(session, 9, 7);
  ASSERT_EQ(sut.find(loads), Found::kInDram);
  ASSERT_EQ(swaps.swap_in(loads), ErrorCode::kOk);
  ground.requests.requeue(loads);
  Request& waits = asked(session, 9, 7);
  EXPECT_EQ(sut.find(waits), Found::kSoon);
  EXPECT_TRUE(waits.table.empty());
  EXPECT_TRUE(swaps.on_copy({loads.moves.rotation, true, kSlot, Nanoseconds(1000)}));
  EXPECT_EQ(sut.find(waits), Found::kInHbm);
  begin(waits);
}

TEST_F(PrefixesTest, AnEngineIsGivenTheSlabsOfWhatItFinds) {
  ground.memory.end(computed(attach(), 8, 7));
  Session& other = attach(kA, 2, false);
  Request& request = asked(other, 9, 7);
  EXPECT_EQ(sut.find(request), Found::kSoon);
  EXPECT_TRUE(request.table.empty());
  const std::vector<SendSlab> sent = emitted<SendSlab>();
  ASSERT_EQ(sent.back().engine, other.id);
  EXPECT_TRUE(ground.store.tiers.mappings().mapped(other.id, sent.back().slab));
  EXPECT_EQ(sut.find(request), Found::kInHbm);
  begin(request);
}

TEST_F(PrefixesTest, WhatMakesWayForARegionIsNotFound) {
  Session& session = attach();
  const std::vector<SlotId> slots = in_hbm(computed(session, 24, 7));
  const SlabIndex slab = slots.back().slab();
  ASSERT_NE(slots.front().slab(), slab);
  pool::TierPool& hbm = ground.store.tiers.hbm().with(slab);
  hbm.retire(slab);
  Request& second = asked(session, 25, 7);
  EXPECT_EQ(sut.find(second), Found::kInHbm);
  EXPECT_EQ(in_hbm(second).size(), static_cast<std::size_t>(kSlab / kSlot));
  begin(second);
  hbm.unretire(slab);
  Request& third = asked(session, 25, 7);
  EXPECT_EQ(sut.find(third), Found::kInHbm);
  EXPECT_EQ(in_hbm(third), slots);
  begin(third);
}

TEST_F(PrefixesTest, WhoIsSetBackBeforeItRanGivesItsCopiesAheadUp) {
  Session& session = attach();
  ground.memory.end(computed(session, 8, 7));
  Request& request = asked(session, 9, 7);
  ASSERT_EQ(sut.find(request), Found::kInHbm);
  request.place = Location::kIn;
  ground.requests.requeue(request);
  copies.make_ahead(session);
  const Ticket copy = request.moves.sync;
  ASSERT_TRUE(copy);
  ground.memory.release_unwritten(session, request);
  EXPECT_EQ(request.place, Location::kOut);
  EXPECT_TRUE(request.table.empty());
  EXPECT_TRUE(swaps.on_copy({copy, true, kSlot, Nanoseconds(1000)}));
  EXPECT_EQ(free_dram(), kSlab * 8);
  EXPECT_EQ(ground.store.cache.evictable(kA, Tier::kHbm), kSlot * 4);
}

TEST_F(PrefixesTest, WhoIsSetBackWhileItsLayersComeGivesThemUp) {
  Session& session = attach();
  Request& first = computed(session, 8, 7);
  copies.make_ahead(session);
  ASSERT_TRUE(swaps.on_copy({first.moves.sync, true, kSlot, Nanoseconds(1000)}));
  ground.memory.end(first);
  Request& request = asked(session, 9, 7);
  ASSERT_EQ(sut.find(request), Found::kInHbm);
  request.place = Location::kIn;
  ground.requests.requeue(request);
  request.layers.away = {false, true};
  request.verdict = Verdict::kPaused;
  streams.install(session);
  request.layers.away.clear();
  request.verdict = Verdict::kNone;
  streams.install(session);
  const Ticket fetch = request.moves.fetch;
  ASSERT_TRUE(fetch);
  ground.memory.release_unwritten(session, request);
  EXPECT_TRUE(request.table.empty());
  EXPECT_TRUE(swaps.on_copy({fetch, true, kSlot, Nanoseconds(1000)}));
  ground.store.cache.clear();
  EXPECT_EQ(free_hbm(), kSlab * 4);
  EXPECT_EQ(free_dram(), kSlab * 8);
}

TEST_F(PrefixesTest, ACopyThatReadsWhatIsCachedIsWaitedFor) {
  Session& session = attach();
  Request& request = computed(session, 8, 7);
  request.leaving = true;
  swaps.start_leaving(session);
  const Ticket copy = request.moves.rotation;
  ASSERT_TRUE(copy);
  ground.memory.end(request);
  EXPECT_EQ(ground.store.cache.evictable(kA, Tier::kHbm), kSlot * 4) << "HBM has it whole";
  ground.store.cache.clear();
  EXPECT_LT(free_hbm(), kSlab * 4) << "the copy reads it";
  EXPECT_TRUE(swaps.on_copy({copy, true, kSlot, Nanoseconds(1000)}));
  EXPECT_EQ(free_hbm(), kSlab * 4);
  EXPECT_EQ(free_dram(), kSlab * 8);
}

TEST_F(PrefixesTest, OfAnEngineThatDiesNothingStaysInHbm) {
  Session& session = attach();
  (void)computed(session, 8, 7);
  sessions.on_dying(session.id, false);
  EXPECT_EQ(ground.store.cache.evictable(kA, Tier::kHbm), Bytes(0));
  EXPECT_LT(free_hbm(), kSlab * 4) << "it may still write there";
  sessions.on_dead(session.id);
}

TEST_F(PrefixesTest, CachedBlocksMakeWay) {
  Session& session = attach();
  ground.memory.end(computed(session, 64, 7));
  EXPECT_EQ(free_hbm(), Bytes(0));
  EXPECT_EQ(ground.store.cache.available(kA, Tier::kHbm), kSlab * 4);
  Request& wants = submit(session, 48, 8);
  EXPECT_EQ(ground.memory.grow(wants, Tokens(48)), ErrorCode::kOk);
  begin(wants);
  EXPECT_EQ(ground.store.cache.evictable(kA, Tier::kHbm), kSlab);
}

class ManyPrefixesTest : public PrefixesFixture {
 protected:
  static constexpr std::uint32_t kBlocks = 255;  ///< of a prompt
  ManyPrefixesTest() : PrefixesFixture(small_config(400)) {}
};

// The control thread has others to serve.
TEST_F(ManyPrefixesTest, WhatOneEventCompletesBeyondItsShareIsFoundAfterLaterOnes) {
  Session& session = attach(kA, 1);
  std::vector<Request*> all;
  for (std::uint8_t text = 1; text <= 10; ++text) {
    all.push_back(&computed(session, std::int64_t{kBlocks} * kBlockTokens, text));
  }
  EXPECT_EQ(all.front()->content.named, kBlocks);
  EXPECT_LT(all[8]->content.named, kBlocks);
  EXPECT_EQ(all[9]->content.named, 0u);
  sut.name_on();  // the event ends
  ground.memory.end(*all[8]);
  sut.name_on();  // the next one does
  EXPECT_EQ(all[9]->content.named, kBlocks);
  Request& later = asked(session, std::int64_t{kBlocks} * kBlockTokens + 1, 10);
  EXPECT_EQ(sut.find(later), Found::kInHbm);
  EXPECT_EQ(in_hbm(later), in_hbm(*all[9]));
  begin(later);
}

}  // namespace
}  // namespace kvd::core
