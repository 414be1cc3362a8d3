// Bytes of strangers: ZeroMQ's protocol, and the frames in it and on the other transports. What
// decodes is encoded to the same bytes again.
#include <array>
#include <cstdint>
#include <utility>

#include "ipc/transport/zmtp.hpp"
#include "ipc/wire/attach_codec.hpp"
#include "ipc/wire/codec.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace kvd::fuzz {
namespace {

using transport::ZmtpPeer;
enum class Kind : std::uint8_t { kStream, kCommand, kReply, kAttach };

bool same(View a, View b) { return std::ranges::equal(a, b); }

/// The answer that a peer gets to bytes that come `step` at a time.
struct Heard {
  std::vector<Data> messages;
  Data answer;
  bool broken = false;
  friend bool operator==(const Heard&, const Heard&) = default;
};

Heard listen(View bytes, std::size_t step) {
  Heard heard;
  ZmtpPeer peer;
  std::size_t come = std::min(step, bytes.size());
  for (;;) {
    const auto piece = peer.next(bytes.first(come), heard.answer);
    expect(piece.taken <= come, "it takes what has not come");
    heard.broken = piece.broken;
    if (piece.broken) return heard;
    if (piece.message) heard.messages.emplace_back(piece.message->begin(), piece.message->end());
    if (piece.taken == 0 && come == bytes.size()) return heard;
    bytes = bytes.subspan(piece.taken);
    come = piece.taken > 0 ? come - piece.taken : std::min(come + step, bytes.size());
  }
}

void reply(View frame) {
  (void)wire::peek_reply_sequence(frame);
  const auto read = wire::decode_reply(frame);
  wire::FrameBuffer again;
  if (!read.ok()) return;
  expect(wire::encode_reply(*read, again).ok(), "a decoded reply cannot be encoded");
  expect(same(again.bytes(), frame), "another reply is encoded than was decoded");
}

void command(View frame) {
  const auto read = wire::decode_command(frame);
  wire::FrameBuffer again;
  if (read.ok()) {
    expect(wire::encode_command(*read, again).ok(), "a decoded command cannot be encoded");
    expect(same(again.bytes(), frame), "another command is encoded than was decoded");
    return;
  }
  wire::Reply refusal;
  refusal.header.sequence = wire::peek_command(frame).value_or(wire::CommandHeader()).sequence;
  refusal.header.code = static_cast<std::uint16_t>(read.error().code);
  refusal.message = read.error().message;
  expect(wire::encode_reply(refusal, again).ok(), "a refusal cannot be encoded");
  const auto told = wire::decode_reply(again.bytes());
  expect(told.ok() && refusal.message.starts_with(told->message), "a refusal cannot be read");
}

void attach(View frame) {
  auto read = wire::decode_attach(frame);
  if (!read.ok()) return;
  const auto seal = [&](auto& message) {
    expect(same(wire::seal(message), frame), "another frame is sealed than was decoded");
  };
  std::visit(seal, *read);
}

/// Random bytes would hardly ever get magic, version and length right.
void repair(Data& frame) {
  if (frame.size() < sizeof(wire::FrameHeader)) return;
  wire::FrameHeader header;
  std::memcpy(&header, frame.data(), sizeof header);
  header = {wire::kMagic, wire::kVersionMax, header.type, static_cast<std::uint32_t>(frame.size()),
            0};
  std::memcpy(frame.data(), &header, sizeof header);
}

void look(Kind kind, View frame) {
  if (kind == Kind::kCommand) command(frame);
  if (kind == Kind::kReply) reply(frame);
  if (kind == Kind::kAttach) attach(frame);
}

Data started(Kind kind) { return {std::byte(kind), std::byte{7}}; }

void add_message(Data& stream, View message) {
  std::array<std::byte, ZmtpPeer::kMaxHead> head{};
  add(stream, View(head).first(ZmtpPeer::head_of(message.size(), head)));
  add(stream, message);
}

std::vector<wire::CommandBody> commands() {
  static const std::vector<wire::StepReport> kReports(3, {1, 100, wire::kReportFinished, 0});
  static const std::vector<std::uint64_t> kRequests{1, 2};
  static const std::vector<wire::BlockName> kNames(2, {1, 0, 0, {}});
  static const std::vector<wire::BlockPiece> kPieces(2, {0, 64, 64});
  static const std::vector<wire::CacheBlock> kBlocks(2, {{}, 3, 0});
  static const std::vector<wire::ScheduleRequest> kScheduled(
      2, {1, 1, 100, 0, 0, 10, 0, 0, 0, 9, 0, 0, 0, 0});
  static const std::vector<std::uint32_t> kPositions{0, 1};
  static const std::vector<wire::RequestGap> kGaps(2, {1, 500'000'000});
  static const std::vector<wire::SpaceNeed> kNeeds(2, {4096, 64, 9, 0, 0, 1});
  static const std::vector<std::array<std::uint8_t, 32>> kDigests(2);
  static const std::vector<wire::LayersRequest> kStreamed(2, {1, 100});
  static const std::vector<std::uint32_t> kTokens{1, 2, 3, 4};
  wire::CacheModelBody model{1, {}};
  wire::set_text(model.model, "a-model");
  return {wire::PingCommand{},
          wire::StatsCommand{},
          wire::SubmitBody{1, 100, 10, 0, 0},
          wire::StepCommand{{1, 2, 1, 0, 0}, kReports},
          wire::AllocateBody{1, 0, 0, 4096},
          wire::PlaceCommand{kRequests},
          wire::RotateBody{1, 1, 0},
          wire::FinishCommand{{1, 1, 0}},
          wire::AbortCommand{{1, 2, 0}},
          wire::NameCommand{{}, kNames},
          wire::CacheOpenCommand{{{}, 1, 4, 128, 16, 0}, kPieces},
          wire::CacheCommand{{1, 7, 2, 1, 0, 0}, kBlocks},
          wire::CacheCommand{{1, 0, 8, 0, 0, 1000}, kBlocks},
          wire::ScheduleCommand{{5, 10, 64, 0, 16, 0, 0, 0, 0, 0}, kScheduled},
          wire::SpaceCommand{{1, 1, 0, 0}, kPositions},
          wire::ShareBody{1, 1, 2, 3, 1, 0},
          model,
          wire::GapsCommand{kGaps},
          wire::NeedsCommand{{{1, 1, 2, 3, 1, 0}, 0, 0}, kNeeds},
          wire::CacheLabelCommand{{1, {}, {}, 0, 2}, kDigests, kTokens},
          wire::CacheChangesBody{1, {1, 2, 3}},
          wire::ClaimBody{{}, {}, 1},
          wire::LayersCommand{{96, 65536, 1000, 4, 32, 0, 0}, kStreamed}};
}

std::vector<wire::Reply> replies() {
  static const std::vector<wire::RunEntry> kRun(2, {1, 100, 0, 1, 0, 0, 0});
  static const std::vector<wire::HoldEntry> kHold(1, {2, 1, 0});
  static const std::vector<wire::PlaceEntry> kPlaced(1, {1, 4, 2, 0});
  static const std::vector<std::uint64_t> kIds{1, 2};
  static const std::vector<wire::CacheChange> kChanges{{{}, {}, {}, 1, 2}, {}};
  static const std::vector<std::uint32_t> kTokens{1, 2};
  using wire::MessageType;
  return {{{}, MessageType::kStep, {}, wire::StepReply{{1, 1, 0, 0}, kRun, kHold}},
          {{}, MessageType::kAllocate, {}, wire::AllocateReplyBody{1, 4096, 1, 0}},
          {{}, MessageType::kPlace, {}, wire::PlaceReply{{9, 0, 0}, kPlaced}},
          {{}, MessageType::kStats, {}, wire::StatsReplyBody{}},
          {{}, MessageType::kCache, {}, wire::ValueReplyBody{5}},
          {{}, MessageType::kSchedule, {}, wire::ScheduleReply{{9, 0, 0, 0}, kIds, kIds}},
          {{},
           MessageType::kCacheChanges,
           {},
           wire::CacheChangesReply{{{1, 2, 3}, 0, 0, 0, 0}, kChanges, kTokens}}};
}

template <class... Messages>
void add_sealed(std::vector<Data>& all, Messages... messages) {
  const auto one = [&](auto message) {
    add(all.emplace_back(started(Kind::kAttach)), wire::seal(message));
  };
  (one(messages), ...);
}

}  // namespace

std::vector<Data> seeds() {
  std::vector<Data> all;
  Data stream = started(Kind::kStream);
  add(stream, ZmtpPeer::greeting());
  add_text(stream, std::string_view("\4\x1c\5READY\x0bSocket-Type\0\0\0\6DEALER", 30));
  for (const wire::CommandBody& body : commands()) {
    wire::Command one{{}, body};
    one.header.sequence = 1;
    wire::FrameBuffer frame;
    expect(wire::encode_command(one, frame).ok(), "a seed is no command");
    add(all.emplace_back(started(Kind::kCommand)), frame.bytes());
    add_message(stream, frame.bytes());
  }
  add_text(stream, std::string_view("\4\7\4PING\0\1", 9));
  all.push_back(std::move(stream));
  for (const wire::Reply& one : replies()) {
    wire::FrameBuffer frame;
    expect(wire::encode_reply(one, frame).ok(), "a seed is no reply");
    add(all.emplace_back(started(Kind::kReply)), frame.bytes());
  }
  add_sealed(all, wire::Hello{}, wire::JoinGroup{{}, 1, 2, 0}, wire::Welcome{}, wire::Refused{},
             wire::MapSlab{}, wire::SlabMapped{}, wire::UnmapSlab{}, wire::Goodbye{});
  return all;
}

void run(View input) {
  const auto kind = Kind(take<std::uint8_t>(input) % 4);
  const auto how = take<std::uint8_t>(input);
  if (kind == Kind::kStream) {
    const Heard whole = listen(input, input.size());
    expect(whole == listen(input, std::size_t{1} + how), "it depends on how the bytes came");
    for (const Data& message : whole.messages) command(message);
    return;
  }
  Data frame(input.begin(), input.end());
  if (how % 2 == 1) repair(frame);
  look(kind, frame);
}

}  // namespace kvd::fuzz
