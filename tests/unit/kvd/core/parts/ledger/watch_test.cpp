// Engines that fall silent, and domains in which nobody gets on.
#include <gmock/gmock.h>

#include "kvd/core/deciding/silence.hpp"
#include "kvd/core/deciding/standstills.hpp"
#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class WatchTest : public PartsTest {
 protected:
  WatchTest() : PartsTest(config()) {}
  static Config config() {
    Config made = small_config(4);
    made.step_timeout = seconds(5);
    made.evict_after = seconds(20);
    made.standstill_after = seconds(60);
    return made;
  }

  DramCopies copies{ground};
  Needs needs{ground};
  Supply supply{ground, needs};
  Promises promises{ground, supply};
  Regions regions{ground, copies, needs, supply, promises};
  Silence silence{ground, needs, regions};
  Standstills standstills{ground, needs, supply, silence};
};

TEST_F(WatchTest, AnEngineThatOwesAStepFallsSilent) {
  Session& session = attach();
  running(session, 8);
  pass(seconds(4));
  silence.check(session);
  EXPECT_TRUE(session.life.responsive);
  pass(seconds(1));
  silence.check(session);
  EXPECT_FALSE(session.life.responsive);
  EXPECT_THAT(emitted<Note>(), SizeIs(1));
}

TEST_F(WatchTest, AnEngineWithoutWorkOwesNothing) {
  Session& session = attach();
  pass(seconds(100));
  silence.check(session);
  EXPECT_TRUE(session.life.responsive);
  submit(session, 4, 4);
  silence.check(session);
  EXPECT_TRUE(session.life.responsive) << "it is not late with its first request";
  pass(seconds(5));
  silence.check(session);
  EXPECT_FALSE(session.life.responsive);
}

TEST_F(WatchTest, ASilentEngineLosesItsClaimsAndKeepsItsBlocks) {
  Session& session = attach();
  Request& runs = running(session, 8);
  Request& claims = submit(session, 4, 4);
  ground.requests.make_claim(claims);
  pass(seconds(5));
  silence.check(session);
  EXPECT_EQ(claims.order.claim, 0u);
  EXPECT_TRUE(runs.holds_hbm());
}

TEST_F(WatchTest, ASilentEngineEndsOnceOthersHaveWaitedForItsMemory) {
  Session& silent = attach();
  Session& other = attach();
  running(silent, 64);
  silent.life.responsive = false;
  silence.evict(silent);
  EXPECT_FALSE(silent.life.awaited_since) << "nobody waits";
  submit(other, 8, 8);
  silence.evict(silent);
  EXPECT_TRUE(silent.life.awaited_since);
  pass(seconds(19));
  silence.evict(silent);
  EXPECT_THAT(emitted<Evict>(), IsEmpty());
  pass(seconds(1));
  silence.evict(silent);
  ASSERT_THAT(emitted<Evict>(), SizeIs(1));
  EXPECT_EQ(emitted<Evict>()[0].engine, silent.id);
}

TEST_F(WatchTest, WhatIsLeftOfAGroupEndsThoughNobodyWaits) {
  Session& group = attach();
  group.ranks.emplace().finished.assign(2, 0);
  Session& single = attach();
  for (Session* session : {&group, &single}) {
    session->life.dying = true;
    session->life.dying_since = ground.context.now;
  }
  pass(seconds(19));
  silence.evict(group);
  EXPECT_THAT(emitted<Evict>(), IsEmpty());
  pass(seconds(1));
  silence.evict(group);
  silence.evict(group);
  silence.evict(single);
  ASSERT_THAT(emitted<Evict>(), SizeIs(1)) << "once, and no process of an engine by itself";
  EXPECT_EQ(emitted<Evict>()[0].engine, group.id);
  pass(seconds(20));
  silence.evict(group);
  EXPECT_THAT(emitted<Evict>(), SizeIs(2)) << "a kill may have failed";
  for (Session* session : {&group, &single}) session->life.dying = false;
}

TEST_F(WatchTest, MemoryOfAnotherDomainHelpsOnlyBeyondItsGuarantee) {
  ground.context.config.hbm_quotas[kA] = {.guarantee = kSlab * 4, .maximum = kSlab * 4};
  running(attach(), 64);
  EXPECT_TRUE(silence.would_help(kA, kShareA, kSlab));
  EXPECT_FALSE(silence.would_help(kA, kShareB, kSlab)) << "it holds what it is guaranteed";
  ground.context.config.hbm_quotas.clear();
  EXPECT_TRUE(silence.would_help(kA, kShareB, kSlab));
}

TEST_F(WatchTest, AStandstillIsToldOnceAndEndsWithTheLatestRequest) {
  Session& session = attach();
  Request& first = running(session, 32);
  first.starved = true;
  pass(seconds(1));
  Request& second = running(session, 32);
  second.starved = true;
  standstills.watch();
  pass(seconds(6));
  standstills.watch();
  standstills.watch();
  ASSERT_THAT(emitted<Note>(), SizeIs(1));
  const std::string text = emitted<Note>()[0].text;
  EXPECT_THAT(text, HasSubstr("domain '" + session.info.domain_name + "': 2 requests wait"));
  EXPECT_THAT(text, HasSubstr("HBM is with engine '" + session.info.name + "' of '"));
  EXPECT_THAT(text, testing::AllOf(HasSubstr("has run for 6 s;"), HasSubstr(" KiB")));
  pass(seconds(60));
  standstills.watch();
  EXPECT_EQ(second.verdict, Verdict::kHopeless);
  EXPECT_EQ(first.verdict, Verdict::kNone);
  standstills.end_given_up(session);
  EXPECT_THAT(session.given_up, SizeIs(1));
  EXPECT_THAT(session.active, SizeIs(1));
  EXPECT_EQ(ground.context.counters.standstills, 1u);
  EXPECT_EQ(ground.context.counters.ended.for_memory, 1u);
}

TEST_F(WatchTest, ProgressBeginsTheWaitAnew) {
  Session& session = attach();
  running(session, 32).starved = true;
  standstills.watch();
  pass(seconds(4));
  ground.requests.progressed(session.id, kA);
  standstills.watch();
  pass(seconds(4));
  standstills.watch();
  EXPECT_THAT(emitted<Note>(), IsEmpty());
  pass(seconds(1));
  standstills.watch();
  EXPECT_THAT(emitted<Note>(), SizeIs(1));
}

TEST_F(WatchTest, AnEngineThatComputesIsNoStandstill) {
  Session& session = attach();
  running(session, 32).starved = true;
  session.iterations.stepping = true;
  for (int i = 0; i < 3; ++i) {
    standstills.watch();
    pass(seconds(60));
  }
  EXPECT_THAT(emitted<Note>(), IsEmpty());
}

TEST_F(WatchTest, NobodyWaitsBehindASilentEnginesBlocks) {
  Session& silent = attach();
  Session& other = attach();
  running(silent, 32);
  submit(other, 32, 8);
  silent.life.responsive = false;
  for (int i = 0; i < 3; ++i) {
    standstills.watch();
    pass(seconds(60));
  }
  EXPECT_THAT(emitted<Note>(), IsEmpty()) << "its blocks come back when it steps or is evicted";
}

}  // namespace
}  // namespace kvd::core
