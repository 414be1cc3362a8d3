// Cached blocks that HBM alone has, copied to DRAM before HBM gives them up.
#include "kvd/core/cache/cache_copies.hpp"

#include <vector>

#include "tests/unit/kvd/core/parts/cache/prefixes_fixture.hpp"

namespace kvd::core {
namespace {

class CacheCopiesTest : public PrefixesFixture {
 protected:
  using PrefixesFixture::PrefixesFixture;
  CacheCopies& cache_copies = ground.cache_copies;

  /// What make_ahead() orders now.
  std::vector<CopySlots> ordered() {
    const std::size_t before = emitted<CopySlots>().size();
    cache_copies.make_ahead();
    std::vector<CopySlots> all = emitted<CopySlots>();
    all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(before));
    return all;
  }
  void finish(const std::vector<CopySlots>& begun, bool ok = true) {
    for (const CopySlots& copy : begun) {
      EXPECT_TRUE(cache_copies.on_copy({copy.ticket, ok, kSlot, Nanoseconds(1000)}));
    }
  }
  /// Waits by way of a request that does not begin with it.
  Found found(Session& session, std::int64_t prompt, std::uint8_t text) {
    Request& request = asked(session, prompt, text);
    const Found what = ground.prefixes.find(request);
    ground.prefixes.give_back(request);
    return what;
  }
  Bytes cached(Tier tier) { return ground.store.cache.evictable(kA, tier); }
  void evict_hbm() { (void)ground.store.cache.make_room(kA, Tier::kHbm, kSlab * 4); }
};

TEST_F(CacheCopiesTest, WhatARequestLeavesInHbmAloneIsFoundInDramLater) {
  Session& session = attach();
  ground.memory.end(computed(session, 8, 7));
  const std::vector<CopySlots> begun = ordered();
  ASSERT_EQ(begun.size(), 2u) << "one a row";
  EXPECT_TRUE(begun[0].background) << "nobody waits for it";
  EXPECT_FALSE(begun[0].to_hbm);
  EXPECT_EQ(begun[0].pairs.size(), 2u) << "each layer group";
  finish(begun);
  EXPECT_EQ(cached(Tier::kDram), kSlot * 4);
  EXPECT_EQ(cached(Tier::kHbm), kSlot * 4) << "HBM keeps it while it can";
  evict_hbm();
  EXPECT_EQ(found(session, 9, 7), Found::kInDram);
  EXPECT_TRUE(ordered().empty()) << "it is copied once";
}

TEST_F(CacheCopiesTest, WhatACopyReadsStaysUntilItHasEnded) {
  Session& session = attach();
  ground.memory.end(computed(session, 8, 7));
  const std::vector<CopySlots> begun = ordered();
  EXPECT_EQ(cached(Tier::kHbm), Bytes(0)) << "nobody may count on it";
  evict_hbm();
  EXPECT_EQ(free_hbm(), kSlab * 4 - kSlot * 4);
  finish(begun);
  evict_hbm();
  EXPECT_EQ(free_hbm(), kSlab * 4);
}

TEST_F(CacheCopiesTest, ACopyThatFailsLeavesDramFree) {
  ground.memory.end(computed(attach(), 8, 7));
  finish(ordered(), false);
  EXPECT_EQ(free_dram(), kSlab * 8);
  EXPECT_EQ(cached(Tier::kHbm), kSlot * 4);
  EXPECT_EQ(ground.context.counters.copy_failures, 2u);
}

TEST_F(CacheCopiesTest, NothingIsCopiedAheadWhereRotationIsNotEager) {
  EXPECT_TRUE(ground.drains.copies_ahead());
  ground.context.tuning.rotation.eager = false;
  EXPECT_FALSE(ground.drains.copies_ahead());
}

TEST_F(CacheCopiesTest, WhatTheRequestHadCopiedIsNotCopiedAgain) {
  Session& session = attach();
  Request& request = computed(session, 8, 7);
  copies.make_ahead(session);
  ASSERT_TRUE(swaps.on_copy({request.moves.sync, true, kSlot, Nanoseconds(1000)}));
  ground.memory.end(request);
  EXPECT_TRUE(ordered().empty());
}

TEST_F(CacheCopiesTest, WhoBeginsWithWhatIsCopiedGetsTheCopyToo) {
  Session& session = attach();
  ground.memory.end(computed(session, 8, 7));
  const std::vector<CopySlots> begun = ordered();
  Request& second = asked(session, 9, 7);
  ASSERT_EQ(ground.prefixes.find(second), Found::kInHbm);
  begin(second);
  finish(begun);
  EXPECT_EQ(second.table.doubled(), 4);
  ground.memory.end(second);
  EXPECT_EQ(cached(Tier::kDram), kSlot * 4);
}

TEST_F(CacheCopiesTest, ACopyThatARequestMadeMeanwhileStays) {
  Session& session = attach();
  ground.memory.end(computed(session, 8, 7));
  const std::vector<CopySlots> begun = ordered();
  Request& second = asked(session, 9, 7);
  ASSERT_EQ(ground.prefixes.find(second), Found::kInHbm);
  begin(second);
  second.synced = 0;
  copies.make_ahead(session);
  ASSERT_TRUE(second.moves.sync);
  ASSERT_TRUE(swaps.on_copy({second.moves.sync, true, kSlot, Nanoseconds(1000)}));
  finish(begun);
  ground.memory.end(second);
  EXPECT_EQ(free_dram(), kSlab * 8 - kSlot * 4);
}

TEST_F(CacheCopiesTest, ADyingEnginesBlocksAreNotKeptByACopy) {
  Session& session = attach();
  ground.memory.end(computed(session, 8, 7));
  const std::vector<CopySlots> begun = ordered();
  Session& dies = attach();
  Request& second = asked(dies, 9, 7);
  ASSERT_EQ(ground.prefixes.find(second), Found::kInHbm);
  begin(second);
  sessions.on_dying(dies.id, false);
  finish(begun);
  EXPECT_EQ(cached(Tier::kDram), Bytes(0)) << "it may have written there";
  EXPECT_EQ(free_dram(), kSlab * 8);
  sessions.on_dead(dies.id);
}

Config gives_up_one_row_an_event() {
  Config config = small_config();
  config.max_given_up = 1;
  return config;
}

class SlowEndsTest : public CacheCopiesTest {
 protected:
  SlowEndsTest() : CacheCopiesTest(gives_up_one_row_an_event()) {}
  void catch_up() {
    while (ground.requests.is_behind()) (void)ground.memory.go_on();
  }
};

TEST_F(SlowEndsTest, ADyingEnginesBlocksAreNotKeptByACopyThatEndsBeforeTheyAreGivenUp) {
  Session& session = attach();
  ground.memory.end(computed(session, 8, 7));
  catch_up();
  const std::vector<CopySlots> begun = ordered();
  ASSERT_EQ(begun.size(), 2u);
  Session& dies = attach();
  Request& second = asked(dies, 9, 7);
  ASSERT_EQ(ground.prefixes.find(second), Found::kInHbm);
  begin(second);
  sessions.on_dying(dies.id, false);
  ASSERT_TRUE(ground.requests.is_behind());
  finish(begun);
  catch_up();
  EXPECT_EQ(cached(Tier::kDram), Bytes(0)) << "it may have written there";
  sessions.on_dead(dies.id);
}

constexpr Bytes kLargeSlab = kSlot * 2048;

Config one_large_slab_of_dram() {
  Config config = small_config(4, 1);
  config.dram.slab_bytes = kLargeSlab;
  config.hbm[0].slab_bytes = kLargeSlab;
  return config;
}

class LargeSlabTest : public CacheCopiesTest {
 protected:
  LargeSlabTest() : CacheCopiesTest(one_large_slab_of_dram()) {}
  Session& maps_one_slab(ClassId model_class, Bytes slot) {
    Session& session = attach(kA, 2, false);
    EXPECT_TRUE(ground.store.tiers.add_class(model_class, slot).ok());
    session.class_id = model_class;
    session.shape.bytes_per_token_per_layer = Bytes(slot.value / kBlockTokens);
    Request& first = submit(session, 4, 4);
    EXPECT_EQ(ground.memory.grow(first, Tokens(4)), ErrorCode::kWouldBlock);
    for (const SendSlab& sent : emitted<SendSlab>()) {
      (void)ground.store.tiers.mappings().mapped(sent.engine, sent.slab);
    }
    ground.memory.end(first);
    return session;
  }
};

// 1,024 rows, in a slab of another class than the two rows that want to come.
TEST_F(LargeSlabTest, ASlabOfAnotherClassIsEmptiedEventByEvent) {
  Session& other = maps_one_slab(kOtherClass, kOtherSlot);
  Request& held = computed(other, 8, 7);
  Session& session = maps_one_slab(kClass, kSlot);
  for (std::uint8_t text = 1; text <= 4; ++text) leave_in_dram(session, 1024, text);
  ASSERT_EQ(cached(Tier::kDram), kLargeSlab);
  Request& reader = asked(other, 9, 7);
  ASSERT_EQ(ground.prefixes.find(reader), Found::kInHbm);
  begin(reader);
  ground.memory.end(held);
  ground.memory.end(reader);
  EXPECT_TRUE(ordered().empty());
  EXPECT_EQ(cached(Tier::kDram), kSlot * 1024);
  EXPECT_EQ(ordered().size(), 2u);
  EXPECT_EQ(cached(Tier::kDram), Bytes(0));
}

class SmallDramTest : public CacheCopiesTest {
 protected:
  SmallDramTest() : CacheCopiesTest(small_config(4, 2)) {}
};

TEST_F(SmallDramTest, DramKeepsWhatSavesMore) {
  Session& session = attach();
  leave_in_dram(session, 28, 1);  // 14 of 16 slots
  for (std::uint8_t text = 3; text < 10; ++text) {
    Request& reader = submit(session, 33, 8);
    for (std::uint32_t block = 0; block < 8; ++block) {
      ASSERT_TRUE(ground.prefixes.tell(reader, kModel, block, digest(block < 7 ? 1 : text, block)));
    }
    ASSERT_EQ(ground.prefixes.find(reader), Found::kInDram);
    ground.prefixes.give_back(reader);
  }
  ground.memory.end(computed(session, 12, 2));
  EXPECT_EQ(ordered().size(), 1u) << "where there is room, and no more";
  EXPECT_EQ(cached(Tier::kDram), kSlot * 14);
}

// Prompts that go on in one way only make no block popular, however often they come.
TEST_F(SmallDramTest, WhatCameLaterTakesThePlaceOfWhatIsNotPopular) {
  Session& session = attach();
  leave_in_dram(session, 28, 1);  // 14 of 16 slots
  for (int again = 0; again < 2; ++again) {
    Request& reader = asked(session, 29, 1);
    ASSERT_EQ(ground.prefixes.find(reader), Found::kInDram);
    ground.prefixes.give_back(reader);
  }
  ground.memory.end(computed(session, 12, 2));
  EXPECT_EQ(ordered().size(), 3u);
  EXPECT_EQ(cached(Tier::kDram), kSlot * 10) << "two of the three needed its room";
}

TEST_F(SmallDramTest, WhatSavesLessMakesWay) {
  Session& session = attach();
  leave_in_dram(session, 32, 1);
  for (int again = 0; again < 2; ++again) {
    ground.memory.end(computed(session, 8, 2));
    Request& reader = asked(session, 9, 2);
    ASSERT_EQ(ground.prefixes.find(reader), Found::kInHbm);
    begin(reader);
    ground.memory.end(reader);
  }
  finish(ordered());
  evict_hbm();
  EXPECT_EQ(found(session, 9, 2), Found::kInDram);
}

TEST_F(SmallDramTest, WhatWasSealedBeforeItsEngineWasMeasuredMakesWay) {
  Session& session = attach();
  leave_in_dram(session, 32, 1);  // at a guess, a thousand times too high
  session.costs.prefill_token_s = 1e-6;
  pass(std::chrono::seconds(1));
  ground.memory.end(computed(session, 8, 2));
  finish(ordered());
  evict_hbm();
  EXPECT_EQ(found(session, 9, 2), Found::kInDram);
}

TEST_F(SmallDramTest, WhatAFasterModelComputedMakesWay) {
  Session& fast = attach();
  fast.costs.prefill_token_s = 1e-6;
  leave_in_dram(fast, 32, 1);
  Request& reader = asked(fast, 33, 1);  // asked for more often, too
  ASSERT_EQ(ground.prefixes.find(reader), Found::kInDram);
  ground.prefixes.give_back(reader);
  ground.memory.end(computed(attach(), 8, 2, Fingerprint{Digest{{2}}}));
  EXPECT_EQ(ordered().size(), 2u);
}

TEST_F(CacheCopiesTest, NoMoreIsUnderWayThanAQuarterOfAStep) {
  ground.context.tuning.rotation.b_xfer = kSlot * 16;
  ground.memory.end(computed(attach(), 32, 7));
  std::vector<CopySlots> begun = ordered();
  EXPECT_EQ(begun.size(), 2u);
  EXPECT_TRUE(ordered().empty());
  finish(begun);
  EXPECT_EQ(ordered().size(), 2u);
}

}  // namespace
}  // namespace kvd::core
