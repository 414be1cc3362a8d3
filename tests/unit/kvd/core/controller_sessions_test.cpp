// Engines that stop stepping, and shapes that come and go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/controller_world.hpp"

namespace kvd::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

bool responsive(const World& world, EngineId engine) {
  for (const EngineStatus& e : world.controller->status(world.now).engines) {
    if (e.id == engine) return e.responsive;
  }
  return false;
}

TEST(ControllerSilence, AnEngineThatQueuesRequestsAndNeverStepsIsNoticed) {
  World world(small_pool());
  const EngineId lazy = world.attach(small_model());
  world.pass(std::chrono::hours(1));
  ASSERT_EQ(world.submit(lazy, 1, 8, 8), ErrorCode::kOk);
  world.feed(Tick{});
  EXPECT_TRUE(responsive(world, lazy)) << "its first request has only just come";
  world.pass(seconds(6));
  world.feed(Tick{});
  EXPECT_FALSE(responsive(world, lazy));
  world.step(lazy);
  EXPECT_TRUE(responsive(world, lazy));
}

TEST(ControllerSilence, AnEngineWithoutRequestsOwesNoStep) {
  World world(small_pool());
  const EngineId idle = world.attach(small_model());
  world.pass(std::chrono::hours(1));
  world.feed(Tick{});
  EXPECT_TRUE(responsive(world, idle));
}

TEST(ControllerSilence, NobodyWaitsBehindTheQueuedRequestsOfASilentEngine) {
  World world(small_pool(4, 1));  // 32 + 8 slots
  const EngineId lazy = world.attach(small_model());
  const EngineId other = world.attach(small_model());
  ASSERT_EQ(world.submit(lazy, 1, 32, 32), ErrorCode::kOk);  // may grow to 32 slots
  world.pass(seconds(1));
  ASSERT_EQ(world.submit(other, 1, 16, 16), ErrorCode::kOk);  // to 16
  world.step_until_granted(other);
  EXPECT_TRUE(world.engines.at(other).reply.run.empty()) << "first come, first served";
  world.pass(seconds(6));
  world.feed(Tick{});
  world.step_until_granted(other);
  EXPECT_EQ(world.engines.at(other).reply.run.size(), 1u);
}

// The request is larger than what is left of HBM, so its layers stream, and it does not count on
// others to leave.
TEST(ControllerSilence, WhoIsAloneButForASilentEngineComesInHoweverLarge) {
  Controller::Config config = small_pool(4, 5);
  config.tuning.placement.policy = "orbitflow";
  World world(config);
  const ModelClass model{8, 1, 4, Bytes(64)};  // 16 slots a slab: 8 tokens; HBM holds 32
  const EngineId silent = world.attach(model);
  ASSERT_EQ(world.submit(silent, 1, 4, 8), ErrorCode::kOk);
  world.step_until_granted(silent);
  ASSERT_FALSE(world.engines.at(silent).reply.run.empty());
  world.pass(std::chrono::seconds(60));
  world.feed(Tick{});
  const EngineId engine = world.attach(model);
  ASSERT_EQ(world.submit(engine, 1, 20, 20), ErrorCode::kOk);
  world.iterate(engine, 20);
  EXPECT_GT(world.engines.at(engine).ran, 0u);
}

TEST(ControllerSilence, WhoNeedsTheBlocksOfASilentEngineIsToldItsName) {
  World world(small_pool(2, 64));  // 16 slots
  const EngineId lazy = world.attach(small_model());
  const EngineId other = world.attach(small_model());
  ASSERT_EQ(world.submit(lazy, 1, 24, 4), ErrorCode::kOk);  // 14 of them
  world.step_until_granted(lazy);
  ASSERT_EQ(world.submit(other, 1, 3, 20), ErrorCode::kOk);
  world.step_until_granted(other);
  ASSERT_EQ(world.engines.at(other).reply.run.size(), 1u);
  const AllocateBlocks more{RequestId(1), Tokens(16)};
  EXPECT_EQ(world.code(world.command(other, more)), ErrorCode::kOutOfMemory);
  world.pass(seconds(6));
  world.run_and_step(other);
  world.feed(Tick{});
  const auto reply = world.command(other, more);
  ASSERT_EQ(world.code(reply), ErrorCode::kWouldBlock);
  EXPECT_THAT(std::get<Error>(reply->body).message, HasSubstr("engine 'engine'"));
  EXPECT_THAT(std::get<Error>(reply->body).message, HasSubstr("silent"));
}

/// The event that people read when memory is back.
std::vector<std::string> returned(const World& world) {
  std::vector<std::string> told;
  for (const Note& note : world.notes) {
    if (note.text.find("zeroed and free") != std::string::npos) told.push_back(note.text);
  }
  return told;
}

TEST(ControllerDeaths, TheReturnOfARegionIsToldOnceItIsZeroed) {
  World world(small_pool());
  const EngineId engine = world.attach({}, DomainId(1), true);
  ASSERT_EQ(world.code(world.command(engine, AllocateRegion{Bytes(8192)})), ErrorCode::kOk);
  world.die(engine);
  world.pass(milliseconds(3));
  world.bury(engine);
  world.pass(milliseconds(4));
  world.feed(Tick{});
  EXPECT_THAT(returned(world), testing::IsEmpty());
  world.fail_copies = 1;
  world.finish_copies(1);
  EXPECT_THAT(returned(world), testing::IsEmpty()) << "it could not be zeroed";
  world.finish_copies();
  EXPECT_THAT(returned(world),
              testing::ElementsAre("the memory of engine 'engine', 8 KiB, is zeroed and free "
                                   "7 ms after its end was noticed"));
}

TEST(ControllerDeaths, TheReturnOfBlocksIsToldOnceNoCopyTouchesThem) {
  World world(small_pool(2, 64));
  const EngineId victim = world.attach(small_model());
  const EngineId asker = world.attach({}, DomainId(1), true);
  ASSERT_EQ(world.submit(victim, 1, 24, 8), ErrorCode::kOk);
  world.step_until_granted(victim);
  world.run_and_step(victim);
  (void)world.command(asker, AllocateRegion{Bytes(4096)}, seconds(60));
  world.run_and_step(victim);  // its blocks make way: copies are under way
  ASSERT_GT(world.last_copied, 0u);
  world.die(victim);
  world.bury(victim);
  EXPECT_THAT(returned(world), testing::IsEmpty());
  world.finish_copies(1);
  EXPECT_THAT(returned(world), testing::IsEmpty());
  world.finish_copies();
  EXPECT_THAT(returned(world), testing::SizeIs(1));
}

TEST(ControllerDeaths, WhoHeldNothingHasNothingToReturn) {
  World world(small_pool());
  const EngineId engine = world.attach(small_model());
  world.die(engine);
  world.bury(engine);
  world.finish_copies();
  EXPECT_THAT(returned(world), testing::IsEmpty());
}

/// Shapes that differ in the bytes of a token.
ModelClass shape_number(std::int64_t number) { return {4, 2, 4, Bytes(16 + number)}; }

TEST(ControllerClasses, ShapesOfEndedSessionsAreForgotten) {
  World world(small_pool());
  for (std::int64_t i = 0; i < 400; ++i) {
    const EngineId engine = world.attach(shape_number(i));
    ASSERT_EQ(world.submit(engine, 1, 2, 2), ErrorCode::kOk);
    world.step_until_granted(engine);
    ASSERT_EQ(world.engines.at(engine).reply.run.size(), 1u) << i;
    world.feed(Detach{engine});
    world.engines.erase(engine);
    world.feed(Tick{});
    world.finish_copies();
  }
}

TEST(ControllerClasses, MoreShapesAtATimeThanTheBoundAreRefused) {
  World world(small_pool());
  Attach attach;
  attach.domain = DomainId(1);
  std::vector<EngineId> engines;
  for (std::int64_t i = 0; i < 256; ++i) engines.push_back(world.attach(shape_number(i)));
  attach.model_class = shape_number(256);
  const auto refused = world.controller->attach(attach, world.now);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kQuotaExceeded);
  attach.model_class = shape_number(0);
  EXPECT_TRUE(world.controller->attach(attach, world.now).ok()) << "a known one";
  world.feed(Detach{engines[7]});
  attach.model_class = shape_number(256);
  EXPECT_TRUE(world.controller->attach(attach, world.now).ok()) << "one has gone";
}

TEST(ControllerDistributions, LagsAndDepositsAreCounted) {
  World world(small_pool());
  const EngineId a = world.attach(small_model());
  ASSERT_EQ(world.submit(a, 1, 4, 8), ErrorCode::kOk);
  ASSERT_TRUE(run_to_end(world));
  const Counters counters = world.controller->status(world.now).counters;
  const auto total = [](const Distribution& d) {
    return std::accumulate(d.counts.begin(), d.counts.end(), std::uint64_t{0});
  };
  EXPECT_GT(total(counters.vlt), 0u);
  EXPECT_EQ(total(counters.deposit), 9u) << "the prompt's end and eight more";
  EXPECT_GT(counters.deposit.sum, 0) << "made every 10 ms, due every 100 ms";
}

TEST(ControllerDistributions, AValueOnABoundFallsBelowIt) {
  constexpr double kBounds[] = {0, 1};
  Distribution sut{kBounds};
  for (const double value : {-1.0, 0.0, 0.5, 1.0, 2.0}) sut.add(value);
  EXPECT_EQ(sut.counts, (std::vector<std::uint64_t>{2, 2, 1}));
  EXPECT_EQ(sut.sum, 2.5);
}

}  // namespace
}  // namespace kvd::test
