// No request waits for ever if memory could be found. If none can be found, one request is ended
// and told.
#include <gtest/gtest.h>

#include "kvd/core/controller.hpp"
#include "tests/support/controller_world.hpp"

namespace kvd::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// The policies a daemon has by default; slabs of 4 KiB.
Controller::Config daemon_pool(std::uint32_t hbm_slabs, pool::Quotas hbm_quotas = {}) {
  Controller::Config config = small_pool(hbm_slabs);
  config.hbm_quotas = std::move(hbm_quotas);
  config.tuning.placement.policy = "orbitflow";
  config.tuning.admission.policy = "layerkv";
  return config;
}

/// Slots of 1,280 B: three a slab, and 256 B are left over.
ModelClass slack_model() { return {4, 2, 4, Bytes(160)}; }

TEST(ControllerStandstill, AnEmptySlabOfAnotherClassCountsWhole) {
  World world(daemon_pool(4));
  const EngineId first = world.attach(slack_model());
  ASSERT_EQ(world.submit(first, 1, 20, 4), ErrorCode::kOk);  // it takes all 12 slots of the pool
  ASSERT_TRUE(run_to_end(world));
  const EngineId second = world.attach(small_model());
  ASSERT_EQ(world.submit(second, 1, 60, 4), ErrorCode::kOk);  // all 32
  EXPECT_TRUE(run_to_end(world, 100)) << "the pool is empty";
  EXPECT_EQ(world.errors, 0u);
}

TEST(ControllerStandstill, APromptThatFillsTheDomainsMaximumComesIn) {
  World world(daemon_pool(8, {{DomainId(1), {Bytes(0), Bytes(4096) * 2}}}));
  const EngineId a = world.attach(small_model());
  EXPECT_EQ(world.submit(a, 1, 30, 3), ErrorCode::kOutOfMemory);
  ASSERT_EQ(world.submit(a, 2, 30, 2), ErrorCode::kOk);  // 16 slots
  EXPECT_TRUE(run_to_end(world, 100));
}

TEST(ControllerStandstill, WhatOthersAreGuaranteedIsNotToBeHad) {
  World world(daemon_pool(8, {{DomainId(2), {Bytes(4096) * 6, Bytes(INT64_MAX)}}}));
  const EngineId a = world.attach(small_model());
  EXPECT_EQ(world.submit(a, 1, 30, 3), ErrorCode::kOutOfMemory) << "it could never run";
  ASSERT_EQ(world.submit(a, 2, 30, 2), ErrorCode::kOk);
  EXPECT_TRUE(run_to_end(world, 100));
}

TEST(ControllerStandstill, TheHeadOfTheQueueComesInWhereNobodyDecodes) {
  World world(daemon_pool(8));
  const EngineId holder = world.attach(small_model(), DomainId(1), true);
  ASSERT_EQ(world.code(world.command(holder, AllocateRegion{Bytes(4096) * 5})), ErrorCode::kOk);
  const EngineId a = world.attach(small_model());
  ASSERT_EQ(world.submit(a, 1, 46, 2), ErrorCode::kOk);  // it takes all 24 slots beside the region
  EXPECT_TRUE(run_to_end(world, 100));
}

/// Half of the pool is a region, and the request needs all of it.
struct Standing {
  Standing() {
    holder = world.attach(small_model(), DomainId(1), true);
    EXPECT_EQ(world.code(world.command(holder, AllocateRegion{Bytes(4096) * 2})), ErrorCode::kOk);
    engine = world.attach(small_model());
    EXPECT_EQ(world.submit(engine, 1, 60, 4), ErrorCode::kOk);
  }
  void wait(int times) {
    for (int i = 0; i < times; ++i) {
      world.pass(seconds(1));
      world.step(engine);
      world.feed(Tick{});
    }
  }
  /// Requests whose engine heard that they ended for want of memory.
  std::vector<RequestId> told() const {
    std::vector<RequestId> out;
    for (const auto& [to, reply] : world.replies) {
      const auto* step = std::get_if<StepReply>(&reply.body);
      if (!step) continue;
      for (const HoldEntry& entry : step->hold) {
        if (entry.reason == Hold::kOutOfMemory) out.push_back(entry.request);
      }
    }
    return out;
  }
  Counters counters() { return world.controller->status(world.now).counters; }

  World world{daemon_pool(4)};
  EngineId holder, engine;
};

TEST(ControllerStandstill, IsToldOnceAndEndsTheLatestRequest) {
  Standing sut;
  ASSERT_EQ(sut.world.submit(sut.engine, 2, 60, 4), ErrorCode::kOk);
  sut.wait(4);
  EXPECT_EQ(sut.counters().standstills, 0u);
  sut.wait(50);
  EXPECT_EQ(sut.counters().standstills, 1u);
  EXPECT_EQ(sut.counters().ended.for_memory, 0u);
  EXPECT_EQ(std::count_if(sut.world.notes.begin(), sut.world.notes.end(),
                          [](const Note& note) {
                            return note.text.find("2 requests wait for memory") !=
                                   std::string::npos;
                          }),
            1);
  sut.wait(10);
  ASSERT_EQ(sut.counters().ended.for_memory, 1u);
  EXPECT_EQ(sut.told(), std::vector{RequestId(2)}) << "the latest";
  const ControllerStatus status = sut.world.controller->status(sut.world.now);
  ASSERT_EQ(status.requests.size(), 1u);
  EXPECT_EQ(status.requests[0].key.request, RequestId(1));
}

TEST(ControllerStandstill, IsOverOnceThereIsRoom) {
  Standing sut;
  sut.wait(30);
  sut.world.release_oldest_region();
  sut.world.finish_copies();
  EXPECT_TRUE(run_to_end(sut.world, 100));
  EXPECT_EQ(sut.counters().ended.for_memory, 0u);
}

// A step of the first takes so long that its requests run for twice the time after which a
// standstill ends a request.
TEST(ControllerStandstill, WhoWaitsForAPartThatOthersStillUseIsNotEnded) {
  Controller::Config config = daemon_pool(4);
  config.tuning.rotation.policy = "fcfs";
  World world(config);
  const EngineId slow = world.attach(small_model());
  for (std::uint64_t id = 1; id <= 8; ++id) {
    ASSERT_EQ(world.submit(slow, id, 4, 28), ErrorCode::kOk);
  }
  for (int i = 0; i < 40; ++i) world.run_and_step(slow);
  world.finish_copies();
  const EngineId late = world.attach(small_model(), DomainId(2));
  ASSERT_EQ(world.submit(late, 1, 28, 4), ErrorCode::kOk);
  const Nanoseconds step = config.standstill_after * 2 / 28;
  for (int i = 0; i < 200 && !world.engines.at(late).requests.empty(); ++i) {
    world.pass(step);
    for (const EngineId engine : {slow, late}) world.run_and_step(engine);
    world.finish_copies();
    world.feed(Tick{});
  }
  EXPECT_EQ(world.controller->status(world.now).counters.ended.for_memory, 0u);
  EXPECT_EQ(world.controller->status(world.now).counters.standstills, 1u) << "it is told";
  EXPECT_TRUE(world.engines.at(late).requests.empty());
  EXPECT_EQ(world.errors, 0u);
}

TEST(ControllerStandstill, OneThatHoldsMemoryEndsBeforeOneThatCameLater) {
  Controller::Config config = daemon_pool(2);
  config.dram.slabs = 1;
  World world(std::move(config));
  const EngineId a = world.attach(small_model());
  ASSERT_EQ(world.submit(a, 1, 12, 4), ErrorCode::kOk);
  world.step_until_granted(a);
  world.execute(a);
  world.step(a);
  ASSERT_EQ(world.code(world.command(a, Rotate{RequestId(1), true})), ErrorCode::kOk);
  world.run_and_step(a);
  world.finish_copies();
  const EngineId holder = world.attach(small_model(), DomainId(1), true);
  world.command(holder, AllocateRegion{Bytes(4096) * 2});
  world.finish_copies();  // what the request left behind is zeroed
  ASSERT_EQ(world.regions.size(), 1u);
  ASSERT_EQ(world.code(world.command(a, Rotate{RequestId(1), false})), ErrorCode::kOk);
  ASSERT_EQ(world.submit(a, 2, 4, 4), ErrorCode::kOk);
  for (int i = 0; i < 70; ++i) {
    world.pass(seconds(1));
    world.step(a);
    world.feed(Tick{});
  }
  const ControllerStatus status = world.controller->status(world.now);
  ASSERT_EQ(status.requests.size(), 1u);
  EXPECT_EQ(status.requests[0].key.request, RequestId(2)) << "the other held blocks in DRAM";
}

TEST(Controller, ADomainHasABoundOnItsRequestsWhateverItsEnginesHave) {
  Controller::Config config = small_pool(4);
  config.max_requests_per_domain = 3;
  World world(std::move(config));
  const EngineId a = world.attach(small_model()), b = world.attach(small_model());
  const EngineId other = world.attach(small_model(), DomainId(2));
  ASSERT_EQ(world.submit(a, 1, 4, 4), ErrorCode::kOk);
  ASSERT_EQ(world.submit(a, 2, 4, 4), ErrorCode::kOk);
  ASSERT_EQ(world.submit(b, 1, 4, 4), ErrorCode::kOk);
  EXPECT_EQ(world.submit(b, 2, 4, 4), ErrorCode::kQuotaExceeded);
  EXPECT_EQ(world.submit(other, 1, 4, 4), ErrorCode::kOk);
  EXPECT_EQ(world.code(world.command(a, Abort{RequestId(2)})), ErrorCode::kOk);
  EXPECT_EQ(world.submit(b, 2, 4, 4), ErrorCode::kOk);
}

/// DRAM of four slabs, three of which a model with small slots fills to a quarter; HBM of as many.
struct StrandedDram : World {
  explicit StrandedDram(DomainId others = DomainId(1), pool::Quotas dram_quotas = {})
      : World(tight(std::move(dram_quotas))) {
    streams_layers = false;
    // Slots of 256 B, 16 in a slab; a request has four. Twelve fill three slabs of DRAM, three
    // stay.
    small = attach({2, 1, 4, Bytes(64)});
    for (std::uint64_t id = 1; id <= 12; ++id) {
      EXPECT_EQ(submit(small, id, 5, 3), ErrorCode::kOk);
      step_until_granted(small);
      execute(small);
      step(small);
      EXPECT_EQ(code(command(small, Rotate{RequestId(id), true})), ErrorCode::kOk);
      step(small);
      finish_copies();
    }
    for (std::uint64_t id = 1; id <= 12; ++id) {
      if (id % 4 != 0) abort(id);
    }
    large = attach(small_model(), others);  // slots of 512 B
  }
  static Controller::Config tight(pool::Quotas dram_quotas) {
    Controller::Config config = small_pool(4, 4);  // slabs of 4 KiB
    config.dram_quotas = std::move(dram_quotas);
    config.tuning.rotation.policy = "fcfs";
    config.tuning.rotation.eager = false;
    return config;
  }
  void abort(std::uint64_t id) {
    EXPECT_EQ(code(command(small, Abort{RequestId(id)})), ErrorCode::kOk);
    engines.at(small).requests.erase(id);
  }
  void bring_back() {
    for (const auto& [id, request] : engines.at(small).requests) {
      command(small, Rotate{RequestId(id), false});
    }
    step(small);
  }
  /// Its blocks need two slabs, and DRAM has one. It leaves once its iteration is over.
  void push_out(std::uint64_t id) {
    command(large, Rotate{RequestId(id), true});
    run_and_step(large);
  }
  [[nodiscard]] bool push_until_blocks_move(std::uint64_t id) {
    for (int i = 0; i < 3 && moved == 0; ++i) push_out(id);
    return moved > 0;
  }
  [[nodiscard]] bool open(EngineId engine) const { return !engines.at(engine).requests.empty(); }
  [[nodiscard]] const pool::TierStats dram_now() const { return controller->status(now).tiers[1]; }
  [[nodiscard]] Counters counters() const { return controller->status(now).counters; }

  EngineId small, large;
};

TEST(Controller, FreeDramInSlabsOfAnotherClassIsUsed) {
  StrandedDram world;
  ASSERT_EQ(world.submit(world.large, 21, 30, 6), ErrorCode::kOk);
  world.step_until_granted(world.large);
  for (int i = 0; i < 6 && world.counters().rotations_out < 13; ++i) {
    world.push_out(21);  // 8 KiB
    world.finish_copies();
  }
  EXPECT_EQ(world.counters().rotations_out, 13u);
  world.command(world.large, Rotate{RequestId(21), false});
  for (int i = 0; i < 2000 && world.open(world.large); ++i) world.iterate(world.large);
  EXPECT_FALSE(world.open(world.large)) << world.dram_now().free.value << " B of DRAM are free, "
                                        << world.dram_now().stranded.value << " of them stranded";
  EXPECT_GT(world.counters().compacted.blocks, 0u);
  EXPECT_EQ(world.counters().compacted.bytes, world.counters().compacted.blocks * 256);
  EXPECT_EQ(world.errors, 0u);
}

TEST(Controller, ASlabOfAnotherDomainIsEmptiedWhereQuotasLetItGo) {
  for (const std::int64_t guaranteed : {0, 3}) {
    SCOPED_TRACE(guaranteed);
    StrandedDram world(DomainId(2), {{DomainId(1), {.guarantee = Bytes(4096 * guaranteed)}}});
    ASSERT_EQ(world.submit(world.large, 21, 24, 8), ErrorCode::kOk);
    for (int i = 0; i < 20 && world.engines.at(world.large).reply.run.empty(); ++i) {
      world.step(world.large);
      world.finish_copies();  // the slabs of HBM get new memory
    }
    const std::uint64_t before = world.counters().rotations_out;
    for (int i = 0; i < 6 && world.counters().rotations_out == before; ++i) {
      world.push_out(21);
      world.finish_copies();
      world.feed(Tick{});
      world.finish_copies();
    }
    EXPECT_EQ(world.counters().rotations_out - before, guaranteed > 0 ? 0u : 1u);
    EXPECT_EQ(world.moved > 0, guaranteed == 0);
    EXPECT_EQ(world.errors, 0u);
  }
}

TEST(Controller, MovesWithinDramAreNoCopiesOverTheLink) {
  StrandedDram world;
  ASSERT_EQ(world.submit(world.large, 21, 24, 8), ErrorCode::kOk);
  world.step_until_granted(world.large);
  const auto before = world.counters();
  ASSERT_TRUE(world.push_until_blocks_move(21));
  world.link_bytes_per_s = 1;  // it would be measured
  world.finish_copies();
  const auto after = world.counters();
  EXPECT_EQ(after.compacted.blocks, world.moved);
  EXPECT_EQ(after.copies[0], before.copies[0]);
  EXPECT_EQ(after.copies[1], before.copies[1]);
  EXPECT_GT(world.controller->status(world.now).devices[0].link_rate[1], 1e6);
}

TEST(Controller, ARoundMovesNoMoreThanAQuarterOfWhatAStepMayRotate) {
  StrandedDram world;
  Tuning tuning = world.controller->tuning();
  tuning.rotation.b_xfer = Bytes(256) * 8;  // a quarter: two blocks of 256 B
  world.feed(Retune{tuning});
  ASSERT_EQ(world.submit(world.large, 21, 24, 8), ErrorCode::kOk);
  world.step_until_granted(world.large);
  ASSERT_TRUE(world.push_until_blocks_move(21));
  EXPECT_EQ(world.moved, 2u);
  world.feed(Tick{});
  EXPECT_EQ(world.moved, 2u) << "one round at a time";
  world.finish_copies();
  world.feed(Tick{});
  EXPECT_EQ(world.moved, 4u);
  world.finish_copies();
  world.feed(Tick{});
  world.finish_copies();
  EXPECT_EQ(world.moved, 4u) << "the slab is empty, and nothing more was wanted";
}

TEST(Controller, BlocksThatMoveMayEndComeBackOrFailMeanwhile) {
  const auto die = [](StrandedDram& world) { world.die(world.small); };
  const auto end = [](StrandedDram& world) {
    for (const std::uint64_t id : {4u, 8u, 12u}) world.abort(id);
  };
  const auto come = [](StrandedDram& world) { world.bring_back(); };
  const auto fail = [](StrandedDram& world) { world.fail_copies = 1; };
  const auto leave = [](StrandedDram& world) {
    world.feed(Detach{world.small});
    world.engines.erase(world.small);
  };
  using Meanwhile = std::pair<const char*, std::function<void(StrandedDram&)>>;
  for (const auto& [name, happens] :
       {Meanwhile{"dies", die}, Meanwhile{"ends", end}, Meanwhile{"comes back", come},
        Meanwhile{"fails", fail}, Meanwhile{"detaches", leave}}) {
    SCOPED_TRACE(name);
    StrandedDram world;
    ASSERT_EQ(world.submit(world.large, 21, 24, 8), ErrorCode::kOk);
    world.step_until_granted(world.large);
    ASSERT_TRUE(world.push_until_blocks_move(21));
    happens(world);
    // Slots that are given up must not go to others before the copy that reads them has ended.
    world.run_and_step(world.large);
    world.finish_copies();
    for (int i = 0; i < 4; ++i) {
      world.pass(milliseconds(10));
      world.push_out(21);
      world.finish_copies();
    }
    if (world.engines.contains(world.small)) {
      if (world.engines.at(world.small).alive) world.bring_back();
      if (!world.engines.at(world.small).alive) world.bury(world.small);
    }
    world.command(world.large, Rotate{RequestId(21), false});
    EXPECT_TRUE(run_to_end(world, 300));
    world.finish_copies();
    EXPECT_EQ(world.errors, 0u);
    EXPECT_EQ(world.dram_now().free, world.dram_now().capacity);
  }
}

}  // namespace
}  // namespace kvd::test
