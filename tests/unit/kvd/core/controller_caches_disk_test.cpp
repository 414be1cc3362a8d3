// Blocks that engines store themselves, on disk: written when they were asked for again, found and
// loaded when only the disk has them.
#include <gtest/gtest.h>
#include <malloc.h>

#include "tests/unit/kvd/core/placer.hpp"

namespace kvd::test {
namespace {

using Op = CacheBlocks::Op;
using State = SetTicket::State;
using Seeds = std::vector<std::uint32_t>;

core::DiskConfig on_disk(std::uint32_t touches = 2) {
  core::DiskConfig config;
  config.name = plain_disk_name;
  config.admission.least = touches;
  return config;
}

/// DRAM has 16 blocks, of which reads may fill 4 at a time.
class CachesOnDisk : public testing::Test {
 protected:
  explicit CachesOnDisk(std::uint32_t touches = 2) : node(8, 4, {}, on_disk(touches)) {}

  /// The blocks are stored, and asked for once more. Then everything cached in DRAM makes way for
  /// blocks that are parked a while.
  void leave_on_disk(Placer& engine, const Seeds& seeds) {
    node.finish_disk();  // its files are opened
    (void)engine.store(seeds);
    node.finish_all();
    (void)engine.store(seeds);
    node.finish_disk();
    Seeds parked;
    for (std::uint32_t seed = 1000; seed < 1016; seed += 4) {
      const Seeds four{seed, seed + 1, seed + 2, seed + 3};
      parked.insert(parked.end(), four.begin(), four.end());
      ASSERT_EQ(ByteNode::code(engine.store(four, true)), ErrorCode::kOk);
      node.finish_all();
    }
    (void)engine.ask(Op::kDrop, parked);
    node.finish_all();
    const auto status = node.controller->status(node.now);
    ASSERT_EQ(status.tiers[1].free, status.tiers[1].capacity);
  }
  /// All requests have ended: everything that is left is cached.
  void expect_no_leak() {
    node.finish_disk();
    node.finish_all();
    node.feed(ClearCache{});
    node.scrub_all();
    const auto status = node.controller->status(node.now);
    EXPECT_EQ(status.tiers[1].free, status.tiers[1].capacity);
  }

  ByteNode node;
};

TEST_F(CachesOnDisk, WhatOnlyTheDiskHasIsFoundAndLoaded) {
  Placer a(node);
  leave_on_disk(a, {1, 2, 3});
  Placer b(node);
  EXPECT_EQ(b.leading({1, 2, 3, 4}), 3u);
  ASSERT_EQ(ByteNode::code(b.ask(Op::kLoad, {1, 3}, {2, 0})), ErrorCode::kOk);
  EXPECT_EQ(b.state(), State::kPending);
  EXPECT_TRUE(node.copies.empty()) << "nothing is there to be copied yet";
  node.finish_disk();
  EXPECT_EQ(b.state(), State::kPending);
  EXPECT_FALSE(node.holds(b.region, 2, 1)) << "the control: it is not there by itself";
  node.finish_all();
  EXPECT_EQ(b.state(), State::kDone);
  EXPECT_TRUE(node.holds(b.region, 2, 1));
  EXPECT_TRUE(node.holds(b.region, 0, 3));
  EXPECT_EQ(node.disk.wrong, 0u);
  expect_no_leak();
}

TEST_F(CachesOnDisk, WhatDramHasOfThemIsCopiedMeanwhile) {
  Placer a(node);
  leave_on_disk(a, {1, 2});
  (void)a.store({7});
  node.finish_all();
  EXPECT_EQ(a.leading({7, 1, 2}), 3u);
  ASSERT_EQ(ByteNode::code(a.ask(Op::kLoad, {7, 1, 2}, {3, 1, 2})), ErrorCode::kOk);
  ASSERT_EQ(node.copies.size(), 1u);
  node.finish_all();
  EXPECT_EQ(a.state(), State::kPending);
  EXPECT_TRUE(node.holds(a.region, 3, 7));
  node.finish_disk();
  node.finish_all();
  EXPECT_EQ(a.state(), State::kDone);
  EXPECT_TRUE(node.holds(a.region, 2, 2));
  expect_no_leak();
}

TEST_F(CachesOnDisk, MoreThanDramTakesAtOnceComesPartByPart) {
  Placer a(node, DomainId(1), 2);
  leave_on_disk(a, {1, 2, 3, 4, 5, 6, 7});
  ASSERT_EQ(a.leading({1, 2, 3, 4, 5, 6, 7}), 7u);
  ASSERT_EQ(ByteNode::code(a.ask(Op::kLoad, {1, 2, 3, 4, 5, 6, 7}, {1, 2, 3, 4, 5, 6, 7})),
            ErrorCode::kOk);
  EXPECT_EQ(node.disk.under_way(), 4u) << "a quarter of DRAM";
  node.finish_disk([](std::size_t) { return 0u; }, 4);
  EXPECT_EQ(node.disk.under_way(), 3u);
  node.finish_all();
  EXPECT_EQ(a.state(), State::kPending);
  node.finish_disk();
  node.finish_all();
  EXPECT_EQ(a.state(), State::kDone);
  for (std::uint32_t i = 1; i <= 7; ++i) EXPECT_TRUE(node.holds(a.region, i, i)) << i;
  expect_no_leak();
}

TEST_F(CachesOnDisk, WhatIsPrefetchedComesAndIsRetained) {
  Placer a(node, DomainId(1), 2);
  leave_on_disk(a, {1, 2, 3, 4, 5});
  (void)a.store({7});
  node.finish_all();
  EXPECT_EQ(ByteNode::value(a.hint(Op::kPrefetch, {7, 1, 1, 2, 3, 4, 5, 6}, 60)), 5u);
  EXPECT_EQ(node.disk.under_way(), 4u) << "a quarter of DRAM";
  node.finish_disk();
  node.finish_disk();
  const auto status = node.controller->status(node.now);
  EXPECT_EQ(status.retained.bytes, Bytes(6 * ByteNode::kBlock));
  EXPECT_EQ(status.retained.prefetched_bytes, std::uint64_t{5 * ByteNode::kBlock});
  EXPECT_TRUE(node.copies.empty()) << "nobody loads it";
  ASSERT_EQ(ByteNode::code(a.ask(Op::kLoad, {7, 1, 5}, {0, 1, 2})), ErrorCode::kOk);
  node.finish_all();
  EXPECT_EQ(a.state(), State::kDone) << "without the disk";
  EXPECT_TRUE(node.holds(a.region, 2, 5));
  node.now += std::chrono::seconds(61);
  node.feed(Tick{});
  EXPECT_EQ(node.controller->status(node.now).retained.bytes, Bytes(0));
  expect_no_leak();
}

TEST_F(CachesOnDisk, APrefetchRetainsForLongerWhatIsThereAndEndsWithALaterHint) {
  Placer a(node, DomainId(1), 2), b(node);
  leave_on_disk(a, {1, 2, 3});
  (void)a.store({7});
  node.finish_all();
  const auto retained = [&] { return node.controller->status(node.now).retained.bytes; };
  EXPECT_EQ(a.retain({7}, 5), 1u);
  ASSERT_EQ(ByteNode::code(b.ask(Op::kLoad, {1}, {0})), ErrorCode::kOk);  // it reads first
  EXPECT_EQ(ByteNode::value(a.hint(Op::kPrefetch, {7, 2, 3}, 60)), 2u);
  node.now += std::chrono::seconds(6);
  node.feed(Tick{});
  EXPECT_EQ(retained(), Bytes(ByteNode::kBlock)) << "for 60 s";
  for (const Op last : {Op::kDemote, Op::kUnpin, Op::kRetain}) {
    (void)a.hint(last, {7, 2, 3});
    EXPECT_EQ(retained(), Bytes(0));
    if (last == Op::kRetain) break;
    EXPECT_EQ(ByteNode::value(a.hint(Op::kPrefetch, {7, 2, 3}, 60)), 2u);
  }
  node.finish_disk();
  node.finish_all();
  EXPECT_EQ(node.disk.under_way(), 0u) << "nobody wants it any more";
  EXPECT_EQ(retained(), Bytes(0));
  expect_no_leak();
}

TEST_F(CachesOnDisk, APrefetchTakesNothingFromOtherDomains) {
  Placer a(node, DomainId(1), 2);
  leave_on_disk(a, {1, 2, 3, 4});
  (void)a.ask(Op::kDrop, {500});
  Placer other(node, DomainId(2));
  std::vector<std::uint32_t> all;
  for (std::uint32_t seed = 100; seed < 116; seed += 4) {
    (void)other.store({seed, seed + 1, seed + 2, seed + 3});
    node.finish_all();
  }
  for (std::uint32_t seed = 100; seed < 116; ++seed) all.push_back(seed);
  const std::uint64_t before = other.leading(all);
  (void)a.hint(Op::kPrefetch, {1, 2, 3, 4}, 60);
  node.finish_disk();
  EXPECT_EQ(other.leading(all), before);
  expect_no_leak();
}

TEST_F(CachesOnDisk, APrefetchBeginsOnceNobodyElseReads) {
  Placer a(node), b(node);
  leave_on_disk(a, {1, 2, 3});
  ASSERT_EQ(ByteNode::code(b.ask(Op::kLoad, {1}, {0})), ErrorCode::kOk);
  EXPECT_EQ(node.disk.under_way(), 1u);
  EXPECT_EQ(ByteNode::value(a.hint(Op::kPrefetch, {2, 3}, 60)), 2u);
  EXPECT_EQ(node.disk.under_way(), 1u);
  node.finish_disk([](std::size_t) { return 0u; }, 1);
  EXPECT_EQ(node.disk.under_way(), 2u);
  ASSERT_EQ(ByteNode::code(b.ask(Op::kLoad, {2}, {1})), ErrorCode::kOk);
  EXPECT_EQ(node.disk.under_way(), 2u) << "the load waits for the same read";
  node.finish_disk();
  node.finish_all();
  EXPECT_EQ(b.state(), State::kDone);
  EXPECT_TRUE(node.holds(b.region, 1, 2));
  expect_no_leak();
}

TEST_F(CachesOnDisk, APrefetchIsBoundedByTheShareAndPushesOutNothingRetained) {
  Placer a(node, DomainId(1), 2);
  leave_on_disk(a, {1, 2, 3, 4, 5});
  for (std::uint32_t seed = 100; seed < 108; seed += 4) {
    (void)a.store({seed, seed + 1, seed + 2, seed + 3});
    node.finish_all();
  }
  EXPECT_EQ(ByteNode::value(a.hint(Op::kPin, {100, 101, 102, 103, 104, 105})), 6u);
  EXPECT_EQ(ByteNode::value(a.hint(Op::kPrefetch, {1, 2, 3, 4, 5}, 60)), 2u) << "half of 16";
  node.finish_disk();
  EXPECT_EQ(ByteNode::code(a.hint(Op::kPrefetch, {3, 4, 5}, 60)), ErrorCode::kQuotaExceeded);
  EXPECT_EQ(node.controller->status(node.now).retained.bytes, Bytes(8 * ByteNode::kBlock));
  EXPECT_EQ(a.retain({1, 2}, 0), 0u);
  // All that may make way is pinned, and the rest is parked.
  for (std::uint32_t seed = 200; seed < 210; ++seed) {
    ASSERT_EQ(ByteNode::code(a.store({seed}, true)), ErrorCode::kOk);
    node.finish_all();
  }
  (void)a.hint(Op::kPrefetch, {1, 2}, 60);
  node.finish_disk();
  EXPECT_EQ(a.leading({100, 101, 102, 103, 104, 105}), 6u);
  EXPECT_EQ(node.controller->status(node.now).retained.evicted_bytes, 0u);
}

TEST_F(CachesOnDisk, APrefetchEndsWithItsTimeItsSessionAndWhatCannotBeRead) {
  Placer a(node, DomainId(1), 2);
  leave_on_disk(a, {1, 2, 3, 4, 5});
  const auto prefetched = [&] {
    return node.controller->status(node.now).retained.prefetched_bytes;
  };
  EXPECT_EQ(ByteNode::value(a.hint(Op::kPrefetch, {1, 2, 3, 4, 5}, 60)), 5u);
  node.feed(Detach{a.id});
  node.finish_disk();
  EXPECT_EQ(prefetched(), 0u);
  node.scrub_all();
  Placer b(node);
  EXPECT_EQ(b.leading({1, 2, 3, 4}), 4u) << "what was under way is cached";
  (void)b.ask(Op::kDrop, {1});
  EXPECT_EQ(ByteNode::value(b.hint(Op::kPrefetch, {5}, 60)), 1u);
  node.disk.fail_reads = 1;
  node.finish_disk();
  EXPECT_EQ(prefetched(), 0u);
  EXPECT_EQ(b.leading({5}), 0u) << "a miss";
  EXPECT_EQ(ByteNode::value(b.hint(Op::kPrefetch, {1, 2}, 60)), 0u) << "nothing finds the second";
  expect_no_leak();
}

TEST_F(CachesOnDisk, NoMoreThanSoManyBlocksWaitToBePrefetched) {
  Placer a(node);
  leave_on_disk(a, {1, 2, 3});
  ASSERT_EQ(ByteNode::code(a.ask(Op::kLoad, {1}, {0})), ErrorCode::kOk);
  ErrorCode code = ErrorCode::kOk;
  int taken = 0;
  for (; taken < 20000 && code == ErrorCode::kOk; ++taken) {
    code = ByteNode::code(a.hint(Op::kPrefetch, {2, 3}, 60));
  }
  EXPECT_EQ(code, ErrorCode::kWouldBlock);
  EXPECT_EQ(taken, 8193);
  node.finish_disk();
  node.finish_all();
  expect_no_leak();
}

TEST_F(CachesOnDisk, WhatIsDemotedIsWrittenThoughItWasAskedForOnce) {
  Placer a(node);
  node.finish_disk();
  (void)a.store({1, 2, 3});
  node.finish_all();
  EXPECT_EQ(node.disk.under_way(), 0u);
  EXPECT_EQ(ByteNode::value(a.hint(Op::kDemote, {1, 2})), 2u);
  EXPECT_EQ(node.disk.under_way(), 2u);
  node.finish_disk();
  for (std::uint32_t seed = 100; seed < 116; seed += 4) {
    (void)a.store({seed, seed + 1, seed + 2, seed + 3});
    node.finish_all();
  }
  EXPECT_EQ(a.leading({3}), 0u);
  EXPECT_EQ(a.leading({1, 2}), 2u) << "the disk has it";
}

TEST_F(CachesOnDisk, TwoThatAskForTheSameReadItOnce) {
  Placer a(node);
  leave_on_disk(a, {1, 2});
  Placer b(node);
  ASSERT_EQ(ByteNode::code(a.ask(Op::kLoad, {1, 2}, {0, 1})), ErrorCode::kOk);
  ASSERT_EQ(ByteNode::code(b.ask(Op::kLoad, {2, 1}, {0, 1})), ErrorCode::kOk);
  EXPECT_EQ(node.disk.under_way(), 2u);
  node.finish_disk();
  node.finish_all();
  EXPECT_EQ(a.state(), State::kDone);
  EXPECT_EQ(b.state(), State::kDone);
  EXPECT_TRUE(node.holds(a.region, 1, 2));
  EXPECT_TRUE(node.holds(b.region, 1, 1));
  expect_no_leak();
}

TEST_F(CachesOnDisk, AReadThatFailsFailsTheLoadAndIsAMissFromThenOn) {
  Placer a(node);
  leave_on_disk(a, {1, 2});
  ASSERT_EQ(ByteNode::code(a.ask(Op::kLoad, {1, 2}, {0, 1})), ErrorCode::kOk);
  node.disk.fail_reads = 1;
  node.finish_disk();
  EXPECT_EQ(a.state(), State::kFailed);
  EXPECT_TRUE(node.copies.empty());
  EXPECT_EQ(a.leading({1}), 0u);
  EXPECT_EQ(ByteNode::code(a.ask(Op::kLoad, {1}, {0})), ErrorCode::kNotFound);
  expect_no_leak();
}

TEST_F(CachesOnDisk, WhatIsLateIsNotReadOnceMore) {
  Placer a(node);
  leave_on_disk(a, {1});
  ASSERT_EQ(ByteNode::code(a.ask(Op::kLoad, {1}, {0})), ErrorCode::kOk);
  node.disk.fail_reads = 1;
  node.disk.fail_late = true;
  node.finish_disk([](std::size_t) { return 0u; }, 1);
  EXPECT_EQ(a.state(), State::kFailed) << "it is computed in that time";
  EXPECT_EQ(node.disk.under_way(), 0u);
  EXPECT_EQ(a.leading({1}), 1u) << "it is still there for the next one";
}

TEST_F(CachesOnDisk, WhoWaitsForAnothersReadWaitsForThatOne) {
  Placer a(node), b(node), c(node);
  leave_on_disk(a, {1, 2});
  ASSERT_EQ(ByteNode::code(a.ask(Op::kLoad, {1}, {0})), ErrorCode::kOk);
  ASSERT_EQ(ByteNode::code(b.ask(Op::kLoad, {2}, {0})), ErrorCode::kOk);
  ASSERT_EQ(ByteNode::code(c.ask(Op::kLoad, {2}, {0})), ErrorCode::kOk);
  node.finish_disk([](std::size_t) { return 0u; }, 1);
  node.finish_all();
  EXPECT_EQ(a.state(), State::kDone);
  EXPECT_EQ(c.state(), State::kPending);
  node.finish_disk();
  node.finish_all();
  EXPECT_EQ(c.state(), State::kDone);
  EXPECT_TRUE(node.holds(c.region, 0, 2));
}

TEST_F(CachesOnDisk, ForAnEngineThatHasGoneNothingMoreIsRead) {
  Placer a(node, DomainId(1), 2);
  leave_on_disk(a, {1, 2, 3, 4, 5, 6, 7});
  ASSERT_EQ(ByteNode::code(a.ask(Op::kLoad, {1, 2, 3, 4, 5, 6, 7}, {1, 2, 3, 4, 5, 6, 7})),
            ErrorCode::kOk);
  node.feed(Dying{a.id});
  node.feed(Dead{a.id});
  EXPECT_EQ(node.disk.under_way(), 4u);
  node.finish_disk([](std::size_t) { return 0u; }, 4);
  EXPECT_EQ(node.disk.under_way(), 0u);
  expect_no_leak();
}

TEST_F(CachesOnDisk, AnEngineThatGoesLeavesNothingOpen) {
  Placer a(node);
  leave_on_disk(a, {1, 2});
  Placer b(node);
  ASSERT_EQ(ByteNode::code(b.ask(Op::kLoad, {1, 2}, {0, 1})), ErrorCode::kOk);
  node.feed(Dying{b.id});
  node.feed(Dead{b.id});
  node.finish_disk();
  node.finish_all();
  node.renew_all();
  EXPECT_EQ(a.leading({1, 2}), 2u) << "it came to DRAM all the same";
  node.feed(Detach{a.id});
  expect_no_leak();
  const auto status = node.controller->status(node.now);
  EXPECT_EQ(status.tiers[0].free, status.tiers[0].capacity);
}

// While memory is being read into, another domain's blocks must not get it.
TEST_F(CachesOnDisk, ARegionThatIsFreedUnderALoadIsNobodysUntilThatHasEnded) {
  Placer a(node);
  leave_on_disk(a, {1, 2});
  ASSERT_EQ(ByteNode::code(a.ask(Op::kLoad, {1, 2}, {0, 1})), ErrorCode::kOk);
  node.release(a.id, a.region);
  const auto free = [&] { return node.controller->status(node.now).tiers[0].free; };
  const auto capacity = node.controller->status(node.now).tiers[0].capacity;
  EXPECT_LT(free(), capacity);
  node.finish_disk();
  node.finish_all();
  node.renew_all();
  EXPECT_EQ(free(), capacity);
  expect_no_leak();
}

TEST_F(CachesOnDisk, WhatWasDroppedIsNotFound) {
  Placer a(node);
  leave_on_disk(a, {1, 2});
  (void)a.ask(Op::kDrop, {1});
  EXPECT_EQ(a.leading({1, 2}), 0u);
  EXPECT_EQ(a.leading({2}), 1u);
  expect_no_leak();
}

TEST_F(CachesOnDisk, WhatIsDroppedWhileItIsReadIsNotFoundWhenItHasCome) {
  Placer a(node);
  leave_on_disk(a, {1, 2});
  ASSERT_EQ(ByteNode::code(a.ask(Op::kLoad, {1, 2}, {0, 1})), ErrorCode::kOk);
  (void)a.ask(Op::kDrop, {2});
  node.finish_disk();
  node.finish_all();
  EXPECT_EQ(a.leading({2}), 0u);
  EXPECT_EQ(a.leading({1}), 1u) << "the control";
  EXPECT_EQ(a.state(), State::kFailed) << "a part of it is not there any more";
  expect_no_leak();
}

TEST_F(CachesOnDisk, AnotherDomainFindsNothing) {
  Placer a(node);
  leave_on_disk(a, {1});
  Placer stranger(node, DomainId(2));
  EXPECT_EQ(stranger.leading({1}), 0u);
  EXPECT_EQ(ByteNode::code(stranger.ask(Op::kLoad, {1}, {0})), ErrorCode::kNotFound);
}

TEST_F(CachesOnDisk, IsNotLookedForWhereLoadingIsNotWanted) {
  Placer a(node);
  leave_on_disk(a, {1});
  ASSERT_EQ(a.leading({1}), 1u);
  Tuning tuning = node.controller->tuning();
  tuning.load.policy = "never";
  node.feed(Retune{tuning});
  EXPECT_EQ(ByteNode::value(a.hint(Op::kPrefetch, {1, 2, 3}, 60)), 0u);
  EXPECT_EQ(node.disk.under_way(), 0u);
  EXPECT_EQ(a.leading({1}), 0u);
}

/// Names that engines tell and give up again are forgotten: the heap does not grow.
class CachesOnDiskForLong : public CachesOnDisk {
 protected:
  static constexpr std::size_t kFew = std::size_t{128} << 10;

  static std::size_t heap() {
    const auto info = mallinfo2();
    return info.uordblks + info.hblkhd;
  }
  /// A cache is opened, looked into and closed again.
  void look_into(EngineId engine, std::uint32_t model, std::int64_t bytes) {
    OpenCache open = ByteNode::nowhere();
    open.fingerprint = {ByteNode::digest(model)};
    open.block_bytes = Bytes(bytes);
    const CacheId cache(ByteNode::value(node.command(engine, open)));
    CacheBlocks asked{cache, Op::kLookup, false, 0, {ByteNode::digest(1)}, {}};
    EXPECT_EQ(ByteNode::value(node.command(engine, asked)), 0u);
    EXPECT_EQ(ByteNode::code(node.command(engine, CloseCache{cache})), ErrorCode::kOk);
  }
  void tick() {
    node.now += std::chrono::milliseconds(50);
    node.feed(Tick{});
    node.finish_disk();
  }
};

TEST_F(CachesOnDiskForLong, ShapesThatCloseAndComeAgain) {
  Placer engine(node);
  const auto all_shapes = [&] {
    for (std::int64_t i = 0; i < 200; ++i) look_into(engine.id, 1, ByteNode::kBlock + 16 * i);
    tick();
  };
  for (int i = 0; i < 4; ++i) all_shapes();
  const std::size_t before = heap();
  for (int i = 0; i < 50; ++i) all_shapes();
  EXPECT_LT(heap(), before + kFew);
}

TEST_F(CachesOnDiskForLong, ModelsThatAreNeverSeenAgain) {
  Placer engine(node);
  std::uint32_t model = 0;
  const auto some_models = [&](int count) {
    for (int i = 0; i < count; ++i) look_into(engine.id, ++model, ByteNode::kBlock);
    tick();
  };
  some_models(100);
  const std::size_t before = heap();
  for (int i = 0; i < 20; ++i) some_models(100);
  EXPECT_LT(heap(), before + kFew);
}

TEST_F(CachesOnDiskForLong, SessionsOfDomainsThatAreNeverSeenAgain) {
  std::uint32_t last = 1;
  const auto some_domains = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const EngineId engine = node.attach(DomainId(++last));
      look_into(engine, 1, ByteNode::kBlock);
      node.feed(Dying{engine, false});
      node.feed(Dead{engine});
    }
    node.now += std::chrono::minutes(2);
    tick();
  };
  some_domains(64);
  some_domains(64);
  const std::size_t before = heap();
  for (int i = 0; i < 80; ++i)
    some_domains(64);  // with an entry for each domain it would be four times as much
  EXPECT_LT(heap(), before + kFew);
}

TEST_F(CachesOnDiskForLong, TheSameBlocksWhileTheirFilesAreNotOpen) {
  Placer engine(node);
  const auto known = [&](int times) {
    for (int i = 0; i < times; ++i) (void)engine.store({1, 2, 3});
    node.finish_all();
  };
  known(4);
  const std::size_t before = heap();
  for (int i = 0; i < 20; ++i) known(100);
  EXPECT_LT(heap(), before + kFew);
}

/// Each block is worth a write.
class CachesAllOnDisk : public CachesOnDisk {
 protected:
  CachesAllOnDisk() : CachesOnDisk(1) {}
};

TEST_F(CachesAllOnDisk, ButWhatIsParked) {
  Placer a(node);
  node.finish_disk();
  (void)a.store({1}, true);
  node.finish_all();
  EXPECT_EQ(node.disk.under_way(), 0u);
  ASSERT_EQ(ByteNode::code(a.ask(Op::kLoad, {1}, {1})), ErrorCode::kOk);
  EXPECT_EQ(node.disk.under_way(), 0u);
  node.finish_all();
  (void)a.store({2});
  node.finish_all();
  EXPECT_EQ(node.disk.under_way(), 1u) << "the control";
}

TEST_F(CachesOnDisk, ALookupThatAwaitsTheirFilesIsAskedAgainForAWhile) {
  Placer engine(node);
  const auto look = [&](bool await) {
    CacheBlocks asked{engine.cache, Op::kLookup, false, 0, {}, {}, await};
    asked.digests.push_back(ByteNode::digest(1));
    return node.command(engine.id, asked);
  };
  EXPECT_EQ(ByteNode::code(look(true)), ErrorCode::kWouldBlock);
  EXPECT_EQ(ByteNode::value(look(false)), 0u) << "whoever does not wait is told what is known";
  node.now += std::chrono::seconds(2);
  EXPECT_EQ(ByteNode::value(look(true)), 0u) << "opening them takes too long";
}

TEST_F(CachesOnDisk, ALookupAwaitsNoFilesThatAreOpen) {
  Placer engine(node);
  node.finish_disk();
  CacheBlocks asked{engine.cache, Op::kLookup, false, 0, {}, {}, true};
  asked.digests.push_back(ByteNode::digest(1));
  EXPECT_EQ(ByteNode::value(node.command(engine.id, asked)), 0u);
}

/// Remote servers that nodes share, and no disk.
class CachesOnServers : public testing::Test {
 protected:
  CachesOnServers() : node(8, 4, {}, {}, servers()), engine(node) {}
  static core::RemoteConfig servers() {
    core::RemoteConfig config;
    config.name = plain_disk_name;
    return config;
  }
  std::optional<Reply> look(bool await) {
    CacheBlocks asked{engine.cache, Op::kLookup, false, 0, {}, {}, await};
    for (const std::uint32_t seed : {1u, 2u, 3u}) asked.digests.push_back(ByteNode::digest(seed));
    return node.command(engine.id, asked);
  }
  void answer(const std::vector<bool>& there) {
    ASSERT_EQ(node.finds.size(), 1u);
    node.feed(RemoteFound{node.finds[0].ticket, there});
    node.finds.clear();
  }
  ByteNode node;
  Placer engine;
};

TEST_F(CachesOnServers, ALookupThatAwaitsThemIsAskedAgainUntilTheyHaveAnswered) {
  EXPECT_EQ(ByteNode::code(look(true)), ErrorCode::kWouldBlock);
  EXPECT_EQ(ByteNode::value(look(false)), 0u) << "whoever does not wait is told what is known";
  EXPECT_EQ(ByteNode::code(look(true)), ErrorCode::kWouldBlock);
  answer({true, true, false});
  EXPECT_EQ(ByteNode::value(look(true)), 2u);
  EXPECT_TRUE(node.finds.empty()) << "it was asked";
}

TEST_F(CachesOnServers, ALookupAwaitsThemForATwentiethOfTheTimeOfComputing) {
  EXPECT_EQ(ByteNode::code(look(true)), ErrorCode::kWouldBlock);
  node.now += std::chrono::microseconds(50 * 3 * 16 - 1);  // tokens of a millisecond each
  EXPECT_EQ(ByteNode::code(look(true)), ErrorCode::kWouldBlock);
  node.now += std::chrono::microseconds(2);
  EXPECT_EQ(ByteNode::value(look(true)), 0u);
}

}  // namespace
}  // namespace kvd::test
