// Engines that come and go.
#include "kvd/core/talk/sessions.hpp"

#include <gmock/gmock.h>

#include "tests/unit/kvd/core/parts/all_parts_fixture.hpp"

namespace kvd::core {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SessionsTest : public AllPartsTest {
 protected:
  static ModelClass shape(std::uint32_t layers) { return {layers, 1, kBlockTokens, Bytes(32)}; }
  Session& came(std::optional<ModelClass> model = shape(2), DomainId domain = kA) {
    Attach attach;
    attach.name = "engine";
    attach.domain = domain;
    attach.model_class = model;
    auto grant = sessions.attach(attach);
    EXPECT_TRUE(grant.ok());
    granted = *grant;
    Session& session = ground.requests.sessions().at(granted.engine);
    if (model) map_all(session);
    return session;
  }
  bool there(EngineId engine) { return ground.requests.sessions().contains(engine); }

  AttachGrant granted;
};

TEST_F(SessionsTest, EnginesOfOneShapeShareAClass) {
  const ClassId first = came().class_id;
  EXPECT_EQ(came().class_id, first);
  EXPECT_NE(came(shape(4)).class_id, first);
  EXPECT_FALSE(came(std::nullopt).class_id) << "regions alone need no class";
  EXPECT_EQ(ground.context.counters.engines_attached, 4u);
}

TEST_F(SessionsTest, EachRankOfAGroupHasANumber) {
  ModelClass two = shape(2);
  two.ranks = 2;
  const EngineId group = came(two).id;
  const Generation generation = granted.generation;
  EXPECT_EQ(came().id, EngineId(group.value + 2));
  EXPECT_EQ(granted.generation, Generation(generation.value + 2));
}

TEST_F(SessionsTest, AShapeThatFitsNoSlabIsRefused) {
  Attach attach;
  attach.model_class = {1, 1, kBlockTokens, kSlab};
  EXPECT_EQ(sessions.attach(attach).error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(ground.requests.sessions(), IsEmpty());
}

TEST_F(SessionsTest, ShapesThatNobodyUsesMakeRoomForNewOnes) {
  Attach attach;
  for (std::uint32_t layers = 1; layers <= 256; ++layers) {
    attach.model_class = shape(layers);
    ASSERT_TRUE(sessions.attach(attach).ok()) << layers;
  }
  attach.model_class = shape(257);
  const auto refused = sessions.attach(attach);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kQuotaExceeded);
  sessions.on_detach(ground.requests.sessions().begin()->first);
  EXPECT_TRUE(sessions.attach(attach).ok());
}

TEST_F(SessionsTest, OneThatSaysGoodbyeFreesAllAtOnce) {
  Session& session = came();
  running(session, 8);
  submit(session, 4, 4);
  session.iterations.granted = 3;  // it may have been in the middle of an iteration
  sessions.on_detach(session.id);
  EXPECT_FALSE(there(granted.engine));
  EXPECT_EQ(free_hbm(), kSlab * 4);
  EXPECT_THAT(ground.requests.all(), IsEmpty());
}

TEST_F(SessionsTest, WhatADyingEngineMayTouchIsHeldUntilItIsDead) {
  Session& session = came();
  running(session, 8);
  sessions.on_dying(session.id, false);
  EXPECT_TRUE(there(session.id));
  EXPECT_THAT(ground.requests.all(), IsEmpty());
  EXPECT_LT(free_hbm(), kSlab * 4);
  sessions.on_dead(granted.engine);
  EXPECT_FALSE(there(granted.engine));
  for (const Scrub& scrub : emitted<Scrub>()) {
    EXPECT_TRUE(ground.store.tiers.scrub_ended(scrub.ticket, true));
  }
  EXPECT_EQ(free_hbm(), kSlab * 4);
  EXPECT_EQ(ground.context.counters.engines_died, 1u);
}

TEST_F(SessionsTest, ADeathIsToldOnceAndAGoodbyeIsNone) {
  sessions.on_dying(came().id, false);
  sessions.on_dying(granted.engine, false);
  EXPECT_EQ(ground.context.counters.engines_died, 1u);
  sessions.on_dying(came().id, true);
  sessions.on_dead(granted.engine);
  EXPECT_EQ(ground.context.counters.engines_died, 1u);
  EXPECT_FALSE(there(granted.engine));
}

TEST_F(SessionsTest, OneThatDiesWhileItPartsHasDied) {
  sessions.on_dying(came().id, true);
  sessions.on_dying(granted.engine, false);
  EXPECT_EQ(ground.context.counters.engines_died, 1u);
  EXPECT_THAT(emitted<Note>(), SizeIs(1));
  EXPECT_THAT(emitted<Note>()[0].text, HasSubstr("died"));
}

TEST_F(SessionsTest, ABeatShowsThatAnEngineWithoutAModelIsThere) {
  Session& session = came(std::nullopt);
  session.life.responsive = false;
  pass(std::chrono::seconds(3));
  sessions.on_beat(session.id);
  EXPECT_TRUE(session.life.responsive);
  EXPECT_EQ(session.life.last_beat, ground.context.now);
  Session& scheduled = came();
  scheduled.life.responsive = false;
  sessions.on_beat(scheduled.id);
  EXPECT_FALSE(scheduled.life.responsive) << "this one owes steps";
}

TEST_F(SessionsTest, OfAnEngineThatIsNotThereNothingIsDone) {
  const EngineId nobody(77);
  sessions.on_detach(nobody);
  sessions.on_dying(nobody, false);
  sessions.on_dead(nobody);
  sessions.on_beat(nobody);
  sessions.on_slab_mapped(nobody, SlabIndex(0));
  sessions.on_slab_unmapped(nobody, SlabIndex(0));
  sessions.on_slab_unsent({nobody, SlabIndex(0), RegionId()});
  EXPECT_EQ(ground.context.counters.engines_died, 0u);
  EXPECT_EQ(free_hbm(), kSlab * 4);
}

}  // namespace
}  // namespace kvd::core
