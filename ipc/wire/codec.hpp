#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>

#include "ipc/vocabulary/result.hpp"
#include "ipc/wire/frame_buffer.hpp"
#include "ipc/wire/messages.hpp"
#include "ipc/wire/records.hpp"

/// Commands and replies to frames and back. Decoding checks everything that can be checked without
/// knowing the session (PROTOCOL.md section 4) and trusts nothing; key, generation and sequence are
/// the daemon's to compare. A decoded message views the frame it came from, which must therefore
/// be private memory that lives as long (safety rule 7): a FrameBuffer, never shared pages.
namespace kvd::wire {

struct StepCommand {
  StepBody body;  ///< `count` is taken from `reports` when encoding
  Records<StepReport> reports;
};
struct PlaceCommand {
  Records<std::uint64_t> requests;  ///< empty: all running ones of the session
};
struct NameCommand {
  std::array<std::uint8_t, 32> fingerprint{};
  Records<BlockName> blocks;
};
struct ScheduleCommand {
  ScheduleBody body;  ///< `count` is taken from `requests` when encoding
  Records<ScheduleRequest> requests;
};
struct LayersCommand {
  LayersBody body;  ///< `count` is taken from `requests` when encoding
  Records<LayersRequest> requests;
};
struct CacheOpenCommand {
  CacheOpenBody body;  ///< `count` is taken from `pieces` when encoding
  Records<BlockPiece> pieces;
};
struct CacheCommand {
  CacheBody body;  ///< `count` is taken from `blocks` when encoding
  Records<CacheBlock> blocks;
};
struct CacheLabelCommand {
  CacheLabelBody body;  ///< `count` is taken from `digests` when encoding
  Records<std::array<std::uint8_t, 32>> digests;
  Records<std::uint32_t> tokens;  ///< as many as count * block_tokens
};
struct SpaceCommand {
  SpaceBody body;  ///< `count` is taken from `positions` when encoding
  Records<std::uint32_t> positions;
};
struct GapsCommand {
  Records<RequestGap> gaps;
};
struct NeedsCommand {
  NeedsBody body;  ///< `count` is taken from `needs` when encoding
  Records<SpaceNeed> needs;
};
struct FinishCommand {
  TargetBody body;
};
struct AbortCommand {
  TargetBody body;
};
struct StatsCommand {};
struct PingCommand {};

/// The first alternative is empty, so that a body yet to be decoded costs nothing.
using CommandBody = std::variant<PingCommand, StatsCommand, SubmitBody, StepCommand, AllocateBody,
                                 PlaceCommand, RotateBody, FinishCommand, AbortCommand, NameCommand,
                                 CacheOpenCommand, CacheCommand, ScheduleCommand, SpaceCommand,
                                 ShareBody, CacheModelBody, GapsCommand, NeedsCommand,
                                 CacheLabelCommand, CacheChangesBody, ClaimBody, LayersCommand>;

/// One command. Encoding fills in the frame header except its version.
struct Command {
  CommandHeader header;
  CommandBody body;
};

/// The wire type that goes with a body.
[[nodiscard]] MessageType type_of(const CommandBody& body);

/// Errors: InvalidArgument when it has more entries than one message may hold.
/// Cost: allocates only while `out` grows.
Status encode_command(const Command& command, FrameBuffer& out);

/// Errors: Unsupported for a version or type this side does not know, InvalidArgument for the rest.
[[nodiscard]] Result<Command> decode_command(std::span<const std::byte> frame);

/// The header of a frame that may be wrong otherwise. It says whom to answer, so the sender can be
/// told. None when the frame is no command of ours at all (too short, wrong magic).
[[nodiscard]] std::optional<CommandHeader> peek_command(std::span<const std::byte> frame);

struct StepReply {
  StepReplyBody body;  ///< the counts are taken from `run` and `hold` when encoding
  Records<RunEntry> run;
  Records<HoldEntry> hold;
};
struct PlaceReply {
  PlaceReplyBody body;  ///< `count` is taken from `entries` when encoding
  Records<PlaceEntry> entries;
};
struct ScheduleReply {
  ScheduleReplyBody body;  ///< the counts are taken from `preempt` and `admit` when encoding
  Records<std::uint64_t> preempt;
  Records<std::uint64_t> admit;
};

struct CacheChangesReply {
  CacheChangesReplyBody body;  ///< the counts are taken from `changes` and `tokens` when encoding
  Records<CacheChange> changes;
  Records<std::uint32_t> tokens;
};

/// monostate: the command is done and has nothing to tell, or it failed.
using ReplyBody = std::variant<std::monostate, StepReply, AllocateReplyBody, PlaceReply,
                               StatsReplyBody, ValueReplyBody, ScheduleReply, CacheChangesReply>;

/// The answer to one command. After a failure `message` says why and `body` is monostate; a
/// success has no message. Encoding fills in the frame header except its version, and
/// message_bytes.
struct Reply {
  ReplyHeader header;
  MessageType command = MessageType::kReserved;  ///< kReserved: answers a frame nobody understood
  std::string_view message;
  ReplyBody body;

  [[nodiscard]] ErrorCode code() const { return static_cast<ErrorCode>(header.code); }
};

/// Cuts a message longer than kMessageBytes.
/// Errors: InvalidArgument when it has more entries than one message may hold, or when the body is
/// not the one that belongs to the command.
Status encode_reply(const Reply& reply, FrameBuffer& out);

/// Errors: as decode_command. A reply that carries a failure decodes without error; see
/// Reply::code.
[[nodiscard]] Result<Reply> decode_reply(std::span<const std::byte> frame);

/// The sequence a reply answers, without decoding it; none when the frame is no reply.
[[nodiscard]] std::optional<std::uint64_t> peek_reply_sequence(std::span<const std::byte> frame);

}  // namespace kvd::wire
