// Requests that end and whose named rows are given up over several events.
#include <gtest/gtest.h>

#include "kvd/core/controller.hpp"
#include "tests/support/controller_world.hpp"

namespace kvd::test {
namespace {

Controller::Config gives_up_one_row_an_event() {
  Controller::Config config = small_pool(4, 32);
  config.max_given_up = 1;
  config.tuning.rotation.eager = false;  // the rows in HBM are nowhere else
  return config;
}

/// Eight rows of its prompt are named, of 4 tokens each.
EngineId computes_named_rows(World& world) {
  const EngineId a = world.attach(small_model());
  EXPECT_EQ(world.submit(a, Submit{RequestId(1), Tokens(33), Tokens(8), {}, {}}, 8, Text{1, 33, 0}),
            ErrorCode::kOk);
  world.step_until_granted(a);
  world.run_and_step(a);
  world.finish_copies();
  return a;
}

TEST(Endings, NamedRowsOfWhatEndedAreGivenUpEventByEventAndStayTaken) {
  World world(gives_up_one_row_an_event());
  const EngineId a = computes_named_rows(world);
  const auto cached = [&] { return world.controller->status(world.now).cached[0]; };
  const Bytes row = small_model().slot_bytes() * small_model().groups();
  ASSERT_EQ(world.code(world.command(a, Abort{RequestId(1)})), ErrorCode::kOk);
  world.engines.at(a).requests.clear();
  while (cached() == Bytes(0)) world.feed(Tick{});  // blocks without a name go first
  for (int rows = 1; rows < 8; ++rows) {
    EXPECT_EQ(cached(), row * rows);
    EXPECT_TRUE(world.controller->is_behind());
    world.feed(Tick{});
  }
  EXPECT_EQ(cached(), row * 8);
  EXPECT_FALSE(world.controller->is_behind());
}

TEST(Endings, BlocksWithoutANameAreGivenUpEventByEvent) {
  World world(gives_up_one_row_an_event());
  const EngineId a = world.attach(small_model());
  const auto free = [&] { return world.controller->status(world.now).tiers[0].free; };
  const Bytes before = free(), row = small_model().slot_bytes() * small_model().groups();
  ASSERT_EQ(world.submit(a, 1, 32, 8), ErrorCode::kOk);
  world.step_until_granted(a);
  ASSERT_EQ(world.code(world.command(a, Abort{RequestId(1)})), ErrorCode::kOk);
  world.engines.at(a).requests.clear();
  world.step(a);  // what its last iteration touched is free after that
  ASSERT_TRUE(world.controller->is_behind());
  while (world.controller->is_behind()) {
    const Bytes now = free();
    world.feed(Tick{});
    EXPECT_EQ(free(), now + row);
  }
  EXPECT_EQ(free(), before);
}

TEST(Endings, NamedRowsOfADeadEngineAreNotFoundAndAreZeroedHoweverLateTheyAreGivenUp) {
  World world(gives_up_one_row_an_event());
  const EngineId a = computes_named_rows(world);
  const EngineId b = world.attach(small_model());
  world.die(a);
  world.bury(a);
  ASSERT_TRUE(world.controller->is_behind());
  ASSERT_EQ(world.submit(b, Submit{RequestId(1), Tokens(33), Tokens(8), {}, {}}, 8, Text{1, 33, 0}),
            ErrorCode::kOk);
  world.step(b);
  EXPECT_EQ(world.controller->status(world.now).counters.prefixes.found[0], 0u);
  ASSERT_EQ(world.code(world.command(b, Abort{RequestId(1)})), ErrorCode::kOk);
  world.engines.at(b).requests.clear();
  world.catch_up();
  const auto hbm = [&] { return world.controller->status(world.now).tiers[0]; };
  EXPECT_LT(hbm().free, hbm().capacity) << "not zeroed yet";
  world.finish_copies();
  EXPECT_EQ(hbm().free, hbm().capacity);
}

/// All rows of its one request but the last are given up later.
void ends(World& world, EngineId engine) {
  ASSERT_EQ(world.code(world.command(engine, Abort{RequestId(1)})), ErrorCode::kOk);
  world.engines.at(engine).requests.clear();
  world.engines.at(engine).reply.run.clear();
  world.step(engine);  // the request that computed it has ended as well
  ASSERT_TRUE(world.controller->is_behind());
}

TEST(Endings, ARequestOfTheSameIdBeginsWithWhatTheOneBeforeStillHas) {
  World world(gives_up_one_row_an_event());
  const EngineId a = computes_named_rows(world);
  ends(world, a);
  ASSERT_EQ(world.submit(a, Submit{RequestId(1), Tokens(33), Tokens(8), {}, {}}, 8, Text{1, 33, 0}),
            ErrorCode::kOk);
  ASSERT_TRUE(world.controller->is_behind());
  world.step_until_granted(a);
  EXPECT_EQ(world.controller->status(world.now).counters.prefixes.found[0], 32u);
  world.catch_up();
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

TEST(Endings, ARegionForWhichTheyAreGivenUpWaitsForThem) {
  World world(gives_up_one_row_an_event());
  const EngineId other = world.attach(small_model(), DomainId(2), true);
  const EngineId a = computes_named_rows(world);
  world.feed(Detach{a});
  world.engines.erase(a);
  ASSERT_TRUE(world.controller->is_behind());
  const auto reply = world.command(other, AllocateRegion{Bytes(4096) * 4});
  EXPECT_FALSE(reply.has_value()) << "another domain's rows make way once they are cached";
  world.catch_up();
  for (int i = 0; i < 3; ++i) world.finish_copies();
  EXPECT_EQ(world.controller->region_bytes(other), Bytes(4096) * 4);
}

TEST(Endings, BlocksThatAreBeingGivenUpAreWorthAskingAgain) {
  World world(gives_up_one_row_an_event());
  const EngineId a = computes_named_rows(world);
  const EngineId b = world.attach(small_model());
  ASSERT_EQ(world.submit(b, 1, 4, 60), ErrorCode::kOk);
  world.step_until_granted(b);
  ends(world, a);
  const auto wants = [&] { return world.command(b, AllocateBlocks{RequestId(1), Tokens(56)}); };
  EXPECT_EQ(world.code(wants()), ErrorCode::kWouldBlock);
  world.catch_up();
  world.finish_copies();
  EXPECT_NE(world.code(wants()), ErrorCode::kOutOfMemory);
}

TEST(Endings, AClearedCacheHasNothingOfWhatEndedBefore) {
  World world(gives_up_one_row_an_event());
  const EngineId a = computes_named_rows(world);
  ends(world, a);
  world.feed(ClearCache{});
  world.catch_up();
  world.feed(Tick{});
  EXPECT_EQ(world.controller->status(world.now).cached[0], Bytes(0));
  EXPECT_FALSE(world.controller->is_behind());
}

TEST(Endings, AnEngineThatDetachesLeavesItsRowsCached) {
  World world(gives_up_one_row_an_event());
  const EngineId a = computes_named_rows(world);
  world.feed(Detach{a});
  world.engines.erase(a);
  ASSERT_TRUE(world.controller->is_behind());
  world.catch_up();
  const Bytes row = small_model().slot_bytes() * small_model().groups();
  EXPECT_EQ(world.controller->status(world.now).cached[0], row * 8);
}

}  // namespace
}  // namespace kvd::test
