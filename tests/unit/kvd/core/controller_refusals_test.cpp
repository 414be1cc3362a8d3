// What the Controller refuses, and with which code.
#include <gtest/gtest.h>

#include "kvd/core/controller.hpp"
#include "tests/support/controller_world.hpp"

namespace kvd::test {
namespace {

TEST(Controller, RefusesWhatASessionMayNotSay) {
  World world(small_pool(2));
  const EngineId a = world.attach(small_model());
  EXPECT_EQ(world.submit(a, 1, 0, 4), ErrorCode::kInvalidArgument);
  EXPECT_EQ(world.submit(a, 0, 4, 4), ErrorCode::kInvalidArgument);
  EXPECT_EQ(world.submit(a, 1, 4000, 4), ErrorCode::kOutOfMemory);
  EXPECT_EQ(world.submit(a, 1, INT64_MAX, 4), ErrorCode::kInvalidArgument);
  ASSERT_EQ(world.submit(a, 1, 4, 4), ErrorCode::kOk);
  EXPECT_EQ(world.submit(a, 1, 4, 4), ErrorCode::kInvalidArgument);
  world.step_until_granted(a);
  Step wrong;
  wrong.iteration_finished = 7;
  EXPECT_EQ(world.code(world.command(a, wrong)), ErrorCode::kInvalidArgument);
  Step early;
  early.iteration_finished = 0;
  early.iteration_running = 1;
  early.reports = {{RequestId(1), Tokens(4), false}};
  EXPECT_EQ(world.code(world.command(a, early)), ErrorCode::kInvalidArgument)
      << "reports tokens of the iteration that still runs";
  Step twice;
  twice.iteration_finished = 1;
  twice.reports = {{RequestId(1), Tokens(4), false}, {RequestId(1), Tokens(4), false}};
  EXPECT_EQ(world.code(world.command(a, twice)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(world.code(world.command(a, Finish{RequestId(9)})), ErrorCode::kNotFound);
  EXPECT_EQ(world.code(world.command(a, Rotate{RequestId(1), false})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(world.code(world.command(EngineId(77), Ping{})), ErrorCode::kStaleSession);
}

TEST(Controller, ShapesAndTokensThatWouldOverflowAreRefused) {
  Controller::Config config = small_pool(4, 4);
  config.hbm[0].slab_bytes = config.dram.slab_bytes = 64 * kMiB;
  World world(config);
  const EngineId a = world.attach({1024, 1, 8, kMiB});  // slots of 8 MiB, 1024 groups
  EXPECT_EQ(world.submit(a, 1, (std::int64_t{1} << 34) - 1, 1), ErrorCode::kOutOfMemory);
  EXPECT_EQ(world.submit(a, 2, 1, 1), ErrorCode::kOutOfMemory) << "one block takes 8 GiB";
}

TEST(Controller, ARequestBeyondItsDomainsMaximumIsRefusedAtOnce) {
  Controller::Config config = small_pool(4, 16);
  config.hbm_quotas[DomainId(1)] = {Bytes(0), Bytes(4096)};
  World world(config);
  const EngineId a = world.attach(small_model());
  EXPECT_EQ(world.submit(a, 1, 12, 8), ErrorCode::kOutOfMemory);  // 20 tokens, 16 fit
  EXPECT_EQ(world.submit(a, 2, 8, 8), ErrorCode::kOk);
  EXPECT_TRUE(run_to_end(world));
}

TEST(Controller, PendingRegionsOfOneSessionAreBounded) {
  World world(small_pool(2));
  const EngineId a = world.attach(small_model(), DomainId(1), true);
  const auto all = world.command(a, AllocateRegion{Bytes(8192)});
  ASSERT_EQ(world.code(all), ErrorCode::kOk);
  world.command(a, ReleaseRegion{std::get<RegionReply>(all->body).region});  // being zeroed
  for (int i = 0; i < 8; ++i) {
    EXPECT_FALSE(world.command(a, AllocateRegion{Bytes(4096)}).has_value());
  }
  EXPECT_EQ(world.code(world.command(a, AllocateRegion{Bytes(4096)})), ErrorCode::kQuotaExceeded);
}

TEST(Controller, ATimeoutOfZeroAsksForWhatCanBeSaidAtOnce) {
  World world(small_pool(2));
  const EngineId a = world.attach(small_model(), DomainId(1), true);
  EXPECT_EQ(world.code(world.command(a, Ping{}, Nanoseconds(0))), ErrorCode::kOk);
  EXPECT_EQ(world.code(world.command(a, Ping{}, Nanoseconds(-1))), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(world.code(world.command(a, AllocateRegion{Bytes(4096)}, Nanoseconds(0))),
            ErrorCode::kOk);
}

TEST(Controller, NewQuotasHoldForWhatComesAfterAndBadOnesAreRefused) {
  World world(small_pool(4));
  const EngineId a = world.attach(small_model(), DomainId(1), true);
  world.feed(Requota{{{DomainId(1), {Bytes(0), Bytes(4096)}}}, {}});
  EXPECT_EQ(world.code(world.command(a, AllocateRegion{Bytes(8192)})), ErrorCode::kQuotaExceeded);
  world.feed(Requota{{{DomainId(1), {Bytes(20480), Bytes(20480)}}}, {}});
  ASSERT_FALSE(world.notes.empty());
  EXPECT_EQ(world.code(world.command(a, AllocateRegion{Bytes(8192)})), ErrorCode::kQuotaExceeded)
      << "a guarantee beyond the pool changes nothing";
  world.feed(Requota{});
  EXPECT_EQ(world.code(world.command(a, AllocateRegion{Bytes(8192)})), ErrorCode::kOk);
}

}  // namespace
}  // namespace kvd::test
