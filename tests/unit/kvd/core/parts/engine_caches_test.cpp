#include "kvd/core/engine_caches.hpp"

#include <gtest/gtest.h>

#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

constexpr Bytes kCacheBlock{4096};

Config slabs_for_caches() {
  Config config = small_config();
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
  EngineCaches& sut = ground.engine_caches;
};

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
  // A request's rows on device 0: the second one is found behind the first alone.
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
                          store::SecondsPerByte{1}},
                         ground.context.now)
                  .empty());
  for (const Digest& digest : {first, second}) {
    EXPECT_FALSE(sut.on_blocks(command, {id, CacheBlocks::Op::kLookup, false, 0, {digest}, {}}));
    EXPECT_EQ(told(), 0u);
  }
}

}  // namespace
}  // namespace kvd::core
