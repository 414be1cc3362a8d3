// Engines that place by themselves: what they store is found, loaded and dropped, byte by byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/kvd/core/placer.hpp"

namespace kvd::test {
namespace {

using Op = CacheBlocks::Op;
using State = SetTicket::State;
using ::testing::HasSubstr;

TEST(ControllerCaches, WhatOneStoresAnotherLoadsIntoOtherBlocksAfterItHasGone) {
  ByteNode node;
  {
    Placer a(node);
    EXPECT_EQ(ByteNode::value(a.store({1, 2, 3})), 3u);
    EXPECT_EQ(a.state(), State::kPending);
    EXPECT_EQ(a.leading({1, 2, 3}), 0u) << "not before every byte is there";
    node.finish_all();
    EXPECT_EQ(a.state(), State::kDone);
    node.feed(Detach{a.id});
    node.scrub_all();
  }
  Placer b(node);
  EXPECT_EQ(b.leading({1, 2, 3, 4}), 3u);
  EXPECT_EQ(b.leading({4, 1, 2}), 0u) << "leading ones";
  ASSERT_EQ(ByteNode::code(b.ask(Op::kLoad, {3, 1}, {0, 2})), ErrorCode::kOk);
  EXPECT_EQ(b.state(), State::kPending);
  EXPECT_FALSE(node.holds(b.region, 0, 3)) << "the control: it is not there by itself";
  node.finish_all();
  EXPECT_EQ(b.state(), State::kDone);
  EXPECT_TRUE(node.holds(b.region, 0, 3));
  EXPECT_TRUE(node.holds(b.region, 2, 1));
  EXPECT_FALSE(node.holds(b.region, 1, 2)) << "nobody asked for it";
}

TEST(ControllerCaches, AllOfALoadIsThereOrNothingIsCopied) {
  ByteNode node;
  Placer a(node);
  (void)a.store({1, 2});
  node.finish_all();
  const auto reply = a.ask(Op::kLoad, {1, 2, 9}, {0, 1, 2});
  EXPECT_EQ(ByteNode::code(reply), ErrorCode::kNotFound);
  EXPECT_THAT(std::get<Error>(reply->body).message, HasSubstr("block 2 of 3"));
  EXPECT_TRUE(node.copies.empty());
}

TEST(ControllerCaches, AnotherDomainOrModelFindsNothing) {
  ByteNode node;
  Placer a(node);
  (void)a.store({1});
  node.finish_all();
  Placer stranger(node, DomainId(2));
  EXPECT_EQ(stranger.leading({1}), 0u);
  EXPECT_EQ(ByteNode::code(stranger.ask(Op::kLoad, {1}, {0})), ErrorCode::kNotFound);
  (void)stranger.ask(Op::kDrop, {1});
  EXPECT_EQ(a.leading({1}), 1u) << "nor drops anything";
  a.cache = CacheId(ByteNode::value(node.command(a.id, ByteNode::nowhere("other"))));
  EXPECT_EQ(a.leading({1}), 0u);
}

TEST(ControllerCaches, WhatIsKnownIsNotCopiedAgain) {
  ByteNode node;
  Placer a(node);
  (void)a.store({1, 2});
  node.finish_all();
  EXPECT_EQ(ByteNode::value(a.store({2, 1})), 0u);
  EXPECT_EQ(a.state(), State::kDone);
  EXPECT_TRUE(node.copies.empty());
  EXPECT_EQ(ByteNode::value(a.store({2, 3, 3})), 1u) << "and within a command once";
}

TEST(ControllerCaches, TwoThatStoreTheSameAtOnceKeepIt) {
  ByteNode node;
  Placer a(node), b(node);
  (void)a.store({1});
  (void)b.store({1});
  node.finish(1);
  EXPECT_EQ(b.state(), State::kDone);
  EXPECT_EQ(a.state(), State::kPending) << "tickets end in any order";
  node.finish_all();
  EXPECT_EQ(a.state(), State::kDone);
  EXPECT_EQ(a.leading({1}), 1u);
  const auto stats = node.controller->status(node.now).tiers[1];
  EXPECT_EQ(stats.free, stats.capacity - Bytes(ByteNode::kBlock)) << "one slot";
}

TEST(ControllerCaches, ACopyThatFailsFailsItsTicketAndNothingElse) {
  ByteNode node;
  Placer a(node);
  (void)a.store({1, 2});
  node.finish(0, false);
  EXPECT_EQ(a.state(), State::kFailed);
  EXPECT_EQ(a.leading({1}), 0u);
  (void)a.store({1, 2});
  node.finish_all();
  EXPECT_EQ(a.leading({1, 2}), 2u) << "the session goes on";
}

// DRAM has 16 slots.
TEST(ControllerCaches, WhatIsParkedOutlivesPressureAndADropFreesIt) {
  ByteNode node;
  Placer a(node);
  (void)a.store({1, 2}, true);
  node.finish_all();
  for (std::uint32_t seed = 100; seed < 160; seed += 4) {
    ASSERT_EQ(ByteNode::code(a.store({seed, seed + 1, seed + 2, seed + 3})), ErrorCode::kOk);
    node.finish_all();
  }
  EXPECT_EQ(a.leading({1, 2}), 2u);
  EXPECT_EQ(a.leading({156, 157, 158, 159}), 4u);
  EXPECT_EQ(a.leading({100}), 0u) << "made way";
  Placer scheduler(node);  // another session of the domain
  EXPECT_EQ(ByteNode::value(scheduler.ask(Op::kDrop, {1, 2, 77})), 2u);
  EXPECT_EQ(a.leading({1}), 0u);
}

void press(Placer& engine, ByteNode& node, std::uint32_t from) {
  for (std::uint32_t seed = from; seed < from + 60; seed += 4) {
    ASSERT_EQ(ByteNode::code(engine.store({seed, seed + 1, seed + 2, seed + 3})), ErrorCode::kOk);
    node.finish_all();
  }
}

// DRAM has 16 slots. Half of them may be retained.
TEST(ControllerCaches, WhatIsRetainedOutlivesPressureUntilItsTimeIsOver) {
  ByteNode node;
  Placer a(node);
  (void)a.store({1, 2});
  node.finish_all();
  EXPECT_EQ(a.retain({1, 2, 77}, 60), 2u) << "one of them is not there";
  press(a, node, 100);
  EXPECT_EQ(a.leading({1, 2}), 2u);
  node.now += std::chrono::seconds(61);
  node.feed(Tick{});
  press(a, node, 200);
  EXPECT_EQ(a.leading({1}), 0u);
}

TEST(ControllerCaches, WhatIsLetGoIsLikeAnyOther) {
  ByteNode node;
  Placer a(node);
  (void)a.store({1, 2});
  node.finish_all();
  EXPECT_EQ(a.retain({1, 2}, 60), 2u);
  EXPECT_EQ(a.retain({1, 2}, 60), 2u) << "once more is no more";
  EXPECT_EQ(node.controller->status(node.now).retained.bytes, Bytes(2 * ByteNode::kBlock));
  EXPECT_EQ(a.retain({2}, 0), 0u);
  press(a, node, 100);
  EXPECT_EQ(a.leading({1, 2}), 1u);
  (void)a.ask(Op::kDrop, {1});
  EXPECT_EQ(node.controller->status(node.now).retained.bytes, Bytes(0));
}

TEST(ControllerCaches, NoMoreThanAShareIsRetainedAndNotForLonger) {
  ByteNode node;
  Placer a(node);
  for (std::uint32_t seed = 0; seed < 16; seed += 4) {
    (void)a.store({seed, seed + 1, seed + 2, seed + 3});
    node.finish_all();
  }
  EXPECT_EQ(a.retain({0, 1, 2, 3, 4, 5, 6, 7}, 86'400), 8u) << "half";
  EXPECT_EQ(a.retain({8}, 60), 0u);
  press(a, node, 100);
  EXPECT_EQ(a.leading({0, 1, 2, 3, 4, 5, 6, 7}), 8u);
  node.now += std::chrono::minutes(11);  // cache.retain_most is 10
  node.feed(Tick{});
  EXPECT_EQ(node.controller->status(node.now).retained.bytes, Bytes(0))
      << "cache.retain_most is less";
}

TEST(ControllerCaches, AConversationIsRetainedAsAWholeOrNotAtAll) {
  ByteNode node;
  Placer a(node);
  for (std::uint32_t seed = 0; seed < 12; seed += 4) {
    (void)a.store({seed, seed + 1, seed + 2, seed + 3});
    node.finish_all();
  }
  EXPECT_EQ(a.retain({0, 1, 1}, 60), 2u) << "twice is once";
  EXPECT_EQ(a.retain({4, 5}, 60), 2u);
  EXPECT_EQ(a.retain({0, 1, 2, 3, 8, 9, 10}, 60), 0u) << "it has grown too long";
  EXPECT_EQ(node.controller->status(node.now).retained.bytes, Bytes(2 * ByteNode::kBlock));
  EXPECT_EQ(a.retain({0, 1, 2, 3, 8, 9}, 60), 6u);
}

TEST(ControllerCaches, WhatIsRetainedMakesWayWhereNothingElseIsLeftAndThatIsTold) {
  ByteNode node;
  Placer a(node);
  (void)a.store({1, 2, 3, 4});
  node.finish_all();
  EXPECT_EQ(a.retain({1, 2, 3, 4}, 60), 4u);
  for (std::uint32_t seed = 100; seed < 116; seed += 4) {
    ASSERT_EQ(ByteNode::code(a.store({seed, seed + 1, seed + 2, seed + 3}, true)), ErrorCode::kOk);
    node.finish_all();
  }
  const auto status = node.controller->status(node.now);
  EXPECT_EQ(status.retained.evicted_bytes, std::uint64_t{4 * ByteNode::kBlock});
  EXPECT_EQ(status.retained.bytes, Bytes(0));
}

TEST(ControllerCaches, WhatIsPinnedStaysUntilItIsUnpinned) {
  ByteNode node;
  Placer a(node);
  (void)a.store({1, 2});
  node.finish_all();
  EXPECT_EQ(ByteNode::value(a.hint(Op::kPin, {1, 2, 2, 77})), 2u);
  node.now += std::chrono::hours(100);
  node.feed(Tick{});
  press(a, node, 100);
  EXPECT_EQ(a.leading({1, 2}), 2u) << "it has no end";
  EXPECT_EQ(ByteNode::value(a.hint(Op::kUnpin, {1, 2, 77})), 2u);
  press(a, node, 200);
  EXPECT_EQ(a.leading({1}), 0u);
}

// A conversation that is retained, or let go, begins with what all conversations begin with.
TEST(ControllerCaches, WhatIsPinnedStaysWhateverIsSaidOfConversations) {
  ByteNode node;
  Placer a(node);
  (void)a.store({1, 2, 3, 4});
  node.finish_all();
  const auto retained = [&] { return node.controller->status(node.now).retained.bytes; };
  EXPECT_EQ(ByteNode::value(a.hint(Op::kPin, {1, 2})), 2u);
  EXPECT_EQ(a.retain({1, 2, 3, 4}, 60), 4u);
  node.now += std::chrono::seconds(61);
  node.feed(Tick{});
  EXPECT_EQ(retained(), Bytes(2 * ByteNode::kBlock));
  EXPECT_EQ(a.retain({1, 2, 3, 4}, 0), 0u);
  EXPECT_EQ(ByteNode::value(a.hint(Op::kDemote, {1, 2, 3, 4})), 2u);
  EXPECT_EQ(retained(), Bytes(2 * ByteNode::kBlock));
  press(a, node, 100);
  EXPECT_EQ(a.leading({1, 2}), 2u);
  EXPECT_EQ(a.leading({3}), 0u);
}

TEST(ControllerCaches, APinOfMoreThanTheShareIsRefusedAndChangesNothing) {
  ByteNode node;
  Placer a(node);
  for (std::uint32_t seed = 0; seed < 12; seed += 4) {
    (void)a.store({seed, seed + 1, seed + 2, seed + 3});
    node.finish_all();
  }
  EXPECT_EQ(ByteNode::value(a.hint(Op::kPin, {0, 1})), 2u);
  const auto refused = a.hint(Op::kPin, {0, 1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(ByteNode::code(refused), ErrorCode::kQuotaExceeded);
  EXPECT_THAT(std::get<Error>(refused->body).message, HasSubstr("cache.retain_share"));
  EXPECT_EQ(node.controller->status(node.now).retained.bytes, Bytes(2 * ByteNode::kBlock));
  Placer stranger(node, DomainId(2));
  EXPECT_EQ(ByteNode::value(stranger.hint(Op::kPin, {0, 1})), 0u) << "another's are not there";
  EXPECT_EQ(ByteNode::value(stranger.hint(Op::kDemote, {0, 1})), 0u);
  EXPECT_EQ(node.controller->status(node.now).retained.bytes, Bytes(2 * ByteNode::kBlock));
}

TEST(ControllerCaches, WhatIsPinnedIsLetGoOnceItsDomainHasBeenGoneForLong) {
  ByteNode node;
  Placer a(node);
  (void)a.store({1, 2});
  node.finish_all();
  EXPECT_EQ(ByteNode::value(a.hint(Op::kPin, {1, 2})), 2u);
  node.feed(Detach{a.id});
  node.scrub_all();
  const auto pinned = [&] { return node.controller->status(node.now).retained.bytes; };
  node.now += std::chrono::minutes(9);
  node.feed(Tick{});
  EXPECT_EQ(pinned(), Bytes(2 * ByteNode::kBlock)) << "its engine may only be started anew";
  {
    Placer again(node);
    node.feed(Tick{});
    node.feed(Detach{again.id});
    node.scrub_all();
  }
  node.now += std::chrono::minutes(9);
  node.feed(Tick{});
  EXPECT_EQ(pinned(), Bytes(2 * ByteNode::kBlock)) << "and it was";
  node.now += std::chrono::minutes(2);
  node.feed(Tick{});
  EXPECT_EQ(pinned(), Bytes(0));
  Placer later(node);
  EXPECT_EQ(later.leading({1, 2}), 2u) << "it is cached all the same";
}

// DRAM has 16 slots.
TEST(ControllerCaches, WhatIsDemotedLeavesFirstUnlessItIsAskedForAgain) {
  ByteNode node;
  Placer a(node);
  for (std::uint32_t seed = 0; seed < 16; seed += 4) {
    (void)a.store({seed, seed + 1, seed + 2, seed + 3});
    node.finish_all();
  }
  EXPECT_EQ(a.retain({13}, 60), 1u);
  EXPECT_EQ(ByteNode::value(a.hint(Op::kDemote, {12, 13, 14, 15, 15, 77})), 4u) << "the newest";
  EXPECT_EQ(node.controller->status(node.now).retained.bytes, Bytes(0)) << "the last hint counts";
  ASSERT_EQ(ByteNode::code(a.ask(Op::kLoad, {14}, {0})), ErrorCode::kOk);
  node.finish_all();
  (void)a.store({100, 101, 102});
  node.finish_all();
  EXPECT_EQ(a.leading({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}), 12u) << "they were older";
  EXPECT_EQ(a.leading({14}), 1u) << "it was asked for";
  for (const std::uint32_t seed : {12u, 13u, 15u}) EXPECT_EQ(a.leading({seed}), 0u) << seed;
}

TEST(ControllerCaches, WhatIsDemotedDoesNotLeaveUnderACopyOrWhileItIsParked) {
  ByteNode node;
  Placer a(node), b(node);
  (void)a.store({1, 2}, true);
  node.finish_all();
  (void)a.store({3, 4});
  node.finish_all();
  ASSERT_EQ(ByteNode::code(b.ask(Op::kLoad, {3}, {0})), ErrorCode::kOk);
  EXPECT_EQ(ByteNode::value(a.hint(Op::kDemote, {1, 2, 3, 4})), 4u);
  for (std::uint32_t seed = 100; seed < 112; seed += 4) {
    ASSERT_EQ(ByteNode::code(a.store({seed, seed + 1, seed + 2, seed + 3})), ErrorCode::kOk);
    while (node.copies.size() > 1) node.finish(node.copies.size() - 1);
  }
  node.finish_all();
  EXPECT_TRUE(node.holds(b.region, 0, 3)) << "its slot waited for the copy";
  EXPECT_EQ(a.leading({1, 2}), 2u) << "parked";
}

TEST(ControllerCaches, NothingIsPrefetchedWhereThereIsNoDisk) {
  ByteNode node;
  Placer a(node);
  (void)a.store({1, 2});
  node.finish_all();
  EXPECT_EQ(ByteNode::value(a.hint(Op::kPrefetch, {1, 2, 3}, 60)), 0u);
  EXPECT_EQ(node.controller->status(node.now).retained.bytes, Bytes(2 * ByteNode::kBlock))
      << "what is there is kept for the turn";
}

TEST(ControllerCaches, WhatIsParkedEndsWithItsSession) {
  ByteNode node;
  Placer a(node), b(node);
  (void)a.store({1, 2}, true);
  (void)b.store({2, 3}, true);
  node.finish_all();
  (void)b.store({2, 3}, true);
  EXPECT_EQ(b.leading({1, 2, 3}), 3u);
  node.feed(Detach{a.id});
  node.scrub_all();
  EXPECT_EQ(b.leading({1}), 0u);
  EXPECT_EQ(b.leading({2, 3}), 2u) << "the other has it parked, too";
}

// These are more blocks than one event gives up.
TEST(ControllerCaches, MuchThatWasParkedIsGivenUpByAndBy) {
  constexpr std::uint32_t kSlabs = 600;
  ByteNode node(8, kSlabs);
  Placer a(node), b(node);
  for (std::uint32_t seed = 0; seed < 4 * kSlabs; seed += 4) {
    ASSERT_EQ(ByteNode::code(a.store({seed, seed + 1, seed + 2, seed + 3}, true)), ErrorCode::kOk);
    node.finish_all();
  }
  (void)b.store({1}, true);
  node.feed(Detach{a.id});
  const auto dram = [&] { return node.controller->status(node.now).tiers[1]; };
  EXPECT_LT(dram().free, dram().capacity - Bytes(ByteNode::kBlock));
  node.feed(Tick{});
  EXPECT_EQ(dram().free, dram().capacity - Bytes(ByteNode::kBlock));
  EXPECT_EQ(b.leading({1}), 1u) << "another has it parked, too";
}

TEST(ControllerCaches, DramFullOfWhatIsParkedRefusesWithTheRemedyAndKeepsTheRest) {
  ByteNode node;
  Placer a(node);
  for (std::uint32_t seed = 0; seed < 12; seed += 4) {
    (void)a.store({seed, seed + 1, seed + 2, seed + 3}, true);
    node.finish_all();
  }
  (void)a.store({50, 51});
  node.finish_all();
  Placer big(node, DomainId(1), 2);
  const auto refused = big.store({20, 21, 22, 23, 24}, true);
  EXPECT_EQ(ByteNode::code(refused), ErrorCode::kOutOfMemory);
  EXPECT_THAT(std::get<Error>(refused->body).message, HasSubstr("drop what is parked"));
  EXPECT_EQ(a.leading({50, 51}), 2u) << "nothing made way for what would not fit all the same";
  const auto known = big.store({50, 21, 22, 23, 24, 25}, true);
  EXPECT_EQ(ByteNode::code(known), ErrorCode::kOutOfMemory);
  (void)a.store({60, 61, 62, 63});
  node.finish_all();
  EXPECT_EQ(a.leading({60, 61, 62, 63}), 4u) << "nothing is parked of what was refused";
}

// A prompt is computed, and stored, a chunk at a time.
TEST(ControllerCaches, WhatAStoreContinuesDoesNotMakeWayForIt) {
  ByteNode node;
  Placer a(node);
  for (std::uint32_t seed = 0; seed < 12; seed += 4) {
    (void)a.store({seed, seed + 1, seed + 2, seed + 3}, true);
    node.finish_all();
  }
  EXPECT_EQ(a.leading({50, 51, 52, 53, 54, 55}), 0u);
  for (const std::uint32_t seed : {50u, 52u}) {
    EXPECT_EQ(ByteNode::code(a.store({seed, seed + 1})), ErrorCode::kOk);
    node.finish_all();
  }
  EXPECT_EQ(ByteNode::code(a.store({54, 55})), ErrorCode::kOutOfMemory);
  EXPECT_EQ(a.leading({50, 51, 52, 53, 54, 55}), 4u) << "the head of it";
  EXPECT_EQ(a.leading({60, 61, 62, 63}), 0u);
  for (const std::uint32_t seed : {60u, 62u}) {
    EXPECT_EQ(ByteNode::code(a.store({seed, seed + 1})), ErrorCode::kOk) << "others do";
    node.finish_all();
  }
  EXPECT_EQ(a.leading({60, 61, 62, 63}), 4u);
}

TEST(ControllerCaches, AStoreDoesNotMakeItsOwnHeadLeave) {
  ByteNode node;
  Placer a(node);
  for (std::uint32_t seed = 0; seed < 12; seed += 4) {
    (void)a.store({seed, seed + 1, seed + 2, seed + 3}, true);
    node.finish_all();
  }
  (void)a.store({50, 51, 52, 53});
  node.finish_all();
  Placer big(node, DomainId(1), 2);
  EXPECT_EQ(ByteNode::code(big.store({50, 51, 60, 61, 62})), ErrorCode::kOutOfMemory);
  EXPECT_EQ(a.leading({50, 51, 52, 53}), 4u) << "all of it, or nothing";
  EXPECT_EQ(ByteNode::code(a.store({50, 51, 60, 61})), ErrorCode::kOk);
  node.finish_all();
  EXPECT_EQ(a.leading({50, 51, 60, 61}), 4u);
}

TEST(ControllerCaches, ADropReachesWhatIsBeingStored) {
  ByteNode node;
  Placer a(node);
  (void)a.store({1, 2}, true);
  (void)a.ask(Op::kDrop, {1});
  node.finish_all();
  EXPECT_EQ(a.leading({1}), 0u);
  EXPECT_EQ(a.leading({2}), 1u);
}

TEST(ControllerCaches, WhatIsLoadedMayBeDroppedAndItsSlotIsNotUsedBefore) {
  ByteNode node;
  Placer a(node), b(node);
  (void)a.store({1});
  node.finish_all();
  ASSERT_EQ(ByteNode::code(b.ask(Op::kLoad, {1}, {3})), ErrorCode::kOk);
  (void)a.ask(Op::kDrop, {1});
  for (std::uint32_t seed = 100; seed < 112; seed += 4) {
    (void)a.store({seed, seed + 1, seed + 2, seed + 3});
    while (node.copies.size() > 1) node.finish(1);
  }
  (void)a.store({200, 201, 202});
  while (node.copies.size() > 1) node.finish(1);
  node.finish_all();
  EXPECT_EQ(b.state(), State::kDone);
  EXPECT_TRUE(node.holds(b.region, 3, 1));
}

TEST(ControllerCaches, ARegionFreedUnderACopyIsNobodysBeforeItHasEnded) {
  ByteNode node(1);
  Placer a(node);
  (void)a.store({1});
  node.finish_all();
  (void)a.ask(Op::kLoad, {1}, {0});
  EXPECT_EQ(ByteNode::code(node.command(a.id, ReleaseRegion{a.region.id})), ErrorCode::kOk);
  node.scrub_all();
  EXPECT_FALSE(node.lease(a.id, 1).has_value()) << "the only slab there is";
  EXPECT_EQ(ByteNode::code(a.ask(Op::kLoad, {1}, {0})), ErrorCode::kNotFound);
  EXPECT_EQ(node.controller->region_bytes(a.id), Bytes(0));
  node.finish_all();
  EXPECT_EQ(node.controller->region_bytes(a.id), Bytes(ByteNode::kSlab)) << "now it is had";
  EXPECT_EQ(node.byte(a.region, 0, 0), 0) << "zeroed after the copy, not before";
}

TEST(ControllerCaches, AnEngineThatDiesUnderACopyLeavesNothingBehind) {
  ByteNode node(2);
  Placer a(node);
  (void)a.store({1});
  node.finish_all();
  (void)a.store({2, 3}, true);
  (void)a.ask(Op::kLoad, {1}, {3});
  node.feed(Dying{a.id});
  node.feed(Dead{a.id});
  node.scrub_all();
  EXPECT_LT(node.controller->status(node.now).tiers[0].free, Bytes(2 * ByteNode::kSlab));
  node.finish_all();
  const auto status = node.controller->status(node.now);
  EXPECT_EQ(status.tiers[0].free, Bytes(2 * ByteNode::kSlab));
  EXPECT_EQ(status.tiers[1].free, status.tiers[1].capacity - Bytes(ByteNode::kBlock));
  Placer b(node);
  EXPECT_EQ(b.leading({1}), 1u);
  EXPECT_EQ(b.leading({2}), 0u) << "it may have written there while it was stored";
}

TEST(ControllerCaches, WhatADyingEngineStoresIsNotFound) {
  ByteNode node(2);
  Placer a(node), b(node);
  (void)a.store({1});
  node.feed(Dying{a.id});
  a.node.fill(a.region, 0, 9);  // its process still exists, and writes
  node.finish_all();
  EXPECT_EQ(b.leading({1}), 0u);
  node.feed(Dead{a.id});
  node.finish_all();
  EXPECT_EQ(b.leading({1}), 0u);
  const auto status = node.controller->status(node.now);
  EXPECT_EQ(status.tiers[1].free, status.tiers[1].capacity) << "nor kept";
}

TEST(ControllerCaches, WhatAnEngineStoredThatPartsInPeaceIsFound) {
  ByteNode node(2);
  Placer a(node), b(node);
  (void)a.store({1});
  node.feed(Detach{a.id});
  EXPECT_FALSE(node.lease(b.id, 1).has_value()) << "the region is read until the copy has ended";
  node.finish_all();
  EXPECT_EQ(b.leading({1}), 1u);
  ASSERT_EQ(ByteNode::code(b.ask(Op::kLoad, {1}, {2})), ErrorCode::kOk);
  node.finish_all();
  EXPECT_TRUE(node.holds(b.region, 2, 1));
}

TEST(ControllerCaches, OfAnEngineThatHasGoneOnlyWhatOthersFindIsCopiedOn) {
  for (const bool dies : {false, true}) {
    ByteNode node;
    Placer a(node), b(node);
    (void)b.store({1});
    node.finish_all();
    (void)a.ask(Op::kLoad, {1}, {0});
    (void)a.ask(Op::kStore, {2}, {1}, true);
    (void)a.ask(Op::kStore, {3}, {2});
    (void)b.ask(Op::kLoad, {1}, {3});
    ASSERT_EQ(node.copies.size(), 4u);
    std::set<Ticket> expected = {node.copies[0].ticket, node.copies[1].ticket};
    if (dies) expected.insert(node.copies[2].ticket);
    node.feed(dies ? Event(Dying{a.id}) : Event(Detach{a.id}));
    EXPECT_EQ(node.dropped, expected);
    EXPECT_EQ(node.controller->status(node.now).counters.copy_failures, 0u);
    node.finish_all();
    EXPECT_EQ(node.controller->status(node.now).counters.copy_failures, 0u) << "nothing is wrong";
    EXPECT_EQ(b.state(), State::kDone);
    EXPECT_TRUE(node.holds(b.region, 3, 1));
    EXPECT_EQ(b.leading({2}), 0u);
    EXPECT_EQ(b.leading({3}), dies ? 0u : 1u);
  }
}

TEST(ControllerCaches, WhatIsStoredAgainAfterADropIsFound) {
  ByteNode node;
  Placer a(node), b(node);
  (void)a.store({1, 2});
  (void)a.ask(Op::kDrop, {1, 2});
  (void)b.store({2});
  node.finish(0);
  EXPECT_EQ(b.leading({2}), 0u);
  node.finish_all();
  EXPECT_EQ(b.leading({2}), 1u);
  EXPECT_EQ(b.leading({1}), 0u);
  (void)b.store({1});
  node.finish_all();
  EXPECT_EQ(b.leading({1}), 1u) << "a drop is for what is under way alone";
}

// The region has four blocks. 16 of them may be under way.
TEST(ControllerCaches, FourTimesTheRegionsBytesAreUnderWayAtMost) {
  ByteNode node;
  Placer a(node), b(node);
  (void)a.store({1, 2, 3, 4});
  node.finish_all();
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(ByteNode::code(a.ask(Op::kLoad, {1, 2, 3, 4}, {0, 1, 2, 3})), ErrorCode::kOk);
  }
  const auto refused = a.ask(Op::kLoad, {1}, {0});
  EXPECT_EQ(ByteNode::code(refused), ErrorCode::kWouldBlock);
  EXPECT_THAT(std::get<Error>(refused->body).message, HasSubstr("wait for some of them"));
  EXPECT_EQ(ByteNode::code(b.ask(Op::kLoad, {1}, {0})), ErrorCode::kOk) << "others are others";
  node.finish(0);
  EXPECT_EQ(ByteNode::code(a.ask(Op::kLoad, {1, 2, 3, 4}, {0, 1, 2, 3})), ErrorCode::kOk);
  node.finish_all();
  EXPECT_EQ(ByteNode::code(a.store({5, 6, 7, 8})), ErrorCode::kOk);
}

TEST(ControllerCaches, ARegionFreedWhileItIsStoredIsReadToTheEnd) {
  ByteNode node(1);
  Placer a(node);
  (void)a.store({1});
  EXPECT_EQ(ByteNode::code(node.command(a.id, ReleaseRegion{a.region.id})), ErrorCode::kOk);
  node.scrub_all();  // would be its zeroing, were it free
  node.finish_all();
  const auto again = node.lease(a.id, 1);
  ASSERT_TRUE(again.has_value());
  const CacheId cache(ByteNode::value(node.command(a.id, ByteNode::over(*again))));
  CacheBlocks load{cache, Op::kLoad, false, 99, {ByteNode::digest(1)}, {0}};
  ASSERT_EQ(ByteNode::code(node.command(a.id, load)), ErrorCode::kOk);
  node.finish_all();
  EXPECT_TRUE(node.holds(*again, 0, 1));
}

TEST(ControllerCaches, TheDomainsQuotaOfDramBoundsWhatIsParked) {
  ByteNode node(8, 4, {{DomainId(1), {Bytes(0), Bytes(2 * ByteNode::kSlab)}}});
  Placer a(node);
  (void)a.store({0, 1, 2, 3}, true);
  (void)a.store({4, 5, 6, 7}, true);
  node.finish_all();
  EXPECT_NE(ByteNode::code(a.store({8}, true)), ErrorCode::kOk);
  Placer other(node, DomainId(2));
  EXPECT_EQ(ByteNode::code(other.store({8, 9}, true)), ErrorCode::kOk);
}

TEST(ControllerCaches, PlacesOfTicketsThatAreNotOverAreTaken) {
  ByteNode node;
  Placer a(node);
  (void)a.store({1});
  a.ticket = 256;  // the next is 257, whose place is that of 1
  EXPECT_EQ(ByteNode::code(a.store({2})), ErrorCode::kWouldBlock);
  node.finish_all();
  a.ticket = 512;
  EXPECT_EQ(ByteNode::code(a.store({2})), ErrorCode::kOk);
}

TEST(ControllerCaches, WhatCannotBeIsRefused) {
  ByteNode node;
  Placer a(node);
  const auto opened = [&](const OpenCache& open) {
    return ByteNode::code(node.command(a.id, open));
  };
  OpenCache open = ByteNode::over(a.region);
  EXPECT_EQ(opened(open), ErrorCode::kOk);
  open.region = RegionId(99);
  EXPECT_EQ(opened(open), ErrorCode::kNotFound);
  open = ByteNode::over(a.region);
  open.pieces[1].offset += Bytes(1);
  EXPECT_EQ(opened(open), ErrorCode::kInvalidArgument) << "a byte beyond the region";
  open = ByteNode::over(a.region);
  open.pieces[0].stride = Bytes(INT64_MAX / 2);
  EXPECT_EQ(opened(open), ErrorCode::kInvalidArgument) << "no overflow";
  open = ByteNode::over(a.region);
  open.block_bytes += Bytes(1);
  EXPECT_EQ(opened(open), ErrorCode::kInvalidArgument) << "pieces that do not add up";
  open = ByteNode::nowhere();
  open.block_bytes = Bytes(ByteNode::kSlab + 1);
  EXPECT_EQ(opened(open), ErrorCode::kInvalidArgument) << "no slab has room for it";
  EXPECT_EQ(ByteNode::code(a.ask(Op::kStore, {1}, {4})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ByteNode::code(a.ask(Op::kStore, {1, 2}, {0})), ErrorCode::kInvalidArgument);
  (void)a.store({1, 2});
  node.finish_all();
  EXPECT_EQ(ByteNode::code(a.ask(Op::kLoad, {1, 2}, {0, 0})), ErrorCode::kInvalidArgument);
  const EngineId other = node.attach();
  EXPECT_EQ(
      ByteNode::code(node.command(other, CacheBlocks{a.cache, Op::kLookup, false, 0, {}, {}})),
      ErrorCode::kNotFound)
      << "another session's";
  EXPECT_EQ(ByteNode::code(node.command(a.id, CloseCache{a.cache})), ErrorCode::kOk);
  EXPECT_EQ(ByteNode::code(a.ask(Op::kLookup, {1})), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace kvd::test
