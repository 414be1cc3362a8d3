// What kvd and kvd-admin say to each other: bytes there and back, and bytes that are wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "kvd/admin/link/channel.hpp"
#include "kvd/admin/link/snapshot.hpp"
#include "kvd/admin/link/tuning_change.hpp"

namespace kvd::admin::link {
namespace {
using testing::HasSubstr;

constexpr Nanoseconds kSoon = std::chrono::seconds(30);

/// Something in every vector.
Snapshot full_snapshot() {
  Snapshot s;
  s.now = TimePoint(90);
  s.read = ReadPolicy::kToken;
  s.uid = 7;
  s.info.version = "1.2.3";
  s.info.page_kinds = {"thp", "4k"};
  s.info.gpu = GpuInfo{"NVIDIA H100", "c0c1", 300 * kMiB};
  s.status.counters.steps = 11;
  s.status.counters.layerwise = 12;
  s.status.tiers[1].stranded = Bytes(13);
  s.status.tiers[1].slots_by_state.back() = 14;
  s.status.slabs[0].resize(3);
  s.status.slabs[0][2].used = 15;
  s.status.devices.resize(2);
  s.status.devices[1].device = DeviceId(1);
  s.status.devices[1].slabs.resize(1);
  s.status.devices[1].link_rate[1] = 2.5;
  s.status.engines.resize(2);
  s.status.engines[1].ranks.devices = {DeviceId(0), DeviceId(1)};
  s.status.engines[1].name = "an engine";
  s.status.engines[1].service.idle_s = 1.5;
  s.status.engines[1].service.classes.emplace_back().name = "chat";
  s.status.engines[1].service.classes[0].tbt = {24, 25};
  s.status.engines[1].service.classes[0].oldest.goals = 2.5;
  s.status.engines[1].service.drain = core::DrainStatus{TimePoint(1), TimePoint(22), 3};
  s.status.drain = core::DrainStatus{TimePoint(1), std::nullopt, 23};
  s.status.to_remote = core::RemoteWrites{24, 25, 26};
  s.status.requests.resize(2);
  s.status.requests[1].vlt_s = -0.25;
  s.status.requests[1].goals.late_s = 7.5;
  s.status.requests[1].waits_for = WaitReason::kDisk;
  s.status.plans.resize(1);
  s.status.plans[0].requests = {{RequestId(7), 2, {2, 4}, true}};
  s.status.tuning.slo["batch"].tbt = Nanoseconds(16);
  s.status.tuning.slo["batch"].gap = Nanoseconds(17);
  s.status.tuning.rotation.b_xfer = Bytes(17);
  s.status.rotation_inputs.resize(1);
  s.status.rotation_inputs[0].snapshot.requests.resize(1);
  s.status.rotation_inputs[0].snapshot.requests[0].output_tokens = Tokens(18);
  s.status.admission_inputs.resize(1);
  s.status.admission_inputs[0].snapshot.memory.emplace().free = Blocks(19);
  s.status.placement_inputs.resize(1);
  s.status.placement_inputs[0].snapshot.model.compute = {planner::Seconds(0.5)};
  s.status.placement_inputs[0].snapshot.requests.resize(1);
  s.status.placement_inputs[0].snapshot.requests[0].current = {1, 2};
  s.config = {{"pool.hbm", "1GiB"}};
  s.quotas = {{"a", false, {}, {}, {}, {}},
              {"b", true, {Bytes(20), Bytes(21)}, {}, Bytes(22), Bytes(23)}};
  s.happenings = {{1, TimePoint(5), "warning", EngineId(3), "it happened"}};
  s.samples = {{"kvd_vlt_seconds", {}, 12.5, {3, 0, 1}}, {"kvd_engine_up", {"a", "red"}, 1}};
  return s;
}

TEST(SnapshotBytes, HoldAllThatIsShown) {
  Snapshot sent = full_snapshot();
  ByteVector bytes;
  encode(sent, bytes);
  auto decoded = decode_snapshot(bytes);
  ASSERT_TRUE(decoded.ok());
  const Snapshot& sut = *decoded;
  EXPECT_EQ(sut.uid, 7u);
  EXPECT_EQ(sut.quotas.at(1).hbm.maximum, Bytes(21));
  EXPECT_EQ(sut.read, ReadPolicy::kToken);
  EXPECT_EQ(sut.info.gpu->uuid, "c0c1");
  EXPECT_EQ(sut.status.counters.layerwise, 12u);
  EXPECT_EQ(sut.status.tiers[1].slots_by_state.back(), 14u);
  EXPECT_EQ(sut.status.slabs[0][2].used, 15u);
  ASSERT_EQ(sut.status.devices.size(), 2u);
  EXPECT_EQ(sut.status.devices[1].device, DeviceId(1));
  EXPECT_EQ(sut.status.devices[1].slabs.size(), 1u);
  EXPECT_EQ(sut.status.devices[1].link_rate[1], 2.5);
  EXPECT_EQ(sut.status.engines[1].ranks.devices.at(1), DeviceId(1));
  EXPECT_EQ(sut.status.engines[1].name, "an engine");
  EXPECT_EQ(sut.status.engines[1].service.idle_s, 1.5);
  EXPECT_EQ(sut.status.engines[1].service.classes.at(0).name, "chat");
  EXPECT_EQ(sut.status.engines[1].service.classes[0].tbt.missed, 25u);
  EXPECT_EQ(sut.status.engines[1].service.classes[0].oldest.goals, 2.5);
  EXPECT_EQ(sut.status.engines[1].service.drain->deadline, TimePoint(22));
  EXPECT_EQ(sut.status.drain->left, 23u);
  EXPECT_EQ(sut.status.to_remote->lost, 26u);
  EXPECT_EQ(sut.status.requests[1].vlt_s, -0.25);
  EXPECT_EQ(sut.status.requests[1].goals.late_s, 7.5);
  EXPECT_EQ(sut.status.requests[1].waits_for, WaitReason::kDisk);
  EXPECT_EQ(sut.status.plans[0].requests[0].in_dram[1], 4u);
  EXPECT_EQ(sut.status.tuning.slo.at("batch").tbt, Nanoseconds(16));
  EXPECT_EQ(sut.status.tuning.slo.at("batch").gap, Nanoseconds(17));
  EXPECT_EQ(sut.status.tuning.slo.at("default").gap, std::nullopt);
  EXPECT_EQ(sut.status.rotation_inputs[0].snapshot.requests[0].output_tokens, Tokens(18));
  EXPECT_EQ(sut.status.admission_inputs[0].snapshot.memory->free, Blocks(19));
  EXPECT_EQ(sut.status.placement_inputs[0].snapshot.requests[0].current->at(1), 2);
  EXPECT_EQ(sut.config[0].second, "1GiB");
  EXPECT_EQ(sut.happenings[0].text, "it happened");
  EXPECT_EQ(sut.samples[0].metric, "kvd_vlt_seconds");
  EXPECT_EQ(sut.samples[1].labels[1], "red");
  ByteVector again;
  encode(*decoded, again);
  EXPECT_EQ(again.size(), bytes.size());
}

TEST(SnapshotBytes, ThatAreCutOrTooManyAreRefused) {
  Snapshot sent = full_snapshot();
  ByteVector bytes;
  encode(sent, bytes);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_FALSE(decode_snapshot(std::span(bytes).first(size)).ok()) << size;
  }
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(decode_snapshot(bytes).ok());
}

TEST(Tags, TellVersionsOfAPartApart) {
  core::Tuning a, b;
  EXPECT_EQ(tag_of(a, Part::kPolicy), tag_of(b, Part::kPolicy));
  b.rotation.alpha = 9;
  EXPECT_NE(tag_of(a, Part::kPolicy), tag_of(b, Part::kPolicy));
  EXPECT_EQ(tag_of(a, Part::kSlo), tag_of(b, Part::kSlo));
  b.slo["default"].tbt = Nanoseconds(1'000'000);
  EXPECT_NE(tag_of(a, Part::kSlo), tag_of(b, Part::kSlo));
}

TEST(TuningChange, SurvivesAnyAssignment) {
  const unsigned seed = std::random_device()();
  std::mt19937_64 random(seed);
  const core::Tuning before;
  for (int round = 0; round < 20'000; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", round " + std::to_string(round));
    Change change;
    change.part = static_cast<Part>(random() % 3);
    change.tag_count = static_cast<std::uint32_t>(random());
    change.conditional = round % 2 == 0 ? 0 : 1;
    change.tags[0] = tag_of(before, change.part);
    Assignment one;
    one.key = static_cast<std::uint32_t>(round % 4 == 0 ? random() : random() % 1010);
    for (char& c : one.slo_class) c = static_cast<char>(random());
    for (char& c : one.text) c = static_cast<char>(random());
    one.number = static_cast<double>(random());
    one.whole = static_cast<std::int64_t>(random());
    const auto after = changed(before, change, {&one, 1});
    if (after.ok()) {
      ASSERT_TRUE(after->faults().empty());
    }
  }
}

class ChannelTest : public testing::Test {
 protected:
  ChannelTest() {
    auto ends = Channel::pair();
    KVD_CHECK(ends.ok(), "a socket pair");
    a.emplace(std::move(ends->first));
    b.emplace(std::move(ends->second));
  }
  std::optional<Channel> a, b;
};

TEST_F(ChannelTest, CarriesMessagesOfAnySize) {
  const ByteVector body(std::size_t{8} << 20, std::byte{7});
  std::thread sender([&] { EXPECT_TRUE(a->send(Type::kSnapshot, body, kSoon).ok()); });
  const auto message = b->receive(kMostSnapshot, kSoon);
  sender.join();
  ASSERT_TRUE(message.ok());
  EXPECT_EQ(message->type, Type::kSnapshot);
  EXPECT_EQ(message->body, body);
}

TEST_F(ChannelTest, RefusesWhatIsNoMessageOrTooLong) {
  const ByteVector body(100);
  ASSERT_TRUE(a->send(Type::kChange, body, kSoon).ok());
  EXPECT_EQ(b->receive(Bytes(99), kSoon).error().code, ErrorCode::kInvalidArgument);
}

TEST_F(ChannelTest, NoticesSilenceAndTheEnd) {
  EXPECT_EQ(b->receive(kKiB, std::chrono::milliseconds(1)).error().code,
            ErrorCode::kDeadlineExceeded);
  a.reset();
  EXPECT_EQ(b->receive(kKiB, kSoon).error().code, ErrorCode::kPeerGone);
  EXPECT_EQ(b->send(Type::kBegin, ByteVector(10), kSoon).code(), ErrorCode::kPeerGone);
}

}  // namespace
}  // namespace kvd::admin::link
