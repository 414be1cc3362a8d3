// Engines that should have spoken: what each kind owes, and who waits for what a silent one holds.
#include "kvd/core/deciding/silence.hpp"

#include <gmock/gmock.h>

#include "tests/unit/kvd/core/parts/all_parts_fixture.hpp"

namespace kvd::core {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Nanoseconds kStepTimeout = seconds(5);
constexpr Nanoseconds kEvictAfter = seconds(20);

class SilenceTest : public AllPartsTest {
 protected:
  explicit SilenceTest(Config config = timed(small_config())) : AllPartsTest(std::move(config)) {}
  static Config timed(Config config) {
    config.step_timeout = kStepTimeout;
    config.evict_after = kEvictAfter;
    return config;
  }
  bool silent_after(Session& session, Nanoseconds time) {
    pass(time);
    sut.check(session);
    return !session.life.responsive;
  }
  Session& silent(DomainId domain = kA) {
    Session& session = attach(domain);
    session.life.responsive = false;
    return session;
  }
  /// A request waits for what the engine holds.
  bool awaited(Session& holder) {
    holder.life.awaited_since.reset();
    sut.evict(holder);
    return holder.life.awaited_since.has_value();
  }

  Silence& sut = silence;
};

TEST_F(SilenceTest, AnEngineThatWasGivenWorkOwesAStep) {
  Session& session = attach();
  running(session, 8);
  session.iterations.stepping = true;
  session.life.last_step = ground.context.now;
  EXPECT_FALSE(silent_after(session, kStepTimeout - Nanoseconds(1)));
  EXPECT_TRUE(silent_after(session, Nanoseconds(1)));
}

// As one whose user hangs up while it computes: it aborts the request, and has nothing to step for.
TEST_F(SilenceTest, WithoutRequestsItOwesNothingOfWhatItWasGiven) {
  Session& session = attach();
  session.iterations.stepping = true;
  EXPECT_FALSE(silent_after(session, seconds(1000)));
  session.life.responsive = false;  // it was silent while it had the request
  session.life.silent_since = ground.context.now;
  EXPECT_FALSE(silent_after(session, seconds(1)));
  EXPECT_FALSE(silent_after(session, seconds(1)));
  ASSERT_THAT(emitted<Note>(), SizeIs(1));
  EXPECT_THAT(emitted<Note>()[0].text, HasSubstr("is back"));
}

TEST_F(SilenceTest, ItsReturnIsToldOnce) {
  Session& session = attach();
  running(session, 8);
  session.iterations.stepping = true;
  session.life.last_step = ground.context.now;
  ASSERT_TRUE(silent_after(session, kStepTimeout));
  pass(seconds(2));
  session.life.responsive = true;  // as a step does
  session.life.last_step = ground.context.now;
  sut.check(session);
  sut.check(session);
  ASSERT_THAT(emitted<Note>(), SizeIs(2));
  EXPECT_EQ(emitted<Note>()[1].level, Note::Level::kInfo);
  EXPECT_THAT(emitted<Note>()[1].text, HasSubstr("is back after 7 s of silence"));
}

TEST_F(SilenceTest, OneThatWaitsForRequestsOwesNothing) {
  Session& session = attach();
  EXPECT_FALSE(silent_after(session, seconds(1000)));
}

TEST_F(SilenceTest, ARequestThatComesAfterALongIdleTimeIsNotLate) {
  Session& session = attach();
  pass(seconds(1000));
  submit(session, 4, 4);
  EXPECT_FALSE(silent_after(session, kStepTimeout - Nanoseconds(1)));
  EXPECT_TRUE(silent_after(session, Nanoseconds(1)));
}

TEST_F(SilenceTest, ARequestThatACommandKeepsOutIsNothingToStepFor) {
  Session& session = attach();
  submit(session, 4, 4).verdict = Verdict::kForcedOut;
  EXPECT_FALSE(silent_after(session, seconds(1000)));
}

TEST_F(SilenceTest, WithoutAModelItOwesABeat) {
  Session& session = attach();
  session.class_id = ClassId();
  session.life.last_beat = ground.context.now;
  EXPECT_FALSE(silent_after(session, kStepTimeout - Nanoseconds(1)));
  session.life.last_beat = ground.context.now;
  EXPECT_FALSE(silent_after(session, kStepTimeout - Nanoseconds(1)));
  EXPECT_TRUE(silent_after(session, Nanoseconds(1)));
  session.class_id = kClass;
}

TEST_F(SilenceTest, OneThatDiesOrIsSilentIsToldOfOnce) {
  Session& session = attach();
  running(session, 8);
  EXPECT_TRUE(silent_after(session, kStepTimeout));
  EXPECT_TRUE(silent_after(session, kStepTimeout));
  ASSERT_THAT(emitted<Note>(), SizeIs(1));
  EXPECT_THAT(emitted<Note>()[0].text, HasSubstr("silent for 5 s;"));
  Session& dying = attach();
  running(dying, 8);
  dying.life.dying = true;
  EXPECT_FALSE(silent_after(dying, seconds(1000)));
  EXPECT_THAT(emitted<Note>(), SizeIs(1));
  dying.life.dying = false;
}

TEST_F(SilenceTest, APromptThatWasToPrefillIntoDramStartsAnew) {
  Session& session = attach();
  Request& request = submit(session, 8, 8);
  request.layerwise = true;
  request.layers.away = {true, true};
  request.order.awaits_mapping = true;
  ground.requests.make_claim(request);
  EXPECT_TRUE(silent_after(session, kStepTimeout));
  EXPECT_EQ(request.order.claim, 0u);
  EXPECT_FALSE(request.order.awaits_mapping);
  EXPECT_FALSE(request.layerwise);
  EXPECT_THAT(request.layers.away, IsEmpty());
  EXPECT_TRUE(request.queues());
}

TEST_F(SilenceTest, WhoRunsHappilyWaitsForNobody) {
  Session& holder = silent();
  Session& session = attach();
  running(holder, 8);
  EXPECT_FALSE(awaited(holder));
  Request& request = running(session, 8);
  EXPECT_FALSE(awaited(holder));
  request.starved = true;
  EXPECT_TRUE(awaited(holder)) << "it has no block for its next token";
  session.life.responsive = false;
  EXPECT_FALSE(awaited(holder)) << "a silent one waits for nobody";
}

TEST_F(SilenceTest, WhoFindsRoomNeedsNobodysEnd) {
  Session& holder = silent();
  Session& session = attach();
  running(holder, 32);
  submit(session, 4, 4);
  EXPECT_FALSE(awaited(holder)) << "half of HBM is free";
  submit(session, 60, 4);
  EXPECT_TRUE(awaited(holder));
}

TEST_F(SilenceTest, AClaimWaitsUnlessItIsForASlabToBeMapped) {
  Session& holder = silent();
  Session& session = attach();
  running(holder, 8);
  Request& request = submit(session, 4, 4);
  ground.requests.make_claim(request);
  request.order.awaits_mapping = true;
  EXPECT_FALSE(awaited(holder)) << "its own engine is to map it";
  request.order.awaits_mapping = false;
  EXPECT_TRUE(awaited(holder));
}

TEST_F(SilenceTest, ARegionThatWasRefusedOfLateIsWaitedFor) {
  Session& holder = silent();
  Session& session = attach();
  running(holder, 8);
  session.leases.refused = RefusedRegion{ground.context.now, kSlab};
  EXPECT_TRUE(awaited(holder));
  pass(kStepTimeout);
  EXPECT_FALSE(awaited(holder)) << "it would have asked again";
}

TEST_F(SilenceTest, OneThatHoldsNothingEndsForNobody) {
  Session& holder = silent();
  Session& session = attach();
  running(session, 8).starved = true;
  submit(holder, 8, 8);
  EXPECT_FALSE(awaited(holder));
}

TEST_F(SilenceTest, TheWaitBeginsAnewWhenNobodyWaitedMeanwhile) {
  Session& holder = silent();
  Session& session = attach();
  running(holder, 8);
  Request& request = running(session, 8);
  request.starved = true;
  sut.evict(holder);
  pass(kEvictAfter - seconds(1));
  request.starved = false;
  sut.evict(holder);
  request.starved = true;
  sut.evict(holder);
  pass(kEvictAfter - seconds(1));
  sut.evict(holder);
  EXPECT_THAT(emitted<Evict>(), IsEmpty());
  pass(seconds(1));
  sut.evict(holder);
  EXPECT_THAT(emitted<Evict>(), SizeIs(1));
}

TEST_F(SilenceTest, WhereOperatorsWantNoEndNobodyEnds) {
  ground.context.config.evict_after = Nanoseconds(0);
  Session& holder = silent();
  running(holder, 8);
  running(attach(), 8).starved = true;
  for (int i = 0; i < 3; ++i) {
    sut.evict(holder);
    pass(seconds(1000));
  }
  EXPECT_THAT(emitted<Evict>(), IsEmpty());
}

TEST_F(SilenceTest, AnotherDomainIsHelpedByWhatIsLent) {
  Session& holder = silent();
  Session& foreign = attach(kB);
  running(holder, 64);
  submit(foreign, 8, 8);
  EXPECT_TRUE(awaited(holder));
  ground.context.config.hbm_quotas[kA] = {.guarantee = kSlab * 4, .maximum = kSlab * 4};
  EXPECT_FALSE(awaited(holder)) << "it is its own";
  ground.context.config.hbm_quotas.clear();
}

class TwoDeviceSilence : public SilenceTest {
 protected:
  TwoDeviceSilence() : SilenceTest(timed(small_config(4, 8, 2))) {}
};

TEST_F(TwoDeviceSilence, WhoWaitsOnAnotherDeviceDoesNotWaitForIt) {
  Session& holder = silent();
  running(holder, 8);
  Session& there = attach(kA, 2, true, Devices(kSecond));
  running(there, 8).starved = true;
  EXPECT_FALSE(awaited(holder));
  Session& group = attach(kA, 1, true, Devices(std::vector{kFirst, kSecond}), 2);
  running(group, 8).starved = true;
  EXPECT_TRUE(awaited(holder)) << "one of its devices is";
}

}  // namespace
}  // namespace kvd::core
