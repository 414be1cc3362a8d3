// Memory that several domains want: how much of it each may have.
#include "kvd/core/moves/shares.hpp"

#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

class SharesTest : public PartsTest {
 protected:
  SharesTest() : PartsTest(small_config(8)) {}

  bool share_out(const std::map<DomainId, Bytes>& awaited = {}) {
    sut.begin();
    const bool hbm = sut.share_out(kFirst, awaited);
    return sut.share_out_dram() || hbm;
  }
  /// Requests of the domain that fill this much of HBM, a slab each by now.
  void fill(Session& session, int slabs) {
    for (int i = 0; i < slabs; ++i) running(session, 16);
  }

  DramCopies copies{ground};
  Needs needs{ground};
  Supply supply{ground, needs};
  Shares sut{ground, copies, needs, supply};
};

TEST_F(SharesTest, NothingIsSharedOutWhileNobodyWaits) {
  fill(attach(kA), 8);
  attach(kB, 2, false);
  EXPECT_FALSE(share_out());
  EXPECT_FALSE(supply.over_part(kShareA));
}

TEST_F(SharesTest, WhoHoldsMoreThanItsPartIsOverItWhileAnotherWaits) {
  fill(attach(kA), 8);
  Session& other = attach(kB, 2, false);
  for (int i = 0; i < 9; ++i) submit(other, 15, 8);
  EXPECT_TRUE(share_out());
  EXPECT_TRUE(supply.over_part(kShareA));
  EXPECT_EQ(pool::excess(ground.store.hbm.of(kFirst)), (pool::HeldSlabs{{kA, 4}}));
}

TEST_F(SharesTest, AsMuchIsTakenAsIsWanted) {
  fill(attach(kA), 8);
  submit(attach(kB, 2, false), 15, 8);
  EXPECT_TRUE(share_out());
  EXPECT_EQ(pool::excess(ground.store.hbm.of(kFirst)), (pool::HeldSlabs{{kA, 1}}));
}

TEST_F(SharesTest, ARequestLargerThanAnEqualPartCountsForNothing) {
  fill(attach(kA), 8);
  submit(attach(kB, 2, false), 80, 8);
  EXPECT_FALSE(share_out());
}

TEST_F(SharesTest, RegionsThatAreAwaitedCount) {
  fill(attach(kA), 8);
  attach(kB, 2, false);
  EXPECT_TRUE(share_out({{kB, kSlab * 2}}));
  EXPECT_EQ(pool::excess(ground.store.hbm.of(kFirst)), (pool::HeldSlabs{{kA, 2}}));
}

Space wants(std::size_t positions, Bytes wanted, TimePoint told) {
  Space space;
  space.at.resize(positions);
  space.demand.wanted = wanted;
  space.told = told;
  return space;
}

TEST_F(SharesTest, WhatASpaceLacksCounts) {
  fill(attach(kA), 8);
  Session& other = attach(kB, 2, false);
  Space& space = other.leases.spaces[RegionId(1)] = wants(8, kSlab * 3, ground.context.now);
  space.at[0].region = RegionId(2);
  EXPECT_TRUE(share_out());
  EXPECT_EQ(pool::excess(ground.store.hbm.of(kFirst)), (pool::HeldSlabs{{kA, 2}}));
}

TEST_F(SharesTest, ASpaceThatWantsMoreThanAnEqualPartGetsThat) {
  fill(attach(kA), 8);
  attach(kB, 2, false).leases.spaces[RegionId(1)] = wants(8, kSlab * 20, ground.context.now);
  EXPECT_TRUE(share_out());
  EXPECT_EQ(pool::excess(ground.store.hbm.of(kFirst)), (pool::HeldSlabs{{kA, 4}}));
}

TEST_F(SharesTest, WhatASpaceWantedLongAgoCountsForNothing) {
  fill(attach(kA), 8);
  attach(kB, 2, false).leases.spaces[RegionId(1)] = wants(8, kSlab * 3, ground.context.now);
  pass(std::chrono::seconds(3));
  EXPECT_FALSE(share_out());
}

TEST_F(SharesTest, APolicyThatDoesNotRotateLetsNobodyInAndTakesNothing) {
  Tuning wanted = ground.context.tuning;
  wanted.rotation.policy = "fcfs";
  ground.context.retune(wanted);
  fill(attach(kA), 8);
  submit(attach(kB, 2, false), 15, 8);
  EXPECT_TRUE(share_out());
  EXPECT_TRUE(supply.over_part(kShareA));
  EXPECT_EQ(pool::excess(ground.store.hbm.of(kFirst)), pool::HeldSlabs());
}

}  // namespace
}  // namespace kvd::core
