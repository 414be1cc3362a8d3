// Random walks of a TierPool beside a naive reference, checked after every step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <set>

#include "tests/unit/kvd/pool/pool_fixture.hpp"
#include "tests/unit/kvd/pool/reference_pool.hpp"

namespace kvd::pool {
namespace {

constexpr std::uint32_t kSlabs = 7;
constexpr DomainId kC{3};
const std::vector<DomainId> kDomains = {kA, kB, kC};

/// KVD_TEST_SEED repeats one walk.
std::vector<std::uint64_t> seeds(std::uint64_t count) {
  if (const char* given = std::getenv("KVD_TEST_SEED")) return {std::strtoull(given, nullptr, 10)};
  std::vector<std::uint64_t> all;
  for (std::uint64_t seed = 1; seed <= count; ++seed) all.push_back(seed);
  return all;
}

/// Engines 1..6; engine e is of domain (e - 1) % 3 + 1.
DomainId domain_of(EngineId engine) { return DomainId((engine.value - 1) % 3 + 1); }

class RandomWalk {
 public:
  RandomWalk(std::uint64_t seed, const std::map<ClassId, Bytes>& classes)
      : random_(seed),
        classes_(classes),
        pool_({.slab_bytes = kSlab, .slabs = kSlabs}, some_quotas(0)),
        reference_(kSlabs, kSlab, some_quotas(0), classes) {
    for (const auto& [id, bytes] : classes) EXPECT_TRUE(pool_.add_class(id, bytes).ok());
  }

  /// Empty, or what broke.
  std::string step() {
    std::string broken = act(below(112));
    if (broken.empty()) broken = pool_.validate();
    if (broken.empty()) broken = reference_.compare(pool_, kDomains);
    return broken;
  }

  /// One-slot allocations of the only class on a copy: as many as available() promises.
  std::string drain_copy() {
    const auto& [model_class, slot_bytes] = *classes_.begin();
    for (const DomainId domain : kDomains) {
      TierPool copy = pool_;
      Bytes sum;
      while (allocate(copy, 1, model_class, domain).code == ErrorCode::kOk) sum += slot_bytes;
      if (sum != pool_.available(domain)) return "available differs from what is granted";
    }
    return {};
  }

  [[nodiscard]] std::uint64_t granted() const { return granted_; }
  [[nodiscard]] std::uint64_t renewed() const { return renewed_; }

 private:
  static Quotas some_quotas(std::uint32_t which) {
    if (which == 0) return {};
    if (which == 1) return {{kA, {.guarantee = whole(2)}}, {kB, {.guarantee = whole(1)}}};
    return {{kA, {.guarantee = kSlab + Bytes(1), .maximum = whole(4)}},
            {kB, {.maximum = whole(3) - Bytes(1)}}};
  }

  std::uint32_t below(std::uint32_t bound) {
    return std::uniform_int_distribution<std::uint32_t>(0, bound - 1)(random_);
  }
  EngineId any_engine() { return EngineId(1 + below(6)); }

  std::string act(std::uint32_t dice) {
    if (dice < 30) return allocate_slots();
    if (dice < 72) return change_slots();
    if (dice < 76) return lease_region();
    if (dice < 80) return end_region();
    if (dice < 88) return map_slab();
    if (dice < 92) return same(pool_.take_dirty(), reference_.take_dirty());
    if (dice < 96) return scrub_slab();
    if (dice < 98) return reclaim();
    if (dice < 99) return change_quotas();
    if (dice < 100) return empty_domain();
    if (dice < 104) return dice < 102 ? retire_slab() : unretire_slab();
    return dice < 106 ? renew_for() : end_renewal();
  }

  static std::string same(const std::vector<SlabIndex>& got, const std::vector<SlabIndex>& wanted) {
    return got == wanted ? "" : "the list of slabs differs";
  }

  std::string allocate_slots() {
    const auto model_class =
        std::next(classes_.begin(), below(static_cast<std::uint32_t>(classes_.size())))->first;
    SlabSet mapped;
    for (std::uint32_t i = 0; i < below(kSlabs + 1); ++i) mapped.push_back(below(4) != 0);
    const EngineId owner = any_engine();
    const SlotRequest request{.model_class = model_class,
                              .domain = domain_of(owner),
                              .owner = owner,
                              .count = below(4) == 0 ? below(30) : below(5),
                              .mapped = below(3) == 0 ? &mapped : nullptr};
    const SlotGrant grant = allocate(pool_, request);
    granted_ += grant.slots.size();
    return reference_.follow(pool_, request, grant);
  }

  std::string change_slots() {
    const std::uint32_t times = 1 + below(4);
    for (std::uint32_t i = 0; i < times; ++i) change_slot();
    return {};
  }

  void change_slot() {
    using enum SlotState;
    struct Change {
      void (TierPool::*apply)(Slots);
      std::vector<SlotState> from;
      SlotState to;
    };
    static const std::vector<Change> kChanges = {
        {&TierPool::mark_open, {kFilling}, kOpen},
        {&TierPool::seal, {kFilling, kOpen}, kSealed},
        {&TierPool::drain, {kFilling, kOpen, kSealed}, kDraining},
        {&TierPool::release, {kFilling, kOpen, kSealed, kDraining}, kFree},
        {&TierPool::release, {kFilling, kOpen, kSealed, kDraining}, kFree},
        {&TierPool::quarantine, {kFilling, kOpen, kSealed, kDraining}, kQuarantined},
        {&TierPool::scrub, {kQuarantined}, kScrubbing},
        {&TierPool::scrubbed, {kScrubbing}, kFree}};
    const Change& change = kChanges[below(static_cast<std::uint32_t>(kChanges.size()))];
    const auto from = change.from[below(static_cast<std::uint32_t>(change.from.size()))];
    const auto slots = reference_.slots_in(from);
    if (slots.empty()) return;
    const SlotId slot = slots[below(static_cast<std::uint32_t>(slots.size()))];
    (pool_.*change.apply)(slot);
    reference_.move(slot, change.to);
  }

  std::string lease_region() {
    const RegionId region(next_region_++);
    const EngineId owner = any_engine();
    const Bytes bytes(1 + below(3 * 1024));
    const auto outcome = pool_.allocate_region(region, domain_of(owner), owner, bytes);
    return reference_.follow(pool_, region, domain_of(owner), owner, bytes, outcome);
  }

  std::string end_region() {
    const bool dead = below(2) == 0;
    const auto regions = reference_.regions(dead ? SlabUse::kQuarantined : SlabUse::kRegion);
    if (regions.empty()) return {};
    const RegionId region = regions[below(static_cast<std::uint32_t>(regions.size()))];
    if (!dead && below(2) == 0) {
      pool_.quarantine_region(region);
      reference_.quarantine_region(region);
    } else {
      pool_.release_region(region);
      reference_.release_region(region);
    }
    return {};
  }

  std::string reclaim() {
    const DomainId asking = below(2) == 0 ? DomainId() : kA;
    return same(pool_.reclaim_empty_slabs(asking), reference_.reclaim_empty_slabs(asking));
  }

  std::string map_slab() {
    const SlabIndex slab(below(kSlabs));
    const bool mapped = below(3) == 0;
    if (mapped && !reference_.may_map(slab)) return {};
    EngineId engine = any_engine();
    if (mapped && domain_of(engine) != pool_.slab(slab).domain) return {};
    pool_.set_mapped(slab, engine, mapped);
    reference_.set_mapped(slab, engine, mapped);
    if (below(2) == 0) {
      pool_.stop_awaiting(engine);
      reference_.stop_awaiting(engine);
    }
    return {};
  }

  std::string retire_slab() {
    const auto slabs = reference_.slabs_as(SlabUse::kClass);
    if (slabs.empty()) return {};
    const SlabIndex slab = slabs[below(static_cast<std::uint32_t>(slabs.size()))];
    pool_.retire(slab);
    reference_.retire(slab);
    return {};
  }

  std::string unretire_slab() {
    const auto slabs = reference_.retiring_slabs();
    if (slabs.empty()) return {};
    const SlabIndex slab = slabs[below(static_cast<std::uint32_t>(slabs.size()))];
    pool_.unretire(slab);
    reference_.unretire(slab);
    return {};
  }

  std::string scrub_slab() {
    const auto scrubbing = reference_.slabs_as(SlabUse::kScrubbing);
    if (scrubbing.empty()) return {};
    const SlabIndex slab = scrubbing[below(static_cast<std::uint32_t>(scrubbing.size()))];
    pool_.slab_scrubbed(slab);
    reference_.slab_scrubbed(slab);
    return {};
  }

  std::string renew_for() {
    const DomainId domain = kDomains[below(3)];
    const Bytes bytes(below(5 * 1024));
    pool_.renew_for(domain, bytes);
    return reference_.follow_renew_for(pool_, domain, bytes);
  }

  std::string end_renewal() {
    for (const SlabIndex slab : pool_.take_renewals()) asked_.insert(slab);
    const auto renewing = reference_.slabs_as(SlabUse::kRenewing);
    if (!std::equal(renewing.begin(), renewing.end(), asked_.begin(), asked_.end())) {
      return "not every renewal was asked for";
    }
    if (renewing.empty()) return {};
    const SlabIndex slab = renewing[below(static_cast<std::uint32_t>(renewing.size()))];
    asked_.erase(slab);
    pool_.slab_renewed(slab);
    reference_.slab_renewed(slab);
    ++renewed_;
    return {};
  }

  std::string change_quotas() {
    const Quotas quotas = some_quotas(below(3));
    reference_.set_quotas(quotas);
    return pool_.set_quotas(quotas).ok() ? "" : "good quotas were refused";
  }

  /// Frees what a domain uses, so that slabs change hands often enough.
  std::string empty_domain() {
    const DomainId domain = kDomains[below(3)];
    for (const SlotState state :
         {SlotState::kFilling, SlotState::kOpen, SlotState::kSealed, SlotState::kDraining}) {
      for (const SlotId slot : reference_.slots_in(state)) {
        if (pool_.slab(slot.slab()).domain != domain) continue;
        pool_.release(slot);
        reference_.move(slot, SlotState::kFree);
      }
    }
    return {};
  }

  std::mt19937_64 random_;
  std::map<ClassId, Bytes> classes_;
  TierPool pool_;
  ReferencePool reference_;
  std::uint64_t next_region_ = 1;
  std::uint64_t granted_ = 0;
  std::set<SlabIndex> asked_;  ///< renewals that were
  std::uint64_t renewed_ = 0;
};

TEST(TierPoolModel, AgreesWithTheNaiveReferenceAfterEveryStep) {
  constexpr std::uint32_t kSteps = 10'000;
  for (const std::uint64_t seed : seeds(6)) {
    // The third class leaves a remainder in every slab.
    RandomWalk walk(seed, {{kSmall, Bytes(128)}, {kLarge, Bytes(256)}, {ClassId(3), Bytes(300)}});
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      ASSERT_EQ(walk.step(), "") << "KVD_TEST_SEED=" << seed << " step " << step;
    }
    EXPECT_GT(walk.granted(), kSteps / 10) << "the walk got stuck, KVD_TEST_SEED=" << seed;
    EXPECT_GT(walk.renewed(), kSteps / 2000) << "KVD_TEST_SEED=" << seed;
  }
}

TEST(TierPoolModel, AvailableIsWhatOneSlotAllocationsGet) {
  for (const std::uint64_t seed : seeds(4)) {
    RandomWalk walk(seed, {{kSmall, Bytes(128)}});
    for (std::uint32_t step = 0; step < 1'000; ++step) {
      ASSERT_EQ(walk.step(), "") << "KVD_TEST_SEED=" << seed << " step " << step;
      ASSERT_EQ(walk.drain_copy(), "") << "KVD_TEST_SEED=" << seed << " step " << step;
    }
  }
}

}  // namespace
}  // namespace kvd::pool
