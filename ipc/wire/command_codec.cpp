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

Status encode(const CommandHeader& header, MessageType type, const NameCommand& names,
              FrameBuffer& out) {
  KVD_TRY(check_count(names.blocks));
  const NameBody body{names.fingerprint, count_of(names.blocks), 0};
  return write_frame(header, static_cast<std::uint16_t>(type),
                     {view_of(body), names.blocks.bytes()}, out);
}

Status encode(const CommandHeader& header, MessageType type, const ScheduleCommand& schedule,
              FrameBuffer& out) {
  if (schedule.requests.size() > kMaxScheduleRequests) {
    return invalid("schedule", "more than 2048 requests: leave out those at the end of the queue");
  }
  ScheduleBody body = schedule.body;
  body.count = count_of(schedule.requests);
  return write_frame(header, static_cast<std::uint16_t>(type),
                     {view_of(body), schedule.requests.bytes()}, out);
}

Status encode(const CommandHeader& header, MessageType type, const CacheOpenCommand& open,
              FrameBuffer& out) {
  KVD_TRY(check_count(open.pieces));
  CacheOpenBody body = open.body;
  body.count = count_of(open.pieces);
  return write_frame(header, static_cast<std::uint16_t>(type), {view_of(body), open.pieces.bytes()},
                     out);
}

Status encode(const CommandHeader& header, MessageType type, const CacheCommand& cache,
              FrameBuffer& out) {
  KVD_TRY(check_count(cache.blocks));
  CacheBody body = cache.body;
  body.count = count_of(cache.blocks);
  return write_frame(header, static_cast<std::uint16_t>(type),
                     {view_of(body), cache.blocks.bytes()}, out);
}

Status encode(const CommandHeader& header, MessageType type, const CacheLabelCommand& label,
              FrameBuffer& out) {
  CacheLabelBody body = label.body;
  body.count = count_of(label.digests);
  return write_frame(header, static_cast<std::uint16_t>(type),
                     {view_of(body), label.digests.bytes(), label.tokens.bytes()}, out);
}

Status encode(const CommandHeader& header, MessageType type, const SpaceCommand& space,
              FrameBuffer& out) {
  KVD_TRY(check_count(space.positions));
  SpaceBody body = space.body;
  body.count = count_of(space.positions);
  return write_frame(header, static_cast<std::uint16_t>(type),
                     {view_of(body), space.positions.bytes()}, out);
}

Status encode(const CommandHeader& header, MessageType type, const GapsCommand& named,
              FrameBuffer& out) {
  KVD_TRY(check_count(named.gaps));
  const GapsBody body{count_of(named.gaps), 0};
  return write_frame(header, static_cast<std::uint16_t>(type), {view_of(body), named.gaps.bytes()},
                     out);
}

Status encode(const CommandHeader& header, MessageType type, const NeedsCommand& told,
              FrameBuffer& out) {
  if (told.needs.size() > kMaxNeeds) return invalid("needs", "more than 16 goals");
  NeedsBody body = told.body;
  body.count = count_of(told.needs);
  return write_frame(header, static_cast<std::uint16_t>(type), {view_of(body), told.needs.bytes()},
                     out);
}

/// Encodes a body without entries: the POD itself, or nothing.
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

Fault check(const SubmitBody& body) {
  if (body.request == 0) return "submit: request id 0 is reserved";
  if (body.prompt_tokens > kMaxTokens || body.max_new_tokens > kMaxTokens) {
    return "submit: 2^40 tokens or more";
  }
  const auto is_slo = [](std::int64_t ns) { return ns >= 0 && ns <= kMaxTimeoutNs; };
  if (!is_slo(body.ttft_slo_ns) || !is_slo(body.tbt_slo_ns)) {
    return "submit: an SLO is 0 (the class default) to 1 h";
  }
  return nullptr;
}

Fault check(const StepBody& body) {
  if (body.iteration_running != 0 && body.iteration_running <= body.iteration_finished) {
    return "step: the running iteration is not after the finished one";
  }
  if (body.reserved != 0) return "step: reserved field is not zero";
  return nullptr;
}

/// Words are loaded one by one: whole entries would pass through the stack, which takes as long as
/// all the rest of decoding a step, the command that is sent all the time.
Fault check(const Records<StepReport>& reports) {
  constexpr std::uint64_t kKnown = kReportFlags;  // the low half are the flags, the high reserved
  static_assert(offsetof(StepReport, reserved) == offsetof(StepReport, flags) + 4);
  const std::byte* const end = reports.bytes().data() + reports.bytes().size();
  std::uint64_t no_request = 0, extra = 0, tokens = 0;
  for (const std::byte* at = reports.bytes().data(); at != end; at += sizeof(StepReport)) {
    no_request |= static_cast<std::uint64_t>(load<std::uint64_t>(at) == 0);
    tokens |= load<std::uint64_t>(at + offsetof(StepReport, tokens));
    extra |= load<std::uint64_t>(at + offsetof(StepReport, flags)) & ~kKnown;
  }
  if (no_request != 0) return "step: request id 0 is reserved";
  if (extra != 0) return "step: unknown flags or reserved bits in a report";
  static_assert(((kMaxTokens + 1) & kMaxTokens) == 0, "so that the largest shows in the union");
  if (tokens > kMaxTokens) return "step: 2^40 tokens or more in a report";
  return nullptr;
}

Fault check(const AllocateBody& body) {
  if (body.reserved != 0) return "allocate: reserved field is not zero";
  if (body.amount == 0) return "allocate: the amount is zero";
  switch (static_cast<AllocateKind>(body.kind)) {
    case AllocateKind::kRegion:
      if (body.request != 0) return "allocate: a region belongs to no request";
      if (body.amount > kMaxRegionBytes) return "allocate: more than 2^50 bytes";
      return nullptr;
    case AllocateKind::kBlocks:
      if (body.request == 0) return "allocate: request id 0 is reserved";
      if (body.amount > kMaxTokens) return "allocate: 2^40 tokens or more";
      return nullptr;
  }
  return "allocate: kind is neither region nor blocks";
}

Fault check(const RotateBody& body) {
  if (body.request == 0) return "rotate: request id 0 is reserved";
  if (body.reserved != 0) return "rotate: reserved field is not zero";
  const auto direction = static_cast<RotateDirection>(body.direction);
  if (direction == RotateDirection::kOut || direction == RotateDirection::kIn) return nullptr;
  return "rotate: direction is neither out nor in";
}

Fault check(const TargetBody& body) {
  if (body.target == 0) return "finish or abort: target 0 is reserved";
  if (body.reserved != 0) return "finish or abort: reserved field is not zero";
  const auto kind = static_cast<TargetKind>(body.kind);
  if (kind == TargetKind::kRequest || kind == TargetKind::kRegion) return nullptr;
  if (kind == TargetKind::kOrphaned || kind == TargetKind::kCache) return nullptr;
  if (kind == TargetKind::kSpace) return nullptr;
  return "finish or abort: kind is neither request, region, orphaned bytes, cache nor space";
}

Fault check(const CacheOpenBody& body) {
  if (body.block_bytes > kMaxRegionBytes || (body.block_bytes == 0 && body.region != 0)) {
    return "cache open: a block has 1 to 2^50 bytes";
  }
  if (body.block_tokens == 0) return "cache open: a block has no tokens";
  if (body.region == 0 && (body.count != 0 || body.blocks != 0)) {
    return "cache open: blocks of no region";
  }
  if (body.region != 0 && (body.count == 0 || body.blocks == 0)) {
    return "cache open: a region without blocks";
  }
  return nullptr;
}

Fault check(const CacheBody& body) {
  if (body.cache == 0) return "cache: number 0 is reserved";
  if (body.op < 1 || body.op > 5) return "cache: neither lookup, store, load, drop nor retain";
  const auto op = static_cast<CacheOp>(body.op);
  if (op != CacheOp::kRetain && body.retain_ms != 0) return "cache: only retain has a time";
  const bool copies = op == CacheOp::kStore || op == CacheOp::kLoad;
  std::uint32_t flags = op == CacheOp::kStore ? std::uint32_t{kCachePark} : 0u;
  if (op == CacheOp::kLookup) flags = kCacheAwait;
  if ((body.flags & ~flags) != 0) return "cache: unknown flags";
  if (copies != (body.ticket != 0)) return "cache: store and load have a ticket, others none";
  if (body.ticket > kMaxCacheTicket) return "cache: tickets end at 2^62";
  return nullptr;
}

Fault check(const SpaceBody& body) {
  const bool opens = body.space == 0;
  if (opens != (body.slabs != 0)) return "space: one that is opened has slabs, others none";
  if (opens != (body.region == 0)) return "space: an open one takes a region";
  if (opens != (body.count == 0)) return "space: a region stands at positions";
  return nullptr;
}

Fault check(const ClaimBody& body) {
  return body.region == 0 ? "claim: region 0 is reserved" : nullptr;
}

Fault check(const ShareBody& body) {
  if (body.space == 0) return "share: space 0 is reserved";
  const std::uint64_t most = std::max({body.kept, body.least, body.wanted, body.grain});
  if (most > kMaxRegionBytes) return "share: more than 2^50 bytes";
  if (body.age_ns > kMaxAgeNs) return "share: an age of more than 2^62 ns";
  return nullptr;
}

Fault check(const CacheModelBody& body) {
  if (body.cache == 0) return "cache model: number 0 is reserved";
  return is_clean_text(body.model) ? nullptr : "cache model: the text is not printable ASCII";
}

Fault check(const CacheLabelBody& body) {
  if (body.cache == 0) return "cache label: number 0 is reserved";
  if (body.count > kMaxLabelled) return "cache label: more than 1024 blocks";
  return is_clean_text(body.lora) ? nullptr : "cache label: the adapter is not printable ASCII";
}

Fault check(const CacheChangesBody& body) {
  return body.cache == 0 ? "cache changes: number 0 is reserved" : nullptr;
}

Fault check(const ScheduleBody& body) {
  if (body.block_tokens == 0 || body.block_tokens > kMaxScheduleBlockTokens) {
    return "schedule: a block has 1 to 2^20 tokens";
  }
  if (body.total_blocks == 0 || body.total_blocks > kMaxScheduleBlocks) {
    return "schedule: 1 to 2^32 blocks in all";
  }
  if (body.free_blocks > body.total_blocks) return "schedule: more blocks are free than there are";
  if (body.block_bytes > kMaxRegionBytes / body.total_blocks) {
    return "schedule: the blocks have more than 2^50 bytes";
  }
  if (body.last_step_ns > kMaxAgeNs) return "schedule: a step of more than 2^62 ns";
  return nullptr;
}

bool is_goal(std::uint64_t ns) { return ns <= std::uint64_t{kMaxTimeoutNs}; }

Fault check(const ScheduleRequest& request) {
  if (request.request == 0) return "schedule: request id 0 is reserved";
  switch (static_cast<ScheduleState>(request.state)) {
    case ScheduleState::kWaiting:
    case ScheduleState::kParked:
    case ScheduleState::kRunning:
      break;
    default:
      return "schedule: a request is waiting (1), parked (2) or running (3)";
  }
  if (request.age_ns > kMaxAgeNs || request.first_token_age_ns > kMaxAgeNs ||
      request.last_token_age_ns > kMaxAgeNs) {
    return "schedule: an age of more than 2^62 ns";
  }
  if (!is_goal(request.ttft_ns) || !is_goal(request.tbt_ns)) {
    return "schedule: a goal is 0 (the class's) to 1 h";
  }
  return nullptr;
}

Fault check(const CommandHeader& header) {
  if (header.sequence == 0) return "command: sequences start at 1";
  if (header.timeout_ns >= 0 && header.timeout_ns <= kMaxTimeoutNs) return nullptr;
  return "command: a timeout is 0 to 1 h";
}

// ---- decoding -----------------------------------------------------------------------------------

Status decode_step(ByteView rest, CommandBody& body) {
  if (rest.size() < sizeof(StepBody)) return wrong_size("step");
  const auto fixed = read_front<StepBody>(rest);
  if (const Fault fault = check(fixed)) return refused(fault);
  const auto reports = take_all<StepReport>(rest.subspan(sizeof(StepBody)), fixed.count);
  if (!reports) return wrong_size("step");
  if (const Fault fault = check(*reports)) return refused(fault);
  body.emplace<StepCommand>(StepCommand{fixed, *reports});
  return {};
}

Status decode_place(ByteView rest, CommandBody& body) {
  if (rest.size() < sizeof(PlaceBody)) return wrong_size("place");
  const auto fixed = read_front<PlaceBody>(rest);
  if (fixed.reserved != 0) return invalid("place", "reserved field is not zero");
  const auto ids = take_all<std::uint64_t>(rest.subspan(sizeof(PlaceBody)), fixed.count);
  if (!ids) return wrong_size("place");
  if (std::any_of(ids->begin(), ids->end(), [](std::uint64_t id) { return id == 0; })) {
    return invalid("place", "request id 0 is reserved");
  }
  body.emplace<PlaceCommand>(PlaceCommand{*ids});
  return {};
}

Status decode_name(ByteView rest, CommandBody& body) {
  if (rest.size() < sizeof(NameBody)) return wrong_size("name");
  const auto fixed = read_front<NameBody>(rest);
  if (fixed.reserved != 0) return invalid("name", "reserved field is not zero");
  const auto blocks = take_all<BlockName>(rest.subspan(sizeof(NameBody)), fixed.count);
  if (!blocks) return wrong_size("name");
  for (const BlockName& block : *blocks) {
    if (block.request == 0) return invalid("name", "request id 0 is reserved");
    if (block.reserved != 0) return invalid("name", "reserved field is not zero");
  }
  body.emplace<NameCommand>(NameCommand{fixed.fingerprint, *blocks});
  return {};
}

Fault check(const SpaceNeed& need) {
  if (std::max(need.bytes, need.least) > kMaxRegionBytes) return "needs: more than 2^50 bytes";
  if (need.age_ns > kMaxAgeNs) return "needs: an age of more than 2^62 ns";
  if (!is_goal(need.ttft_ns)) return "needs: a goal is 0 (the class's) to 1 h";
  return need.begun > 1 ? "needs: requests have begun (1) or not (0)" : nullptr;
}

Status decode_needs(ByteView rest, CommandBody& body) {
  if (rest.size() < sizeof(NeedsBody)) return wrong_size("needs");
  const auto fixed = read_front<NeedsBody>(rest);
  if (fixed.reserved != 0) return invalid("needs", "reserved field is not zero");
  if (fixed.count > kMaxNeeds) return invalid("needs", "more than 16 goals");
  if (const Fault fault = check(fixed.share)) return refused(fault);
  const auto needs = take_all<SpaceNeed>(rest.subspan(sizeof(NeedsBody)), fixed.count);
  if (!needs) return wrong_size("needs");
  for (const SpaceNeed need : *needs) {
    if (const Fault fault = check(need)) return refused(fault);
  }
  body.emplace<NeedsCommand>(NeedsCommand{fixed, *needs});
  return {};
}

Status decode_gaps(ByteView rest, CommandBody& body) {
  if (rest.size() < sizeof(GapsBody)) return wrong_size("gaps");
  const auto fixed = read_front<GapsBody>(rest);
  if (fixed.reserved != 0) return invalid("gaps", "reserved field is not zero");
  const auto gaps = take_all<RequestGap>(rest.subspan(sizeof(GapsBody)), fixed.count);
  if (!gaps) return wrong_size("gaps");
  for (const RequestGap named : *gaps) {
    if (named.request == 0) return invalid("gaps", "request id 0 is reserved");
    if (!is_goal(named.gap_ns)) return invalid("gaps", "a gap is 0 (the class's) to 1 h");
  }
  body.emplace<GapsCommand>(GapsCommand{*gaps});
  return {};
}

Status decode_schedule(ByteView rest, CommandBody& body) {
  if (rest.size() < sizeof(ScheduleBody)) return wrong_size("schedule");
  const auto fixed = read_front<ScheduleBody>(rest);
  if (fixed.count > kMaxScheduleRequests) return invalid("schedule", "more than 2048 requests");
  if (const Fault fault = check(fixed)) return refused(fault);
  const auto requests = take_all<ScheduleRequest>(rest.subspan(sizeof(ScheduleBody)), fixed.count);
  if (!requests) return wrong_size("schedule");
  for (const ScheduleRequest request : *requests) {
    if (const Fault fault = check(request)) return refused(fault);
  }
  body.emplace<ScheduleCommand>(ScheduleCommand{fixed, *requests});
  return {};
}

Status decode_cache_open(ByteView rest, CommandBody& body) {
  if (rest.size() < sizeof(CacheOpenBody)) return wrong_size("cache open");
  const auto fixed = read_front<CacheOpenBody>(rest);
  if (const Fault fault = check(fixed)) return refused(fault);
  const auto pieces = take_all<BlockPiece>(rest.subspan(sizeof(CacheOpenBody)), fixed.count);
  if (!pieces) return wrong_size("cache open");
  body.emplace<CacheOpenCommand>(CacheOpenCommand{fixed, *pieces});
  return {};
}

Status decode_cache(ByteView rest, CommandBody& body) {
  if (rest.size() < sizeof(CacheBody)) return wrong_size("cache");
  const auto fixed = read_front<CacheBody>(rest);
  if (const Fault fault = check(fixed)) return refused(fault);
  const auto blocks = take_all<CacheBlock>(rest.subspan(sizeof(CacheBody)), fixed.count);
  if (!blocks) return wrong_size("cache");
  for (const CacheBlock& block : *blocks) {
    if (block.reserved != 0) return invalid("cache", "reserved field is not zero");
    if (block.block != 0 && fixed.ticket == 0) return invalid("cache", "a block without a copy");
  }
  body.emplace<CacheCommand>(CacheCommand{fixed, *blocks});
  return {};
}

// A block has at most 2^32 tokens and a command 2^10 blocks, so nothing overflows.
Status decode_cache_label(ByteView rest, CommandBody& body) {
  if (rest.size() < sizeof(CacheLabelBody)) return wrong_size("cache label");
  const auto fixed = read_front<CacheLabelBody>(rest);
  if (const Fault fault = check(fixed)) return refused(fault);
  rest = rest.subspan(sizeof(CacheLabelBody));
  const std::size_t names = std::size_t{fixed.count} * sizeof(fixed.parent);
  const std::size_t tokens = std::size_t{fixed.count} * fixed.block_tokens * sizeof(std::uint32_t);
  if (rest.size() != names + tokens) return wrong_size("cache label");
  using Digests = Records<std::array<std::uint8_t, 32>>;
  body.emplace<CacheLabelCommand>(CacheLabelCommand{
      fixed, Digests::over(rest.first(names)), Records<std::uint32_t>::over(rest.subspan(names))});
  return {};
}

Status decode_space(ByteView rest, CommandBody& body) {
  if (rest.size() < sizeof(SpaceBody)) return wrong_size("space");
  const auto fixed = read_front<SpaceBody>(rest);
  if (const Fault fault = check(fixed)) return refused(fault);
  const auto positions = take_all<std::uint32_t>(rest.subspan(sizeof(SpaceBody)), fixed.count);
  if (!positions) return wrong_size("space");
  body.emplace<SpaceCommand>(SpaceCommand{fixed, *positions});
  return {};
}

/// A body that is one POD.
template <class Pod, class Body = Pod>
Status decode_pod(ByteView rest, std::string_view what, CommandBody& body) {
  if (rest.size() != sizeof(Pod)) return wrong_size(what);
  const auto pod = read_front<Pod>(rest);
  if (const Fault fault = check(pod)) return refused(fault);
  body.emplace<Body>(Body{pod});
  return {};
}

template <class Body>
Status decode_empty(ByteView rest, std::string_view what, CommandBody& body) {
  if (!rest.empty()) return wrong_size(what);
  body.emplace<Body>();
  return {};
}

Status decode_body(std::uint16_t type, ByteView rest, CommandBody& body) {
  switch (static_cast<MessageType>(type)) {
    case MessageType::kSubmit:
      return decode_pod<SubmitBody>(rest, "submit", body);
    case MessageType::kStep:
      return decode_step(rest, body);
    case MessageType::kAllocate:
      return decode_pod<AllocateBody>(rest, "allocate", body);
    case MessageType::kPlace:
      return decode_place(rest, body);
    case MessageType::kRotate:
      return decode_pod<RotateBody>(rest, "rotate", body);
    case MessageType::kFinish:
      return decode_pod<TargetBody, FinishCommand>(rest, "finish", body);
    case MessageType::kAbort:
      return decode_pod<TargetBody, AbortCommand>(rest, "abort", body);
    case MessageType::kStats:
      return decode_empty<StatsCommand>(rest, "stats", body);
    case MessageType::kName:
      return decode_name(rest, body);
    case MessageType::kSchedule:
      return decode_schedule(rest, body);
    case MessageType::kPing:
      return decode_empty<PingCommand>(rest, "ping", body);
    case MessageType::kCacheOpen:
      return decode_cache_open(rest, body);
    case MessageType::kCache:
      return decode_cache(rest, body);
    case MessageType::kSpace:
      return decode_space(rest, body);
    case MessageType::kShare:
      return decode_pod<ShareBody>(rest, "share", body);
    case MessageType::kCacheModel:
      return decode_pod<CacheModelBody>(rest, "cache model", body);
    case MessageType::kCacheLabel:
      return decode_cache_label(rest, body);
    case MessageType::kCacheChanges:
      return decode_pod<CacheChangesBody>(rest, "cache changes", body);
    case MessageType::kClaim:
      return decode_pod<ClaimBody>(rest, "claim", body);
    case MessageType::kNeeds:
      return decode_needs(rest, body);
    case MessageType::kGaps:
      return decode_gaps(rest, body);
    default:
      return unknown_type(type);
  }
}

/// Checks the header and decodes the body behind it.
Status decode_rest(ByteView frame, Command& command) {
  const FrameHeader& header = command.header.frame;
  if (const Fault fault = check_frame(header, frame)) return refused(fault);
  if (!is_spoken(header)) return unknown_version(header.version);
  if (const Fault fault = check(command.header)) return refused(fault);
  return decode_body(header.type, frame.subspan(sizeof(CommandHeader)), command.body);
}

/// Decodes into the result itself: copies of a fresh command take longer than its checks.
Result<Command> decode_in_place(ByteView frame) {
  Result<Command> result = Command{read_front<CommandHeader>(frame), {}};
  if (const Status decoded = decode_rest(frame, *result); !decoded.ok()) result = decoded.error();
  return result;
}

}  // namespace

MessageType type_of(const CommandBody& body) {
  static constexpr MessageType kTypes[] = {
      MessageType::kPing,       MessageType::kStats,        MessageType::kSubmit,
      MessageType::kStep,       MessageType::kAllocate,     MessageType::kPlace,
      MessageType::kRotate,     MessageType::kFinish,       MessageType::kAbort,
      MessageType::kName,       MessageType::kCacheOpen,    MessageType::kCache,
      MessageType::kSchedule,   MessageType::kSpace,        MessageType::kShare,
      MessageType::kCacheModel, MessageType::kGaps,         MessageType::kNeeds,
      MessageType::kCacheLabel, MessageType::kCacheChanges, MessageType::kClaim};
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
  return decode_in_place(frame);
}

std::optional<CommandHeader> peek_command(std::span<const std::byte> frame) {
  if (frame.size() < sizeof(CommandHeader)) return std::nullopt;
  const auto header = read_front<CommandHeader>(frame);
  return header.frame.magic == kMagic ? std::optional(header) : std::nullopt;
}

}  // namespace kvd::wire
