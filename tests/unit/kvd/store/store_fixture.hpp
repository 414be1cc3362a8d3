#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <type_traits>
#include <vector>

#include "kvd/store/blocks/blocks.hpp"
#include "kvd/store/blocks/transfers.hpp"
#include "kvd/store/memory/tiers.hpp"

namespace kvd::store {

/// DRAM and the HBM of two devices, 4 slabs of 1 KiB each, and an engine that maps what it is sent
/// as soon as it is sent. Slots are 128 bytes, 8 a slab.
class StoreTest : public ::testing::Test {
 protected:
  static constexpr ClassId kClass{1}, kOtherClass{2};
  static constexpr DomainId kA{1}, kB{2};
  static constexpr EngineId kEngine{11};
  static constexpr DeviceId kDevice{0}, kOtherDevice{1};
  static constexpr Bytes kSlot{128};
  static constexpr std::uint32_t kSlabs = 4;

  StoreTest() {
    EXPECT_TRUE(tiers.add_class(kClass, kSlot).ok());
    EXPECT_TRUE(tiers.add_class(kOtherClass, Bytes(256)).ok());
    tiers.engine_came(kEngine);
  }

  static Taker taker(DomainId domain = kA, ClassId model_class = kClass) {
    return {model_class, domain, kEngine, kSlot, kDevice};
  }
  /// All orders of a kind since the last call of this; the others are dropped.
  template <class O>
  std::vector<O> ordered() {
    std::vector<O> out;
    orders.drain([&](auto order) {
      if constexpr (std::is_same_v<decltype(order), O>) out.push_back(std::move(order));
    });
    return out;
  }
  /// The slots of a grant in HBM that must succeed once the engine maps what it was sent.
  std::vector<SlotId> taken(std::uint32_t count, const Taker& who = taker()) {
    pool::SlotGrant grant = tiers.take(Tier::kHbm, who, count);
    while (grant.code == ErrorCode::kWouldBlock && !grant.to_map.empty()) {
      for (const SlabIndex slab : grant.to_map)
        EXPECT_TRUE(tiers.mappings().mapped(who.engine, slab));
      tiers.mappings().end_awaiting_mapped(who.engine);
      grant = tiers.take(Tier::kHbm, who, count);
    }
    EXPECT_EQ(grant.code, ErrorCode::kOk);
    return grant.slots;
  }
  std::vector<SlotId> taken_in_dram(std::uint32_t count) {
    pool::SlotGrant grant = tiers.take(Tier::kDram, taker(), count);
    EXPECT_EQ(grant.code, ErrorCode::kOk);
    return grant.slots;
  }
  std::uint64_t in(Tier tier, pool::SlotState state) const {
    return tiers.pool(tier).stats().slots_by_state[static_cast<std::size_t>(state)];
  }

  Orders orders;
  Tiers tiers{{.hbm = {{Tier::kHbm, Bytes(1024), kSlabs}, {Tier::kHbm, Bytes(1024), kSlabs}},
               .dram = {Tier::kDram, Bytes(1024), kSlabs},
               .hbm_quotas = {},
               .dram_quotas = {}},
              orders};
};

}  // namespace kvd::store
