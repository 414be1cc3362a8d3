// What requests need, what a domain has to give, and who is to leave for it.
#include "kvd/core/moves/supply.hpp"

#include <gmock/gmock.h>

#include <vector>

#include "kvd/core/moves/promises.hpp"
#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

class SupplyTest : public PartsTest {
 protected:
  SupplyTest() : PartsTest(small_config(8)) {}

  void rotate_by(const char* policy) {
    Tuning wanted = ground.context.tuning;
    wanted.rotation.policy = policy;
    wanted.placement.policy = "none";
    wanted.admission.policy = "layerkv";
    ground.context.retune(wanted);
  }

  Needs needs{ground};
  Supply sut{ground, needs};
  Promises promises{ground, sut};
};

TEST_F(SupplyTest, OneThatComesInNeedsRoomForOneTokenMore) {
  Session& session = attach();
  EXPECT_EQ(needs.to_run(submit(session, 4, 8)), kSlot * 4) << "5 tokens in two groups";
  EXPECT_EQ(needs.to_run(submit(session, 3, 8)), kSlot * 2);
  Request& last = running(session, 4, 4);
  last.goal.max_new = Tokens(0);
  EXPECT_EQ(needs.to_run(last), kSlot * 2) << "never more than it asked for";
}

TEST_F(SupplyTest, ARequestThatStreamsNeedsOneSetForAllItsLayers) {
  Session& session = attach(kA, 8);
  Request& request = submit(session, 39, 8);
  EXPECT_EQ(needs.to_run(request), kSlot * 80);
  EXPECT_EQ(needs.to_stream(request), kSlot * (10 + 2 * 8));
  session.streaming = true;
  EXPECT_EQ(needs.to_run(request), needs.to_stream(request));
}

TEST_F(SupplyTest, TheMostTokensAreWhatTheDomainsSlabsHold) {
  Session& session = attach();
  session.info.streams_layers = false;
  EXPECT_EQ(needs.most_hbm_slots(session), 64);
  EXPECT_EQ(needs.most_tokens(session), Tokens(128));
  EXPECT_EQ(needs.hbm_limit(kShareA), kSlab * 8);
}

TEST_F(SupplyTest, IsWhatIsFreeLessWhatIsClaimed) {
  Session& session = attach();
  EXPECT_EQ(sut.of(kShareA), kSlab * 8);
  running(session, 8);
  EXPECT_EQ(sut.of(kShareA), kSlab * 8 - kSlot * 4);
  Request& waiting = submit(session, 8, 8);
  EXPECT_EQ(sut.of(kShareA), kSlab * 8 - kSlot * 4) << "who has no claim takes nothing";
  ground.requests.make_claim(waiting);
  EXPECT_EQ(sut.of(kShareA), kSlab * 8 - kSlot * 10);
}

TEST_F(SupplyTest, WhatLeavesIsOnItsWay) {
  Session& session = attach();
  Request& request = running(session, 8);
  EXPECT_EQ(sut.incoming(kShareA), Bytes(0));
  request.leaving = true;
  EXPECT_EQ(sut.incoming(kShareA), kSlot * 4);
  EXPECT_EQ(sut.of(kShareA), kSlab * 8);
  session.life.responsive = false;
  EXPECT_EQ(sut.incoming(kShareA), Bytes(0))
      << "a silent engine's blocks come when it steps, or never";
  session.life.responsive = true;
}

TEST_F(SupplyTest, PausedRequestsGiveUpAllButTheirOpenBlocks) {
  Session& session = attach(kA, 4);
  Request& request = running(session, 16);
  session.streaming = true;
  request.verdict = Verdict::kPaused;
  EXPECT_EQ(sut.of(kShareA), kSlab * 8 - kSlot * 16 + kSlot * 12);
  session.streaming = false;
  EXPECT_EQ(sut.of(kShareA), kSlab * 8 - kSlot * 16) << "layers that do not stream stay";
}

TEST_F(SupplyTest, ALittleIsKeptForPromptsThatPrefillLayerByLayer) {
  const Bytes reserve(kSlab.value * 8 / kLayerwiseShare);
  rotate_by("unified");
  Session& session = attach(kA, 3);
  EXPECT_EQ(sut.layerwise_reserve(kShareA), Bytes(0)) << "nobody runs";
  running(session, 3);
  EXPECT_EQ(sut.layerwise_reserve(kShareA), reserve);
  running(session, 12);
  EXPECT_EQ(sut.layerwise_reserve(kShareA), Bytes(0)) << "it would keep a whole one out";
  rotate_by("lvf");
  EXPECT_EQ(sut.layerwise_reserve(kShareA), reserve) << "all its prompts prefill so";
}

TEST_F(SupplyTest, WhatStandsInARetiringSlabGoesToTheRegion) {
  Session& session = attach();
  Request& request = running(session, 8);
  const SlabIndex slab = ground.store.blocks.slot(request.table, 0, Tier::kHbm).slab();
  EXPECT_FALSE(sut.in_retiring_slab(request));
  sut.begin_retiring(kShareA);
  ground.store.tiers.hbm().with(slab).retire(slab);
  EXPECT_TRUE(sut.in_retiring_slab(request));
  request.leaving = true;
  EXPECT_EQ(sut.incoming(kShareA), Bytes(0));
  ground.store.tiers.hbm().with(slab).unretire(slab);
  sut.end_retiring(kShareA);
  EXPECT_EQ(sut.incoming(kShareA), kSlot * 4);
}

TEST_F(SupplyTest, NamesASilentEngineThatHoldsBlocks) {
  Session& session = attach();
  running(session, 8);
  EXPECT_EQ(sut.silent_holder(kShareA), "");
  session.life.responsive = false;
  EXPECT_NE(sut.silent_holder(kShareA).find("engine-1"), std::string::npos);
  EXPECT_EQ(sut.silent_holder(kShareB), "");
}

TEST_F(SupplyTest, AVictimOfItsOwnEngineLeavesAndAnothersIsPromised) {
  Session& own = attach();
  Session& other = attach();
  Request& near = running(own, 8);
  Request& far = running(other, 8);
  promises.preempt(near, own.id, Promise::kForBytes);
  promises.preempt(far, own.id, Promise::kForBytes);
  EXPECT_TRUE(near.leaving);
  EXPECT_FALSE(near.promised);
  EXPECT_FALSE(far.leaving);
  ASSERT_TRUE(far.promised);
  promises.preempt(far, own.id, Promise::kForSlots);
  EXPECT_EQ(*far.promised, Promise::kForBytes) << "it is promised already";
  EXPECT_EQ(ground.context.counters.promises, 1u);
  promises.acknowledge(other);
  EXPECT_TRUE(far.leaving);
  EXPECT_FALSE(far.promised);
}

TEST_F(SupplyTest, APromiseForBytesEndsOnceAsManyAreFree) {
  Session& own = attach();
  Session& other = attach();
  Request& victim = running(other, 8);
  Request& needy = submit(own, 120, 8);
  ground.requests.make_claim(needy);
  promises.preempt(victim, own.id, Promise::kForBytes);
  promises.expire(kShareA);
  EXPECT_TRUE(victim.promised) << "its bytes are needed";
  ground.requests.drop_claim(needy);
  promises.expire(kShareA);
  EXPECT_FALSE(victim.promised);
  EXPECT_EQ(ground.context.counters.promises_expired, 1u);
}

TEST_F(SupplyTest, APromiseForSlotsLastsWhileSomebodyWaits) {
  Session& own = attach();
  Session& other = attach();
  Request& victim = running(other, 8);
  Request& hungry = running(own, 8);
  hungry.starved = true;
  promises.preempt(victim, own.id, Promise::kForSlots);
  promises.expire(kShareA);
  EXPECT_TRUE(victim.promised) << "bytes are free, but not those slots";
  hungry.starved = false;
  promises.expire(kShareA);
  EXPECT_FALSE(victim.promised);
}

TEST_F(SupplyTest, ASilentEngineKeepsNoPromise) {
  Session& own = attach();
  Session& other = attach();
  Request& victim = running(other, 8);
  Request& hungry = running(own, 8);
  hungry.starved = true;
  promises.preempt(victim, own.id, Promise::kForSlots);
  other.life.responsive = false;
  promises.expire(kShareA);
  EXPECT_FALSE(victim.promised);
}

class TwoDeviceSupplyTest : public PartsTest {
 protected:
  TwoDeviceSupplyTest() : PartsTest(small_config(8, 8, 2)) {}

  static constexpr Share kThere{kA, kSecond};
  static Devices one_each() { return Devices(std::vector{kFirst, kSecond}); }

  Needs needs{ground};
  Supply sut{ground, needs};
  Promises promises{ground, sut};
};

TEST_F(TwoDeviceSupplyTest, IsThatOfOneDevice) {
  Session& here = attach();
  Session& there = attach(kA, 2, true, Devices(kSecond));
  running(here, 8);
  EXPECT_EQ(sut.of(kShareA), kSlab * 8 - kSlot * 4);
  EXPECT_EQ(sut.of(kThere), kSlab * 8);
  Request& leaves = running(there, 8);
  leaves.leaving = true;
  EXPECT_EQ(sut.incoming(kShareA), Bytes(0));
  EXPECT_EQ(sut.incoming(kThere), kSlot * 4);
  ground.requests.make_claim(submit(there, 8, 8));
  EXPECT_EQ(sut.of(kShareA), kSlab * 8 - kSlot * 4);
  EXPECT_EQ(sut.of(kThere), kSlab * 8 - kSlot * 6);
  there.life.responsive = false;
  EXPECT_EQ(sut.silent_holder(kShareA), "");
  EXPECT_NE(sut.silent_holder(kThere), "");
}

TEST_F(TwoDeviceSupplyTest, AGroupNeedsOfEachDeviceWhatItsRanksThereDo) {
  Session& group = attach(kA, 2, true, one_each(), 2);
  Request& request = submit(group, 4, 8);
  EXPECT_EQ(needs.to_run(request), kSlot * 8);
  EXPECT_EQ(needs.to_run(request, kFirst), kSlot * 4);
  EXPECT_EQ(needs.to_run(request, kSecond), kSlot * 4);
  EXPECT_EQ(needs.most_hbm_slots(group), 128) << "64 on each";
  running(group, 8);
  EXPECT_EQ(sut.of(kShareA), kSlab * 8 - kSlot * 4);
  EXPECT_EQ(sut.of(kThere), kSlab * 8 - kSlot * 4);
}

TEST_F(TwoDeviceSupplyTest, ARegionRetiresSlabsOfOneDevice) {
  Session& there = attach(kA, 2, true, Devices(kSecond));
  Request& request = running(there, 8);
  sut.begin_retiring(kThere);
  ground.store.tiers.hbm()
      .with(ground.store.blocks.slot(request.table, 0, Tier::kHbm).slab())
      .retire(ground.store.blocks.slot(request.table, 0, Tier::kHbm).slab());
  EXPECT_TRUE(sut.retires(kThere));
  EXPECT_FALSE(sut.retires(kShareA));
  EXPECT_TRUE(sut.in_retiring_slab(request));
}

TEST_F(TwoDeviceSupplyTest, APromiseOfAGroupEndsOnceNoneOfItsDevicesNeedsIt) {
  Session& group = attach(kA, 2, true, one_each(), 2);
  Session& there = attach(kA, 2, true, Devices(kSecond));
  Request& victim = running(group, 8);
  Request& needy = submit(there, 120, 8);
  ground.requests.make_claim(needy);
  promises.preempt(victim, there.id, Promise::kForBytes);
  promises.expire(kShareA);
  EXPECT_TRUE(victim.promised) << "free on the first, needed on the second";
  ground.requests.drop_claim(needy);
  promises.expire(kShareA);
  EXPECT_FALSE(victim.promised);
}

}  // namespace
}  // namespace kvd::core
