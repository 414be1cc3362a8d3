#include "ipc/wire/codec.hpp"

#include <gtest/gtest.h>

#include <string>

#include "ipc/vocabulary/hex.hpp"
#include "ipc/wire/attach_codec.hpp"
#include "ipc/wire/frame_check.hpp"
#include "tests/unit/ipc/wire/golden.hpp"

namespace kvd::wire {
namespace {

constexpr std::size_t kBody = sizeof(CommandHeader);

ErrorCode command_code(const std::vector<std::byte>& frame) {
  const auto result = decode_command(frame);
  return result.ok() ? ErrorCode::kOk : result.error().code;
}
ErrorCode reply_code(const std::vector<std::byte>& frame) {
  const auto result = decode_reply(frame);
  return result.ok() ? ErrorCode::kOk : result.error().code;
}
ErrorCode attach_code(const std::vector<std::byte>& frame) {
  const auto result = decode_attach(frame);
  return result.ok() ? ErrorCode::kOk : result.error().code;
}

/// Sets one field of a golden frame to a value that must be refused.
struct BadField {
  const char* name;
  const char* file;
  std::size_t offset;
  std::size_t bytes;
  std::uint64_t value;
  ErrorCode code = ErrorCode::kInvalidArgument;
};

std::vector<std::byte> spoilt(const BadField& bad) {
  auto frame = golden(bad.file);
  for (std::size_t i = 0; i < bad.bytes; ++i) {
    frame.at(bad.offset + i) = static_cast<std::byte>(bad.value >> (8 * i));
  }
  return frame;
}

const auto kFieldName = [](const auto& tested) { return std::string(tested.param.name); };

class BadCommand : public testing::TestWithParam<BadField> {};
TEST_P(BadCommand, IsRefused) { EXPECT_EQ(command_code(spoilt(GetParam())), GetParam().code); }

INSTANTIATE_TEST_SUITE_P(
    Fields, BadCommand,
    testing::Values(
        BadField{"Magic", "ping", 0, 4, 0x12345678},
        BadField{"VersionZero", "ping", 4, 2, 0, ErrorCode::kUnsupported},
        BadField{"VersionTooNew", "ping", 4, 2, kVersionMax + 1, ErrorCode::kUnsupported},
        BadField{"UnknownType", "ping", 6, 2, 99, ErrorCode::kUnsupported},
        BadField{"AttachType", "ping", 6, 2, 1, ErrorCode::kUnsupported},
        BadField{"LengthTooSmall", "ping", 8, 4, 55}, BadField{"LengthTooLarge", "ping", 8, 4, 57},
        BadField{"FrameReserved", "ping", 12, 4, 1}, BadField{"SequenceZero", "ping", 40, 8, 0},
        BadField{"TimeoutNegative", "ping", 48, 8, ~0ull},
        BadField{"TimeoutTooLong", "ping", 48, 8, kMaxTimeoutNs + 1ull},
        BadField{"SubmitRequestZero", "submit", kBody, 8, 0},
        BadField{"SubmitTooManyTokens", "submit", kBody + 8, 8, kMaxTokens + 1},
        BadField{"SubmitSloNegative", "submit", kBody + 24, 8, ~0ull},
        BadField{"StepRunningBeforeFinished", "step", kBody + 8, 8, 41},
        BadField{"StepCountTooLarge", "step", kBody + 24, 4, 3},
        BadField{"StepCountTooSmall", "step", kBody + 24, 4, 1},
        BadField{"StepCountWraps", "step", kBody + 24, 4, 0xffffffff},
        BadField{"StepReserved", "step", kBody + 28, 4, 1},
        BadField{"ReportRequestZero", "step", kBody + 32, 8, 0},
        BadField{"ReportTooManyTokens", "step", kBody + 40, 8, kMaxTokens + 1},
        BadField{"ReportUnknownFlag", "step", kBody + 48, 4, 2},
        BadField{"ReportReserved", "step", kBody + 76, 4, 1},
        BadField{"AllocateKind", "allocate_blocks", kBody, 4, 3},
        BadField{"AllocateKindZero", "allocate_blocks", kBody, 4, 0},
        BadField{"AllocateNothing", "allocate_blocks", kBody + 16, 8, 0},
        BadField{"AllocateBlocksOfNone", "allocate_blocks", kBody + 8, 8, 0},
        BadField{"AllocateRegionOfRequest", "allocate_region", kBody + 8, 8, 1},
        BadField{"AllocateRegionTooLarge", "allocate_region", kBody + 16, 8, kMaxRegionBytes + 1},
        BadField{"PlaceCount", "place", kBody, 4, 4},
        BadField{"PlaceZero", "place", kBody + 16, 8, 0},
        BadField{"NameCount", "name", kBody + 32, 4, 3},
        BadField{"NameReserved", "name", kBody + 36, 4, 1},
        BadField{"NameRequestZero", "name", kBody + 40, 8, 0},
        BadField{"NameBlockReserved", "name", kBody + 40 + 48 + 12, 4, 1},
        BadField{"ScheduleFreeOfNone", "schedule", kBody, 8, 121},
        BadField{"ScheduleNoBlocks", "schedule", kBody + 8, 8, 0},
        BadField{"ScheduleTooManyBlocks", "schedule", kBody + 8, 8, kMaxScheduleBlocks + 1},
        BadField{"ScheduleTooManyBytes", "schedule", kBody + 16, 8, kMaxRegionBytes / 120 + 1},
        BadField{"ScheduleStepTooLong", "schedule", kBody + 24, 8, kMaxAgeNs + 1},
        BadField{"ScheduleBlockOfNoToken", "schedule", kBody + 32, 4, 0},
        BadField{"ScheduleBlockTooLarge", "schedule", kBody + 32, 4, kMaxScheduleBlockTokens + 1},
        BadField{"ScheduleCountTooLarge", "schedule", kBody + 52, 4, 3},
        BadField{"ScheduleCountTooSmall", "schedule", kBody + 52, 4, 1},
        BadField{"ScheduleCountWraps", "schedule", kBody + 52, 4, 0xffffffff},
        BadField{"ScheduleRequestZero", "schedule", kBody + 56, 8, 0},
        BadField{"ScheduleStateZero", "schedule", kBody + 64, 4, 0},
        BadField{"ScheduleStateUnknown", "schedule", kBody + 64, 4, 4},
        BadField{"ScheduleAgeTooLong", "schedule", kBody + 56 + 80 + 40, 8, kMaxAgeNs + 1},
        BadField{"ScheduleFirstTokenTooLongAgo", "schedule", kBody + 56 + 48, 8, ~0ull},
        BadField{"ScheduleLastTokenTooLongAgo", "schedule", kBody + 56 + 56, 8, ~0ull},
        BadField{"ScheduleTtftTooLong", "schedule", kBody + 56 + 64, 8, kMaxTimeoutNs + 1ull},
        BadField{"ScheduleTbtTooLong", "schedule", kBody + 56 + 80 + 72, 8, kMaxTimeoutNs + 1ull},
        BadField{"GapsReserved", "gaps", kBody + 4, 4, 1},
        BadField{"GapsCount", "gaps", kBody, 4, 3}, BadField{"GapsZero", "gaps", kBody + 8, 8, 0},
        BadField{"GapTooLong", "gaps", kBody + 8 + 16 + 8, 8, kMaxTimeoutNs + 1ull},
        BadField{"LayersNoBytes", "layers", kBody + 8, 8, 0},
        BadField{"LayersTooManyBlocks", "layers", kBody, 8, kMaxLayersBlocks + 1},
        BadField{"LayersBlockTooLarge", "layers", kBody + 8, 8, kMaxRegionBytes + 1},
        BadField{"LayersNoStep", "layers", kBody + 16, 8, 0},
        BadField{"LayersStepTooLong", "layers", kBody + 16, 8, kMaxTimeoutNs + 1ull},
        BadField{"LayersNone", "layers", kBody + 24, 4, 0},
        BadField{"LayersTooMany", "layers", kBody + 24, 4, kMaxLayers + 1},
        BadField{"LayersBlockOfNoToken", "layers", kBody + 28, 4, 0},
        BadField{"LayersBlockOfManyTokens", "layers", kBody + 28, 4, kMaxScheduleBlockTokens + 1},
        BadField{"LayersCount", "layers", kBody + 32, 4, 1},
        BadField{"LayersCountWraps", "layers", kBody + 32, 4, 0xffffffff},
        BadField{"LayersReserved", "layers", kBody + 36, 4, 1},
        BadField{"LayersRequestZero", "layers", kBody + 40, 8, 0},
        BadField{"LayersTooManyTokens", "layers", kBody + 40 + 16 + 8, 8, kMaxLayersTokens + 1},
        BadField{"NeedsReserved", "needs", kBody + 52, 4, 1},
        BadField{"NeedsCount", "needs", kBody + 48, 4, 1},
        BadField{"NeedsSpaceZero", "needs", kBody, 8, 0},
        BadField{"NeedsTooLarge", "needs", kBody + 56 + 40, 8, kMaxRegionBytes + 1},
        BadField{"NeedsLeastTooLarge", "needs", kBody + 56 + 8, 8, kMaxRegionBytes + 1},
        BadField{"NeedsAgeTooLong", "needs", kBody + 56 + 16, 8, kMaxAgeNs + 1},
        BadField{"NeedsTtftTooLong", "needs", kBody + 56 + 24, 8, kMaxTimeoutNs + 1ull},
        BadField{"NeedsBegun", "needs", kBody + 56 + 36, 4, 2},
        BadField{"RotateDirection", "rotate", kBody + 8, 4, 3},
        BadField{"FinishKind", "finish", kBody + 8, 4, 0},
        BadField{"FinishZero", "finish", kBody, 8, 0},
        BadField{"AbortReserved", "abort", kBody + 12, 4, 1}),
    kFieldName);

class BadReply : public testing::TestWithParam<BadField> {};
TEST_P(BadReply, IsRefused) { EXPECT_EQ(reply_code(spoilt(GetParam())), GetParam().code); }

INSTANTIATE_TEST_SUITE_P(
    Fields, BadReply,
    testing::Values(BadField{"NotAReply", "ping_reply", 6, 2, 40},
                    BadField{"UnknownCommand", "ping_reply", 6, 2, 0x8063, ErrorCode::kUnsupported},
                    BadField{"SuccessOfNothing", "ping_reply", 6, 2, 0x8000,
                             ErrorCode::kUnsupported},
                    BadField{"UnknownCode", "failure_reply", 48, 2, 16, ErrorCode::kUnsupported},
                    BadField{"SuccessWithMessage", "ping_reply", 50, 2, 1},
                    BadField{"MessageBytes", "failure_reply", 50, 2, 3},
                    BadField{"MessageWithoutEnd", "failure_reply", 99, 1, 'x'},
                    BadField{"RunCount", "step_reply", kBody + 16, 4, 2},
                    BadField{"HoldCount", "step_reply", kBody + 20, 4, 0},
                    BadField{"HoldReason", "step_reply", kBody + 72, 4, 11},
                    BadField{"RunFlags", "step_reply", kBody + 24 + 28, 4, 8},
                    BadField{"PreemptCount", "schedule_reply", kBody + 4, 4, 4},
                    BadField{"PreemptCountWraps", "schedule_reply", kBody + 4, 4, 0xffffffff},
                    BadField{"AdmitCount", "schedule_reply", kBody + 8, 4, 1},
                    BadField{"ScheduleReserved", "schedule_reply", kBody + 12, 4, 1}),
    kFieldName);

class BadAttach : public testing::TestWithParam<BadField> {};
TEST_P(BadAttach, IsRefused) { EXPECT_EQ(attach_code(spoilt(GetParam())), GetParam().code); }

INSTANTIATE_TEST_SUITE_P(
    Fields, BadAttach,
    testing::Values(
        BadField{"CommandType", "goodbye", 6, 2, 40, ErrorCode::kUnsupported},
        BadField{"Version", "goodbye", 4, 2, 9, ErrorCode::kUnsupported},
        BadField{"EmptyVersionRange", "hello", 18, 2, 0},
        BadField{"Transport", "hello", 20, 4, 2, ErrorCode::kUnsupported},
        BadField{"Layers", "hello", 24, 4, kMaxLayers + 1},
        BadField{"LayersPerBlock", "hello", 28, 4, 33},
        BadField{"BlockTokens", "hello", 32, 4, kMaxBlockTokens + 1},
        BadField{"TokenBytesZero", "hello", 40, 8, 0},
        BadField{"TokenBytesHuge", "hello", 40, 8, ~0ull},
        BadField{"ShapeOfNothing", "hello", 24, 4, 0},
        BadField{"NameWithNewline", "hello", 48, 1, '\n'},
        BadField{"NameWithoutEnd", "hello", 79, 1, 'x'}, BadField{"NoSlabKind", "hello", 104, 4, 0},
        BadField{"GroupZero", "join_group", 16, 8, 0}, BadField{"OneRank", "join_group", 24, 4, 1},
        BadField{"TooManyRanks", "join_group", 24, 4, 65},
        BadField{"RankOutside", "join_group", 28, 4, 4},
        BadField{"RefusedWithOk", "refused", 16, 2, 0},
        BadField{"MapPosition", "map_slab", 36, 4, 2}, BadField{"MapNothing", "map_slab", 24, 8, 0},
        BadField{"NoticeReserved", "slab_mapped", 28, 4, 1},
        BadField{"WelcomeWithoutEndpoint", "welcome", 128, 1, 0},
        BadField{"SlabKindZero", "welcome", 236, 4, 0, ErrorCode::kUnsupported},
        BadField{"SlabKindUnknown", "welcome", 236, 4, 3, ErrorCode::kUnsupported},
        BadField{"MemfdsOfAGpu", "welcome", 240, 1, 1},
        BadField{"CudaWithoutGpu", "welcome", 236, 4, 2}),
    kFieldName);

TEST(Codec, MessageSaysBothVersionsAndTheRemedy) {
  const auto error = common_version(7, 9);
  ASSERT_FALSE(error.ok());
  EXPECT_EQ(error.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(error.error().message.find("7..9"), std::string::npos);
  EXPECT_NE(error.error().message.find(version_range(kVersionMin, kVersionMax)), std::string::npos);
  EXPECT_NE(error.error().message.find("update"), std::string::npos);
}

TEST(Codec, WritesAUuidAsTheToolsDo) {
  const auto message = decode_attach(golden("welcome_cuda"));
  ASSERT_TRUE(message.ok());
  EXPECT_EQ(uuid_text(std::get<Welcome>(*message).device_uuid),
            "c0c1c2c3-c4c5-c6c7-c8c9-cacbcccdcecf");
}

TEST(Codec, HighestCommonVersionWins) {
  EXPECT_EQ(*common_version(1, 7), kVersionMax);
  EXPECT_EQ(*common_version(0, kVersionMin), kVersionMin);
  EXPECT_FALSE(common_version(0, kVersionMin - 1).ok());
}

TEST(Codec, HelloOfAnyVersionIsRead) {
  auto frame = golden("hello");
  poke(frame, 4, std::uint16_t{77});
  EXPECT_EQ(attach_code(frame), ErrorCode::kOk);
}

// Hello's layout never changes, so a newer engine can only add kinds of slab.
TEST(Codec, HelloMayOfferKindsOfSlabUnknownHere) {
  auto frame = golden("hello");
  poke(frame, 104, std::uint32_t{0x80000001});
  EXPECT_EQ(attach_code(frame), ErrorCode::kOk);
}

TEST(Codec, TrailingAndMissingBytesAreRefused) {
  for (const char* name : kGoldenCommands) {
    auto frame = golden(name);
    const std::size_t size = frame.size();
    resize(frame, size + 8);
    EXPECT_EQ(command_code(frame), ErrorCode::kInvalidArgument) << name;
    resize(frame, size - 8);
    EXPECT_EQ(command_code(frame), ErrorCode::kInvalidArgument) << name;
  }
}

TEST(Codec, OversizedFrameIsRefused) {
  auto frame = golden("place");
  resize(frame, kMaxCommandFrame + 8);
  EXPECT_EQ(command_code(frame), ErrorCode::kInvalidArgument);
}

TEST(Codec, LargestStepFitsTheFrameLimit) {
  const std::vector<StepReport> reports(kMaxRequestsPerStep, StepReport{1, 2, 0, 0});
  Command command{{}, StepCommand{{}, reports}};
  command.header.sequence = 1;
  FrameBuffer out;
  ASSERT_TRUE(encode_command(command, out).ok());
  const auto decoded = decode_command(out.bytes());
  ASSERT_TRUE(decoded.ok()) << decoded.error().to_string();
  EXPECT_EQ(std::get<StepCommand>(decoded->body).reports.size(), kMaxRequestsPerStep);
}

TEST(Codec, AFlagOfALookupIsNoneOfAStore) {
  const auto code_of = [](CacheOp op, std::uint32_t flags, std::uint32_t retain_ms = 0) {
    CacheCommand cache;
    cache.body.retain_ms = retain_ms;
    cache.body.cache = 1;
    cache.body.op = static_cast<std::uint32_t>(op);
    cache.body.ticket = op == CacheOp::kStore ? 1 : 0;
    cache.body.flags = flags;
    Command command{{}, cache};
    command.header.sequence = 1;
    FrameBuffer out;
    EXPECT_TRUE(encode_command(command, out).ok());
    const auto decoded = decode_command(out.bytes());
    return decoded.ok() ? ErrorCode::kOk : decoded.error().code;
  };
  EXPECT_EQ(code_of(CacheOp::kLookup, kCacheAwait), ErrorCode::kOk);
  EXPECT_EQ(code_of(CacheOp::kStore, kCachePark), ErrorCode::kOk);
  EXPECT_EQ(code_of(CacheOp::kLookup, kCachePark), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(CacheOp::kStore, kCacheAwait), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(CacheOp::kDrop, kCacheAwait), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(CacheOp::kRetain, 0, 1000), ErrorCode::kOk);
  EXPECT_EQ(code_of(CacheOp::kRetain, kCachePark, 1000), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(CacheOp::kDrop, 0, 1000), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(CacheOp::kPin, 0), ErrorCode::kOk);
  EXPECT_EQ(code_of(CacheOp::kPin, 0, 1000), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(CacheOp::kDemote, 0), ErrorCode::kOk);
  EXPECT_EQ(code_of(CacheOp::kPrefetch, 0, 1000), ErrorCode::kOk);
  EXPECT_EQ(code_of(CacheOp::kPrefetch, 0), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(CacheOp::kUnpin, 0), ErrorCode::kOk);
  EXPECT_EQ(code_of(CacheOp::kUnpin, 0, 1000), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(static_cast<CacheOp>(10), 0), ErrorCode::kInvalidArgument);
}

TEST(Codec, TooManyEntriesAreNotEncoded) {
  const std::vector<StepReport> reports(kMaxRequestsPerStep + 1, StepReport{1, 2, 0, 0});
  FrameBuffer out;
  const Command command{{}, StepCommand{{}, reports}};
  EXPECT_EQ(encode_command(command, out).code(), ErrorCode::kInvalidArgument);
}

TEST(Codec, LargestStepReplyFitsTheFrameLimit) {
  const std::vector<RunEntry> run(kMaxRequestsPerStep, RunEntry{1, 0, 0, 1, 0, 0, 0});
  const std::vector<HoldEntry> hold(kMaxRequestsPerStep, HoldEntry{2, 1, 0});
  FrameBuffer out;
  ASSERT_TRUE(encode_reply({{}, MessageType::kStep, "", StepReply{{}, run, hold}}, out).ok());
  EXPECT_TRUE(decode_reply(out.bytes()).ok());
}

TEST(Codec, EveryHoldReasonArrivesAsItWasSent) {
  std::vector<HoldEntry> sent;
  for (auto reason = HoldReason::kNone; reason <= HoldReason::kDrained;) {
    const auto number = static_cast<std::uint32_t>(reason);
    sent.push_back({number + 1, number, 0});
    reason = static_cast<HoldReason>(number + 1);
  }
  ASSERT_EQ(sent.size(), 11u);
  FrameBuffer out;
  ASSERT_TRUE(encode_reply({{}, MessageType::kStep, "", StepReply{{}, {}, sent}}, out).ok());
  const auto decoded = decode_reply(out.bytes());
  ASSERT_TRUE(decoded.ok()) << decoded.error().to_string();
  const auto& hold = std::get<StepReply>(decoded->body).hold;
  ASSERT_EQ(hold.size(), sent.size());
  for (std::size_t i = 0; i < sent.size(); ++i) {
    EXPECT_EQ(hold[i].request, sent[i].request);
    EXPECT_EQ(hold[i].reason, sent[i].reason);
  }
}

TEST(Codec, ReplyOfAnotherCommandIsNotEncoded) {
  FrameBuffer out;
  const Reply reply{{}, MessageType::kPing, "", StatsReplyBody{}};
  EXPECT_EQ(encode_reply(reply, out).code(), ErrorCode::kInvalidArgument);
}

TEST(Codec, LongMessageIsCut) {
  Reply reply{{}, MessageType::kReserved, "", {}};
  const std::string message(1000, 'x');
  reply.message = message;
  reply.header.code = static_cast<std::uint16_t>(ErrorCode::kUnsupported);
  FrameBuffer out;
  ASSERT_TRUE(encode_reply(reply, out).ok());
  const auto decoded = decode_reply(out.bytes());
  ASSERT_TRUE(decoded.ok()) << decoded.error().to_string();
  EXPECT_EQ(decoded->message, message.substr(0, kMessageBytes - 1));
}

TEST(Codec, HeaderOfABrokenCommandIsStillKnown) {
  auto frame = golden("step");
  poke(frame, 6, std::uint16_t{99});
  ASSERT_FALSE(decode_command(frame).ok());
  const auto header = peek_command(frame);
  ASSERT_TRUE(header.has_value());
  EXPECT_EQ(header->sequence, 2u);
  frame.resize(20);
  EXPECT_FALSE(peek_command(frame).has_value());
}

TEST(Codec, EncodingReusesTheBuffer) {
  FrameBuffer out;
  const auto file = golden("step");
  const auto command = decode_command(file);
  ASSERT_TRUE(encode_command(*command, out).ok());
  const std::byte* first = out.bytes().data();
  ASSERT_TRUE(encode_command(*command, out).ok());
  EXPECT_EQ(out.bytes().data(), first);
}

TEST(Codec, UnalignedFrameDecodes) {
  const auto file = golden("step");
  std::vector<std::byte> shifted(file.size() + 1);
  std::copy(file.begin(), file.end(), shifted.begin() + 1);
  const auto command = decode_command(std::span(shifted).subspan(1));
  ASSERT_TRUE(command.ok());
  EXPECT_EQ(std::get<StepCommand>(command->body).reports[1].request, 12u);
}

}  // namespace
}  // namespace kvd::wire
