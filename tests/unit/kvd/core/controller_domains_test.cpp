// Slabs that change domain: nobody gets memory that another domain's engines know, and nobody waits
// for ever until it is made anew.
#include <gtest/gtest.h>

#include "tests/support/controller_world.hpp"

namespace kvd::test {
namespace {

constexpr DomainId kTheirs{1}, kOurs{2};
constexpr Bytes kOneSlab{4096};
constexpr std::uint32_t kSlabs = 4;

/// A pool whose slabs are all free, and known to an engine of kTheirs that is still there.
struct Known {
  explicit Known(Controller::Config config = small_pool(kSlabs)) : world(std::move(config)) {
    theirs = world.attach({}, kTheirs, true);
    EXPECT_EQ(world.code(world.command(theirs, AllocateRegion{kOneSlab * kSlabs})), ErrorCode::kOk);
    world.release_oldest_region();
    world.finish_copies();
  }
  World world;
  EngineId theirs;
};

TEST(ControllerDomains, ARegionIsGrantedWhenItsMemoryIsNew) {
  Known pool;
  const EngineId ours = pool.world.attach({}, kOurs, true);
  EXPECT_FALSE(pool.world.command(ours, AllocateRegion{kOneSlab * 3})) << "it waits";
  EXPECT_EQ(pool.world.renewing.size(), 3u);
  pool.world.finish_renewals();
  EXPECT_EQ(pool.world.regions.size(), 1u);
  EXPECT_EQ(pool.world.regions.front().first, ours);
  EXPECT_EQ(pool.world.renewed.size(), 3u);
}

TEST(ControllerDomains, InItsOwnDomainMemoryIsOnlyZeroed) {
  Known pool;
  const EngineId same = pool.world.attach({}, kTheirs, true);
  EXPECT_EQ(pool.world.code(pool.world.command(same, AllocateRegion{kOneSlab * kSlabs})),
            ErrorCode::kOk);
  EXPECT_TRUE(pool.world.renewing.empty());
}

// It is not even admitted before there is memory, so nobody asks for slots.
TEST(ControllerDomains, ARequestDoesNotStandStillBeforeMemoryThatAnotherDomainKnew) {
  Known pool(small_pool(kSlabs, 1));
  const EngineId ours = pool.world.attach(small_model(), kOurs);
  ASSERT_EQ(pool.world.submit(ours, 1, 8, 40), ErrorCode::kOk);  // three slabs by its end
  EXPECT_TRUE(run_to_end(pool.world, 500));
  EXPECT_EQ(pool.world.errors, 0u);
  EXPECT_GE(pool.world.renewed.size(), 3u);
}

TEST(ControllerDomains, AGuaranteeNeverWaitsForMemoryToBeMade) {
  Controller::Config config = small_pool(kSlabs);
  config.hbm_quotas[kTheirs].guarantee = config.hbm_quotas[kOurs].guarantee = kOneSlab * 2;
  World world(std::move(config));
  const EngineId theirs = world.attach({}, kTheirs, true);
  const EngineId ours = world.attach({}, kOurs, true);
  for (int round = 0; round < 3; ++round) {
    for (const EngineId engine : {theirs, ours}) {
      EXPECT_EQ(world.code(world.command(engine, AllocateRegion{kOneSlab * 2})), ErrorCode::kOk);
    }
    world.release_oldest_region();
    world.release_oldest_region();
    world.finish_copies();
  }
  EXPECT_TRUE(world.renewed.empty());
}

// Requests of two domains that each want most of the pool, over and over.
TEST(ControllerDomains, TwoDomainsTakeTurnsAndEveryBlockHoldsWhatItShould) {
  World world(small_pool(kSlabs));
  const EngineId engines[] = {world.attach(small_model(), kTheirs),
                              world.attach(small_model(), kOurs)};
  for (std::uint64_t round = 1; round <= 6; ++round) {
    ASSERT_EQ(world.submit(engines[round % 2], round, 8, 40), ErrorCode::kOk);
    ASSERT_TRUE(run_to_end(world, 500)) << "round " << round;
  }
  EXPECT_EQ(world.errors, 0u);
  EXPECT_FALSE(world.renewed.empty());
}

/// Requests of kOurs that fill HBM, of about four slabs each by their end, for as long as a test
/// lasts.
struct Busy {
  Busy() {
    for (std::uint64_t id = 1; id <= 16; ++id) {
      EXPECT_EQ(world.submit(ours, id, 8, 60), ErrorCode::kOk);
    }
    for (int i = 0; i < 100 && held() < kSlabs * 2; ++i) world.iterate(ours);
  }
  void requota(const pool::Quotas& quotas) { world.feed(Requota{quotas, {}}); }
  [[nodiscard]] Bytes over() const {
    const auto excess = world.controller->excess(Tier::kHbm);
    const auto found = excess.find(kOurs);
    return found == excess.end() ? Bytes(0) : found->second;
  }
  [[nodiscard]] std::uint32_t held() const {
    std::uint32_t slabs = 0;
    for (const auto& slab : world.controller->status(world.now).slabs[0]) {
      slabs += slab.domain == kOurs && slab.use == pool::SlabUse::kClass ? 1u : 0u;
    }
    return slabs;
  }
  /// Iterations until nothing is over; the bound is far above what rotation takes.
  int drained() {
    for (int i = 0; i < 200; ++i) {
      if (over() == Bytes(0)) return i;
      world.iterate(ours);
      world.feed(Tick{});
      world.finish_copies();
    }
    return -1;
  }
  World world{small_pool(kSlabs * 2, 64)};
  EngineId ours = world.attach(small_model(), kOurs);
};

TEST(ControllerDomains, AMaximumThatIsLoweredHoldsForADomainThatIsBusy) {
  Busy busy;
  ASSERT_EQ(busy.held(), kSlabs * 2);
  busy.requota({{kOurs, {Bytes(0), kOneSlab * 5}}});
  EXPECT_EQ(busy.over(), kOneSlab * 3) << "the answer says what is still to come back";
  EXPECT_GE(busy.drained(), 0);
  busy.world.iterate(busy.ours, 50);
  EXPECT_EQ(busy.over(), Bytes(0)) << "and stays there";
  EXPECT_GT(busy.world.engines.at(busy.ours).ran, 0u);
  EXPECT_EQ(busy.world.errors, 0u);
}

TEST(ControllerDomains, AGuaranteeThatIsGivenNowIsThereAlthoughOthersHoldAll) {
  Busy busy;
  const EngineId theirs = busy.world.attach({}, kTheirs, true);
  busy.requota({{kTheirs, {kOneSlab * 3, kOneSlab * 8}}});
  EXPECT_GE(busy.drained(), 0);
  EXPECT_FALSE(busy.world.command(theirs, AllocateRegion{kOneSlab * 3}, std::chrono::hours(1)))
      << "new memory is made for it";
  busy.world.finish_renewals();
  EXPECT_EQ(busy.world.regions.size(), 1u);
  EXPECT_EQ(busy.world.errors, 0u);
}

TEST(ControllerDomains, AMaximumThatIsRaisedAgainIsUsed) {
  Busy busy;
  busy.requota({{kOurs, {Bytes(0), kOneSlab * 5}}});
  EXPECT_GE(busy.drained(), 0);
  busy.requota({});
  busy.world.iterate(busy.ours, 100);
  EXPECT_GT(busy.held(), 5u);
}

}  // namespace
}  // namespace kvd::test
