#include "kvd/pool/slab_book.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/kvd/pool/pool_fixture.hpp"

namespace kvd::pool {
namespace {

using testing::ElementsAre;

constexpr SlabIndex kFirst{0}, kSecond{1};
constexpr SlotStates kAny = any_of(SlotState::kFilling, SlotState::kOpen, SlotState::kSealed);

/// Three slabs, each with room for four slots of kSmall or two of kLarge.
class SlabBookTest : public testing::Test {
 protected:
  SlabBookTest() {
    EXPECT_TRUE(sut_.add_class(kSmall, Bytes(256)).ok());
    EXPECT_TRUE(sut_.add_class(kLarge, Bytes(512)).ok());
  }
  std::vector<SlotId> take(SlabIndex slab, std::uint32_t wanted) {
    std::vector<SlotId> slots;
    sut_.take(slab, wanted, slots);
    return slots;
  }
  void free(const std::vector<SlotId>& slots) { sut_.free(slots.front().slab(), slots, kAny); }

  SlabBook sut_{{kSlab, 3}};
};

TEST_F(SlabBookTest, ListsTheFullestSlabFirst) {
  sut_.assign(kFirst, kSmall, kA);
  sut_.assign(kSecond, kSmall, kA);
  const auto taken = take(kSecond, 3);
  EXPECT_THAT(sut_.room(kSmall, kA), ElementsAre(std::pair(1u, 1u), std::pair(4u, 0u)));
  EXPECT_TRUE(sut_.room(kSmall, kB).empty());
  EXPECT_TRUE(sut_.room(kLarge, kA).empty());
  EXPECT_EQ(sut_.validate(), "");
  free(taken);
  EXPECT_THAT(sut_.room(kSmall, kA), ElementsAre(std::pair(4u, 0u), std::pair(4u, 1u)));
  EXPECT_EQ(sut_.validate(), "");
}

TEST_F(SlabBookTest, GivesWhatItHasWhereMoreIsWanted) {
  sut_.assign(kFirst, kSmall, kA);
  EXPECT_EQ(take(kFirst, 9).size(), 4u);
  EXPECT_TRUE(sut_.room(kSmall, kA).empty());
  EXPECT_EQ(sut_.ledger().of(kA).free, Bytes(0));
  EXPECT_EQ(sut_.validate(), "");
}

TEST_F(SlabBookTest, AnEmptySlabOfAnotherClassIsForeignUntilSomethingIsInIt) {
  sut_.assign(kFirst, kSmall, kA);
  sut_.assign(kSecond, kSmall, kB);
  EXPECT_THAT(sut_.empty_foreign(kLarge, kA), ElementsAre(0u));
  EXPECT_TRUE(sut_.empty_foreign(kSmall, kA).empty());
  sut_.await(kFirst, EngineId(1));
  EXPECT_TRUE(sut_.empty_foreign(kLarge, kA).empty());
  sut_.await(kFirst, EngineId{});
  static_cast<void>(take(kFirst, 1));
  EXPECT_TRUE(sut_.empty_foreign(kLarge, kA).empty());
}

TEST_F(SlabBookTest, ARetiringSlabIsListedNoMoreAndLeavesItsClassWithItsLastSlot) {
  sut_.assign(kFirst, kSmall, kA);
  const auto taken = take(kFirst, 2);
  sut_.retire(kFirst);
  EXPECT_TRUE(sut_.room(kSmall, kA).empty());
  EXPECT_EQ(sut_.validate(), "");
  free(taken);
  EXPECT_EQ(sut_.at(kFirst).use, SlabUse::kDirty);
  EXPECT_TRUE(sut_.at(kFirst).retiring);
  EXPECT_EQ(sut_.validate(), "");
}

TEST_F(SlabBookTest, OneThatRetiresNoMoreIsListedAgain) {
  sut_.assign(kFirst, kSmall, kA);
  static_cast<void>(take(kFirst, 1));
  sut_.retire(kFirst);
  sut_.unretire(kFirst);
  EXPECT_THAT(sut_.room(kSmall, kA), ElementsAre(std::pair(3u, 0u)));
  EXPECT_EQ(sut_.validate(), "");
}

TEST_F(SlabBookTest, AClassGoesOnceNoSlabHasIt) {
  sut_.assign(kFirst, kSmall, kA);
  EXPECT_FALSE(sut_.remove_class(kSmall));
  sut_.unassign(kFirst);
  EXPECT_TRUE(sut_.remove_class(kSmall));
  EXPECT_DEATH(static_cast<void>(sut_.class_of(kSmall)), "before add_class");
}

}  // namespace
}  // namespace kvd::pool
