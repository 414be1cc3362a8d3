// Tests who makes way for a class that has bytes and no slab, and who waits meanwhile.
#include <gmock/gmock.h>

#include <algorithm>

#include "tests/unit/kvd/core/parts/all_parts_fixture.hpp"

namespace kvd::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// HBM is four slabs of eight slots; a request of 8 tokens has half of one.
class ClaimsPressureTest : public AllPartsTest {
 protected:
  Request& claiming(Session& session, std::int64_t prompt) {
    Request& request = submit(session, prompt, 8);
    ground.requests.make_claim(request);
    return request;
  }
  /// Each slab is half in use, by one request each, in this order.
  std::vector<Request*> half_of_each_slab(Session& session) {
    std::vector<Request*> all, kept;
    all.reserve(8);
    for (int i = 0; i < 8; ++i) all.push_back(&running(session, 8));
    for (std::size_t i = 0; i < all.size(); i += 2) {
      kept.push_back(all[i]);
      ground.memory.end(*all[i + 1]);
    }
    return kept;
  }
  static std::vector<const Request*> promised(const std::vector<Request*>& among) {
    std::vector<const Request*> found;
    std::copy_if(among.begin(), among.end(), std::back_inserter(found),
                 [](const Request* r) { return r->promised.has_value(); });
    return found;
  }

  Claims& sut = claims;
};

TEST_F(ClaimsPressureTest, OneSlabIsEmptiedForAClassThatHasNone) {
  Session& session = attach();
  const auto inside = half_of_each_slab(session);
  Request& large = claiming(attach_other_class(), 3);
  sut.serve(kA);
  EXPECT_TRUE(large.waits());
  ASSERT_EQ(promised(inside).size(), 1u) << "half of HBM is free, but no slab";
  EXPECT_EQ(*promised(inside)[0]->promised, Promise::kForSlots);
  sut.serve(kA);
  EXPECT_EQ(promised(inside).size(), 1u) << "it is on its way";
}

TEST_F(ClaimsPressureTest, WhatIsInASlabMakesWayTogether) {
  Session& session = attach();
  std::vector<Request*> inside;
  inside.reserve(8);
  for (int i = 0; i < 8; ++i) inside.push_back(&running(session, 4));  // four of them a slab
  running(session, 16);
  running(session, 8);
  const auto slab_of = [&](const Request& r) {
    return ground.store.blocks.slot(r.table, 0, Tier::kHbm).slab();
  };
  Request& large = claiming(attach_other_class(), 3);
  sut.serve(kA);
  EXPECT_TRUE(large.waits());
  const auto leaves = promised(inside);
  for (const Request* r : inside) {
    const bool same = !leaves.empty() && slab_of(*r) == slab_of(*leaves[0]);
    EXPECT_EQ(r->promised.has_value(), same) << "a slab with one block in it is of no use";
  }
}

TEST_F(ClaimsPressureTest, NobodyTakesMeanwhileWhatIsToBeEmptied) {
  Session& session = attach();
  half_of_each_slab(session);
  claiming(attach_other_class(), 3);
  Request& small = claiming(session, 4);
  sut.serve(kA);
  EXPECT_TRUE(small.waits()) << "or the large one would wait for ever";
}

TEST_F(ClaimsPressureTest, WhereBytesAreShortNoSlabIsEmptied) {
  Session& session = attach();
  std::vector<Request*> inside;
  inside.reserve(8);
  for (int i = 0; i < 8; ++i) inside.push_back(&running(session, 8));
  claiming(attach_other_class(), 3);
  sut.serve(kA);
  EXPECT_THAT(promised(inside), IsEmpty()) << "that is for rotation to decide";
}

TEST_F(ClaimsPressureTest, PromptsCannotBeMovedSoNobodyWaitsForThem) {
  Session& session = attach();
  for (Request* r : half_of_each_slab(session)) r->phase = Phase::kPrompt;
  Request& large = claiming(attach_other_class(), 3);
  Request& small = claiming(session, 4);
  sut.serve(kA);
  EXPECT_TRUE(large.waits());
  EXPECT_TRUE(small.prefills()) << "it overtakes until they have ended";
}

TEST_F(ClaimsPressureTest, TheNextSlabIsEmptiedWhereTheFirstCannotBe) {
  Session& session = attach();
  const auto inside = half_of_each_slab(session);
  for (const std::size_t i : {0u, 1u, 3u}) inside[i]->phase = Phase::kPrompt;
  claiming(attach_other_class(), 3);
  sut.serve(kA);
  EXPECT_THAT(promised(inside), ElementsAre(inside[2]));
}

TEST_F(ClaimsPressureTest, OneThatMadeNoTokenYetStaysUnlessItIsPaused) {
  Session& session = attach();
  const auto inside = half_of_each_slab(session);
  for (Request* r : inside) r->fresh = true;
  claiming(attach_other_class(), 3);
  sut.serve(kA);
  EXPECT_THAT(promised(inside), IsEmpty());
  inside[1]->verdict = Verdict::kPaused;
  sut.serve(kA);
  EXPECT_THAT(promised(inside), ElementsAre(inside[1])) << "it makes none to be kept for";
}

TEST_F(ClaimsPressureTest, OneThatLeavesAlreadyIsWaitedFor) {
  Session& session = attach();
  const auto inside = half_of_each_slab(session);
  for (Request* r : inside) r->leaving = true;
  claiming(attach_other_class(), 3);
  sut.serve(kA);
  EXPECT_THAT(promised(inside), IsEmpty());
}

TEST_F(ClaimsPressureTest, AClaimThatWaitsForAMappingIsOvertaken) {
  Session& fresh = attach(kA, 2, false);
  Session& session = attach();
  Request& first = claiming(fresh, 4);
  Request& second = claiming(session, 4);
  sut.serve(kA);
  EXPECT_TRUE(first.waits());
  EXPECT_TRUE(first.order.awaits_mapping);
  EXPECT_TRUE(second.prefills());
}

TEST_F(ClaimsPressureTest, WhatIsBeingZeroedIsKeptForWhoCameFirst) {
  store::Tiers& tiers = ground.store.tiers;
  Session& foreign = attach(kB, 2, false);
  store::Taker taker = foreign.taker();
  const pool::SlotGrant sent = tiers.take(Tier::kHbm, taker, 24);
  for (const SlabIndex slab : sent.to_map) {
    EXPECT_TRUE(tiers.mappings().mapped(foreign.id, slab));
  }
  tiers.free(Tier::kHbm, tiers.take(Tier::kHbm, taker, 24).slots);
  Session& session = attach();
  tiers.reclaim(Tier::kHbm, kA);
  Request& large = claiming(session, 40);
  Request& small = claiming(session, 4);
  sut.serve(kA);
  EXPECT_TRUE(large.waits());
  EXPECT_FALSE(large.order.awaits_mapping);
  EXPECT_TRUE(small.waits()) << "one slab is free, and it would take of that";
  ground.memory.end(large);
  sut.serve(kA);
  EXPECT_TRUE(small.prefills());
}

}  // namespace
}  // namespace kvd::core
