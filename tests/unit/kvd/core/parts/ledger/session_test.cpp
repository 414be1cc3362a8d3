// What a session and a request know of themselves: shapes, room, and when an answer has to be
// worked out again.
#include "kvd/core/ledger/session.hpp"

#include <gmock/gmock.h>

#include "kvd/core/ledger/request.hpp"
#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

using std::chrono::seconds;

class SessionTest : public PartsTest {
 protected:
  SessionTest() : PartsTest(small_config(4, 8, 2)) {}
  static Devices both() { return Devices(std::vector{kSecond, kFirst, kSecond}); }
  /// Whether the request's answers are worked out anew after it.
  template <class Act>
  static bool changes(Request& request, Act act) {
    const std::uint64_t before = request.layers_version();
    act();
    return request.layers_version() != before;
  }
};

TEST_F(SessionTest, AShapeSaysHowLargeASlotIs) {
  const ModelClass shape{.layers = 10,
                         .layers_per_block = 4,
                         .block_tokens = 16,
                         .bytes_per_token_per_layer = Bytes(32),
                         .ranks = 2};
  EXPECT_EQ(shape.rank_groups(), 3u) << "the last of two layers";
  EXPECT_EQ(shape.groups(), 6u);
  EXPECT_EQ(shape.slot_bytes(), Bytes(2048));
}

TEST_F(SessionTest, GroupsAreOnTheDeviceOfTheirRank) {
  const Session& group = attach(kA, 2, true, both(), 3);
  EXPECT_EQ(group.groups(), 6u);
  for (std::uint32_t i = 0; i < 6; ++i) {
    EXPECT_EQ(group.device_of_group(i), i == 2 || i == 3 ? kFirst : kSecond) << i;
  }
  EXPECT_EQ(group.groups_on(kFirst), 2u);
  EXPECT_EQ(group.groups_on(kSecond), 4u);
  EXPECT_EQ(group.groups_on(DeviceId(7)), 0u);
  EXPECT_TRUE(group.on(kSecond));
}

TEST_F(SessionTest, AnEngineOfOneDeviceHasAllItsGroupsThere) {
  const Session& session = attach(kB, 3, true, Devices(kSecond));
  EXPECT_EQ(session.device_of_group(2), kSecond);
  EXPECT_EQ(session.groups_on(kSecond), 3u);
  EXPECT_EQ(session.groups_on(kFirst), 0u);
  EXPECT_EQ(session.share(), (Share{kB, kSecond}));
  EXPECT_EQ(session.taker().device, kSecond);
  EXPECT_EQ(session.taker().slot_bytes, kSlot);
  EXPECT_EQ(session.taker().engine, session.id);
}

TEST_F(SessionTest, TokensTakeWholeBlocksOfEveryGroup) {
  const Session& group = attach(kA, 2, true, both(), 3);
  EXPECT_EQ(group.blocks_for(Tokens(0)), 0);
  EXPECT_EQ(group.blocks_for(Tokens(4)), 1);
  EXPECT_EQ(group.blocks_for(Tokens(5)), 2);
  EXPECT_EQ(group.bytes_for(Tokens(5)), kSlot * 12);
  EXPECT_EQ(group.bytes_for(Tokens(5), kFirst), kSlot * 4);
  EXPECT_EQ(group.bytes_for(Tokens(5), kSecond), kSlot * 8);
}

TEST_F(SessionTest, ARequestNeedsRoomForItsPromptOrItsAnswerAndAToken) {
  Request& request = submit(attach(), 10, 4);
  request.progress.tokens = Tokens(6);
  EXPECT_EQ(request.room_to_run(), Tokens(11)) << "all of its prompt, however much is done";
  request.phase = Phase::kDecode;
  request.progress.tokens = Tokens(12);
  EXPECT_EQ(request.room_to_run(), Tokens(13));
  request.progress.tokens = Tokens(14);
  EXPECT_EQ(request.room_to_run(), Tokens(14)) << "never more than it asked for";
}

TEST_F(SessionTest, TheAnswerBeginsWithTheTokenThatThePromptMakes) {
  Request& request = submit(attach(), 10, 4);
  request.progress.tokens = Tokens(10);
  EXPECT_EQ(request.answer(), Tokens(0));
  request.times.has_token = true;
  EXPECT_EQ(request.answer(), Tokens(1));
  request.progress.tokens = Tokens(12);
  EXPECT_EQ(request.answer(), Tokens(3));
}

TEST_F(SessionTest, WhoQueuesWantsHbmAndHasNoClaim) {
  Request& request = submit(attach(), 4, 4);
  EXPECT_TRUE(request.queues());
  request.verdict = Verdict::kHeldBack;
  EXPECT_TRUE(request.queues()) << "it would come in if it might";
  for (const Verdict other : {Verdict::kPaused, Verdict::kForcedOut, Verdict::kHopeless}) {
    request.verdict = other;
    EXPECT_FALSE(request.queues());
  }
  request.verdict = Verdict::kNone;
  ground.requests.make_claim(request);
  EXPECT_FALSE(request.queues());
  ground.requests.drop_claim(request);
  EXPECT_TRUE(request.queues());
}

TEST_F(SessionTest, OnItsWayOrInsideNobodyQueues) {
  Request& request = running(attach(), 4);
  EXPECT_FALSE(request.queues());
  for (const Location place : {Location::kGoing, Location::kComing}) {
    request.place = place;
    EXPECT_FALSE(request.queues());
  }
  request.place = Location::kParked;
  EXPECT_TRUE(request.queues());
}

TEST_F(SessionTest, CompleteIsWhoHasEveryBlockInHbm) {
  Request& request = running(attach(), 8);
  store::Blocks& blocks = ground.store.blocks;
  EXPECT_TRUE(request.complete());
  request.layers.staging.put(0, SlotId(SlabIndex(3), 7));
  EXPECT_FALSE(request.complete()) << "its staging is to be given up first";
  EXPECT_EQ(request.hbm_slots(), 5);
  (void)request.layers.staging.take();
  const auto in_dram =
      ground.store.tiers.take(Tier::kDram, ground.requests.session_of(request).taker(), 1);
  blocks.place(request.table, 0, Tier::kDram, in_dram.slots[0]);
  blocks.settle(request.table, 0, Tier::kDram, true);
  EXPECT_TRUE(request.complete());
  ground.store.tiers.free(Tier::kHbm, {blocks.vacate(request.table, 0, Tier::kHbm)});
  EXPECT_FALSE(request.complete());
  EXPECT_EQ(request.dram_slots(), 1);
}

TEST_F(SessionTest, AnswersAboutLayersAreWorkedOutAgainWhenWhatTheySawHasChanged) {
  Session& session = attach();
  Request& request = running(session, 8);
  EXPECT_TRUE(changes(request, [&] { request.layers.away = {false, true}; }));
  EXPECT_TRUE(changes(request, [&] { request.verdict = Verdict::kPaused; }));
  EXPECT_TRUE(changes(request, [&] { request.moves.fetch = Ticket(4); }));
  EXPECT_TRUE(changes(request, [&] { request.moves.fetch = Ticket(); }));
  EXPECT_TRUE(changes(request, [&] { request.sealed = 1; }));
  EXPECT_TRUE(changes(request, [&] { (void)ground.memory.grow(request, Tokens(12)); }));
  EXPECT_TRUE(changes(request, [&] { request.layers.staging.put(0, SlotId(SlabIndex(3), 7)); }));
  EXPECT_TRUE(changes(request, [&] { (void)request.layers.staging.take(); }));
  EXPECT_FALSE(changes(request, [&] { request.starved = true; })) << "that says nothing of layers";
  EXPECT_FALSE(changes(request, [&] { request.moves.sync = Ticket(5); }));
  request.moves.sync = Ticket();
  request.sealed = 2;
}

TEST_F(SessionTest, RequestsStandInOrderOfArrivalThenOfTheirNumber) {
  Session& session = attach();
  Request& late = submit(session, 4, 4);
  Request& first = submit(session, 4, 4);
  Request& second = submit(session, 4, 4);
  const ByArrival before;
  EXPECT_TRUE(before(&first, &second)) << "they came at once";
  EXPECT_FALSE(before(&second, &first));
  EXPECT_FALSE(before(&first, &first));
  ground.memory.end(late);
  Request latest = {};
  latest.key = {EngineId(0), RequestId(0)};
  latest.times.arrived = TimePoint(seconds(1));
  EXPECT_TRUE(before(&second, &latest)) << "whatever its number";
}

}  // namespace
}  // namespace kvd::core
