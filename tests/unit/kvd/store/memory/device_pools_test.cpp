// The HBM of several devices: slabs are numbered one device after the other.
#include "kvd/store/memory/device_pools.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvd::store {
namespace {

using pool::SlotState;
using ::testing::ElementsAre;

constexpr ClassId kOnlyClass{1};
constexpr DomainId kOnlyDomain{1};
constexpr DeviceId kDevices[] = {DeviceId(0), DeviceId(1), DeviceId(2)};

/// Three devices with 2, 1 and 3 slabs of 1 KiB.
class DevicePoolsTest : public ::testing::Test {
 protected:
  DevicePoolsTest() {
    for (pool::TierPool& device : sut) EXPECT_TRUE(device.add_class(kOnlyClass, Bytes(128)).ok());
  }
  ~DevicePoolsTest() override {
    for (const pool::TierPool& device : sut) EXPECT_EQ(device.validate(), "");
  }
  static pool::TierPool::Config device(std::uint32_t slabs) {
    return {.tier = Tier::kHbm, .slab_bytes = Bytes(1024), .slabs = slabs};
  }
  std::vector<SlotId> slots(DeviceId device, std::uint32_t count) {
    const pool::SlotGrant grant = sut.of(device).allocate(
        {.model_class = kOnlyClass, .domain = kOnlyDomain, .owner = {}, .count = count});
    EXPECT_EQ(grant.code, ErrorCode::kOk);
    return grant.slots;
  }
  [[nodiscard]] Bytes used(DeviceId device) const { return sut.of(device).used(kOnlyDomain); }
  [[nodiscard]] std::uint64_t filling(DeviceId device) const {
    return sut.of(device).stats().slots_by_state[static_cast<std::size_t>(SlotState::kFilling)];
  }

  DevicePools sut{{device(2), device(1), device(3)}, {}};
};

TEST_F(DevicePoolsTest, ASlabSaysWhichDeviceItIsOf) {
  EXPECT_EQ(sut.count(), 3u);
  EXPECT_EQ(sut.slabs(), 6u);
  std::vector<std::uint32_t> devices;
  for (std::uint32_t slab = 0; slab < sut.slabs(); ++slab) {
    devices.push_back(sut.device_of(SlabIndex(slab)).value);
  }
  EXPECT_THAT(devices, ElementsAre(0, 0, 1, 2, 2, 2));
}

TEST_F(DevicePoolsTest, ASlabThatNoDeviceHasIsABug) {
  EXPECT_DEATH((void)sut.device_of(SlabIndex(6)), "no device has");
  EXPECT_DEATH(DevicePools({}, {}), "without a device");
}

TEST_F(DevicePoolsTest, ASlotLeadsToItsPool) {
  for (const DeviceId device : kDevices) {
    const SlotId slot = slots(device, 1)[0];
    EXPECT_EQ(sut.device_of(slot), device);
    EXPECT_EQ(&sut.with(slot), &sut.of(device));
    EXPECT_EQ(&sut.with(slot.slab()), &sut.of(device));
    EXPECT_EQ(sut.state(slot), SlotState::kFilling);
    EXPECT_EQ(used(device), Bytes(1024));
  }
}

TEST_F(DevicePoolsTest, SlotsOfAllDevicesAreReleasedTogether) {
  std::vector<SlotId> mixed;
  for (int round = 0; round < 3; ++round) {
    for (const DeviceId device : kDevices) mixed.push_back(slots(device, 1)[0]);
  }
  const SlotId kept = slots(kDevices[1], 1)[0];
  sut.release(mixed);
  EXPECT_EQ(filling(kDevices[0]), 0u);
  EXPECT_EQ(filling(kDevices[1]), 1u);
  EXPECT_EQ(filling(kDevices[2]), 0u);
  for (const SlotId slot : mixed) EXPECT_EQ(sut.state(slot), SlotState::kFree);
  EXPECT_EQ(sut.state(kept), SlotState::kFilling);
  sut.release(std::vector<SlotId>());
}

TEST_F(DevicePoolsTest, RunsOfOneDeviceAreReleasedWhole) {
  std::vector<SlotId> runs = slots(kDevices[0], 9);
  const std::vector<SlotId> far = slots(kDevices[2], 5);
  runs.insert(runs.end(), far.begin(), far.end());
  sut.release(runs);
  for (const DeviceId device : kDevices) EXPECT_EQ(filling(device), 0u);
}

TEST_F(DevicePoolsTest, EachDeviceHasTheQuotas) {
  const pool::Quotas quotas = {{kOnlyDomain, {.guarantee = {}, .maximum = Bytes(1024)}}};
  DevicePools tight({device(2), device(2)}, quotas);
  for (const DeviceId device : {kDevices[0], kDevices[1]}) {
    EXPECT_TRUE(tight.of(device).add_class(kOnlyClass, Bytes(128)).ok());
    EXPECT_EQ(tight.of(device).available(kOnlyDomain), Bytes(1024));
  }
}

TEST(OneDevicePool, AllSlabsAreItsOwn) {
  const DevicePools sut({{.tier = Tier::kHbm, .slab_bytes = Bytes(1024), .slabs = 2}}, {});
  EXPECT_EQ(sut.count(), 1u);
  EXPECT_EQ(sut.device_of(SlabIndex(1)), DeviceId(0));
}

}  // namespace
}  // namespace kvd::store
