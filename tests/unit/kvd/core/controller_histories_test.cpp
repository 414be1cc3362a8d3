// Random histories of engines that come, run, die and stop, checked after every event.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <random>

#include "kvd/core/controller.hpp"
#include "planner/baselines/all_policies.hpp"
#include "tests/support/controller_world.hpp"

namespace kvd::test {
namespace {

using std::chrono::milliseconds;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kHistories = 8;  // a second each
constexpr std::uint64_t kOnTwoDevices = 3;
constexpr std::uint64_t kOfTwoDaemons = 4;
constexpr std::uint64_t kOfGroups = 4;
#else
constexpr std::uint64_t kHistories = 600;
constexpr std::uint64_t kOnTwoDevices = 100;  // more engines: each takes longer
constexpr std::uint64_t kOfTwoDaemons = 100;
constexpr std::uint64_t kOfGroups = 100;
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

/// The engine's device among several, or one for each rank of a group: the same or others.
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

/// If files on disk grow and give way, all models together have this many parts.
constexpr Bytes kDiskParts(6);

Controller::Config config_of(std::uint64_t seed, std::uint32_t devices, bool keep) {
  Controller::Config config = small_pool(4, seed % 5 == 0 ? 5 : 16, devices);
  config.keep = {keep, keep};
  if (seed % 3 == 2) config.max_given_up = 1 + static_cast<std::uint32_t>(seed % 4);
  const auto choose = [&](planner::Decision decision, std::uint64_t n) {
    auto names = planner::all_policies().names(decision);
    if (names.back() == planner::kOraclePolicy) names = names.first(names.size() - 1);
    return std::string(names[n % names.size()]);
  };
  config.tuning.rotation.policy = choose(planner::Decision::kRotation, seed);
  config.tuning.admission.policy = choose(planner::Decision::kAdmission, seed / 3);
  config.tuning.placement.policy = choose(planner::Decision::kPlacement, seed / 2);
  config.tuning.rotation.eager = seed % 4 != 0;
  if (seed % 3 != 0) {
    config.disk.name = plain_disk_name;
    config.disk.admission.least = seed % 3 == 1 ? 1 : 2;
    config.disk.size = kDiskParts;
  }
  if (seed % 3 == 1) config.dram.slabs = 6;  // share of the histories in which much is only on disk
  return config;
}

/// Engines that come, run, die and stop as the seed says.
class History {
 public:
  /// `keep`: what is cached is recorded for the next daemon, in both tiers. `layered`: most engines
  /// are groups, with enough layers to stream.
  History(std::uint64_t seed, std::uint32_t devices, bool keep = false, bool layered = false)
      : world_(config_of(seed, devices, keep), seed),
        seed_(seed),
        keep_(keep),
        layered_(layered),
        devices_(devices),
        texts_(seed % 7 < 4),
        boasts_(devices == 1 && seed % 11 < 7),
        documents_(seed % 3 == 1 ? 5 : 3) {
    world_.solve_late = seed % 3 == 0;
    world_.disk.fail_reads = world_.disk.fail_writes = seed % 2 == 0 ? 8 : 0;
    if (seed % 5 < 2) {
      world_.disk.grain = 5;
      world_.disk.grains = static_cast<std::uint32_t>(kDiskParts.value);
    }
  }

  /// kvd was killed in the middle of the other history.
  void follow(const History& before) {
    world_.adopt(before.world_);
    const auto& kept = world_.controller->status(world_.now).counters.prefixes.kept;
    for (std::size_t tier = 0; tier < kTiers; ++tier) adopted[tier] = kept.blocks[tier];
    EXPECT_EQ(kept.dropped.misfit, 0u);
  }

  void play() {
    for (int i = 0; i < 400 && !::testing::Test::HasFatalFailure(); ++i) {
      world_.pass(milliseconds(1 + static_cast<std::int64_t>(world_.random() % 200)));
      if (world_.engines.size() < 1 + 2 * devices_ && chance(10)) attach();
      if (world_.engines.empty()) continue;
      auto it = world_.engines.begin();
      std::advance(it, static_cast<std::ptrdiff_t>(world_.random() % world_.engines.size()));
      if (!it->second.alive) {
        if (chance(3)) world_.bury(it->first);
        continue;
      }
      if (keep_ && chance(3)) world_.finish_kept();
      if (chance(4)) submit(it->first);
      if (!leaves(it->first)) act(it->second);
    }
    streams = world_.controller->status(world_.now).counters.streams;
    found = world_.found;
    streamed_by_rank = world_.streamed_by_rank;
  }

  /// Every other history runs to its end. Then all die, and nothing is left.
  void end() {
    if (seed_ % 2 == 0) run_out();
    for (auto it = world_.engines.begin(); it != world_.engines.end();) {
      const EngineId id = (it++)->first;
      world_.die(id);
      world_.bury(id);
    }
    world_.finish_copies();
    // Everything released by then is zeroed, and the zeroing ends as well.
    while (!world_.kept.empty()) world_.finish_copies();
    const ControllerStatus status = world_.controller->status(world_.now);
    EXPECT_EQ(world_.errors, 0u);
    EXPECT_EQ(world_.disk.wrong, 0u);
    loads = status.counters.prefixes.lower[core::kDiskTier].loads;
    EXPECT_EQ(status.tiers[0].free + status.cached[0], status.tiers[0].capacity);
    EXPECT_EQ(status.tiers[1].free + status.cached[1], status.tiers[1].capacity);
    EXPECT_FALSE(world_.retires());
  }

  std::size_t under_pressure = 0;               ///< regions for which requests made way
  std::uint64_t streams = 0;                    ///< iterations with streamed layers
  std::uint64_t streamed_by_rank = 0;           ///< layers that ranks but the first waited for
  std::int64_t found = 0;                       ///< tokens that were not computed again
  std::uint64_t loads = 0;                      ///< rows that the disk brought back
  std::array<std::uint64_t, kTiers> adopted{};  ///< blocks of the kvd before

 private:
  bool chance(std::uint64_t n) { return world_.random() % n == 0; }

  void attach() {
    const ModelClass models[] = {small_model(),
                                 {2, 1, 8, Bytes(32)},
                                 {6, 1, 4, Bytes(32)},
                                 {2, 1, 4, Bytes(64), 2},
                                 {2, 2, 4, Bytes(32), 3}};
    const ModelClass layered[] = {{4, 1, 4, Bytes(32), 2},
                                  {6, 2, 4, Bytes(16), 3},
                                  {3, 1, 4, Bytes(32), 2},
                                  {5, 1, 8, Bytes(16), 2},
                                  {6, 1, 4, Bytes(32)}};
    const ModelClass& model = (layered_ ? layered : models)[world_.random() % 5];
    const EngineId id = world_.attach(model, DomainId(1), false, some_devices(world_, model.ranks));
    world_.engines.at(id).pipelined = chance(2);
  }

  /// Some requests are larger than HBM: they are refused, or run with their layers in DRAM. Some
  /// begin like others. Some announce far more than they are said to make, and some of those make
  /// it all.
  void submit(EngineId id) {
    const auto tokens = [&] { return 1 + world_.random() % (chance(8) ? 80 : 24); };
    const auto prompt = static_cast<std::int64_t>(tokens());
    const auto answer = static_cast<std::int64_t>(tokens());
    Submit body{RequestId(++next_), Tokens(prompt), Tokens(answer), {}, {}};
    std::int64_t makes = answer;
    if (boasts_ && !chance(3)) {
      body.max_new_tokens = Tokens(std::max<std::int64_t>(answer, 64 - prompt));
      body.predicted = PredictedLength{Tokens(1), Tokens(std::min<std::int64_t>(answer, 8))};
      if (chance(4)) makes = body.max_new_tokens.value;
    }
    if (!texts_ || !chance(2)) {
      world_.submit(id, body, makes);
      return;
    }
    const Text text{1 + world_.random() % documents_,
                    static_cast<std::uint32_t>(world_.random() % 6), world_.random() % 3};
    world_.submit(id, body, makes, text);
  }

  bool leaves(EngineId id) {
    if (chance(60)) {
      world_.die(id);
      return true;
    }
    if (!chance(80)) return false;
    world_.feed(Detach{id});
    world_.engines.erase(id);
    return true;
  }

  void act(World::Engine& engine) {
    const EngineId id = engine.id;
    if (!engine.requests.empty() && chance(12)) {
      world_.command(id, Rotate{RequestId(engine.requests.begin()->first), chance(2)});
    }
    if (!engine.requests.empty() && chance(25)) abort_last(engine);
    const bool retiring = world_.retires();
    const std::size_t leased = world_.regions.size();
    if (chance(20)) {
      const Bytes bytes(4096 * (1 + static_cast<std::int64_t>(world_.random() % 2)));
      world_.command(id, AllocateRegion{bytes}, milliseconds(3000));
    }
    if (!world_.regions.empty() && chance(15)) world_.release_oldest_region();
    if (chance(10)) world_.feed(Tick{});
    if (texts_ && chance(150)) world_.feed(ClearCache{});
    if (chance(2)) world_.finish_plans();
    world_.run_and_step(id);
    if (::testing::Test::HasFatalFailure()) return;
    if (chance(2)) world_.finish_copies(world_.random() % 3);
    under_pressure += retiring && world_.regions.size() > leased ? 1u : 0u;
  }

  /// The iteration it is granted in still runs.
  void abort_last(World::Engine& engine) {
    const auto request = std::prev(engine.requests.end())->first;
    world_.command(engine.id, Abort{RequestId(request)});
    engine.requests.erase(request);
    std::erase_if(engine.reports, [&](const StepReport& r) { return r.request.value == request; });
  }

  void run_out() {
    world_.solve_late = false;
    world_.finish_plans();
    const auto given_up = [&] {
      return world_.controller->status(world_.now).counters.ended.for_memory;
    };
    // Regions that stay may have left no room for anybody until now.
    end_what_was_commanded(world_);
    const std::uint64_t before = given_up();
    bool ended = false;
    for (int round = 0; round < 20 && !ended; ++round) {
      end_what_was_commanded(world_);
      ended = run_to_end(world_, 300);
    }
    EXPECT_TRUE(ended) << "somebody waits for ever";
    EXPECT_EQ(given_up(), before) << "there is room for all, one after the other";
  }

  World world_;
  const std::uint64_t seed_;
  const bool keep_;
  const bool layered_;
  const std::uint32_t devices_;
  const bool texts_;   ///< some requests begin like others
  const bool boasts_;  ///< some announce more than they make
  const std::uint64_t
      documents_;  ///< how many requests there are; if there are many, memory is short
  std::uint64_t next_ = 0;
};

/// Any mixture of engines, classes, aborts, rotations, deaths and regions, with copies ending late:
/// every block read is what was written, nothing leaks, and everybody finishes. KVD_SEED plays one
/// history; KVD_HISTORIES is how many otherwise, from KVD_FIRST_SEED on.
/// `usual`: how many, if nothing else is said.
void play_histories(std::uint32_t devices, std::uint64_t usual) {
  const char* wanted = std::getenv("KVD_SEED");
  const std::uint64_t count = wanted ? 1 : number_in("KVD_HISTORIES", usual);
  const std::uint64_t first = number_in(wanted ? "KVD_SEED" : "KVD_FIRST_SEED", 1);
  std::size_t under_pressure = 0;
  std::uint64_t streams = 0;
  std::int64_t found = 0;
  std::uint64_t loads = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE("KVD_SEED=" + std::to_string(seed));
    History history(seed, devices);
    history.play();
    if (!::testing::Test::HasFatalFailure()) history.end();
    if (::testing::Test::HasFailure()) return;
    under_pressure += history.under_pressure;
    streams += history.streams;
    found += history.found;
    loads += history.loads;
  }
  if (wanted) return;
  EXPECT_GT(under_pressure, count / 4) << "regions for which requests made way";
  EXPECT_GT(streams, count) << "iterations with streamed layers";
  // One history in four finds a prefix. A sanitizer's build plays eight, which are too few to tell.
  if (count >= 100) {
    EXPECT_GT(found, static_cast<std::int64_t>(count)) << "tokens that were not computed again";
  }
  // Only in some histories is a block lost from memory that is on disk.
  if (count >= 500) {
    EXPECT_GT(loads, count / 50) << "rows that the disk brought back";
  }
}

TEST(Controller, RandomHistoriesCorruptNothingAndLeakNothing) { play_histories(1, kHistories); }

/// Groups among them have their ranks on one device or on both.
TEST(Controller, RandomHistoriesOnTwoDevicesCorruptNothingAndLeakNothing) {
  play_histories(2, kOnTwoDevices);
}

/// Layers of groups stream, to each rank its own, on one device or on two.
TEST(Controller, RandomHistoriesOfGroupsWhoseLayersStreamCorruptNothingAndLeakNothing) {
  const char* wanted = std::getenv("KVD_SEED");
  const std::uint64_t count = wanted ? 1 : number_in("KVD_HISTORIES", kOfGroups);
  const std::uint64_t first = number_in(wanted ? "KVD_SEED" : "KVD_FIRST_SEED", 1);
  std::uint64_t streamed[2] = {};
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE("KVD_SEED=" + std::to_string(seed));
    const auto devices = static_cast<std::uint32_t>(1 + seed % 2);
    History history(seed, devices, false, true);
    history.play();
    if (!::testing::Test::HasFatalFailure()) history.end();
    if (::testing::Test::HasFailure()) return;
    streamed[devices - 1] += history.streamed_by_rank;
  }
  if (wanted) return;
  EXPECT_GT(streamed[0], count) << "layers of ranks on one device";
  EXPECT_GT(streamed[1], count) << "on two";
}

/// What is recorded for the next daemon is what slots hold, whatever happens. kvd is killed in the
/// middle, and the next one finds exactly that.
TEST(Controller, RandomHistoriesOfWhichTheNextDaemonFindsWhatWasCached) {
  const char* wanted = std::getenv("KVD_SEED");
  const std::uint64_t count = wanted ? 1 : number_in("KVD_HISTORIES", kOfTwoDaemons);
  const std::uint64_t first =
      number_in(wanted ? "KVD_SEED" : "KVD_FIRST_SEED", std::random_device()() % 100'000);
  std::array<std::uint64_t, kTiers> adopted{};
  std::int64_t found = 0;
  // Many pairs hand nothing over, so a short run goes on until both tiers have.
  const auto goes_on = [&](std::uint64_t played) {
    return played < count || (!wanted && played < 100 && (adopted[0] == 0 || adopted[1] == 0));
  };
  for (std::uint64_t seed = first; goes_on(seed - first); ++seed) {
    SCOPED_TRACE("KVD_SEED=" + std::to_string(seed));
    const auto devices = static_cast<std::uint32_t>(1 + seed % 2);
    History before(seed, devices, true), after(seed, devices, true);
    before.play();
    after.follow(before);
    after.play();
    if (!::testing::Test::HasFatalFailure()) after.end();
    if (::testing::Test::HasFailure()) return;
    for (std::size_t tier = 0; tier < kTiers; ++tier) adopted[tier] += after.adopted[tier];
    found += after.found;
  }
  std::printf("from seed %llu: %llu blocks in HBM and %llu in DRAM taken over, %lld tokens found\n",
              static_cast<unsigned long long>(first), static_cast<unsigned long long>(adopted[0]),
              static_cast<unsigned long long>(adopted[1]), static_cast<long long>(found));
  if (wanted) return;
  EXPECT_GT(adopted[0], 0u);
  EXPECT_GT(adopted[1], 0u);
}

/// These seeds once failed. Requests were given up though there was room for all; or a region and a
/// group on two devices took slabs from each other for ever.
TEST(Controller, HistoriesThatStoodStillOnceRunToTheirEnd) {
  const auto play = [](std::uint64_t seed, std::uint32_t devices) {
    SCOPED_TRACE("KVD_SEED=" + std::to_string(seed));
    History history(seed, devices);
    history.play();
    if (!::testing::Test::HasFatalFailure()) history.end();
  };
  for (const std::uint64_t seed : {5968u, 10620u, 30250u, 31530u, 52824u}) play(seed, 1);
  for (const std::uint64_t seed : {1000u, 4638u, 8186u, 52828u, 80980u}) play(seed, 2);
}

}  // namespace
}  // namespace kvd::test
