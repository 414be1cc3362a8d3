#include "kvd/pool/budget.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/kvd/pool/pool_fixture.hpp"

namespace kvd::pool {
namespace {

using testing::ElementsAre;

/// Four slabs. Each question applies the quotas that hold at that moment.
class BudgetTest : public testing::Test {
 protected:
  BudgetTest() { EXPECT_TRUE(book_.add_class(kSmall, Bytes(256)).ok()); }
  [[nodiscard]] Budget sut() const { return {book_, quotas_}; }
  /// An engine of the domain was given the slab, and holds it no more.
  void lend(std::uint32_t at, DomainId domain) {
    book_.change(SlabIndex(at), [&](Slab& slab) {
      slab.lent = true;
      slab.domain = domain;
    });
  }

  SlabBook book_{{kSlab, 4}};
  Quotas quotas_;
};

TEST_F(BudgetTest, LeavesOthersTheirGuarantees) {
  EXPECT_EQ(sut().room(kA), 4u);
  quotas_[kB] = {.guarantee = 3 * kSlab};
  EXPECT_EQ(sut().room(kA), 1u);
  EXPECT_EQ(sut().room(kB), 4u);
  EXPECT_EQ(sut().fresh_room(kA), 1u);
}

TEST_F(BudgetTest, WhatADomainHoldsOrWasGivenCountsTowardsItsGuarantee) {
  quotas_[kB] = {.guarantee = 3 * kSlab};
  book_.assign(SlabIndex(0), kSmall, kB);
  lend(1, kB);
  EXPECT_EQ(sut().fresh_room(kA), 1u);
  EXPECT_EQ(sut().loose_now(kB, true), 3u);
  EXPECT_EQ(sut().loose_now(kA, true), 1u);
}

TEST_F(BudgetTest, ALentSlabIsRenewedForAnotherDomainBeyondItsOwnersGuarantee) {
  lend(0, kB);
  const Slab& slab = book_.at(SlabIndex(0));
  EXPECT_TRUE(sut().renewable(slab, kA));
  EXPECT_FALSE(sut().renewable(slab, kB));
  quotas_[kB] = {.guarantee = kSlab};
  EXPECT_FALSE(sut().renewable(slab, kA));
  EXPECT_FALSE(sut().renewable(book_.at(SlabIndex(1)), kA));
}

TEST_F(BudgetTest, BytesTakeWholeSlabs) {
  EXPECT_EQ(sut().slabs_for(Bytes(1)), 1u);
  EXPECT_EQ(sut().slabs_for(kSlab), 1u);
  EXPECT_EQ(sut().slabs_for(kSlab + Bytes(1)), 2u);
}

TEST_F(BudgetTest, ARegionTakesWhatTheDomainsEnginesKnowFirst) {
  lend(2, kA);
  EXPECT_THAT(sut().choose_for_region(kA, 1), ElementsAre(2u));
  EXPECT_THAT(sut().choose_for_region(kA, 2), ElementsAre(0u, 2u));
  EXPECT_THAT(sut().choose_for_region(kB, 1), ElementsAre(0u));
}

TEST_F(BudgetTest, AClassTakesADirtySlabBeforeACleanOne) {
  book_.change(SlabIndex(3), [](Slab& slab) {
    slab.use = SlabUse::kDirty;
    slab.domain = kA;
  });
  const SlotRequest request{.model_class = kSmall, .domain = kA, .owner = EngineId(1), .count = 4};
  EXPECT_THAT(sut().choose_for_class(request, 2), ElementsAre(3u, 0u));
}

}  // namespace
}  // namespace kvd::pool
