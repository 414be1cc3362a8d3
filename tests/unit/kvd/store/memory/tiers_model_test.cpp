// Random histories of engines that take HBM, give it up and die. Whatever happens, nobody is
// granted what something may still touch, nor what may hold bytes of another domain or of the dead.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "kvd/store/memory/tiers.hpp"
#include "tests/unit/kvd/store/store_fixture.hpp"

namespace kvd::store {
namespace {

class TiersModel : public StoreTest {
 protected:
  /// An engine of a domain, which takes, gives up, and dies in two stages.
  struct Engine {
    EngineId id;
    DomainId domain;
    std::uint64_t finished = 0;
    bool dying = false;
    std::vector<std::vector<SlotId>> grants;
  };
  /// Slots that were given up, and what may still touch them.
  struct Given {
    EngineId engine;
    std::uint64_t iteration = 0;
    std::set<Ticket> copies;
    std::vector<SlotId> slots;
  };

  std::vector<Engine> engines;
  std::vector<Given> given;
  std::vector<Scrub> scrubs;
  std::set<SlotId> of_the_dead;         ///< not zeroed since
  std::map<SlabIndex, DomainId> bytes;  ///< the domain whose bytes may be in the slab
  std::uint32_t last_engine = 100;
  std::size_t granted_slots = 0, zeroed_slots = 0, zeroed_slabs = 0;
  std::mt19937_64 random{
      static_cast<std::uint64_t>(::testing::UnitTest::GetInstance()->random_seed())};

  std::size_t any(std::size_t count) { return static_cast<std::size_t>(random() % count); }
  Engine* engine(EngineId id) {
    const auto found = std::find_if(engines.begin(), engines.end(),
                                    [&](const Engine& each) { return each.id == id; });
    return found == engines.end() ? nullptr : &*found;
  }
  Engine& any_engine() { return engines[any(engines.size())]; }
  bool touched(const Given& each) {
    const Engine* owner = engine(each.engine);
    return !each.copies.empty() ||
           (owner != nullptr && (owner->dying || each.iteration > owner->finished));
  }

  void come() {
    if (engines.size() >= 3) return;
    const DomainId domain = any(2) == 0 ? kA : kB;
    engines.push_back({EngineId(++last_engine), domain, 0, false, {}});
    tiers.engine_came(engines.back().id);
  }
  void take(Engine& of) {
    if (of.dying) return;
    Taker who = taker(of.domain, any(3) == 0 ? kOtherClass : kClass);
    who.engine = of.id;
    who.slot_bytes = who.model_class == kClass ? kSlot : Bytes(256);
    who.device = any(2) == 0 ? kDevice : kOtherDevice;
    const pool::SlotGrant grant =
        tiers.take(Tier::kHbm, who, 1 + static_cast<std::uint32_t>(any(6)));
    for (const SlabIndex slab : grant.to_map) {
      if (any(3) == 0) continue;
      EXPECT_TRUE(tiers.mappings().mapped(of.id, slab));
    }
    if (grant.code != ErrorCode::kOk) return;
    for (const SlotId slot : grant.slots) {
      ASSERT_FALSE(of_the_dead.contains(slot)) << "it was not zeroed";
      const auto last = bytes.try_emplace(slot.slab(), of.domain).first;
      ASSERT_EQ(last->second, of.domain) << "another domain's bytes may be there";
      for (const Given& each : given) {
        const bool there = std::count(each.slots.begin(), each.slots.end(), slot) > 0;
        ASSERT_FALSE(there && touched(each)) << "something may touch it";
      }
    }
    granted_slots += grant.slots.size();
    of.grants.push_back(grant.slots);
  }
  void give_up(Engine& of) {
    if (of.grants.empty()) return;
    std::swap(of.grants[any(of.grants.size())], of.grants.back());
    Given one{of.id, of.finished + any(2), {}, of.grants.back()};
    of.grants.pop_back();
    for (std::size_t copies = any(3); copies > 0; --copies) one.copies.insert(orders.next_ticket());
    hold(one);
  }
  void hold(const Given& one) {
    Hold held{.copies = {one.copies.begin(), one.copies.end()},
              .engine = one.engine,
              .iteration = one.iteration,
              .domain = engine(one.engine)->domain,
              .slot_bytes = kSlot};
    held.hbm = one.slots;
    given.push_back(one);
    tiers.hold(std::move(held));
  }
  void finish_iteration(Engine& of) {
    if (!of.dying) tiers.iteration_finished(of.id, ++of.finished);
  }
  void end_copy() {
    for (Given& each : given) {
      if (each.copies.empty() || any(2) == 0) continue;
      const Ticket ticket = *each.copies.begin();
      each.copies.erase(ticket);
      return tiers.copy_ended(ticket);
    }
  }
  /// Noticed, or confirmed where it was.
  void die(Engine& of) {
    if (of.dying) {
      tiers.mappings().forget(of.id);
      tiers.engine_gone(of.id);
      std::erase_if(engines, [id = of.id](const Engine& each) { return each.id == id; });
      return tiers.scrub_slabs();
    }
    for (const Given& each : given) {
      if (each.engine == of.id && each.iteration > of.finished) {
        of_the_dead.insert(each.slots.begin(), each.slots.end());
      }
    }
    of.dying = true;
    tiers.engine_dying(of.id);
    for (const auto& slots : std::exchange(of.grants, {})) {
      of_the_dead.insert(slots.begin(), slots.end());
      hold({of.id, of.finished + 1, {}, slots});
    }
  }
  void end_scrub() {
    if (scrubs.empty()) return;
    std::swap(scrubs[any(scrubs.size())], scrubs.back());
    const Scrub ended = scrubs.back();
    scrubs.pop_back();
    const bool ok = any(4) > 0;
    ASSERT_TRUE(tiers.scrub_ended(ended.ticket, ok));
    if (!ok) return;
    zeroed_slots += ended.slots.size();
    zeroed_slabs += ended.slabs.size();
    for (const SlotId slot : ended.slots) of_the_dead.erase(slot);
    for (const SlabIndex slab : ended.slabs) forget_bytes(slab);
  }
  void forget_bytes(SlabIndex slab) {
    bytes.erase(slab);
    std::erase_if(of_the_dead, [&](SlotId slot) { return slot.slab() == slab; });
  }
  /// Does what the shell is told: slabs are unmapped and renewed at once, and zeroing takes a
  /// while.
  void carry_out() {
    tiers.order_renewals();
    orders.drain([&](auto order) {
      using Order = decltype(order);
      if constexpr (std::is_same_v<Order, Scrub>) scrubs.push_back(order);
      if constexpr (std::is_same_v<Order, AskUnmap>) {
        EXPECT_TRUE(tiers.mappings().unmapped(order.engine, order.slab));
      }
      if constexpr (std::is_same_v<Order, RenewSlab>) {
        tiers.hbm().with(order.slab).slab_renewed(order.slab);
        forget_bytes(order.slab);
      }
    });
    std::erase_if(given, [&](const Given& each) { return !touched(each); });
  }
  void step() {
    come();
    Engine& one = any_engine();
    switch (any(16)) {
      case 0:
        return die(one);
      case 1:
      case 2:
        return end_scrub();
      case 3:
      case 4:
        return finish_iteration(one);
      case 5:
      case 6:
        return end_copy();
      case 7:
      case 8:
      case 9:
        return give_up(one);
      default:
        return take(one);
    }
  }
};

TEST_F(TiersModel, RandomHistoriesGrantNothingThatIsTouchedOrDirty) {
  SCOPED_TRACE("seed " + std::to_string(::testing::UnitTest::GetInstance()->random_seed()));
  for (int round = 0; round < 6000 && !HasFatalFailure(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    step();
    if (HasFatalFailure()) return;
    carry_out();
    ASSERT_EQ(tiers.validate(), "");
  }
  EXPECT_GT(granted_slots, 500u);
  EXPECT_GT(zeroed_slots, 50u);
  EXPECT_GT(zeroed_slabs, 5u);
  while (!given.empty() || !engines.empty() || !scrubs.empty()) {
    end_copy();
    if (!engines.empty()) die(engines.front());
    end_scrub();
    carry_out();
  }
  EXPECT_EQ(tiers.slots(Tier::kHbm), 0u) << "all came back";
  for (const DeviceId device : {kDevice, kOtherDevice}) {
    EXPECT_EQ(tiers.pool(Tier::kHbm, device).stats().quarantined, Bytes(0));
  }
}

}  // namespace
}  // namespace kvd::store
