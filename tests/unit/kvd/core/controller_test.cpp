#include "kvd/core/controller.hpp"

#include <gtest/gtest.h>

#include "planner/policy/catalogue.hpp"
#include "tests/support/controller_world.hpp"

namespace kvd::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Controller, RunsOneRequestFromPrefillToTheEnd) {
  World world(small_pool());
  const EngineId engine = world.attach(small_model());
  ASSERT_EQ(world.submit(engine, 1, 6, 3), ErrorCode::kOk);

  world.step_until_granted(engine);
  ASSERT_EQ(world.engines.at(engine).reply.run.size(), 1u);
  const RunEntry first = world.engines.at(engine).reply.run[0];
  EXPECT_TRUE(first.prefill);
  EXPECT_EQ(first.tokens, Tokens(6));
  world.run_and_step(engine);
  EXPECT_FALSE(world.engines.at(engine).reply.run[0].prefill);
  EXPECT_EQ(world.engines.at(engine).reply.run[0].present, Tokens(6));
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
  const ControllerStatus status = world.controller->status(world.now);
  EXPECT_EQ(status.requests.size(), 0u);
  EXPECT_EQ(status.tiers[0].free, status.tiers[0].capacity);
}

TEST(Controller, HoldsARequestUntilTheSlabIsAcknowledged) {
  World world(small_pool());
  world.acknowledge = false;
  const EngineId engine = world.attach(small_model());
  ASSERT_EQ(world.submit(engine, 1, 4, 4), ErrorCode::kOk);
  world.step(engine);
  EXPECT_TRUE(world.engines.at(engine).reply.run.empty());
  ASSERT_EQ(world.engines.at(engine).reply.hold.size(), 1u);
  EXPECT_EQ(world.engines.at(engine).reply.hold[0].reason, Hold::kSlabNotMapped);
  ASSERT_EQ(world.sent.size(), 1u);
  world.feed(SlabMapped{engine, world.sent[0].slab});
  world.step(engine);
  EXPECT_EQ(world.engines.at(engine).reply.run.size(), 1u);
}

TEST(Controller, RotatesMoreRequestsThanHbmHolds) {
  World world(small_pool(2, 32));
  const EngineId engine = world.attach(small_model());
  for (std::uint64_t r = 1; r <= 6; ++r) ASSERT_EQ(world.submit(engine, r, 8, 12), ErrorCode::kOk);
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
  EXPECT_GT(world.controller->status(world.now).counters.rotations_out, 0u);
  EXPECT_EQ(world.controller->status(world.now).counters.requests_finished, 6u);
}

TEST(Controller, TheCheckRejectsACorruptedCopy) {
  World world(small_pool(2, 32));
  const EngineId engine = world.attach(small_model());
  for (std::uint64_t r = 1; r <= 6; ++r) ASSERT_EQ(world.submit(engine, r, 8, 12), ErrorCode::kOk);
  world.corrupt_next = true;
  ASSERT_TRUE(run_to_end(world));
  EXPECT_GT(world.errors, 0u);
}

TEST(Controller, FcfsFinishesToo) {
  Controller::Config config = small_pool(2, 32);
  config.tuning.rotation.policy = "fcfs";
  World world(config);
  const EngineId engine = world.attach(small_model());
  for (std::uint64_t r = 1; r <= 6; ++r) ASSERT_EQ(world.submit(engine, r, 8, 12), ErrorCode::kOk);
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

// lvf takes a victim for whoever lags, whatever is saved up.
Controller::Config lvf_pool() {
  Controller::Config config = small_pool(2, 32);
  config.tuning.rotation.policy = "lvf";
  return config;
}

TEST(Controller, TakesVictimsOfAnotherEngineOnlyAtItsOwnStep) {
  World world(lvf_pool());
  const EngineId a = world.attach(small_model());
  const EngineId b = world.attach(small_model());
  ASSERT_EQ(world.submit(a, 1, 28, 4), ErrorCode::kOk);  // all 16 slots of the pool
  world.step_until_granted(a);
  world.pass(seconds(1));
  world.run_and_step(a);
  ASSERT_EQ(world.submit(b, 1, 8, 4), ErrorCode::kOk);
  world.pass(seconds(10));
  world.step(b);
  EXPECT_TRUE(world.engines.at(b).reply.run.empty());
  ControllerStatus status = world.controller->status(world.now);
  EXPECT_EQ(status.counters.promises, 1u);
  EXPECT_EQ(status.counters.rotations_out, 0u) << "the owner has not stepped yet";
  ASSERT_EQ(world.engines.at(b).reply.hold.size(), 1u);
  EXPECT_EQ(world.engines.at(b).reply.hold[0].reason, Hold::kPromised);

  world.run_and_step(a);
  EXPECT_TRUE(world.engines.at(a).reply.run.empty());
  world.finish_copies();
  world.step(b);
  EXPECT_EQ(world.engines.at(b).reply.run.size(), 1u);
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

TEST(Controller, APromiseExpiresWithItsNeed) {
  World world(lvf_pool());
  const EngineId a = world.attach(small_model());
  const EngineId b = world.attach(small_model());
  ASSERT_EQ(world.submit(a, 1, 28, 4), ErrorCode::kOk);
  world.step_until_granted(a);
  world.pass(seconds(1));
  world.run_and_step(a);
  ASSERT_EQ(world.submit(b, 1, 8, 4), ErrorCode::kOk);
  world.pass(seconds(10));
  world.step(b);
  ASSERT_EQ(world.controller->status(world.now).counters.promises, 1u);
  ASSERT_EQ(world.code(world.command(b, Abort{RequestId(1)})), ErrorCode::kOk);
  world.engines.at(b).requests.clear();
  world.step(b);
  EXPECT_EQ(world.controller->status(world.now).counters.promises_expired, 1u);
  world.run_and_step(a);
  EXPECT_EQ(world.engines.at(a).reply.run.size(), 1u) << "its victim stays";
}

TEST(Controller, KeepsSlotsOfADeadEngineUntilItIsGoneAndZeroed) {
  World world(small_pool(2, 32));
  const EngineId a = world.attach(small_model());
  ASSERT_EQ(world.submit(a, 1, 8, 4), ErrorCode::kOk);
  world.step_until_granted(a);
  world.run_and_step(a);
  const Bytes before = world.controller->status(world.now).tiers[0].free;
  world.die(a);
  EXPECT_EQ(world.controller->status(world.now).tiers[0].free, before);
  EXPECT_GT(world.controller->status(world.now).tiers[0].quarantined, Bytes(0));
  world.bury(a);
  EXPECT_EQ(world.controller->status(world.now).tiers[0].free, before) << "not zeroed yet";
  world.finish_copies();
  const ControllerStatus status = world.controller->status(world.now);
  EXPECT_EQ(status.tiers[0].free, status.tiers[0].capacity);
  EXPECT_TRUE(world.hbm.empty());
}

TEST(Controller, LeasesZeroedRegionsAndTakesThemBack) {
  World world(small_pool(4));
  const EngineId a = world.attach(small_model(), DomainId(1), true);
  const auto reply = world.command(a, AllocateRegion{Bytes(9000)});
  ASSERT_EQ(world.code(reply), ErrorCode::kOk);
  const auto region = std::get<RegionReply>(reply->body);
  EXPECT_EQ(region.slabs, 3u);
  ASSERT_EQ(world.sent.size(), 3u);
  EXPECT_EQ(world.sent[2].position, 2u);
  EXPECT_EQ(world.controller->region_bytes(a), Bytes(3 * 4096));
  EXPECT_EQ(world.code(world.command(a, AllocateRegion{Bytes(8192)})), ErrorCode::kOutOfMemory);
  EXPECT_EQ(world.code(world.command(a, ReleaseRegion{RegionId(99)})), ErrorCode::kNotFound);
  EXPECT_EQ(world.code(world.command(a, ReleaseRegion{region.region})), ErrorCode::kOk);

  // Waits for the scrub of what came back, then gets it.
  const auto again = world.command(a, AllocateRegion{Bytes(4 * 4096)});
  EXPECT_FALSE(again.has_value());
  world.finish_copies();
  EXPECT_EQ(world.controller->region_bytes(a), Bytes(4 * 4096));
}

TEST(Controller, ARegionThatCannotBeHadInTimeIsRefused) {
  World world(small_pool(2));
  const EngineId a = world.attach(small_model(), DomainId(1), true);
  const auto first = world.command(a, AllocateRegion{Bytes(8192)});
  ASSERT_EQ(world.code(first), ErrorCode::kOk);
  world.command(a, ReleaseRegion{std::get<RegionReply>(first->body).region});
  EXPECT_FALSE(world.command(a, AllocateRegion{Bytes(4096)}, milliseconds(5)).has_value());
  world.pass(milliseconds(6));
  world.feed(Tick{});
  EXPECT_EQ(world.code(world.replies.rbegin()->second), ErrorCode::kDeadlineExceeded);
}

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

TEST(Controller, APipelinedVictimIsCopiedOnlyAfterItsIteration) {
  World world(small_pool(2, 32));
  const EngineId a = world.attach(small_model());
  ASSERT_EQ(world.submit(a, 1, 4, 20), ErrorCode::kOk);
  world.step_until_granted(a);
  world.run_and_step(a);  // request 1 decodes in iteration 2, which now runs
  ASSERT_EQ(world.code(world.command(a, Rotate{RequestId(1), true})), ErrorCode::kOk);
  Step running;
  running.iteration_finished = 1;
  running.iteration_running = 2;
  const auto reply = world.command(a, running);
  ASSERT_EQ(world.code(reply), ErrorCode::kOk);
  EXPECT_TRUE(std::get<StepReply>(reply->body).run.empty());
  world.finish_copies();
  EXPECT_EQ(world.controller->status(world.now).counters.rotations_out, 0u);

  world.execute(a);
  world.step(a);
  world.finish_copies();
  EXPECT_EQ(world.controller->status(world.now).counters.rotations_out, 1u);
  EXPECT_EQ(world.code(world.command(a, Rotate{RequestId(1), false})), ErrorCode::kOk);
  world.finish_copies();
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

TEST(Controller, AFailedCopyLosesNothing) {
  for (std::size_t n = 1; n <= 6; ++n) {
    World world(small_pool(2, 32), n);
    const EngineId engine = world.attach(small_model());
    for (std::uint64_t r = 1; r <= 6; ++r) {
      ASSERT_EQ(world.submit(engine, r, 8, 12), ErrorCode::kOk);
    }
    world.fail_copies = n;
    ASSERT_TRUE(run_to_end(world)) << "copy " << n << " failed";
    EXPECT_EQ(world.errors, 0u);
    EXPECT_EQ(world.controller->status(world.now).counters.copy_failures, 1u);
  }
}

TEST(Controller, ASilentEngineLeavesTheSupply) {
  World world(lvf_pool());
  const EngineId a = world.attach(small_model());
  const EngineId b = world.attach(small_model());
  ASSERT_EQ(world.submit(a, 1, 28, 4), ErrorCode::kOk);
  world.step_until_granted(a);
  world.run_and_step(a);
  world.pass(seconds(6));
  world.feed(Tick{});
  ASSERT_EQ(world.submit(b, 1, 8, 4), ErrorCode::kOk);
  world.pass(seconds(20));
  world.step(b);
  EXPECT_EQ(world.controller->status(world.now).counters.promises, 0u);
  world.run_and_step(a);  // it speaks again
  world.pass(seconds(10));
  world.step(b);
  EXPECT_EQ(world.controller->status(world.now).counters.promises, 1u);
}

TEST(Controller, TwoModelsShareOnePool) {
  World world(small_pool(4, 64));
  const EngineId a = world.attach(small_model());
  const EngineId b = world.attach({2, 1, 8, Bytes(32)});  // slots of 256 B
  for (std::uint64_t r = 1; r <= 4; ++r) {
    ASSERT_EQ(world.submit(a, r, 10, 12), ErrorCode::kOk);
    ASSERT_EQ(world.submit(b, r, 20, 30), ErrorCode::kOk);
  }
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

TEST(Controller, ASlabFullOfAnotherModelIsEmptiedForANewOne) {
  World world(small_pool(2, 64));
  const EngineId a = world.attach(small_model());
  const EngineId b = world.attach({2, 1, 8, Bytes(32)});
  // Four requests of a spread over both slabs; the end of two leaves holes of a's class only.
  for (std::uint64_t r = 1; r <= 4; ++r) ASSERT_EQ(world.submit(a, r, 7, 20), ErrorCode::kOk);
  world.step_until_granted(a);
  world.run_and_step(a);
  for (const std::uint64_t r : {std::uint64_t{2}, std::uint64_t{4}}) {
    ASSERT_EQ(world.code(world.command(a, Finish{RequestId(r)})), ErrorCode::kOk);
    world.engines.at(a).requests.erase(r);
    std::erase_if(world.engines.at(a).reply.run,
                  [&](const RunEntry& entry) { return entry.request == RequestId(r); });
  }
  ASSERT_EQ(world.submit(b, 1, 20, 8), ErrorCode::kOk);
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

TEST(Controller, ShapesAndTokensThatWouldOverflowAreRefused) {
  Controller::Config config = small_pool(4, 4);
  config.hbm.slab_bytes = config.dram.slab_bytes = 64 * kMiB;
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

/// Like step(), for an engine that asks for the next iteration while one still runs.
std::optional<Reply> pipelined_step(World& world, EngineId id, std::uint64_t running,
                                    std::vector<StepReport> reports) {
  Step step;
  step.iteration_finished = running - 1;
  step.iteration_running = running;
  step.reports = std::move(reports);
  return world.command(id, step);
}

TEST(Controller, APipelinedEngineGetsItsNextIterationWhileOneRuns) {
  World world(small_pool(2, 32));
  const EngineId a = world.attach(small_model());
  ASSERT_EQ(world.submit(a, 1, 4, 8), ErrorCode::kOk);
  world.step_until_granted(a);  // iteration 1: the prefill
  for (std::int64_t running = 1; running <= 6; ++running) {
    // Iteration `running` holds 4 tokens after the first, one more after each later one.
    std::vector<StepReport> reports;
    if (running > 1) reports = {{RequestId(1), Tokens(2 + running), false}};
    const auto reply =
        pipelined_step(world, a, static_cast<std::uint64_t>(running), std::move(reports));
    ASSERT_EQ(world.code(reply), ErrorCode::kOk) << "iteration " << running;
    const StepReply& step = std::get<StepReply>(reply->body);
    ASSERT_EQ(step.run.size(), 1u) << "iteration " << running;
    EXPECT_FALSE(step.run[0].prefill);
    EXPECT_EQ(step.run[0].present, Tokens(3 + running));
  }
  const auto early = pipelined_step(world, a, 7, {{RequestId(1), Tokens(10), false}});
  EXPECT_EQ(world.code(early), ErrorCode::kInvalidArgument) << "tokens of the running iteration";
}

TEST(Controller, AStepWhoseReplyWasLostCanBeAskedAgain) {
  World world(small_pool(2, 32));
  const EngineId a = world.attach(small_model());
  ASSERT_EQ(world.submit(a, 1, 4, 8), ErrorCode::kOk);
  world.step_until_granted(a);
  world.execute(a);
  auto& engine = world.engines.at(a);
  Step step;
  step.iteration_finished = engine.reply.iteration;
  step.reports = engine.reports;
  ASSERT_EQ(world.code(world.command(a, step)), ErrorCode::kOk);  // its reply is lost
  engine.reports.clear();
  const auto again = world.command(a, step = Step{step.iteration_finished, 0, {}, {}});
  ASSERT_EQ(world.code(again), ErrorCode::kOk);
  engine.reply = std::get<StepReply>(again->body);
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

TEST(Controller, BothTiersFullIsNoDeadEnd) {
  World world(small_pool(2, 2));  // 16 slots each; three requests grow to 12 slots
  const EngineId a = world.attach(small_model());
  for (std::uint64_t r = 1; r <= 5; ++r) ASSERT_EQ(world.submit(a, r, 4, 20), ErrorCode::kOk);
  ASSERT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
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
  world.feed(Requota{{{DomainId(1), {Bytes(5 * 4096), Bytes(5 * 4096)}}}, {}});
  ASSERT_FALSE(world.notes.empty());
  EXPECT_EQ(world.code(world.command(a, AllocateRegion{Bytes(8192)})), ErrorCode::kQuotaExceeded)
      << "a guarantee beyond the pool changes nothing";
  world.feed(Requota{});
  EXPECT_EQ(world.code(world.command(a, AllocateRegion{Bytes(8192)})), ErrorCode::kOk);
}

/// Any mixture of engines, classes, aborts, rotations, deaths and regions, with copies ending late:
/// every block read is what was written, nothing leaks, and everybody finishes.
TEST(Controller, RandomHistoriesCorruptNothingAndLeakNothing) {
  const char* wanted = std::getenv("KVD_SEED");
  const std::uint64_t first = wanted ? std::strtoull(wanted, nullptr, 10) : 1;
  const char* more = std::getenv("KVD_HISTORIES");
  const std::uint64_t count = more ? std::strtoull(more, nullptr, 10) : 60;
  const std::uint64_t last = wanted ? first : count;
  std::size_t under_pressure = 0;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    SCOPED_TRACE("KVD_SEED=" + std::to_string(seed));
    Controller::Config config = small_pool(4, 16);
    const auto choose = [&](planner::Decision decision, std::uint64_t n) {
      const auto names = planner::policy_names(decision);
      return std::string(names[n % names.size()]);
    };
    config.tuning.rotation.policy = choose(planner::Decision::kRotation, seed);
    config.tuning.admission.policy = choose(planner::Decision::kAdmission, seed / 3);
    World world(config, seed);
    const auto chance = [&](std::uint64_t n) { return world.random() % n == 0; };
    std::uint64_t next = 0;
    for (int i = 0; i < 400; ++i) {
      world.pass(milliseconds(1 + static_cast<std::int64_t>(world.random() % 200)));
      if (world.engines.size() < 3 && chance(10)) {
        world.attach(chance(2) ? small_model() : ModelClass{2, 1, 8, Bytes(32)});
      }
      if (world.engines.empty()) continue;
      auto it = world.engines.begin();
      std::advance(it, static_cast<std::ptrdiff_t>(world.random() % world.engines.size()));
      const EngineId id = it->first;
      if (!it->second.alive) {
        if (chance(3)) world.bury(id);
        continue;
      }
      if (chance(4)) {
        world.submit(id, ++next, 1 + static_cast<std::int64_t>(world.random() % 24),
                     1 + static_cast<std::int64_t>(world.random() % 24));
      }
      if (chance(60)) {
        world.die(id);
        continue;
      }
      if (chance(80)) {
        world.feed(Detach{id});
        world.engines.erase(id);
        continue;
      }
      if (!it->second.requests.empty() && chance(12)) {
        world.command(id, Rotate{RequestId(it->second.requests.begin()->first), chance(2)});
      }
      const bool retiring = world.retires();
      const std::size_t leased = world.regions.size();
      if (chance(20)) {
        const Bytes bytes(4096 * (1 + static_cast<std::int64_t>(world.random() % 2)));
        world.command(id, AllocateRegion{bytes}, milliseconds(3000));
      }
      if (!world.regions.empty() && chance(15)) world.release_oldest_region();
      if (chance(10)) world.feed(Tick{});
      world.run_and_step(id);
      if (HasFatalFailure()) return;
      if (chance(2)) world.finish_copies(world.random() % 3);
      under_pressure += retiring && world.regions.size() > leased ? 1u : 0u;
    }
    for (auto it = world.engines.begin(); it != world.engines.end();) {
      const EngineId id = (it++)->first;
      world.die(id);
      world.bury(id);
    }
    world.finish_copies();
    const ControllerStatus status = world.controller->status(world.now);
    EXPECT_EQ(world.errors, 0u);
    EXPECT_EQ(status.tiers[0].free, status.tiers[0].capacity);
    EXPECT_EQ(status.tiers[1].free, status.tiers[1].capacity);
    EXPECT_FALSE(world.retires());
    if (HasFailure()) return;
  }
  if (wanted) return;
  EXPECT_GT(under_pressure, 20u) << "regions for which requests made way";
}

}  // namespace
}  // namespace kvd::test
