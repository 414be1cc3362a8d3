// Cached blocks that go to the remote store and come from there.
#include <gmock/gmock.h>

#include <chrono>
#include <vector>

#include "tests/unit/kvd/core/parts/cache/disk_fixture.hpp"

namespace kvd::core {
namespace {

using ::testing::AnyOf;

Config with_remote(std::uint32_t touches = 2) {
  Config config = small_config();
  config.remote.name = test::plain_disk_name;
  config.remote.admission.least = touches;
  return config;
}

class RemoteCacheTest : public DiskFixture {
 protected:
  explicit RemoteCacheTest(Config config = with_remote()) : DiskFixture(std::move(config)) {}

  std::vector<WriteRemote> sent() {
    disk.write_ahead();
    return fresh<WriteRemote>(sent_seen);
  }
  std::vector<ReadRemote> fetched() { return fresh<ReadRemote>(fetched_seen); }
  std::vector<FindRemote> asks() { return fresh<FindRemote>(asks_seen); }
  /// Answers a question: whether all blocks are there.
  void answer(const FindRemote& find, bool there) {
    disk.remote().on_found({find.ticket, std::vector<bool>(find.names.size(), there)});
  }
  /// Puts no byte into a block, but says that the store has it.
  Request& found_there(Session& session, std::int64_t prompt, std::uint8_t text) {
    session.costs.prefill_token_s = 5e-3;
    Request& request = asked(session, prompt, text);
    EXPECT_EQ(sut.find(request), Found::kSoon) << "waits for the answer";
    answer(asks().at(0), true);
    return request;
  }
  void drain(bool to_remote) {
    ground.drains.on_drain({EngineId(), !to_remote, std::nullopt, to_remote});
  }
  Digest name(Session& session, std::uint8_t text, std::uint32_t block) {
    const store::KeySpace space{kModel, session.info.domain, session.class_id, 1};
    return disk.classes().remote_name(space, digest(text, block));
  }
  std::size_t sent_seen = 0, fetched_seen = 0, asks_seen = 0;
};

class RemoteAndDiskTest : public RemoteCacheTest {
 protected:
  RemoteAndDiskTest() : RemoteCacheTest(both()) {}
  static Config both() {
    Config config = with_remote(1);
    config.disk.name = test::plain_disk_name;
    return config;
  }
};

class RemoteBudgetTest : public RemoteCacheTest {
 protected:
  RemoteBudgetTest() : RemoteCacheTest(poor()) {}
  static Config poor() {
    Config config = with_remote();
    config.remote.bytes_per_s = kSlot * 2;
    return config;
  }
};

TEST_F(RemoteCacheTest, BlocksThatWereAskedForAgainGoThereOnce) {
  Session& session = attach();
  leave_in_dram(session, 8, 7);
  EXPECT_TRUE(sent().empty()) << "nobody has asked for them again";
  leave_touched(session, 8, 7);
  const auto orders = sent();
  ASSERT_EQ(orders.size(), 2u);
  EXPECT_EQ(orders[0].shape.groups, 2u);
  finish(orders);
  EXPECT_EQ(ground.context.counters.prefixes.lower[kRemoteTier].stores, 2u);
  leave_touched(session, 8, 7);
  EXPECT_TRUE(sent().empty()) << "they are there";
  pass(std::chrono::minutes(2));
  leave_touched(session, 8, 7);
  const auto again = sent();
  EXPECT_EQ(again.size(), 2u) << "their time to live begins again";
  finish(again);
}

TEST_F(RemoteCacheTest, WhatAServerRefusedIsNotWrittenAtEachUse) {
  Session& session = attach();
  leave_in_dram(session, 8, 7);
  leave_touched(session, 8, 7);
  finish(sent(), false);
  leave_touched(session, 8, 7);
  EXPECT_TRUE(sent().empty());
  disk.remote().on_changed();
  leave_touched(session, 8, 7);
  const auto at_once = sent();
  EXPECT_EQ(at_once.size(), 2u) << "a server is back";
  finish(at_once, false);
  pass(std::chrono::seconds(11));
  leave_touched(session, 8, 7);
  const auto later = sent();
  EXPECT_EQ(later.size(), 2u);
  finish(later);
}

TEST_F(RemoteCacheTest, ALookupDoesNotWaitAndAskingAgainFindsThem) {
  Session& session = attach();
  Request& request = asked(session, 9, 7);
  (void)sut.find(request);
  const auto asked_now = asks();
  ASSERT_EQ(asked_now.size(), 1u);
  EXPECT_EQ(asked_now[0].names.size(), 2u);
  pass(std::chrono::seconds(1));
  EXPECT_EQ(sut.find(request), Found::kNothing);
  EXPECT_TRUE(asks().empty()) << "it was asked";
  answer(asked_now[0], true);
  EXPECT_EQ(sut.find(request), Found::kSoon);
  finish(fetched());
  EXPECT_EQ(sut.find(request), Found::kInDram);
  ground.memory.end(request);
  EXPECT_EQ(ground.context.counters.prefixes.lower[kRemoteTier].loads, 2u);
}

TEST_F(RemoteCacheTest, ARequestWaitsForATwentiethOfTheTimeOfComputing) {
  Session& session = attach();
  session.costs.prefill_token_s = 5e-3;
  Request& request = asked(session, 9, 7);
  EXPECT_EQ(sut.find(request), Found::kSoon);
  pass(std::chrono::milliseconds(1));
  EXPECT_EQ(sut.find(request), Found::kSoon);
  pass(std::chrono::milliseconds(1));
  EXPECT_EQ(sut.find(request), Found::kNothing);
  answer(asks().at(0), false);
}

TEST_F(RemoteCacheTest, NobodyWaitsForAnswersThatComeTooLate) {
  Session& session = attach();
  session.costs.prefill_token_s = 5e-3;
  const auto waits = [&](std::uint8_t text) {
    return sut.find(asked(session, 9, text)) == Found::kSoon;
  };
  EXPECT_TRUE(waits(1));
  pass(std::chrono::milliseconds(20));
  EXPECT_FALSE(waits(2)) << "the last question has no answer yet";
  pass(std::chrono::milliseconds(20));
  for (const FindRemote& question : asks()) answer(question, false);
  int hasty = 0;
  for (std::uint8_t text = 3; !waits(text) && hasty < 9; ++text, ++hasty) {
    pass(std::chrono::milliseconds(1));
    answer(asks().at(0), false);
  }
  EXPECT_GE(hasty, 1) << "the answers take 20 ms and more";
  EXPECT_LE(hasty, 5) << "they take 1 ms since then";
}

TEST_F(RemoteCacheTest, WhatIsNotThereIsAskedForAgainLater) {
  Session& session = attach();
  Request& request = asked(session, 9, 7);
  (void)sut.find(request);
  answer(asks().at(0), false);
  EXPECT_EQ(sut.find(request), Found::kNothing);
  EXPECT_TRUE(asks().empty());
  pass(std::chrono::seconds(3));
  (void)sut.find(request);
  EXPECT_EQ(asks().size(), 1u);
}

TEST_F(RemoteCacheTest, WhatCouldNotBeReadIsComputedAndNotClaimedAgain) {
  Session& session = attach();
  Request& request = found_there(session, 9, 7);
  EXPECT_EQ(sut.find(request), Found::kSoon);
  finish(fetched(), false);
  EXPECT_EQ(sut.find(request), Found::kNothing);
  EXPECT_EQ(ground.context.counters.prefixes.lower[kRemoteTier].load_failures, 2u);
  EXPECT_NE(sut.find(asked(session, 9, 7)), Found::kInDram);
  EXPECT_TRUE(fetched().empty());
  EXPECT_TRUE(asks().empty()) << "it is known to be missing";
}

TEST_F(RemoteCacheTest, AServerThatGoesOffIsForgotten) {
  Session& session = attach();
  Request& request = found_there(session, 9, 7);
  disk.remote().on_changed();
  (void)sut.find(request);
  EXPECT_TRUE(fetched().empty());
  EXPECT_EQ(asks().size(), 1u);
}

TEST_F(RemoteCacheTest, NobodyWaitsPastTheTimeOfComputing) {
  Session& session = attach();
  Request& request = found_there(session, 9, 7);
  EXPECT_EQ(sut.find(request), Found::kSoon);
  const auto orders = fetched();
  EXPECT_EQ(orders.at(0).block.patience, std::chrono::milliseconds(40));
  finish(orders);
}

TEST_F(RemoteCacheTest, AClassIsNotForgottenWhileItsBlocksAreUnderWay) {
  Session& session = attach();
  Request& request = found_there(session, 9, 7);
  EXPECT_EQ(sut.find(request), Found::kSoon);
  const auto orders = fetched();
  ground.memory.end(request);
  session.costs = {};
  (void)disk.expire();
  finish(orders);
}

TEST_F(RemoteBudgetTest, ADrainWritesAllThatIsCachedTheLatestUsedFirst) {
  Session& session = attach();
  leave_in_dram(session, 8, 7);
  leave_in_dram(session, 8, 8);
  EXPECT_TRUE(sent().empty());
  drain(true);
  EXPECT_EQ(ground.drains.to_remote()->left, 4u);
  std::vector<WriteRemote> orders;
  for (int event = 0; event < 8; ++event) {
    for (const WriteRemote& order : sent()) orders.push_back(order);
  }
  ASSERT_EQ(orders.size(), 4u) << "though the budget is one block";
  EXPECT_THAT(orders[0].block.name, AnyOf(name(session, 8, 0), name(session, 8, 1)));
  EXPECT_THAT(orders[3].block.name, AnyOf(name(session, 7, 0), name(session, 7, 1)));
  finish(orders);
  EXPECT_EQ(ground.drains.to_remote()->left, 0u);
  EXPECT_EQ(ground.drains.to_remote()->stored, 4u);
  leave_in_dram(session, 8, 9);
  finish(sent());
  EXPECT_EQ(ground.drains.to_remote()->stored, 6u) << "what comes meanwhile goes, too";
  drain(false);
  EXPECT_FALSE(ground.drains.to_remote().has_value());
  leave_in_dram(session, 8, 10);
  EXPECT_TRUE(sent().empty()) << "by the rule again";
}

TEST_F(RemoteCacheTest, ADrainBringsWhatHbmAloneHasOnceDramIsWritten) {
  ground.context.tuning.rotation.eager = false;
  Session& session = attach();
  leave_in_dram(session, 8, 7);
  ground.memory.end(computed(session, 8, 8));
  drain(true);
  for (int event = 0; event < 8; ++event) {
    if (ground.drains.to_remote()->stored < 2) {
      EXPECT_FALSE(ground.drains.copies_ahead()) << "a copy may push out what is not written yet";
    }
    finish(sent());
  }
  EXPECT_EQ(ground.drains.to_remote()->stored, 2u);
  EXPECT_GE(ground.drains.to_remote()->left, 2u);
  EXPECT_TRUE(ground.drains.copies_ahead());
  ground.cache_copies.make_ahead();
  for (const CopySlots& copy : emitted<CopySlots>()) {
    (void)ground.cache_copies.on_copy({copy.ticket, true, kSlot, Nanoseconds(1000)});
  }
  ground.store.cache.follow();
  for (int event = 0; event < 8; ++event) finish(sent());
  EXPECT_EQ(ground.drains.to_remote()->stored, 4u);
  EXPECT_EQ(ground.drains.to_remote()->left, 0u);
}

TEST_F(RemoteCacheTest, ADrainSaysWhatCouldNotBeWritten) {
  leave_in_dram(attach(), 8, 7);
  drain(true);
  for (int event = 0; event < 8; ++event) finish(sent(), false);
  EXPECT_EQ(ground.drains.to_remote()->lost, 0u) << "the server may come back";
  EXPECT_EQ(ground.drains.to_remote()->left, 2u);
  pass(std::chrono::seconds(1));
  finish(sent(), true);
  EXPECT_EQ(ground.drains.to_remote()->stored, 2u);
  leave_in_dram(attach(), 8, 8);
  finish(sent(), false);
  pass(std::chrono::seconds(7));
  finish(sent(), false);
  EXPECT_EQ(ground.drains.to_remote()->lost, 2u);
  EXPECT_EQ(ground.drains.to_remote()->left, 0u) << "it ends all the same";
}

TEST_F(RemoteCacheTest, ADrainEndsWhereOneOfTheServersIsLost) {
  for (std::uint8_t text = 7; text < 11; ++text) leave_in_dram(attach(), 8, text);
  drain(true);
  const Digest lost = name(attach(), 7, 0);
  for (int event = 0; event < 40; ++event) {
    for (const WriteRemote& order : sent()) {
      finish(std::vector<WriteRemote>{order}, order.block.name != lost);
    }
    if (event == 20) leave_in_dram(attach(), 8, 11);
    pass(std::chrono::milliseconds(250));
  }
  EXPECT_EQ(ground.drains.to_remote()->stored, 9u);
  EXPECT_EQ(ground.drains.to_remote()->lost, 1u) << "others that succeed do not keep it waiting";
  EXPECT_EQ(ground.drains.to_remote()->left, 0u);
}

TEST_F(RemoteBudgetTest, NoMoreIsWrittenThanTheBudgetOfASecond) {
  Session& session = attach();
  pass(std::chrono::seconds(1));
  leave_touched(session, 8, 7);
  const auto first = sent();
  EXPECT_EQ(first.size(), 1u);
  finish(first);
  EXPECT_TRUE(sent().empty());
  pass(std::chrono::seconds(1));
  const auto second = sent();
  EXPECT_EQ(second.size(), 1u) << "what waited is not lost";
  finish(second);
}

TEST_F(RemoteBudgetTest, WhatDramGivesUpBeforeItsTurnIsCounted) {
  Session& session = attach();
  leave_touched(session, 8, 7);
  finish(sent());
  EXPECT_EQ(ground.context.counters.prefixes.lower[kRemoteTier].refused, 0u);
  ground.store.cache.clear();
  pass(std::chrono::seconds(1));
  EXPECT_TRUE(sent().empty());
  EXPECT_EQ(ground.context.counters.prefixes.lower[kRemoteTier].refused, 1u);
}

TEST_F(RemoteAndDiskTest, EachHasItsOwnRule) {
  Session& session = attach();
  tell(submit(session, 9, 8), 1);
  open();
  leave_in_dram(session, 8, 7);
  disk.write_ahead();
  const auto there = sent();
  EXPECT_EQ(there.size(), 2u) << "all go to the remote store";
  EXPECT_TRUE(written().empty()) << "the disk gets what is asked for again";
  finish(there);
  leave_touched(session, 8, 7);
  const auto local = written();
  EXPECT_EQ(local.size(), 2u);
  finish(local);
  EXPECT_TRUE(sent().empty());
}

TEST_F(RemoteAndDiskTest, TheDiskIsAskedFirst) {
  Session& session = attach();
  tell(submit(session, 9, 8), 1);
  open();
  leave_touched(session, 8, 7);
  finish(sent());
  finish(written());
  ground.store.cache.clear();
  Request& request = asked(session, 9, 7);
  EXPECT_EQ(sut.find(request), Found::kSoon);
  EXPECT_TRUE(fetched().empty());
  const auto local = read();
  EXPECT_EQ(local.size(), 2u);
  finish(local);
  EXPECT_EQ(sut.find(request), Found::kInDram);
  ground.memory.end(request);
}

TEST_F(RemoteAndDiskTest, WhatTheDiskLacksComesFromTheRemoteStore) {
  Session& session = attach();
  tell(submit(session, 9, 8), 1);
  open();
  leave_touched(session, 8, 7);
  finish(sent());
  finish(written());
  ground.store.cache.clear();
  disk.clear();
  Request& request = asked(session, 9, 7);
  EXPECT_EQ(sut.find(request), Found::kSoon);
  EXPECT_TRUE(read().empty());
  const auto there = fetched();
  EXPECT_EQ(there.size(), 2u);
  finish(there);
  EXPECT_EQ(sut.find(request), Found::kInDram);
  ground.memory.end(request);
}

}  // namespace
}  // namespace kvd::core
