// Slabs that change domain: nobody gets memory that another domain's engines know, and nobody waits
// for ever for it to be made new.
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

}  // namespace
}  // namespace kvd::test
