// Silent engines whose memory others wait for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/controller_world.hpp"

namespace kvd::test {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

const DomainId kOwn(1), kOther(2);

Controller::Config evicting_pool() {
  Controller::Config config = small_pool(2, 32);
  config.tuning.rotation.policy = "lvf";
  config.step_timeout = seconds(5);
  config.evict_after = seconds(60);
  return config;
}

/// An engine that fills the pool, runs, and is not heard of again.
EngineId silent_engine(World& world, DomainId domain = kOwn) {
  const EngineId id = world.attach(small_model(), domain);
  EXPECT_EQ(world.submit(id, 1, 28, 4), ErrorCode::kOk);
  world.step_until_granted(id);
  world.run_and_step(id);
  return id;
}

/// Second by second; `engine` steps in each.
void live(World& world, EngineId engine, int for_seconds) {
  for (int i = 0; i < for_seconds; ++i) {
    world.pass(seconds(1));
    world.step(engine);
    world.feed(Tick{});
  }
}

TEST(Eviction, OfASilentEngineThatOthersHaveWaitedForSoLong) {
  World world(evicting_pool());
  const EngineId silent = silent_engine(world);
  const EngineId waiting = world.attach(small_model(), kOwn);
  ASSERT_EQ(world.submit(waiting, 1, 8, 4), ErrorCode::kOk);
  live(world, waiting, 64);
  EXPECT_THAT(world.evicted, IsEmpty()) << "silent after 5 s, then 60 s of waiting";
  live(world, waiting, 3);
  EXPECT_THAT(world.evicted, ElementsAre(silent));
  world.die(silent);
  world.bury(silent);
  world.finish_copies();
  world.step_until_granted(waiting);
  EXPECT_EQ(world.engines.at(waiting).reply.run.size(), 1u);
}

// kvd may not be able to kill it.
TEST(Eviction, IsToldOnceHoweverOftenItIsTried) {
  World world(evicting_pool());
  const EngineId silent = silent_engine(world);
  const EngineId waiting = world.attach(small_model(), kOwn);
  ASSERT_EQ(world.submit(waiting, 1, 8, 4), ErrorCode::kOk);
  live(world, waiting, 200);
  EXPECT_THAT(world.evicted, ElementsAre(silent, silent, silent));
  const auto said = std::count_if(world.notes.begin(), world.notes.end(), [](const auto& note) {
    return note.text.find("is to be killed") != std::string::npos;
  });
  EXPECT_EQ(said, 1);
}

TEST(Eviction, OfNobodyWhileNobodyWaits) {
  World world(evicting_pool());
  silent_engine(world);
  const EngineId idle = world.attach(small_model(), kOwn);
  live(world, idle, 300);
  EXPECT_THAT(world.evicted, IsEmpty());
}

TEST(Eviction, OfNobodyWhereItIsSwitchedOff) {
  auto config = evicting_pool();
  config.evict_after = Nanoseconds(0);
  World world(config);
  silent_engine(world);
  const EngineId waiting = world.attach(small_model(), kOwn);
  ASSERT_EQ(world.submit(waiting, 1, 8, 4), ErrorCode::kOk);
  live(world, waiting, 300);
  EXPECT_THAT(world.evicted, IsEmpty());
}

TEST(Eviction, OfNobodyThatSpeaksAgain) {
  World world(evicting_pool());
  const EngineId paused = silent_engine(world);
  const EngineId waiting = world.attach(small_model(), kOwn);
  ASSERT_EQ(world.submit(waiting, 1, 8, 4), ErrorCode::kOk);
  live(world, waiting, 50);
  world.run_and_step(paused);
  live(world, waiting, 30);
  EXPECT_THAT(world.evicted, IsEmpty());
}

// A region is refused at once, so an engine that waits for one asks again and again.
TEST(Eviction, OfASilentEngineWhoseRegionsAreAskedForAgainAndAgain) {
  World world(evicting_pool());
  const EngineId silent = world.attach(small_model(), kOwn, true);
  ASSERT_EQ(world.code(world.command(silent, AllocateRegion{Bytes(8192)})), ErrorCode::kOk);
  const EngineId waiting = world.attach(small_model(), kOwn, true);
  const auto ask = [&] { return world.code(world.command(waiting, AllocateRegion{Bytes(4096)})); };
  ASSERT_EQ(ask(), ErrorCode::kOutOfMemory);
  const auto beat = [&](int for_seconds, bool asks) {
    for (int i = 0; i < for_seconds; ++i) {
      world.pass(seconds(1));
      world.feed(Beat{waiting});
      if (asks) {
        EXPECT_EQ(ask(), ErrorCode::kOutOfMemory);
      }
      world.feed(Tick{});
    }
  };
  beat(120, false);
  EXPECT_THAT(world.evicted, IsEmpty()) << "asked once, and no more";
  beat(62, true);
  EXPECT_THAT(world.evicted, ElementsAre(silent));
}

TEST(Eviction, OfAnotherDomainsEngineOnlyBeyondItsGuarantee) {
  for (const bool guaranteed : {true, false}) {
    auto config = evicting_pool();
    const Bytes pool(8192);
    config.hbm_quotas[kOwn] = {guaranteed ? pool : Bytes(0), pool};
    config.hbm_quotas[kOther] = {Bytes(0), pool};
    World world(config);
    silent_engine(world, kOwn);
    const EngineId waiting = world.attach(small_model(), kOther);
    // What could never come in is refused, and its engine waits for nothing.
    EXPECT_EQ(world.submit(waiting, 1, 8, 4) == ErrorCode::kOk, !guaranteed);
    live(world, waiting, 100);
    EXPECT_EQ(world.evicted.empty(), guaranteed);
  }
}

}  // namespace
}  // namespace kvd::test
