#include <algorithm>
#include <type_traits>

#include "ipc/wire/codec.hpp"
#include "ipc/wire/frame_parts.hpp"

namespace kvd::wire {
namespace {

/// The index in ReplyBody of the body that a successful reply to such a command holds.
std::size_t body_index(MessageType command) {
  switch (command) {
    case MessageType::kStep:
      return 1;
    case MessageType::kAllocate:
    case MessageType::kClaim:
      return 2;
    case MessageType::kPlace:
    case MessageType::kLayers:
      return 3;
    case MessageType::kStats:
      return 4;
    case MessageType::kCacheOpen:
    case MessageType::kCache:
    case MessageType::kSpace:
    case MessageType::kShare:
    case MessageType::kNeeds:
    case MessageType::kCacheLabel:
      return 5;
    case MessageType::kSchedule:
      return 6;
    case MessageType::kCacheChanges:
      return 7;
    default:
      return 0;
  }
}

bool is_command(MessageType type) {
  return (type >= MessageType::kSubmit && type <= MessageType::kName) ||
         type == MessageType::kCacheOpen || type == MessageType::kCache ||
         type == MessageType::kSchedule || type == MessageType::kSpace ||
         type == MessageType::kShare || type == MessageType::kCacheModel ||
         type == MessageType::kGaps || type == MessageType::kNeeds ||
         type == MessageType::kCacheLabel || type == MessageType::kCacheChanges ||
         type == MessageType::kClaim || type == MessageType::kLayers;
}

Status encode_body(const ReplyHeader& header, std::uint16_t type, const StepReply& step,
                   FrameBuffer& out) {
  KVD_TRY(check_count(step.run));
  KVD_TRY(check_count(step.hold));
  StepReplyBody body = step.body;
  body.run_count = count_of(step.run);
  body.hold_count = count_of(step.hold);
  return write_frame(header, type, {view_of(body), step.run.bytes(), step.hold.bytes()}, out);
}

Status encode_body(const ReplyHeader& header, std::uint16_t type, const PlaceReply& place,
                   FrameBuffer& out) {
  KVD_TRY(check_count(place.entries));
  PlaceReplyBody body = place.body;
  body.count = count_of(place.entries);
  return write_frame(header, type, {view_of(body), place.entries.bytes()}, out);
}

Status encode_body(const ReplyHeader& header, std::uint16_t type, const ScheduleReply& schedule,
                   FrameBuffer& out) {
  KVD_TRY(check_count(schedule.preempt));
  KVD_TRY(check_count(schedule.admit));
  ScheduleReplyBody body = schedule.body;
  body.preempt_count = count_of(schedule.preempt);
  body.admit_count = count_of(schedule.admit);
  return write_frame(header, type,
                     {view_of(body), schedule.preempt.bytes(), schedule.admit.bytes()}, out);
}

Status encode_body(const ReplyHeader& header, std::uint16_t type, const CacheChangesReply& reply,
                   FrameBuffer& out) {
  KVD_TRY(check_count(reply.changes));
  CacheChangesReplyBody body = reply.body;
  body.count = count_of(reply.changes);
  body.tokens = count_of(reply.tokens);
  return write_frame(header, type, {view_of(body), reply.changes.bytes(), reply.tokens.bytes()},
                     out);
}

template <class Body>
Status encode_body(const ReplyHeader& header, std::uint16_t type, const Body& body,
                   FrameBuffer& out) {
  if constexpr (std::is_empty_v<Body>) {
    return write_frame(header, type, {}, out);
  } else {
    return write_frame(header, type, {view_of(body)}, out);
  }
}

Status encode_failure(ReplyHeader header, std::uint16_t type, std::string_view message,
                      FrameBuffer& out) {
  // A NUL inside would end the message early for the reader.
  message = message.substr(0, std::min(message.find('\0'), kMessageBytes - 1));
  header.message_bytes = static_cast<std::uint16_t>(message.size() + 1);
  constexpr std::byte kEnd{0};
  return write_frame(header, type, {std::as_bytes(std::span(message)), view_of(kEnd)}, out);
}

Result<ReplyBody> decode_step_reply(ByteView rest) {
  if (rest.size() < sizeof(StepReplyBody)) return wrong_size("step reply");
  StepReply reply;
  reply.body = read_front<StepReplyBody>(rest);
  rest = rest.subspan(sizeof(StepReplyBody));
  const std::size_t run_bytes = std::size_t{reply.body.run_count} * sizeof(RunEntry);
  if (run_bytes > rest.size()) return wrong_size("step reply");
  const auto run = take_all<RunEntry>(rest.first(run_bytes), reply.body.run_count);
  const auto hold = take_all<HoldEntry>(rest.subspan(run_bytes), reply.body.hold_count);
  if (!run || !hold) return wrong_size("step reply");
  reply.run = *run;
  reply.hold = *hold;
  std::uint32_t extra = 0, reason = 0;
  for (const RunEntry entry : reply.run) extra |= entry.flags & ~std::uint32_t{kRunFlags};
  for (const HoldEntry entry : reply.hold) {
    extra |= entry.reserved;
    reason = std::max(reason, entry.reason);
  }
  if (extra != 0) return invalid("step reply", "unknown flags or reserved bits");
  if (reason > static_cast<std::uint32_t>(HoldReason::kDrained)) {
    return invalid("step reply", "unknown hold reason");
  }
  return ReplyBody(reply);
}

Result<ReplyBody> decode_allocate_reply(ByteView rest) {
  if (rest.size() != sizeof(AllocateReplyBody)) return wrong_size("allocate reply");
  const auto body = read_front<AllocateReplyBody>(rest);
  if (body.reserved != 0) return invalid("allocate reply", "reserved field is not zero");
  return ReplyBody(body);
}

Result<ReplyBody> decode_place_reply(ByteView rest) {
  if (rest.size() < sizeof(PlaceReplyBody)) return wrong_size("place reply");
  PlaceReply reply;
  reply.body = read_front<PlaceReplyBody>(rest);
  const auto entries = take_all<PlaceEntry>(rest.subspan(sizeof(PlaceReplyBody)), reply.body.count);
  if (!entries) return wrong_size("place reply");
  reply.entries = *entries;
  std::uint32_t extra = reply.body.reserved;
  for (const PlaceEntry entry : reply.entries) extra |= entry.reserved;
  if (extra != 0) return invalid("place reply", "reserved field is not zero");
  return ReplyBody(reply);
}

Result<ReplyBody> decode_schedule_reply(ByteView rest) {
  if (rest.size() < sizeof(ScheduleReplyBody)) return wrong_size("schedule reply");
  ScheduleReply reply;
  reply.body = read_front<ScheduleReplyBody>(rest);
  rest = rest.subspan(sizeof(ScheduleReplyBody));
  const std::size_t preempt_bytes = std::size_t{reply.body.preempt_count} * sizeof(std::uint64_t);
  if (preempt_bytes > rest.size()) return wrong_size("schedule reply");
  const auto preempt = take_all<std::uint64_t>(rest.first(preempt_bytes), reply.body.preempt_count);
  const auto admit = take_all<std::uint64_t>(rest.subspan(preempt_bytes), reply.body.admit_count);
  if (!preempt || !admit) return wrong_size("schedule reply");
  if (reply.body.reserved != 0) return invalid("schedule reply", "reserved field is not zero");
  reply.preempt = *preempt;
  reply.admit = *admit;
  return ReplyBody(reply);
}

Result<ReplyBody> decode_changes_reply(ByteView rest) {
  if (rest.size() < sizeof(CacheChangesReplyBody)) return wrong_size("changes reply");
  CacheChangesReply reply;
  reply.body = read_front<CacheChangesReplyBody>(rest);
  rest = rest.subspan(sizeof(CacheChangesReplyBody));
  const std::size_t changes = std::size_t{reply.body.count} * sizeof(CacheChange);
  const std::size_t tokens = std::size_t{reply.body.tokens} * sizeof(std::uint32_t);
  if (rest.size() != changes + tokens) return wrong_size("changes reply");
  reply.changes = Records<CacheChange>::over(rest.first(changes));
  reply.tokens = Records<std::uint32_t>::over(rest.subspan(changes));
  std::uint64_t sum = 0;
  std::uint32_t extra = reply.body.reserved | (reply.body.flags & ~std::uint32_t{kChangesFlags});
  for (const CacheChange change : reply.changes) {
    if (!is_clean_text(change.lora)) return invalid("changes reply", "a name is no clean text");
    extra |= change.tiers & ~std::uint32_t{kChangeTiers};
    sum += change.tokens;
  }
  if (extra != 0) return invalid("changes reply", "unknown flags or reserved bits");
  if (sum != reply.body.tokens) return invalid("changes reply", "tokens of no block");
  return ReplyBody(reply);
}

Result<ReplyBody> decode_success(MessageType command, ByteView rest) {
  switch (body_index(command)) {
    case 1:
      return decode_step_reply(rest);
    case 2:
      return decode_allocate_reply(rest);
    case 3:
      return decode_place_reply(rest);
    case 4:
      if (rest.size() != sizeof(StatsReplyBody)) return wrong_size("stats reply");
      return ReplyBody(read_front<StatsReplyBody>(rest));
    case 5:
      if (rest.size() != sizeof(ValueReplyBody)) return wrong_size("value reply");
      return ReplyBody(read_front<ValueReplyBody>(rest));
    case 6:
      return decode_schedule_reply(rest);
    case 7:
      return decode_changes_reply(rest);
    default:
      if (!rest.empty()) return wrong_size("reply");
      return ReplyBody();
  }
}

Result<std::string_view> decode_message(const ReplyHeader& header, ByteView rest) {
  if (rest.size() != header.message_bytes || rest.empty() || rest.size() > kMessageBytes) {
    return wrong_size("reply");
  }
  const std::string_view text(reinterpret_cast<const char*>(rest.data()), rest.size());
  if (text.find('\0') != text.size() - 1) return invalid("reply", "message without a closing NUL");
  return text.substr(0, text.size() - 1);
}

Status check(const ReplyHeader& header, MessageType command) {
  const bool failed = header.code != 0;
  if (header.code > static_cast<std::uint16_t>(ErrorCode::kDraining)) {
    return make_error(
        ErrorCode::kUnsupported,
        "reply has the unknown error code " + std::to_string(header.code) + "; update the client");
  }
  if ((header.frame.type & kReplyBit) == 0) return invalid("reply", "this is no reply");
  if (!is_command(command) && !(failed && command == MessageType::kReserved)) {
    return unknown_type(header.frame.type);
  }
  if (header.reserved != 0) return invalid("reply", "reserved field is not zero");
  if (!failed && header.message_bytes != 0) return invalid("reply", "a success has no message");
  return {};
}

MessageType answered_command(const ReplyHeader& header) {
  return static_cast<MessageType>(header.frame.type & ~kReplyBit);
}

}  // namespace

Status encode_reply(const Reply& reply, FrameBuffer& out) {
  const auto type =
      static_cast<std::uint16_t>(static_cast<std::uint16_t>(reply.command) | kReplyBit);
  if (reply.code() != ErrorCode::kOk) return encode_failure(reply.header, type, reply.message, out);
  if (!is_command(reply.command) || reply.body.index() != body_index(reply.command)) {
    return invalid("reply", "the body is not the one of its command");
  }
  ReplyHeader header = reply.header;
  header.message_bytes = 0;
  return std::visit([&](const auto& body) { return encode_body(header, type, body, out); },
                    reply.body);
}

Result<Reply> decode_reply(std::span<const std::byte> frame) {
  if (frame.size() < sizeof(ReplyHeader)) return invalid("reply", "shorter than its header");
  Reply reply;
  reply.header = read_front<ReplyHeader>(frame);
  reply.command = answered_command(reply.header);
  if (const Fault fault = check_frame(reply.header.frame, frame)) return refused(fault);
  if (!is_spoken(reply.header.frame)) return unknown_version(reply.header.frame.version);
  KVD_TRY(check(reply.header, reply.command));
  const ByteView rest = frame.subspan(sizeof(ReplyHeader));
  if (reply.code() == ErrorCode::kOk) {
    KVD_ASSIGN_OR_RETURN(reply.body, decode_success(reply.command, rest));
  } else {
    KVD_ASSIGN_OR_RETURN(reply.message, decode_message(reply.header, rest));
  }
  return reply;
}

std::optional<std::uint64_t> peek_reply_sequence(std::span<const std::byte> frame) {
  if (frame.size() < sizeof(ReplyHeader)) return std::nullopt;
  const auto header = read_front<ReplyHeader>(frame);
  const bool is_reply = header.frame.magic == kMagic && (header.frame.type & kReplyBit) != 0;
  return is_reply ? std::optional(header.sequence) : std::nullopt;
}

}  // namespace kvd::wire
