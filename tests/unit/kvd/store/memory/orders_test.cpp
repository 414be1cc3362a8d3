// What the store wants done, in order and once; lists that orders share; slots that layers are
// streamed through.
#include "kvd/store/memory/orders.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "kvd/store/memory/staging.hpp"

namespace kvd::store {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// The kinds of the orders, in sequence.
std::vector<std::size_t> kinds(Orders& orders) {
  std::vector<std::size_t> found;
  orders.drain([&](auto order) { found.push_back(Order(std::move(order)).index()); });
  return found;
}

TEST(OrdersTest, AreHandedOverInTheirOrderAndOnce) {
  Orders sut;
  sut.add(SendSlab{EngineId(1), SlabIndex(2), RegionId(), 0, 0});
  sut.add(CopySlots{Ticket(1), EngineId(1), true, Bytes(128), {}, false});
  sut.add(AskUnmap{EngineId(1), SlabIndex(2)});
  sut.add(EndStream{Ticket(1)});
  EXPECT_THAT(kinds(sut), ElementsAre(Order(SendSlab{}).index(), Order(CopySlots{}).index(),
                                      Order(AskUnmap{}).index(), Order(EndStream{}).index()));
  EXPECT_THAT(kinds(sut), IsEmpty());
}

TEST(OrdersTest, TicketsGrowWhoeverDrawsThem) {
  Orders sut;
  std::set<Ticket> drawn;
  Ticket last;
  for (int i = 0; i < 100; ++i) {
    const Ticket next = sut.next_ticket();
    EXPECT_TRUE(next);
    EXPECT_GT(next, last);
    EXPECT_TRUE(drawn.insert(next).second);
    last = next;
  }
  EXPECT_THAT(kinds(sut), IsEmpty()) << "a ticket alone orders nothing";
}

TEST(SharedListTest, OfNothingIsEmpty) {
  const SharedList<int> sut;
  EXPECT_TRUE(sut.empty());
  EXPECT_EQ(sut.size(), 0u);
  EXPECT_EQ(sut.begin(), sut.end());
  EXPECT_EQ(sut.data(), nullptr);
  const SharedList<int> made = std::vector<int>();
  EXPECT_TRUE(made.empty());
}

TEST(SharedListTest, ItsCopiesShareOneAllocation) {
  SharedList<int> sut = std::vector{3, 1, 4};
  const SharedList<int> copy = sut;
  EXPECT_EQ(copy.data(), sut.data());
  const int* const data = copy.data();
  sut = std::vector{1};
  EXPECT_EQ(copy.data(), data) << "and outlives the first";
  EXPECT_THAT(std::vector<int>(copy.begin(), copy.end()), ElementsAre(3, 1, 4));
  EXPECT_EQ(copy[2], 4);
  EXPECT_EQ(sut.size(), 1u);
}

class StagingSlots : public ::testing::Test {
 protected:
  static SlotId slot(std::uint32_t index) { return {SlabIndex(1), index}; }
  Staging sut;
};

TEST_F(StagingSlots, ListsThemByBlockWithGaps) {
  sut.put(3, slot(7));
  sut.put(1, slot(5));
  ASSERT_EQ(sut.slots().size(), 4u);
  EXPECT_THAT(sut.slots(), ElementsAre(SlotId(), slot(5), SlotId(), slot(7)));
  EXPECT_EQ(sut.count(), 2);
}

TEST_F(StagingSlots, EveryChangeIsCounted) {
  EXPECT_EQ(sut.changes(), 0u);
  (void)sut.take();
  EXPECT_EQ(sut.changes(), 0u) << "there was nothing to take";
  sut.put(0, slot(1));
  sut.put(1, slot(2));
  EXPECT_EQ(sut.changes(), 2u);
  (void)sut.take();
  EXPECT_EQ(sut.changes(), 3u);
  (void)sut.take();
  EXPECT_EQ(sut.changes(), 3u);
}

TEST_F(StagingSlots, WhatWasTakenIsNoLongerThere) {
  sut.put(2, slot(9));
  EXPECT_THAT(sut.take(), ElementsAre(slot(9)));
  EXPECT_TRUE(sut.slot(2).none());
  EXPECT_THAT(sut.slots(), IsEmpty());
  EXPECT_EQ(sut.count(), 0);
  sut.put(2, slot(3));
  EXPECT_EQ(sut.slot(2), slot(3)) << "and may come again";
}

}  // namespace
}  // namespace kvd::store
