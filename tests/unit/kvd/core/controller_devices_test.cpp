// Several devices: what engines of one do costs nobody on another anything, and DRAM is one.
#include <gmock/gmock.h>

#include "tests/support/controller_world.hpp"

namespace kvd::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr Bytes kDeviceSlab{4096};
constexpr DeviceId kFirst{0}, kSecond{1};

/// Two ranks of a model of 2 layers in 2 groups, 4 tokens a block.
ModelClass ranks_apart() { return {2, 1, 4, Bytes(128), 2}; }

Devices one_each() { return Devices(std::vector{kFirst, kSecond}); }

class TwoDevices : public testing::Test {
 protected:
  explicit TwoDevices(std::uint32_t dram_slabs = 64, std::uint32_t devices = 2)
      : world(small_pool(4, dram_slabs, devices)) {}

  EngineId attach_to(DeviceId device) {
    return world.attach(small_model(), DomainId(1), false, Devices(device));
  }
  /// Requests of 24 tokens that grow to 56: a device has room for 64.
  void overload(EngineId engine, std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t id = first; id < first + count; ++id) {
      ASSERT_EQ(world.submit(engine, id, 24, 32), ErrorCode::kOk);
    }
  }
  EngineStatus engine_status(EngineId id) {
    const auto status = world.controller->status(world.now);
    for (const EngineStatus& engine : status.engines) {
      if (engine.id == id) return engine;
    }
    ADD_FAILURE() << "no such engine";
    return {};
  }
  [[nodiscard]] DeviceStatus device_status(DeviceId device) const {
    return world.controller->status(world.now).devices.at(device.value);
  }

  World world;
};

TEST_F(TwoDevices, EachHasAPoolOfItsOwn) {
  const EngineId engine = attach_to(kSecond);
  ASSERT_EQ(world.submit(engine, 1, 24, 4), ErrorCode::kOk);
  world.step_until_granted(engine);
  ASSERT_FALSE(world.sent.empty());
  for (const SendSlab& sent : world.sent) EXPECT_GE(sent.slab, SlabIndex(4)) << "the second's";
  EXPECT_EQ(device_status(kFirst).hbm.free, kDeviceSlab * 4);
  EXPECT_LT(device_status(kSecond).hbm.free, kDeviceSlab * 4);
  EXPECT_EQ(world.controller->status(world.now).tiers[0].capacity, kDeviceSlab * 8);
  EXPECT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

TEST_F(TwoDevices, AFullOneMakesNobodyElseWait) {
  const EngineId busy = attach_to(kFirst);
  const EngineId calm = attach_to(kSecond);
  World alone(small_pool(4, 64, 2));
  const EngineId undisturbed = alone.attach(small_model(), DomainId(1), false, Devices(kSecond));
  overload(busy, 1, 6);
  for (int i = 0; i < 20; ++i) world.iterate(busy);
  EXPECT_LT(device_status(kFirst).hbm.free, small_model().slot_bytes() * 14) << "for one more";
  ASSERT_EQ(world.submit(calm, 100, 24, 32), ErrorCode::kOk);
  ASSERT_EQ(alone.submit(undisturbed, 100, 24, 32), ErrorCode::kOk);
  for (int i = 0; i < 40; ++i) {
    world.iterate(busy);
    world.iterate(calm);
    alone.iterate(undisturbed);
    ASSERT_EQ(world.engines.at(calm).ran, alone.engines.at(undisturbed).ran) << "iteration " << i;
  }
  EXPECT_TRUE(world.engines.at(calm).requests.empty()) << "it is through";
  EXPECT_GT(engine_status(busy).rotations.out, 0u);
  EXPECT_EQ(engine_status(calm).rotations.out, 0u) << "nobody leaves for another device";
  EXPECT_EQ(world.controller->status(world.now).counters.promises, 0u);
  EXPECT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

TEST_F(TwoDevices, DramIsShared) {
  const EngineId one = attach_to(kFirst);
  const EngineId two = attach_to(kSecond);
  overload(one, 1, 6);
  overload(two, 101, 6);
  for (int i = 0; i < 40; ++i) {
    world.iterate(one);
    world.iterate(two);
  }
  EXPECT_GT(engine_status(one).dram, Bytes(0));
  EXPECT_GT(engine_status(two).dram, Bytes(0));
  const auto status = world.controller->status(world.now);
  EXPECT_LE((engine_status(one).dram + engine_status(two).dram), status.tiers[1].capacity);
  EXPECT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

class TwoDevicesAndLittleDram : public TwoDevices {
 protected:
  TwoDevicesAndLittleDram() : TwoDevices(6) {}
};

TEST_F(TwoDevicesAndLittleDram, NoMoreAreLetInThanAllOfThemCanGrowBeside) {
  const EngineId one = attach_to(kFirst);
  const EngineId two = attach_to(kSecond);
  overload(one, 1, 4);
  overload(two, 101, 4);
  EXPECT_TRUE(run_to_end(world, 2000)) << "nobody can grow, and nobody can leave";
  EXPECT_EQ(world.errors, 0u);
}

TEST_F(TwoDevices, ARegionTakesRoomOfItsOwnDeviceAlone) {
  const EngineId here = attach_to(kFirst);
  const EngineId there = attach_to(kSecond);
  overload(here, 1, 1);
  overload(there, 101, 2);
  for (int i = 0; i < 4; ++i) {
    world.iterate(here);
    world.iterate(there);
  }
  const EngineId renter = world.attach({}, DomainId(1), true, Devices(kSecond));
  EXPECT_EQ(world.code(world.command(renter, AllocateRegion{kDeviceSlab * 5}, seconds(5))),
            ErrorCode::kInvalidArgument)
      << "a device has four slabs";
  (void)world.command(renter, AllocateRegion{kDeviceSlab * 3}, seconds(5));
  for (int i = 0; i < 10; ++i) {
    world.iterate(here);
    world.iterate(there);
  }
  ASSERT_EQ(world.regions.size(), 1u);
  EXPECT_EQ(device_status(kSecond).hbm.region, kDeviceSlab * 3);
  EXPECT_EQ(device_status(kFirst).hbm.region, Bytes(0));
  EXPECT_EQ(engine_status(here).rotations.out, 0u);
  EXPECT_GT(engine_status(there).rotations.out, 0u) << "those in its slabs made way";
}

TEST_F(TwoDevices, EachLinkIsMeasuredByItself) {
  const EngineId busy = attach_to(kFirst);
  overload(busy, 1, 6);
  for (int i = 0; i < 40; ++i) world.iterate(busy);
  EXPECT_GT(device_status(kFirst).link_rate[1], 0);
  EXPECT_EQ(device_status(kSecond).link_rate[1], 0);
  EXPECT_GT(device_status(kFirst).mean_step_s, 0);
  EXPECT_EQ(device_status(kSecond).mean_step_s, 0);
}

TEST_F(TwoDevices, AGroupsRanksHaveTheirBlocksEachOnItsOwn) {
  const EngineId group = world.attach(ranks_apart(), DomainId(1), false, one_each());
  ASSERT_EQ(world.submit(group, 1, 6, 4), ErrorCode::kOk);
  std::optional<Reply> answers[2];
  const auto run_of = [&](int rank) { return std::get<StepReply>(answers[rank]->body).run; };
  do {
    for (const std::uint32_t rank : {0u, 1u}) {
      answers[rank] = world.command(group, Step{}, milliseconds(100), rank);
      ASSERT_TRUE(answers[rank]);
    }
  } while (run_of(0).empty());
  ASSERT_EQ(run_of(0).size(), 1u);
  EXPECT_EQ(run_of(1).size(), 1u) << "one answer for both";
  EXPECT_EQ(device_status(kFirst).hbm.free, device_status(kSecond).hbm.free);
  const TableRow& row = world.engines.at(group).next_table.at(0);
  ASSERT_EQ(row.groups, 4u);
  for (std::uint32_t layers = 0; layers < row.groups; ++layers) {
    for (std::uint32_t block = 0; block < row.blocks; ++block) {
      const SlotId slot = row.slots[layers * row.blocks + block];
      EXPECT_EQ(world.device_of(slot.slab()), layers < 2 ? kFirst : kSecond) << "group " << layers;
    }
  }
}

TEST_F(TwoDevices, AGroupRotatesOnAllItsDevices) {
  const EngineId group = world.attach(ranks_apart(), DomainId(1), false, one_each());
  overload(group, 1, 6);
  EXPECT_TRUE(run_to_end(world));
  EXPECT_GT(engine_status(group).rotations.out, 0u);
  EXPECT_EQ(world.errors, 0u);
  EXPECT_EQ(device_status(kFirst).hbm.free, device_status(kSecond).hbm.free);
}

TEST_F(TwoDevices, AGroupFindsRoomBesideEnginesOfOneDevice) {
  const EngineId one = attach_to(kFirst);
  const EngineId two = attach_to(kSecond);
  const EngineId group = world.attach(ranks_apart(), DomainId(1), false, one_each());
  overload(one, 1, 5);
  overload(two, 101, 5);
  for (int i = 0; i < 10; ++i) {
    world.iterate(one);
    world.iterate(two);
  }
  overload(group, 201, 3);
  EXPECT_TRUE(run_to_end(world));
  EXPECT_EQ(world.errors, 0u);
}

/// The first engine that comes has its turn, and nobody leaves for others.
class TwoDevicesInTurn : public TwoDevices {
 protected:
  TwoDevicesInTurn() {
    Tuning tuning = world.controller->tuning();
    tuning.rotation.policy = "fcfs";
    world.feed(Retune{tuning});
  }
  /// Passes two seconds this many times. In each the engine makes a token of what it runs.
  void pass(int times) {
    for (int i = 0; i < times; ++i) {
      world.pass(seconds(2));
      for (auto& [id, engine] : world.engines) {
        const int asks = engine.ranks.empty() ? 1 : 8;  // each rank, by chance
        for (int ask = 0; ask < asks && engine.shape.layers > 0; ++ask) world.run_and_step(id);
      }
      world.finish_copies();
      world.feed(Tick{});
    }
  }
  /// Leases this many of a device's four slabs.
  void rent(DeviceId device, std::int64_t slabs) {
    const EngineId renter = world.attach({}, DomainId(1), true, Devices(device));
    const auto reply = world.command(renter, AllocateRegion{kDeviceSlab * slabs});
    ASSERT_EQ(world.code(reply), ErrorCode::kOk);
  }
  [[nodiscard]] std::uint64_t given_up() const {
    return world.controller->status(world.now).counters.ended.for_memory;
  }
  [[nodiscard]] std::size_t open(EngineId engine) const {
    return world.engines.at(engine).requests.size();
  }
};

TEST_F(TwoDevicesInTurn, NobodyStandsStillWhereAGroupWaitsForAnotherDevice) {
  const EngineId busy = attach_to(kFirst);
  const EngineId group = world.attach(ranks_apart(), DomainId(1), false, one_each());
  const EngineId calm = attach_to(kSecond);
  ASSERT_EQ(world.submit(busy, 1, 20, 44), ErrorCode::kOk);
  pass(2);
  ASSERT_EQ(world.submit(group, 201, 44, 4), ErrorCode::kOk);
  pass(1);
  ASSERT_EQ(world.submit(calm, 301, 20, 4), ErrorCode::kOk);
  pass(36);  // longer than the latest request of a standstill is kept
  ASSERT_EQ(open(busy), 1u);
  EXPECT_EQ(open(group), 1u) << "its turn on the first device is to come";
  EXPECT_EQ(open(calm), 1u) << "it is behind the group";
  EXPECT_EQ(world.controller->status(world.now).counters.standstills, 0u);
  pass(40);
  EXPECT_EQ(open(busy) + open(group) + open(calm), 0u);
  EXPECT_EQ(given_up(), 0u);
}

TEST_F(TwoDevicesInTurn, AGroupStandsStillWhereOneOfItsDevicesLacksTheRoom) {
  const EngineId busy = attach_to(kFirst);
  const EngineId group = world.attach(ranks_apart(), DomainId(1), false, one_each());
  rent(kSecond, 3);
  ASSERT_EQ(world.submit(busy, 1, 20, 44), ErrorCode::kOk);
  pass(2);
  ASSERT_EQ(world.submit(group, 201, 20, 4), ErrorCode::kOk);
  pass(20);
  EXPECT_EQ(given_up(), 0u);
  EXPECT_EQ(world.controller->status(world.now).counters.standstills, 1u) << "it is told";
  pass(16);
  ASSERT_EQ(open(busy), 1u) << "the first device was never still";
  EXPECT_EQ(given_up(), 1u);
  EXPECT_EQ(open(group), 0u);
}

TEST_F(TwoDevicesInTurn, OneRequestEndsAtATimeThoughAllItsDevicesStandStill) {
  const EngineId group = world.attach(ranks_apart(), DomainId(1), false, one_each());
  rent(kFirst, 3);
  rent(kSecond, 3);
  ASSERT_EQ(world.submit(group, 201, 20, 4), ErrorCode::kOk);
  ASSERT_EQ(world.submit(group, 202, 20, 4), ErrorCode::kOk);
  pass(50);
  EXPECT_EQ(given_up(), 1u);
  EXPECT_TRUE(world.engines.at(group).requests.contains(201)) << "the latest ends first";
  pass(20);
  EXPECT_EQ(given_up(), 2u);
}

TEST_F(TwoDevices, AWrongDeviceIsRefused) {
  const auto refusal = [&](const Devices& devices, std::uint32_t ranks) {
    Attach attach;
    attach.name = "engine";
    attach.domain = DomainId(1);
    attach.model_class = ranks_apart();
    attach.model_class->ranks = ranks;
    attach.devices = devices;
    const auto grant = world.controller->attach(attach, world.now);
    EXPECT_FALSE(grant.ok());
    if (grant.ok()) return std::string();
    EXPECT_EQ(grant.error().code, ErrorCode::kInvalidArgument);
    return grant.error().message;
  };
  EXPECT_THAT(refusal(Devices(DeviceId(2)), 1), HasSubstr("device 2 does not exist"));
  EXPECT_THAT(refusal(Devices(DeviceId(2)), 1), HasSubstr("numbered from 0"));
  EXPECT_THAT(refusal(Devices(std::vector{kFirst, DeviceId(7)}), 2), HasSubstr("device 7"));
  EXPECT_THAT(refusal(one_each(), 3), HasSubstr("name one for each rank"));
  EXPECT_THAT(refusal(one_each(), 1), HasSubstr("name one for each rank"));
}

// The deaths of ranks on two devices leave memory on both. It is zeroed separately, and all of it
// is free again.
TEST_F(TwoDevices, ADeadGroupsMemoryComesBackOnAllItsDevices) {
  const EngineId group = world.attach(ranks_apart(), DomainId(1), false, one_each());
  overload(group, 1, 3);
  for (int i = 0; i < 20; ++i) world.iterate(group);
  ASSERT_LT(device_status(kSecond).hbm.free, kDeviceSlab * 4);
  world.die(group);
  EXPECT_GT(device_status(kFirst).hbm.quarantined, Bytes(0));
  EXPECT_GT(device_status(kSecond).hbm.quarantined, Bytes(0));
  world.bury(group);
  world.finish_copies();
  EXPECT_EQ(device_status(kFirst).hbm.free, kDeviceSlab * 4);
  EXPECT_EQ(device_status(kSecond).hbm.free, kDeviceSlab * 4);
}

}  // namespace
}  // namespace kvd::test
