// How much memory a request needs to run, whose layers stream, and how large one may become.
#include "kvd/core/moves/needs.hpp"

#include <gmock/gmock.h>

#include "kvd/core/moves/swaps.hpp"
#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

class NeedsTest : public PartsTest {
 protected:
  explicit NeedsTest(Config config = small_config(8, 16)) : PartsTest(std::move(config)) {}

  void use(const char* rotation, const char* placement, const char* admission = "none") {
    Tuning wanted = ground.context.tuning;
    wanted.rotation.policy = rotation;
    wanted.placement.policy = placement;
    wanted.admission.policy = admission;
    ground.context.retune(wanted);
  }

  Needs sut{ground};
};

TEST_F(NeedsTest, OneThatComesBackNeedsWhatItHasAndRoomForAToken) {
  DramCopies copies{ground};
  Streams streams{ground};
  Compactor compactor{ground};
  Swaps swaps{ground, copies, streams, compactor};
  Session& session = attach();
  EXPECT_EQ(sut.to_run(parked(swaps, session, 8)), kSlot * 6) << "9 tokens in two groups";
  EXPECT_EQ(sut.to_run(parked(swaps, session, 7)), kSlot * 4);
}

TEST_F(NeedsTest, AtItsEndItNeedsNoTokenMore) {
  Request& request = submit(attach(), 7, 1);
  EXPECT_EQ(sut.to_run(request), kSlot * 4);
  request.goal.prompt = Tokens(8);
  request.goal.max_new = Tokens(0);
  EXPECT_EQ(sut.to_run(request), kSlot * 4);
}

TEST_F(NeedsTest, AStreamedRequestNeedsASetAndItsOpenBlocks) {
  Session& session = attach(kA, 4);
  Request& request = submit(session, 79, 8);  // 20 blocks of each group
  EXPECT_EQ(sut.to_run(request), kSlot * 80);
  request.layerwise = true;
  EXPECT_EQ(sut.to_run(request), kSlot * 28);
  EXPECT_EQ(sut.to_run(request), sut.to_stream(request));
}

TEST_F(NeedsTest, StreamingNeverTakesMoreThanTheWhole) {
  Session& session = attach(kA, 4);
  session.streaming = true;
  Request& request = submit(session, 4, 8);
  EXPECT_EQ(sut.to_run(request), kSlot * 8) << "8 slots, a set and open blocks would be 10";
}

TEST_F(NeedsTest, LayersMayStreamWhereEngineModelAndPolicyDo) {
  use("unified", "orbitflow");
  Session& session = attach(kA, 3);
  EXPECT_TRUE(sut.layers_may_stream(session));
  session.info.streams_layers = false;
  EXPECT_FALSE(sut.layers_may_stream(session)) << "its engine does not wait for layers";
  session.info.streams_layers = true;
  EXPECT_FALSE(sut.layers_may_stream(attach(kA, 2))) << "staging would take what it saves";
  use("unified", "none");
  EXPECT_FALSE(sut.layers_may_stream(session));
  use("unified", "orbitflow");
  session.class_id = ClassId();
  EXPECT_FALSE(sut.layers_may_stream(session)) << "it has no blocks";
  session.class_id = kClass;
}

TEST_F(NeedsTest, LayersStreamWhereHbmHoldsFewRequests) {
  use("unified", "orbitflow");
  Session& session = attach(kA, 4);
  EXPECT_FALSE(sut.layers_stream(session)) << "nobody is there";
  submit(session, 31, 64);
  EXPECT_FALSE(sut.layers_stream(session)) << "HBM holds 2 such";
  submit(session, 32, 64);
  EXPECT_TRUE(sut.layers_stream(session)) << "on average it holds fewer";
  session.life.dying = true;
  EXPECT_FALSE(sut.layers_stream(session));
  session.life.dying = false;
}

TEST_F(NeedsTest, WhereAPolicyStreamsAnyRequestTheirSizeDoesNotMatter) {
  use("fcfs", "orbitflow");
  Session& session = attach(kA, 4);
  submit(session, 3, 8);
  EXPECT_TRUE(sut.layers_stream(session));
}

TEST_F(NeedsTest, PromptsPrefillIntoDramWhereNoLayersStream) {
  use("unified", "none", "layerkv");
  Session& session = attach(kA, 3);
  EXPECT_TRUE(sut.prefills_layerwise(session));
  EXPECT_FALSE(sut.prefills_layerwise(attach(kA, 2)));
  session.streaming = true;
  EXPECT_FALSE(sut.prefills_layerwise(session));
  session.streaming = false;
  use("unified", "none", "whole_request");
  EXPECT_FALSE(sut.prefills_layerwise(session));
}

TEST_F(NeedsTest, OneRequestMayFillHbmOrWithItsLayersInDramMore) {
  Session& session = attach(kA, 4);
  EXPECT_EQ(sut.most_tokens(session), Tokens(64)) << "64 slots in four groups of 4 tokens";
  use("unified", "orbitflow");
  EXPECT_EQ(sut.most_tokens(session), Tokens(128)) << "128 slots of DRAM bound it now";
  session.info.streams_layers = false;
  EXPECT_EQ(sut.most_tokens(session), Tokens(64));
}

TEST_F(NeedsTest, AShapeWhoseBlocksFillAllStillHasItsNumber) {
  Session& session = attach();
  session.shape.bytes_per_token_per_layer = Bytes(kSlab.value / kBlockTokens);
  EXPECT_EQ(sut.most_hbm_slots(session), 8);
  EXPECT_EQ(sut.most_tokens(session), Tokens(16));
  session.shape.bytes_per_token_per_layer = Bytes(kSlab.value);
  EXPECT_EQ(sut.most_tokens(session), Tokens(0)) << "no slot of it fits a slab";
  session.shape.bytes_per_token_per_layer = Bytes(kSlot.value / kBlockTokens);
}

class RoomyNeeds : public NeedsTest {
 protected:
  RoomyNeeds() : NeedsTest(small_config(32, 16)) { use("unified", "orbitflow"); }
};

TEST_F(RoomyNeeds, OneThatFillsHbmStreamsHoweverManySmallOnesThereAre) {
  Session& session = attach(kA, 4);
  for (int i = 0; i < 24; ++i) submit(session, 3, 8);
  EXPECT_FALSE(sut.layers_stream(session));
  Request& most = submit(session, 239, 8);  // 60 blocks: 240 of 256 slots
  EXPECT_FALSE(sut.layers_stream(session)) << "it leaves a twentieth";
  most.goal.prompt = Tokens(247);
  EXPECT_TRUE(sut.layers_stream(session));
}

class QuotaNeeds : public NeedsTest {
 protected:
  QuotaNeeds() : NeedsTest(config()) {}
  static Config config() {
    Config made = small_config(8, 16);
    made.hbm_quotas[kA] = {.guarantee = {}, .maximum = kSlab * 3};
    made.dram_quotas[kB] = {.guarantee = kSlab * 6, .maximum = kSlab * 16};
    return made;
  }
};

TEST_F(QuotaNeeds, ADomainCountsOnWhatItMayHave) {
  Session& session = attach();
  EXPECT_EQ(sut.hbm_limit(kShareA), kSlab * 3);
  EXPECT_EQ(sut.hbm_limit(kShareB), kSlab * 8);
  EXPECT_EQ(sut.dram_limit(kA), kSlab * 10) << "what others are guaranteed is not lent";
  EXPECT_EQ(sut.dram_limit(kB), kSlab * 16);
  EXPECT_EQ(sut.most_hbm_slots(session), 24);
  EXPECT_EQ(sut.most_tokens(session), Tokens(48));
}

class TwoDeviceNeeds : public NeedsTest {
 protected:
  TwoDeviceNeeds() : NeedsTest(config()) {}
  static Config config() {
    Config made = small_config(8, 16, 3);
    made.hbm[1].slabs = 4;
    return made;
  }
};

TEST_F(TwoDeviceNeeds, AGroupHasWhatItsSmallestDeviceHolds) {
  Session& group = attach(kA, 2, true, Devices(std::vector{kFirst, kSecond, kFirst}), 3);
  Request& request = submit(group, 7, 1);  // two blocks
  EXPECT_EQ(sut.to_run(request), kSlot * 12);
  EXPECT_EQ(sut.to_run(request, kFirst), kSlot * 8) << "two ranks of two groups";
  EXPECT_EQ(sut.to_run(request, kSecond), kSlot * 4);
  EXPECT_EQ(sut.to_run(request, DeviceId(2)), Bytes(0));
  EXPECT_EQ(sut.most_hbm_slots(group), 16 * 6) << "64 slots for 4 groups, 32 for 2";
}

}  // namespace
}  // namespace kvd::core
