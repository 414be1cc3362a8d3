#include <algorithm>
#include <type_traits>

#include "ipc/wire/codec.hpp"
#include "ipc/wire/frame_parts.hpp"

namespace kvd::wire {
namespace {

// ---- bodies of commands, encoding ---------------------------------------------------------------

Status encode(const CommandHeader& header, MessageType type, const StepCommand& step,
              FrameBuffer& out) {
  KVD_TRY(check_count(step.reports));
  StepBody body = step.body;
  body.count = count_of(step.reports);
  return write_frame(header, static_cast<std::uint16_t>(type),
                     {view_of(body), step.reports.bytes()}, out);
}

Status encode(const CommandHeader& header, MessageType type, const PlaceCommand& place,
              FrameBuffer& out) {
  KVD_TRY(check_count(place.requests));
  const PlaceBody body{count_of(place.requests), 0};
  return write_frame(header, static_cast<std::uint16_t>(type),
                     {view_of(body), place.requests.bytes()}, out);
}

/// Of a body without entries: the POD itself, or nothing.
template <class Body>
Status encode(const CommandHeader& header, MessageType type, const Body& body, FrameBuffer& out) {
  const auto wire_type = static_cast<std::uint16_t>(type);
  if constexpr (std::is_empty_v<Body>) {
    return write_frame(header, wire_type, {}, out);
  } else {
    return write_frame(header, wire_type, {view_of(body)}, out);
  }
}

// ---- checks of fields ---------------------------------------------------------------------------

Status check(const SubmitBody& body) {
  if (body.request == 0) return invalid("submit", "request id 0 is reserved");
  if (body.prompt_tokens > kMaxTokens || body.max_new_tokens > kMaxTokens) {
    return invalid("submit", "2^40 tokens or more");
  }
  const auto is_slo = [](std::int64_t ns) { return ns >= 0 && ns <= kMaxTimeoutNs; };
  if (!is_slo(body.ttft_slo_ns) || !is_slo(body.tbt_slo_ns)) {
    return invalid("submit", "an SLO is 0 (the class default) to 1 h");
  }
  return {};
}

Status check(const StepBody& body) {
  if (body.iteration_running != 0 && body.iteration_running <= body.iteration_finished) {
    return invalid("step", "the running iteration is not after the finished one");
  }
  if (body.reserved != 0) return invalid("step", "reserved field is not zero");
  return {};
}

Status check(const Records<StepReport>& reports) {
  // One pass without branches: a step is the command that is sent all the time.
  std::uint64_t no_request = 0, extra = 0, most = 0;
  for (const StepReport report : reports) {
    no_request |= static_cast<std::uint64_t>(report.request == 0);
    extra |= (report.flags & ~std::uint32_t{kReportFlags}) | report.reserved;
    most |= report.tokens;
  }
  if (no_request != 0) return invalid("step", "request id 0 is reserved");
  if (extra != 0) return invalid("step", "unknown flags or reserved bits in a report");
  if (most > kMaxTokens) return invalid("step", "2^40 tokens or more in a report");
  return {};
}

Status check(const AllocateBody& body) {
  if (body.reserved != 0) return invalid("allocate", "reserved field is not zero");
  if (body.amount == 0) return invalid("allocate", "the amount is zero");
  switch (static_cast<AllocateKind>(body.kind)) {
    case AllocateKind::kRegion:
      if (body.request != 0) return invalid("allocate", "a region belongs to no request");
      if (body.amount > kMaxRegionBytes) return invalid("allocate", "more than 2^50 bytes");
      return {};
    case AllocateKind::kBlocks:
      if (body.request == 0) return invalid("allocate", "request id 0 is reserved");
      if (body.amount > kMaxTokens) return invalid("allocate", "2^40 tokens or more");
      return {};
  }
  return invalid("allocate", "kind is neither region nor blocks");
}

Status check(const RotateBody& body) {
  if (body.request == 0) return invalid("rotate", "request id 0 is reserved");
  if (body.reserved != 0) return invalid("rotate", "reserved field is not zero");
  const auto direction = static_cast<RotateDirection>(body.direction);
  if (direction == RotateDirection::kOut || direction == RotateDirection::kIn) return {};
  return invalid("rotate", "direction is neither out nor in");
}

Status check(const TargetBody& body) {
  if (body.target == 0) return invalid("finish or abort", "target 0 is reserved");
  if (body.reserved != 0) return invalid("finish or abort", "reserved field is not zero");
  const auto kind = static_cast<TargetKind>(body.kind);
  if (kind == TargetKind::kRequest || kind == TargetKind::kRegion) return {};
  return invalid("finish or abort", "kind is neither request nor region");
}

Status check(const CommandHeader& header) {
  if (header.sequence == 0) return invalid("command", "sequences start at 1");
  if (header.timeout_ns >= 0 && header.timeout_ns <= kMaxTimeoutNs) return {};
  return invalid("command", "a timeout is 0 to 1 h");
}

// ---- decoding -----------------------------------------------------------------------------------

Result<CommandBody> decode_step(ByteView rest) {
  if (rest.size() < sizeof(StepBody)) return wrong_size("step");
  StepCommand step;
  step.body = read_front<StepBody>(rest);
  KVD_TRY(check(step.body));
  KVD_ASSIGN_OR_RETURN(
      step.reports, take_all<StepReport>(rest.subspan(sizeof(StepBody)), step.body.count, "step"));
  KVD_TRY(check(step.reports));
  return CommandBody(step);
}

Result<CommandBody> decode_place(ByteView rest) {
  if (rest.size() < sizeof(PlaceBody)) return wrong_size("place");
  const auto body = read_front<PlaceBody>(rest);
  if (body.reserved != 0) return invalid("place", "reserved field is not zero");
  PlaceCommand place;
  KVD_ASSIGN_OR_RETURN(place.requests, take_all<std::uint64_t>(rest.subspan(sizeof(PlaceBody)),
                                                               body.count, "place"));
  const auto& ids = place.requests;
  if (std::any_of(ids.begin(), ids.end(), [](std::uint64_t id) { return id == 0; })) {
    return invalid("place", "request id 0 is reserved");
  }
  return CommandBody(place);
}

/// A body that is one POD.
template <class Pod, class Body = Pod>
Result<CommandBody> decode_pod(ByteView rest, std::string_view what) {
  if (rest.size() != sizeof(Pod)) return wrong_size(what);
  const auto pod = read_front<Pod>(rest);
  KVD_TRY(check(pod));
  return CommandBody(Body{pod});
}

template <class Body>
Result<CommandBody> decode_empty(ByteView rest, std::string_view what) {
  if (!rest.empty()) return wrong_size(what);
  return CommandBody(Body{});
}

Result<CommandBody> decode_body(std::uint16_t type, ByteView rest) {
  switch (static_cast<MessageType>(type)) {
    case MessageType::kSubmit:
      return decode_pod<SubmitBody>(rest, "submit");
    case MessageType::kStep:
      return decode_step(rest);
    case MessageType::kAllocate:
      return decode_pod<AllocateBody>(rest, "allocate");
    case MessageType::kPlace:
      return decode_place(rest);
    case MessageType::kRotate:
      return decode_pod<RotateBody>(rest, "rotate");
    case MessageType::kFinish:
      return decode_pod<TargetBody, FinishCommand>(rest, "finish");
    case MessageType::kAbort:
      return decode_pod<TargetBody, AbortCommand>(rest, "abort");
    case MessageType::kStats:
      return decode_empty<StatsCommand>(rest, "stats");
    case MessageType::kPing:
      return decode_empty<PingCommand>(rest, "ping");
    default:
      return unknown_type(type);
  }
}

}  // namespace

MessageType type_of(const CommandBody& body) {
  static constexpr MessageType kTypes[] = {
      MessageType::kSubmit, MessageType::kStep,   MessageType::kAllocate,
      MessageType::kPlace,  MessageType::kRotate, MessageType::kFinish,
      MessageType::kAbort,  MessageType::kStats,  MessageType::kPing};
  static_assert(std::size(kTypes) == std::variant_size_v<CommandBody>);
  return kTypes[body.index()];
}

Status encode_command(const Command& command, FrameBuffer& out) {
  const MessageType type = type_of(command.body);
  return std::visit([&](const auto& body) { return encode(command.header, type, body, out); },
                    command.body);
}

Result<Command> decode_command(std::span<const std::byte> frame) {
  if (frame.size() < sizeof(CommandHeader)) return invalid("command", "shorter than its header");
  const auto header = read_front<CommandHeader>(frame);
  KVD_TRY(check_frame(header.frame, frame));
  KVD_TRY(check(header));
  KVD_ASSIGN_OR_RETURN(CommandBody body,
                       decode_body(header.frame.type, frame.subspan(sizeof(CommandHeader))));
  return Command{header, body};
}

std::optional<CommandHeader> peek_command(std::span<const std::byte> frame) {
  if (frame.size() < sizeof(CommandHeader)) return std::nullopt;
  const auto header = read_front<CommandHeader>(frame);
  return header.frame.magic == kMagic ? std::optional(header) : std::nullopt;
}

}  // namespace kvd::wire
