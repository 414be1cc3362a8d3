// Tests who is to leave for others: when a promise is kept, and when nobody needs it any more.
#include "kvd/core/moves/promises.hpp"

#include <gmock/gmock.h>

#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

/// HBM has 64 slots. The victims are another engine's than the one that needs memory.
class PromisesTest : public PartsTest {
 protected:
  explicit PromisesTest(Config config = small_config(8)) : PartsTest(std::move(config)) {}

  Request& promised(Session& of, std::int64_t tokens, Promise why = Promise::kForBytes) {
    Request& request = running(of, tokens);
    sut.preempt(request, own.id, why);
    EXPECT_TRUE(request.promised);
    return request;
  }
  /// A request whose claim takes this many slots, an even number.
  Request& claiming(std::int64_t slots, Session& of) {
    Request& request = submit(of, slots / 2 * kBlockTokens - 1, 8);
    ground.requests.make_claim(request);
    EXPECT_EQ(needs.to_run(request), kSlot * slots);
    return request;
  }
  std::uint64_t expired() const { return ground.context.counters.promises_expired; }

  Needs needs{ground};
  Supply supply{ground, needs};
  Promises sut{ground, supply};
  Session& own = attach();
  Session& other = attach();
};

TEST_F(PromisesTest, OneThatLeavesAnywayIsNotPromised) {
  Request& request = running(other, 8);
  request.leaving = true;
  sut.preempt(request, own.id, Promise::kForBytes);
  EXPECT_FALSE(request.promised);
  EXPECT_EQ(ground.context.counters.promises, 0u);
}

TEST_F(PromisesTest, AnEngineThatStepsKeepsWhatWasPromisedOfItAlone) {
  Session& third = attach();
  Request& kept = promised(other, 8);
  Request& later = promised(third, 8);
  sut.acknowledge(other);
  EXPECT_TRUE(kept.leaving);
  EXPECT_FALSE(kept.promised);
  EXPECT_FALSE(later.leaving);
  EXPECT_TRUE(later.promised);
}

TEST_F(PromisesTest, APromptThatWasPromisedStays) {
  Request& prompt = promised(other, 8);
  prompt.phase = Phase::kPrompt;
  sut.acknowledge(other);
  EXPECT_FALSE(prompt.leaving) << "in the midst of its prefill nobody leaves";
  EXPECT_FALSE(prompt.promised);
}

TEST_F(PromisesTest, AsManyEndAsTheirBytesAreFree) {
  Request& first = promised(other, 8);
  Request& second = promised(other, 8);
  claiming(58, own);  // six slots are left, if both leave
  sut.expire(kShareA);
  EXPECT_FALSE(first.promised) << "four slots";
  EXPECT_TRUE(second.promised) << "then two are left";
  EXPECT_EQ(expired(), 1u);
  sut.expire(kShareA);
  EXPECT_TRUE(second.promised) << "what stays is supply no more";
  EXPECT_EQ(expired(), 1u);
}

TEST_F(PromisesTest, BytesThatAreFreeAreNotTheSlotsOfAPromise) {
  Request& victim = promised(other, 8, Promise::kForSlots);
  Request& waits = claiming(8, own);
  sut.expire(kShareA);
  EXPECT_TRUE(victim.promised) << "a claim waits for its slab";
  ground.requests.drop_claim(waits);
  sut.expire(kShareA);
  EXPECT_FALSE(victim.promised);
}

TEST_F(PromisesTest, WhoOnlyQueuesKeepsNoSlotsPromised) {
  Request& victim = promised(other, 8, Promise::kForSlots);
  submit(own, 8, 8);
  sut.expire(kShareA);
  EXPECT_FALSE(victim.promised) << "nobody decided that it comes in";
}

TEST_F(PromisesTest, AnotherDomainsNeedIsNoReason) {
  Session& foreign = attach(kB, 2, false);
  Request& victim = promised(other, 8, Promise::kForSlots);
  Request& waits = submit(foreign, 8, 8);
  ground.requests.make_claim(waits);
  sut.expire(kShareA);
  EXPECT_FALSE(victim.promised);
}

TEST_F(PromisesTest, OneMadeForARegionLastsAsLong) {
  Request& victim = promised(other, 8);
  const SlabIndex slab = ground.store.blocks.slot(victim.table, 0, Tier::kHbm).slab();
  supply.begin_retiring(kShareA);
  ground.store.tiers.hbm().with(slab).retire(slab);
  sut.expire(kShareA);
  EXPECT_TRUE(victim.promised) << "its slab is to become empty, however much is free";
  ground.store.tiers.hbm().with(slab).unretire(slab);
  supply.end_retiring(kShareA);
  sut.expire(kShareA);
  EXPECT_FALSE(victim.promised);
}

TEST_F(PromisesTest, ASilentEnginesPromiseIsNoPromise) {
  Request& victim = promised(other, 8);
  claiming(62, own);
  sut.expire(kShareA);
  EXPECT_TRUE(victim.promised);
  other.life.responsive = false;
  sut.expire(kShareA);
  EXPECT_FALSE(victim.promised) << "it will not step, so somebody else is to leave";
  other.life.responsive = true;
}

TEST_F(PromisesTest, WhereNobodyIsPromisedNothingEnds) {
  running(other, 8);
  sut.expire(kShareA);
  sut.expire(kShareB);
  EXPECT_EQ(expired(), 0u);
}

class TwoDevicePromises : public PromisesTest {
 protected:
  TwoDevicePromises() : PromisesTest(small_config(8, 8, 2)) {}

  Session& there = attach(kA, 2, true, Devices(kSecond));
  Session& group = attach(kA, 1, true, Devices(std::vector{kFirst, kSecond}), 2);
};

TEST_F(TwoDevicePromises, OneOfAGroupIsKeptWhereEitherDeviceNeedsItsBytes) {
  Request& victim = promised(group, 8);
  Request& needy = claiming(64, there);
  sut.expire(kShareA);
  EXPECT_TRUE(victim.promised);
  sut.expire({kA, kSecond});
  EXPECT_TRUE(victim.promised);
  ground.requests.drop_claim(needy);
  sut.expire({kA, kSecond});
  EXPECT_FALSE(victim.promised);
}

TEST_F(TwoDevicePromises, OneForSlotsIsKeptWhileSomebodyWaitsOnEither) {
  Request& victim = promised(group, 8, Promise::kForSlots);
  Request& hungry = running(there, 8);
  hungry.starved = true;
  sut.expire(kShareA);
  EXPECT_TRUE(victim.promised) << "on the second";
  hungry.starved = false;
  sut.expire(kShareA);
  EXPECT_FALSE(victim.promised);
}

TEST_F(TwoDevicePromises, OneOfASingleDeviceIsNobodysElsewhere) {
  Request& victim = promised(other, 8, Promise::kForSlots);
  running(there, 8).starved = true;
  sut.expire(kShareA);
  EXPECT_FALSE(victim.promised);
}

}  // namespace
}  // namespace kvd::core
