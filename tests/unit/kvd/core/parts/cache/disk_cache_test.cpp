// Cached blocks that go to disk and come back.
#include "kvd/core/cache/disk_cache.hpp"

#include <vector>

#include "tests/unit/kvd/core/parts/cache/disk_fixture.hpp"

namespace kvd::core {
namespace {

class DiskCacheTest : public DiskFixture {
 protected:
  using DiskFixture::DiskFixture;

  std::size_t opens_seen = 0;
};

TEST_F(DiskCacheTest, FilesAreOpenedOnceAClass) {
  Session& session = attach();
  tell(submit(session, 9, 8), 7);
  tell(submit(session, 9, 8), 7);
  tell(submit(attach(kB), 9, 8), 7);
  EXPECT_EQ(emitted<OpenDisk>().size(), 1u);
  tell(submit(session, 9, 8), 7, Fingerprint{Digest{{2}}});
  const auto opened = emitted<OpenDisk>();
  ASSERT_EQ(opened.size(), 2u);
  EXPECT_EQ(opened[0].shape.groups, 2u);
  EXPECT_EQ(opened[0].shape.slot_bytes, kSlot);
  EXPECT_NE(opened[0].disk, opened[1].disk);
}

TEST_F(DiskCacheTest, EnginesCannotOpenAnyNumber) {
  Session& session = attach();
  for (std::uint8_t model = 1; model < 20; ++model) {
    tell(submit(session, 9, 8), 7, Fingerprint{Digest{{model}}});
  }
  EXPECT_EQ(emitted<OpenDisk>().size(), 16u);
  for (const OpenDisk& order : emitted<OpenDisk>())
    EXPECT_FALSE(order.make) << "nothing is written";
}

TEST_F(DiskCacheTest, WhereThereAreNoFilesTheyAreMadeForTheFirstBlock) {
  Session& session = attach();
  leave_in_dram(session, 8, 7);
  disk.on_opened({DiskId(1), 0, DiskOpened::Lack::kMade, Bytes(0), Bytes(0)});
  ASSERT_EQ(emitted<OpenDisk>().size(), 1u);
  leave_touched(session, 8, 7);
  EXPECT_TRUE(written().empty());
  ASSERT_EQ(emitted<OpenDisk>().size(), 2u);
  EXPECT_TRUE(emitted<OpenDisk>().back().make);
  open();
  const auto orders = written();
  EXPECT_EQ(orders.size(), 2u) << "what waited for them";
  finish(orders);
}

TEST_F(DiskCacheTest, WhatCouldNotBeOpenedIsTriedAgain) {
  Session& session = attach();
  tell(submit(session, 9, 8), 7);
  for (const int pause : {1, 2, 4}) {
    const std::size_t tried = emitted<OpenDisk>().size();
    disk.on_opened({DiskId(1), 0});
    ASSERT_EQ(disk.models().size(), 1u);
    EXPECT_EQ(disk.models()[0].state, "refused");
    (void)disk.expire();
    EXPECT_EQ(emitted<OpenDisk>().size(), tried);
    pass(std::chrono::seconds(pause));
    (void)disk.expire();
    EXPECT_EQ(emitted<OpenDisk>().size(), tried + 1);
  }
  open();
  EXPECT_EQ(disk.models()[0].state, "open");
}

TEST_F(DiskCacheTest, ADiskThatIsThereLaterIsUsedFromThenOn) {
  ground.context.config.disk.name = nullptr;
  ground.context.config.disk.awaited = true;
  Session& session = attach();
  leave_touched(session, 8, 7);
  EXPECT_TRUE(emitted<OpenDisk>().empty());
  disk.classes().on_named({test::plain_disk_name});
  EXPECT_EQ(emitted<OpenDisk>().size(), 1u);
  open();
  leave_touched(session, 8, 7);
  finish(written());
  EXPECT_EQ(disk.bytes(), kSlot * 4);
}

TEST_F(DiskCacheTest, WhatWasAskedForAgainIsWritten) {
  Session& session = attach();
  leave_in_dram(session, 8, 7);
  open();
  EXPECT_TRUE(written().empty()) << "most is never asked for again";
  leave_touched(session, 8, 7);
  const auto orders = written();
  ASSERT_EQ(orders.size(), 2u);
  EXPECT_EQ(orders[0].block.dram.size(), 2u) << "each layer group";
  EXPECT_NE(orders[0].block.name, orders[1].block.name);
  EXPECT_NE(orders[0].block.name, digest(7, 0)) << "it has another name outside";
  finish(orders);
  EXPECT_EQ(disk.bytes(), kSlot * 4);
  EXPECT_EQ(ground.context.counters.prefixes.lower[kDiskTier].stores, 2u);
  leave_touched(session, 8, 7);
  EXPECT_TRUE(written().empty()) << "it is there";
}

TEST_F(DiskCacheTest, NothingIsWrittenBeforeAllThatIsThereIsKnown) {
  Session& session = attach();
  leave_in_dram(session, 8, 7);
  disk.on_opened({DiskId(1), 16});
  leave_touched(session, 8, 7);
  EXPECT_TRUE(written().empty());
}

TEST_F(DiskCacheTest, WhatOnlyTheDiskHasComesToDram) {
  Session& session = with_on_disk(8);
  Request& request = awaiting(session, 9);
  EXPECT_TRUE(request.content.awaits_disk);
  EXPECT_TRUE(request.table.empty()) << "who waits holds nothing";
  const auto orders = read();
  ASSERT_EQ(orders.size(), 2u);
  EXPECT_EQ(orders[0].generation, 1u);
  finish(orders);
  EXPECT_EQ(ground.store.cache.evictable(kA, Tier::kDram), kSlot * 4);
  EXPECT_EQ(sut.find(request), Found::kInDram);
  ASSERT_EQ(swaps.swap_in(request), ErrorCode::kOk);
  ground.requests.requeue(request);
  EXPECT_TRUE(swaps.on_copy({request.moves.rotation, true, kSlot, Nanoseconds(1000)}));
  EXPECT_EQ(request.progress.planned, Tokens(8));
  EXPECT_EQ(ground.context.counters.prefixes.lower[kDiskTier].loads, 2u);
}

TEST_F(DiskCacheTest, ALongPromptIsReadPartByPart) {
  Session& session = with_on_disk(40);
  Request& request = awaiting(session, 41);
  const auto first = read();
  ASSERT_EQ(first.size(), 8u) << "a quarter of DRAM";
  finish(first);
  ASSERT_EQ(sut.find(request), Found::kSoon);
  const auto second = read();
  ASSERT_EQ(second.size(), 2u);
  finish(second);
  EXPECT_EQ(sut.find(request), Found::kInDram);
  EXPECT_EQ(request.progress.planned, Tokens(40));
  sut.give_back(request);
}

TEST_F(DiskCacheTest, WhoGotNothingDoesNotAskAgain) {
  Session& session = with_on_disk(40);
  Request& request = awaiting(session, 41);
  for (const ReadDisk& order : read()) {
    (void)disk.on_finished({order.ticket, false, 0, false, false});  // late, and still there
  }
  EXPECT_EQ(sut.find(request), Found::kNothing);
  EXPECT_TRUE(read().empty());
}

TEST_F(DiskCacheTest, NobodyWaitsPastTheTimeOfComputing) {
  Session& session = with_on_disk(8);
  session.costs.prefill_token_s = 5e-3;
  awaiting(session, 9);
  const auto orders = read();
  EXPECT_EQ(orders.at(0).block.patience, std::chrono::milliseconds(40));
  finish(orders);
}

TEST_F(DiskCacheTest, NobodyComputesAheadOfItself) {
  Session& session = with_on_disk(8);
  session.costs.prefill_token_s = 5e-3;
  Request& request = asked(session, 9, 7);
  ground.requests.make_claim(request);
  EXPECT_EQ(sut.find(request), Found::kSoon);
  const auto orders = read();
  EXPECT_EQ(orders.at(0).block.patience, std::chrono::milliseconds(40));
  finish(orders);
}

TEST_F(DiskCacheTest, WhoWaitsForAReadThatIsStuckComputesSoon) {
  Session& session = with_on_disk(8);
  session.costs.prefill_token_s = 5e-3;
  Request& request = awaiting(session, 9);
  const auto orders = read();
  EXPECT_EQ(sut.find(request), Found::kSoon);
  pass(std::chrono::milliseconds(6));
  EXPECT_TRUE(disk.expire());
  EXPECT_EQ(sut.find(request), Found::kNothing);
  finish(orders);
  EXPECT_EQ(ground.store.cache.evictable(kA, Tier::kDram), kSlot * 4) << "for who comes next";
}

TEST_F(DiskCacheTest, WhoIsAlwaysToLoadWaitsWhateverThatTakes) {
  Session& session = with_on_disk(8);
  session.costs.prefill_token_s = 1e-12;
  EXPECT_EQ(sut.find(asked(session, 9, 7)), Found::kNothing) << "computing is faster";
  ground.context.load = planner::make_load_policy("always").value();
  Request& request = awaiting(session, 9);
  const auto orders = read();
  pass(std::chrono::milliseconds(1900));
  (void)disk.expire();
  EXPECT_EQ(sut.find(request), Found::kSoon);
  finish(orders);
}

TEST_F(DiskCacheTest, ASlowDiskIsTriedNowAndThenAndHoldsNobodyUp) {
  Session& session = with_on_disk(8);
  session.costs.prefill_token_s = 5e-3;
  int tries = 0;
  for (int i = 0; i < 1000; ++i) {
    Request& request = asked(session, 9, 7);
    EXPECT_EQ(sut.find(request), i == 0 ? Found::kSoon : Found::kNothing);
    if (const auto orders = read(); !orders.empty()) {
      ++tries;
      pass(std::chrono::milliseconds(100));
      (void)disk.expire();
      finish(orders);
      ground.store.cache.clear();
    }
    ground.memory.end(request);
  }
  EXPECT_GE(tries, 3);
  EXPECT_LE(tries, 11);
  EXPECT_EQ(ground.context.counters.prefixes.lower[kDiskTier].late, 1u) << "the first alone";
}

TEST_F(DiskCacheTest, ADiskThatHasBecomeSlowIsLeftAloneSoon) {
  Session& session = with_on_disk(8);
  int late = 0;
  for (int i = 0; i < 20; ++i) {
    Request& request = asked(session, 9, 7);
    if (sut.find(request) == Found::kSoon) {
      const auto orders = read();
      pass(orders.at(0).block.patience);
      for (const ReadDisk& order : orders) {
        (void)disk.on_finished({order.ticket, false, 0, false, false});
      }
      ++late;
    }
    ground.memory.end(request);
  }
  EXPECT_LE(late, 2);
  EXPECT_GE(late, 1);
}

TEST_F(DiskCacheTest, WhatCannotBeReadIsComputedAndForgotten) {
  Session& session = with_on_disk(8);
  Request& request = awaiting(session, 9);
  finish(read(), false);
  EXPECT_EQ(sut.find(request), Found::kNothing);
  EXPECT_EQ(ground.context.counters.prefixes.lower[kDiskTier].load_failures, 2u);
  EXPECT_EQ(disk.bytes(), Bytes(0));
  EXPECT_EQ(sut.find(asked(session, 9, 7)), Found::kNothing) << "no endless retry";
  EXPECT_TRUE(read().empty());
  expect_nothing_left();
}

TEST_F(DiskCacheTest, BehindARowThatIsMissingNothingIsUsed) {
  Session& session = with_on_disk(12);
  Request& request = awaiting(session, 13);
  const auto orders = read();
  ASSERT_EQ(orders.size(), 3u);
  (void)disk.on_finished({orders[2].ticket, true, 0, false, false});
  (void)disk.on_finished({orders[1].ticket, false, 0, true, false});
  EXPECT_TRUE(disk.on_finished({orders[0].ticket, true, 0, false, false}));
  EXPECT_EQ(ground.store.cache.evictable(kA, Tier::kDram), kSlot * 2);
  EXPECT_EQ(sut.find(request), Found::kInDram);
  EXPECT_EQ(request.progress.planned, Tokens(4));
  sut.give_back(request);
  expect_nothing_left();
}

TEST_F(DiskCacheTest, TwoThatAskForTheSameWaitForOneRead) {
  Session& session = with_on_disk(8);
  awaiting(session, 9);
  const auto orders = read();
  Request& second = asked(attach(), 9, 7);
  EXPECT_EQ(sut.find(second), Found::kSoon);
  EXPECT_TRUE(read().empty());
  finish(orders);
  EXPECT_EQ(sut.find(second), Found::kInDram);
  sut.give_back(second);
}

TEST_F(DiskCacheTest, NobodyWaitsForEver) {
  Session& session = with_on_disk(8);
  Request& request = awaiting(session, 9);
  const auto orders = read();
  EXPECT_LE(orders[0].block.patience, std::chrono::seconds(2));
  EXPECT_FALSE(disk.expire());
  pass(orders[0].block.patience);
  EXPECT_TRUE(disk.expire());
  EXPECT_FALSE(disk.expire()) << "told once";
  EXPECT_EQ(sut.find(request), Found::kNothing);
  EXPECT_FALSE(request.content.awaits_disk);
  EXPECT_EQ(ground.context.counters.prefixes.lower[kDiskTier].late, 1u);
  finish(orders);
  EXPECT_EQ(ground.store.cache.evictable(kA, Tier::kDram), kSlot * 4) << "for who comes next";
}

TEST_F(DiskCacheTest, MemoryThatTheDeviceHasIsNotUsedBeforeItGivesItBack) {
  Session& session = with_on_disk(4);
  awaiting(session, 5);
  const auto orders = read();
  EXPECT_TRUE(disk.on_finished({orders[0].ticket, false, 0, false, true}));
  EXPECT_EQ(disk.slots(), 2u);
  EXPECT_EQ(disk.bytes(), kSlot * 2) << "what was late may be there";
  EXPECT_LT(free_dram(), kSlab * 8);
  EXPECT_TRUE(disk.on_finished({orders[0].ticket, false, 0, false, false}));
  expect_nothing_left();
}

TEST_F(DiskCacheTest, FilesOfADeviceThatStillHasMemoryAreNotClosed) {
  Session& session = with_on_disk(4);
  Request& request = awaiting(session, 5);
  const auto orders = read();
  ASSERT_EQ(orders.size(), 1u);
  pass(orders[0].block.patience);
  (void)disk.on_finished({orders[0].ticket, false, 0, false, true});
  ground.memory.end(request);
  sessions.on_dying(session.id, false);
  sessions.on_dead(session.id);
  (void)disk.expire();  // the class is idle now
  Session& other = attach();
  for (std::uint8_t model = 2; model < 18; ++model) {
    tell(submit(other, 9, 8), 7, Fingerprint{Digest{{model}}});
  }
  ASSERT_EQ(disk.models().at(0).state, "closing") << "16 others want files";
  (void)disk.expire();
  EXPECT_TRUE(emitted<CloseDisk>().empty());
  EXPECT_TRUE(disk.on_finished({orders[0].ticket, false, 0, false, false}));
  (void)disk.expire();
  EXPECT_EQ(emitted<CloseDisk>().size(), 1u);
}

TEST_F(DiskCacheTest, NumbersOfForgottenClassesAreUsedAgain) {
  for (int round = 0; round < 100; ++round) {
    Session& session = attach();
    for (std::uint8_t model = 0; model < 4; ++model) {
      const Digest name{{static_cast<std::uint8_t>(round), model}};
      tell(submit(session, 9, 8), 7, Fingerprint{name});
    }
    for (const OpenDisk& order : fresh<OpenDisk>(opens_seen)) {
      EXPECT_LE(order.disk, DiskId(200));
      disk.on_opened({order.disk, 0, DiskOpened::Lack::kMade, Bytes(0), Bytes(0)});
    }
    sessions.on_dying(session.id, false);
    sessions.on_dead(session.id);
    (void)disk.expire();
  }
}

TEST_F(DiskCacheTest, WhatDramGivesUpWhileItIsWrittenWaitsForTheWrite) {
  Session& session = attach();
  tell(submit(session, 9, 8), 1);
  open();
  leave_touched(session, 8, 7);
  const auto orders = written();
  ground.store.cache.clear();
  EXPECT_LT(free_dram(), kSlab * 8);
  finish<WriteDisk>({orders[1]});
  (void)disk.on_finished({orders[0].ticket, false, 0, false, true});
  EXPECT_LT(free_dram(), kSlab * 8) << "the device still reads one row";
  finish<WriteDisk>({orders[0]});
  EXPECT_EQ(ground.context.counters.prefixes.lower[kDiskTier].stores, 1u);
  EXPECT_EQ(ground.context.counters.prefixes.lower[kDiskTier].store_failures, 1u);
  expect_nothing_left();
}

TEST_F(DiskCacheTest, WhatIsClearedDoesNotComeBack) {
  Session& session = with_on_disk(8);
  Request& request = awaiting(session, 9);
  const auto orders = read();
  disk.clear();
  finish(orders);
  EXPECT_EQ(sut.find(request), Found::kNothing);
  EXPECT_EQ(disk.bytes(), Bytes(0));
  expect_nothing_left();
}

TEST_F(DiskCacheTest, WhatWasClearedIsWrittenAndFoundAgainBeforeAllSlotsAreEmpty) {
  Session& session = with_on_disk(8);
  const Bytes there = disk.bytes();
  disk.clear();
  EXPECT_EQ(disk.bytes(), Bytes(0));
  EXPECT_TRUE(disk.classes().is_behind());
  leave_on_disk(session, 8, 7);
  EXPECT_EQ(disk.bytes(), there);
  (void)disk.go_on();
  EXPECT_FALSE(disk.classes().is_behind());
  EXPECT_EQ(disk.bytes(), there);
  EXPECT_EQ(sut.find(asked(session, 9, 7)), Found::kSoon);
  finish(read());
}

TEST_F(DiskCacheTest, NothingIsReadAcrossDomainsAndModels) {
  with_on_disk(8);
  EXPECT_EQ(sut.find(asked(attach(kB), 9, 7)), Found::kNothing);
  Request& other = asked(attach(kA), 9, 7, Fingerprint{Digest{{2}}});
  disk.on_opened({DiskId(2), 16});
  found({DiskId(2), {}, true});
  EXPECT_EQ(sut.find(other), Found::kNothing);
  EXPECT_TRUE(read().empty());
}

TEST_F(DiskCacheTest, WhoEndsWhileItWaitsLeavesNothing) {
  Session& session = with_on_disk(8);
  Request& request = awaiting(session, 9);
  ground.memory.end(request);
  sessions.on_dying(session.id, false);
  sessions.on_dead(session.id);
  finish(read());
  EXPECT_EQ(ground.store.cache.evictable(kA, Tier::kDram), kSlot * 4);
  expect_nothing_left();
}

TEST_F(DiskCacheTest, WhoComputedItMeanwhileKeepsItsOwn) {
  Session& session = with_on_disk(8);
  awaiting(session, 9);
  const auto orders = read();
  ground.memory.end(computed(session, 8, 7));
  finish(orders);
  EXPECT_EQ(ground.store.cache.evictable(kA, Tier::kHbm), kSlot * 4);
  EXPECT_EQ(free_dram(), kSlab * 8);
}

TEST_F(DiskCacheTest, WhatIsFasterComputedIsNotRead) {
  Session& session = with_on_disk(8);
  session.costs.prefill_token_s = 1e-12;
  EXPECT_EQ(sut.find(asked(session, 9, 7)), Found::kNothing);
  EXPECT_TRUE(read().empty());
}

TEST_F(DiskCacheTest, AfterAStartWhatIsThereIsWaitedForALittle) {
  Session& session = attach();
  Request& request = awaiting(session, 9);
  disk.on_opened({DiskId(1), 16});
  EXPECT_EQ(sut.find(request), Found::kSoon) << "its headers are being read";
  EXPECT_TRUE(disk.expire()) << "it asks again at each tick";
  pass(std::chrono::seconds(2));
  EXPECT_EQ(sut.find(request), Found::kNothing);
  found({DiskId(1), {}, true});
  EXPECT_EQ(sut.find(asked(session, 9, 7)), Found::kNothing);
  EXPECT_FALSE(disk.expire());
}

TEST_F(DiskCacheTest, WhereFilesCannotBeOpenedNobodyWaits) {
  Session& session = attach();
  Request& request = awaiting(session, 9);
  disk.on_opened({DiskId(1), 0});
  EXPECT_EQ(sut.find(request), Found::kNothing);
  leave_touched(session, 8, 7);
  EXPECT_TRUE(written().empty());
}

TEST_F(DiskCacheTest, WhatAnEarlierDaemonWroteIsRead) {
  Session& session = attach();
  tell(submit(session, 9, 8), 1);
  disk.on_opened({DiskId(1), 16});
  const Fingerprint none;
  const Digest domain = test::plain_disk_name(session.info.domain_name, none, Digest());
  const Digest name = test::plain_disk_name(session.info.domain_name, kModel, digest(7, 0));
  found({DiskId(1), std::vector<DiskFound::Block>{{5, 77, domain, name}}, true});
  EXPECT_EQ(disk.blocks(DiskId(1)).size(), 1u);
  awaiting(session, 9);
  const auto orders = read();
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].block.slot, 5u);
  EXPECT_EQ(orders[0].generation, 77u);
  finish(orders);
}

std::vector<DiskFound::Block> many_blocks(std::uint32_t count) {
  std::vector<DiskFound::Block> blocks;
  for (std::uint32_t slot = 0; slot < count; ++slot) {
    Digest name;
    name.bytes[0] = static_cast<std::uint8_t>(slot);
    name.bytes[1] = static_cast<std::uint8_t>(slot >> 8);
    blocks.push_back({slot, 1, Digest{{1}}, name});
  }
  return blocks;
}

// A quarter of a million blocks may be told at once, and the control thread has others to serve.
TEST_F(DiskCacheTest, WhatAnEarlierDaemonWroteIsLearnedOverSeveralEvents) {
  Session& session = attach();
  leave_in_dram(session, 8, 7);
  disk.on_opened({DiskId(1), 5000});
  disk.classes().on_found({DiskId(1), many_blocks(5000), true});
  leave_touched(session, 8, 7);
  std::size_t known = 0;
  for (int event = 0; event < 3; ++event) {
    EXPECT_TRUE(disk.classes().is_behind());
    EXPECT_TRUE(written().empty()) << "a slot may have a block that is not known yet";
    EXPECT_EQ(disk.blocks(DiskId(1)).size(), 5000u) << "the next daemon is told of all";
    EXPECT_TRUE(disk.go_on()) << "who waits may find it now";
    const std::size_t now = disk.classes().at(DiskId(1)).directory->used();
    EXPECT_GT(now, known);
    EXPECT_LE(now - known, 2048u);
    known = now;
  }
  EXPECT_FALSE(disk.classes().is_behind());
  EXPECT_EQ(known, 5000u);
  const auto orders = written();
  EXPECT_EQ(orders.size(), 2u);
  finish(orders);
}

TEST_F(DiskCacheTest, WhatIsClearedBeforeItWasLearnedIsNeverFound) {
  (void)asked(attach(), 9, 7);
  disk.on_opened({DiskId(1), 5000});
  found({DiskId(1), many_blocks(5000), true});
  disk.clear();
  while (disk.classes().is_behind()) (void)disk.go_on();
  EXPECT_TRUE(disk.blocks(DiskId(1)).empty());
  EXPECT_TRUE(disk.classes().at(DiskId(1)).ready);
}

TEST_F(DiskCacheTest, WhatWasToldOfFilesThatAreClosedIsForgotten) {
  (void)asked(attach(), 9, 7);
  disk.on_opened({DiskId(1), 5000});
  found({DiskId(1), many_blocks(5000), true});
  disk.classes().on_closed({DiskId(1)});
  EXPECT_FALSE(disk.classes().is_behind());
}

Config large_and_not_to_be_written() {
  Config config = with_disk();
  config.disk.writes_a_day = Bytes(0);
  config.dram.slab_bytes = config.hbm[0].slab_bytes = kSlot * 2048;
  return config;
}

class LargeDiskTest : public DiskCacheTest {
 protected:
  LargeDiskTest() : DiskCacheTest(large_and_not_to_be_written()) {}
};

// None of them uses one of the writes that may be under way.
TEST_F(LargeDiskTest, AnEventLooksForAFewOfTheRowsThatAreOffered) {
  Session& session = attach();
  tell(submit(session, 9, 8), 1);
  open();
  for (std::uint8_t text = 2; text < 8; ++text) leave_touched(session, 1024, text);
  const std::uint64_t& refused = ground.context.counters.prefixes.lower[kDiskTier].refused;
  EXPECT_TRUE(written().empty());
  EXPECT_EQ(refused, 1024u);
  EXPECT_TRUE(written().empty());
  EXPECT_EQ(refused, 1536u) << "the next event goes on";
}

TEST_F(DiskCacheTest, WhoWaitsForTheDiskKeepsNobodyFromMemory) {
  Session& session = with_on_disk(8);
  Request& waits = asked(session, 9, 7);
  Request& next = submit(session, 9, 8);
  ground.requests.make_claim(waits);
  ground.requests.make_claim(next);
  claims.serve(kA);
  EXPECT_EQ(waits.place, Location::kOut);
  EXPECT_EQ(next.place, Location::kIn);
  finish(read());
  claims.serve(kA);
  EXPECT_EQ(waits.place, Location::kComing);
}

class SpentDiskTest : public DiskCacheTest {
 protected:
  static Config config() {
    Config spent = with_disk();
    spent.disk.writes_a_day = kSlot * 2 * 24;
    return spent;
  }
  SpentDiskTest() : DiskCacheTest(config()) {}
};

TEST_F(SpentDiskTest, NoMoreIsWrittenThanTheDayAllows) {
  Session& session = attach();
  tell(submit(session, 9, 8), 1);
  open();
  leave_touched(session, 8, 7);
  const auto orders = written();
  EXPECT_EQ(orders.size(), 1u);
  EXPECT_EQ(ground.context.counters.prefixes.lower[kDiskTier].refused, 1u);
  finish(orders);
}

}  // namespace
}  // namespace kvd::core
