#include "kvd/core/cache/engine_caches.hpp"

#include <gtest/gtest.h>

#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

constexpr Bytes kCacheBlock{4096};

Config slabs_for_caches() {
  Config config = small_config(4, 600);
  config.hbm.front().slab_bytes = config.dram.slab_bytes = kCacheBlock * 4;
  return config;
}

class EngineCachesTest : public PartsTest {
 protected:
  EngineCachesTest() : PartsTest(slabs_for_caches()) {}

  std::uint64_t told() {
    const auto replies = emitted<Reply>();
    const auto* reply = std::get_if<ValueReply>(&replies.back().body);
    const auto* error = std::get_if<Error>(&replies.back().body);
    EXPECT_EQ(error, nullptr) << error->to_string();
    return reply != nullptr ? reply->value : UINT64_MAX;
  }
  Command command(const Session& session) { return {session.id, ReplyTo(1), TimePoint{1}, {}}; }
  /// A cache only for lookups and drops.
  OpenCache without_region(Bytes block) {
    OpenCache open;
    open.fingerprint = Fingerprint{Digest{{1}}};
    open.block_bytes = block;
    open.block_tokens = 16;
    return open;
  }
  [[nodiscard]] bool refused() {
    const auto replies = emitted<Reply>();
    const auto* error = std::get_if<Error>(&replies.back().body);
    return error != nullptr && error->code == ErrorCode::kQuotaExceeded;
  }
  /// Rows of blocks that an engine placed, of these names.
  void cached(const Session& session, CacheId id, const std::vector<Digest>& names) {
    const EngineCache& cache = session.leases.caches.at(id);
    const store::KeySpace& space = cache.space;
    const store::Taker taker{space.model_class, space.domain, session.id, cache.slot_bytes, kFirst};
    store::PlacedRows rows(ground.store.cache);
    for (const Digest& name : names) {
      const auto grant = ground.store.tiers.take(Tier::kDram, taker, 1);
      ASSERT_EQ(grant.code, ErrorCode::kOk);
      ASSERT_TRUE(rows.add({space, taker, store::SecondsPerByte{1}, name, grant.slots[0]}));
    }
  }
  EngineCaches& sut = ground.engine_caches;
};

// They are in slots of one size: the larger would read what was there before.
TEST_F(EngineCachesTest, SmallBlocksOfAnotherSizeAreNotFoundUnderTheSameFingerprint) {
  Session& session = attach(kA, 2, false);
  ASSERT_TRUE(ground.store.tiers.remove_class(kClass)) << "its number is given anew";
  sut.on_open(command(session), without_region(Bytes(1000)));
  const CacheId small(told());
  cached(session, small, {Digest{{1}}});
  const auto found_by = [&](Bytes block) {
    sut.on_open(command(session), without_region(block));
    EXPECT_FALSE(
        sut.on_blocks(command(session),
                      {CacheId(told()), CacheBlocks::Op::kLookup, false, 0, {Digest{{1}}}, {}}));
    return told();
  };
  EXPECT_EQ(found_by(Bytes(1000)), 1u);
  EXPECT_EQ(found_by(Bytes(999)), 0u);
  EXPECT_EQ(found_by(Bytes(4000)), 0u);
  EXPECT_EQ(found_by(kCacheBlock), 0u);
}

// One user opens caches of ever new sizes, in as many sessions as it may have.
TEST_F(EngineCachesTest, ShapesOfOneDomainCostOthersNeitherTheirBlocksNorTheirNextModel) {
  Session& honest = attach(kB, 2, false);
  ASSERT_TRUE(ground.store.tiers.remove_class(kClass)) << "its number is given anew";
  sut.on_open(command(honest), without_region(kCacheBlock));
  const CacheId id(told());
  const std::vector<Digest> names{Digest{{1}}, Digest{{2}}, Digest{{3}}};
  cached(honest, id, names);
  std::int64_t opened = 0;
  for (int engine = 0; engine < 64; ++engine) {
    Session& hog = attach(kA, 2, false);
    for (int i = 0; i < 16; ++i) {
      sut.on_open(command(hog), without_region(kCacheBlock + Bytes(8 * ++opened)));
      if (refused()) break;
    }
  }
  EXPECT_GT(opened, 128) << "a user may have many models";
  EXPECT_TRUE(refused());
  EXPECT_FALSE(sut.on_blocks(command(honest), {id, CacheBlocks::Op::kLookup, false, 0, names, {}}));
  EXPECT_EQ(told(), 3u);
  for (std::int64_t model = 0; model < 4; ++model) {
    sut.on_open(command(attach(kB, 2, false)), without_region(kCacheBlock * 2 + Bytes(8 * model)));
    EXPECT_FALSE(refused()) << model;
  }
}

// Shapes that earlier engines have left cached count as well, but they are then its own to give up.
TEST_F(EngineCachesTest, ADomainThatHasManyShapesCachedGivesUpItsOwn) {
  Session& honest = attach(kB, 2, false);
  ASSERT_TRUE(ground.store.tiers.remove_class(kClass)) << "its number is given anew";
  sut.on_open(command(honest), without_region(kCacheBlock));
  const CacheId id(told());
  cached(honest, id, {Digest{{1}}});
  for (std::int64_t i = 1; i <= 400; ++i) {
    Session& session = attach(kA, 2, false);
    sut.on_open(command(session), without_region(kCacheBlock + Bytes(8 * i)));
    ASSERT_FALSE(refused()) << i;
    cached(session, CacheId(told()), {Digest{{1}}});
    sut.end(session, false);
  }
  EXPECT_FALSE(
      sut.on_blocks(command(honest), {id, CacheBlocks::Op::kLookup, false, 0, {Digest{{1}}}, {}}));
  EXPECT_EQ(told(), 1u);
}

TEST_F(EngineCachesTest, FindNothingOfRequestsThatHaveTheSameClassAndFingerprint) {
  Session& session = attach(kA, 2, false);
  ASSERT_TRUE(ground.store.tiers.remove_class(kClass)) << "its number is given anew";
  const Command command{session.id, ReplyTo(1), TimePoint{1}, {}};
  OpenCache open;
  open.fingerprint = Fingerprint{Digest{{1}}};
  open.block_bytes = kCacheBlock;
  open.block_tokens = 16;
  sut.on_open(command, open);
  const CacheId id(told());
  const store::KeySpace placed = session.leases.caches.at(id).space;
  // A request's rows on device 0. The second row is found only behind the first one.
  const store::KeySpace of_requests{placed.fingerprint, placed.domain, placed.model_class, 0};
  const store::Taker taker{placed.model_class, placed.domain, session.id, kCacheBlock, kFirst};
  const auto grant = ground.store.tiers.take(Tier::kDram, taker, 2);
  ASSERT_EQ(grant.code, ErrorCode::kOk);
  const Digest first{{1}}, second{{2}};
  ASSERT_TRUE(ground.store.cache
                  .adopt({of_requests,
                          taker,
                          {first, second},
                          {{grant.slots[0]}, {grant.slots[1]}},
                          store::SecondsPerByte{1}})
                  .empty());
  for (const Digest& digest : {first, second}) {
    EXPECT_FALSE(sut.on_blocks(command, {id, CacheBlocks::Op::kLookup, false, 0, {digest}, {}}));
    EXPECT_EQ(told(), 0u);
  }
}

}  // namespace
}  // namespace kvd::core
