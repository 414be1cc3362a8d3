// Random histories of engines that come, run, die and stop, checked after every event.
#include <gtest/gtest.h>

#include "kvd/core/controller.hpp"
#include "planner/policy/catalogue.hpp"
#include "tests/support/controller_world.hpp"

namespace kvd::test {
namespace {

using std::chrono::milliseconds;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kHistories = 20;  // a second each
constexpr std::uint64_t kOnTwoDevices = 4;
#else
constexpr std::uint64_t kHistories = 1500;
constexpr std::uint64_t kOnTwoDevices = 50;  // more engines: each takes longer
#endif

/// Only what the scheduler decides is left: the dead are gone, regions given back, forced requests
/// back in the queue.
void end_what_was_commanded(World& world) {
  world.feed(Tick{});
  world.finish_copies();
  while (!world.regions.empty()) world.release_oldest_region();
  for (auto it = world.engines.begin(); it != world.engines.end();) {
    const auto [id, engine] = *it++;
    if (!engine.alive) {
      world.bury(id);
      continue;
    }
    for (const auto& [request, state] : engine.requests) {
      world.command(id, Rotate{RequestId(request), false});
    }
  }
}

std::uint64_t number_in(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

/// One of several devices, or of a group one for each rank: the same or others.
Devices some_devices(World& world, std::uint32_t ranks) {
  const auto choose = [&] {
    return DeviceId(static_cast<std::uint32_t>(world.random() % world.device_slabs.size()));
  };
  if (world.device_slabs.size() == 1) return {};
  if (ranks == 1 || world.random() % 3 == 0) return Devices(choose());
  std::vector<DeviceId> by_rank(ranks);
  for (DeviceId& device : by_rank) device = choose();
  return Devices(by_rank);
}

/// Any mixture of engines, classes, aborts, rotations, deaths and regions, with copies ending late:
/// every block read is what was written, nothing leaks, and everybody finishes. KVD_SEED plays one
/// history; KVD_HISTORIES is how many otherwise, from KVD_FIRST_SEED on.
/// `usual`: how many, if nothing else is said.
void play_histories(std::uint32_t devices, std::uint64_t usual) {
  const char* wanted = std::getenv("KVD_SEED");
  const std::uint64_t count = wanted ? 1 : number_in("KVD_HISTORIES", usual);
  const std::uint64_t first = number_in(wanted ? "KVD_SEED" : "KVD_FIRST_SEED", 1);
  const std::uint64_t last = first + count - 1;
  std::size_t under_pressure = 0;
  std::uint64_t streams = 0;
  std::int64_t found = 0;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    SCOPED_TRACE("KVD_SEED=" + std::to_string(seed));
    Controller::Config config = small_pool(4, seed % 5 == 0 ? 5 : 16, devices);
    const auto choose = [&](planner::Decision decision, std::uint64_t n) {
      const auto names = planner::policy_names(decision);
      return std::string(names[n % names.size()]);
    };
    config.tuning.rotation.policy = choose(planner::Decision::kRotation, seed);
    config.tuning.admission.policy = choose(planner::Decision::kAdmission, seed / 3);
    config.tuning.placement.policy = choose(planner::Decision::kPlacement, seed / 2);
    config.tuning.rotation.eager = seed % 4 != 0;
    World world(config, seed);
    world.solve_late = seed % 3 == 0;
    const bool texts = seed % 7 < 4;  // some requests begin as others do
    const auto chance = [&](std::uint64_t n) { return world.random() % n == 0; };
    std::uint64_t next = 0;
    for (int i = 0; i < 400; ++i) {
      world.pass(milliseconds(1 + static_cast<std::int64_t>(world.random() % 200)));
      if (world.engines.size() < 1 + 2 * devices && chance(10)) {
        const ModelClass models[] = {small_model(),
                                     {2, 1, 8, Bytes(32)},
                                     {6, 1, 4, Bytes(32)},
                                     {2, 1, 4, Bytes(64), 2},
                                     {2, 2, 4, Bytes(32), 3}};
        const ModelClass& model = models[world.random() % 5];
        const EngineId id =
            world.attach(model, DomainId(1), false, some_devices(world, model.ranks));
        world.engines.at(id).pipelined = chance(2);
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
        // Some are larger than HBM: refused, or they run with their layers in DRAM.
        const auto tokens = [&] { return 1 + world.random() % (chance(8) ? 80 : 24); };
        const auto prompt = static_cast<std::int64_t>(tokens());
        const auto answer = static_cast<std::int64_t>(tokens());
        if (texts && chance(2)) {
          const Text text{1 + world.random() % 3, static_cast<std::uint32_t>(world.random() % 6),
                          world.random() % 3};
          world.submit(id, ++next, prompt, answer, text);
        } else {
          world.submit(id, ++next, prompt, answer);
        }
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
      if (!it->second.requests.empty() && chance(25)) {
        // The iteration it is granted in still runs.
        const auto request = std::prev(it->second.requests.end())->first;
        world.command(id, Abort{RequestId(request)});
        it->second.requests.erase(request);
        std::erase_if(it->second.reports,
                      [&](const StepReport& r) { return r.request.value == request; });
      }
      const bool retiring = world.retires();
      const std::size_t leased = world.regions.size();
      if (chance(20)) {
        const Bytes bytes(4096 * (1 + static_cast<std::int64_t>(world.random() % 2)));
        world.command(id, AllocateRegion{bytes}, milliseconds(3000));
      }
      if (!world.regions.empty() && chance(15)) world.release_oldest_region();
      if (chance(10)) world.feed(Tick{});
      if (chance(2)) world.finish_plans();
      world.run_and_step(id);
      if (::testing::Test::HasFatalFailure()) return;
      if (chance(2)) world.finish_copies(world.random() % 3);
      under_pressure += retiring && world.regions.size() > leased ? 1u : 0u;
    }
    streams += world.controller->status(world.now).counters.streams;
    found += world.found;
    if (seed % 2 == 0) {
      world.solve_late = false;
      world.finish_plans();
      bool ended = false;
      for (int round = 0; round < 20 && !ended; ++round) {
        end_what_was_commanded(world);
        ended = run_to_end(world, 300);
      }
      ASSERT_TRUE(ended) << "somebody waits for ever";
    }
    for (auto it = world.engines.begin(); it != world.engines.end();) {
      const EngineId id = (it++)->first;
      world.die(id);
      world.bury(id);
    }
    world.finish_copies();
    const ControllerStatus status = world.controller->status(world.now);
    EXPECT_EQ(world.errors, 0u);
    EXPECT_EQ(status.tiers[0].free + status.cached[0], status.tiers[0].capacity);
    EXPECT_EQ(status.tiers[1].free + status.cached[1], status.tiers[1].capacity);
    EXPECT_FALSE(world.retires());
    if (::testing::Test::HasFailure()) return;
  }
  if (wanted) return;
  EXPECT_GT(under_pressure, count / 4) << "regions for which requests made way";
  EXPECT_GT(streams, count) << "iterations with streamed layers";
  EXPECT_GT(found, static_cast<std::int64_t>(count)) << "tokens that were not computed again";
}

TEST(Controller, RandomHistoriesCorruptNothingAndLeakNothing) { play_histories(1, kHistories); }

/// Groups among them have their ranks on one device or on both.
TEST(Controller, RandomHistoriesOnTwoDevicesCorruptNothingAndLeakNothing) {
  play_histories(2, kOnTwoDevices);
}

}  // namespace
}  // namespace kvd::test
