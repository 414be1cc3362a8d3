#include <algorithm>
#include <type_traits>

#include "ipc/vocabulary/overloaded.hpp"
#include "ipc/wire/codec.hpp"
#include "ipc/wire/frame_parts.hpp"

namespace kvd::wire {
namespace {

// ---- encoding -----------------------------------------------------------------------------------

struct Encoder {
  const CommandHeader& header;
  std::uint16_t type;
  FrameBuffer& out;

  /// A body without entries: the POD itself, or nothing.
  template <class Body>
  Status alone(const Body& body) const {
    if constexpr (std::is_empty_v<Body>) {
      return write_frame(header, type, {}, out);
    } else {
      return write_frame(header, type, {view_of(body)}, out);
    }
  }

  /// A body, and the entries that it counts.
  template <class Body, class Entry>
  Status counted(Body body, const Records<Entry>& entries) const {
    KVD_TRY(check_count(entries));
    body.count = count_of(entries);
    return write_frame(header, type, {view_of(body), entries.bytes()}, out);
  }
};

Status encode_label(const Encoder& to, const CacheLabelCommand& label) {
  CacheLabelBody body = label.body;
  body.count = count_of(label.digests);
  return write_frame(to.header, to.type,
                     {view_of(body), label.digests.bytes(), label.tokens.bytes()}, to.out);
}

Status encode_schedule(const Encoder& to, const ScheduleCommand& schedule) {
  if (schedule.requests.size() > kMaxScheduleRequests) {
    return invalid("schedule", "more than 2048 requests: leave out those at the end of the queue");
  }
  return to.counted(schedule.body, schedule.requests);
}

Status encode_needs(const Encoder& to, const NeedsCommand& told) {
  if (told.needs.size() > kMaxNeeds) return invalid("needs", "more than 16 goals");
  return to.counted(told.body, told.needs);
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
  if (body.op < 1 || body.op > 9) {
    return "cache: neither lookup, store, load, drop, retain, pin, demote, prefetch nor unpin";
  }
  const auto op = static_cast<CacheOp>(body.op);
  if (op == CacheOp::kPrefetch && body.retain_ms == 0) return "cache: prefetch has a time";
  if (op != CacheOp::kRetain && op != CacheOp::kPrefetch && body.retain_ms != 0) {
    return "cache: only retain and prefetch have a time";
  }
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
  if (body.count > kMaxScheduleRequests) return "schedule: more than 2048 requests";
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

Fault check(const LayersBody& body) {
  if (body.reserved != 0) return "layers: reserved field is not zero";
  if (body.count > kMaxLayersRequests) return "layers: more than 1024 requests";
  if (body.layers == 0 || body.layers > kMaxLayers) return "layers: a model has 1 to 1024 layers";
  if (std::uint64_t{body.layers} * body.count > kMaxLayersInAll) {
    return "layers: all requests together have more than 65,536 layers: ask about fewer";
  }
  if (body.block_tokens == 0 || body.block_tokens > kMaxScheduleBlockTokens) {
    return "layers: a block has 1 to 2^20 tokens";
  }
  if (body.capacity_blocks > kMaxLayersBlocks) return "layers: room for more than 2^40 blocks";
  if (body.block_bytes == 0 || body.block_bytes > kMaxRegionBytes) {
    return "layers: a block of a layer has 1 to 2^50 bytes";
  }
  if (body.step_ns == 0 || body.step_ns > std::uint64_t{kMaxTimeoutNs}) {
    return "layers: a step takes 1 ns to 1 h";
  }
  return nullptr;
}

Fault check(const LayersRequest& request) {
  if (request.request == 0) return "layers: request id 0 is reserved";
  return request.tokens > kMaxLayersTokens ? "layers: a request of more than 2^32 tokens" : nullptr;
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

Fault check(const SpaceNeed& need) {
  if (std::max(need.bytes, need.least) > kMaxRegionBytes) return "needs: more than 2^50 bytes";
  if (need.age_ns > kMaxAgeNs) return "needs: an age of more than 2^62 ns";
  if (!is_goal(need.ttft_ns)) return "needs: a goal is 0 (the class's) to 1 h";
  return need.begun > 1 ? "needs: requests have begun (1) or not (0)" : nullptr;
}

Fault check(const NeedsBody& body) {
  if (body.reserved != 0) return "needs: reserved field is not zero";
  if (body.count > kMaxNeeds) return "needs: more than 16 goals";
  return check(body.share);
}

Fault check(const GapsBody& body) {
  return body.reserved != 0 ? "gaps: reserved field is not zero" : nullptr;
}

Fault check(const RequestGap& named) {
  if (named.request == 0) return "gaps: request id 0 is reserved";
  return is_goal(named.gap_ns) ? nullptr : "gaps: a gap is 0 (the class's) to 1 h";
}

Fault check(const PlaceBody& body) {
  return body.reserved != 0 ? "place: reserved field is not zero" : nullptr;
}

Fault check(const NameBody& body) {
  return body.reserved != 0 ? "name: reserved field is not zero" : nullptr;
}

Fault check(const BlockName& block) {
  if (block.request == 0) return "name: request id 0 is reserved";
  return block.reserved != 0 ? "name: reserved field is not zero" : nullptr;
}

Fault check(const CommandHeader& header) {
  if (header.sequence == 0) return "command: sequences start at 1";
  if (header.timeout_ns >= 0 && header.timeout_ns <= kMaxTimeoutNs) return nullptr;
  return "command: a timeout is 0 to 1 h";
}

// ---- decoding -----------------------------------------------------------------------------------

/// Takes a body, and the entries that are all the rest of the frame.
template <class Body, class Entry>
Status take(ByteView rest, std::string_view what, Body& fixed, Records<Entry>& entries) {
  if (rest.size() < sizeof(Body)) return wrong_size(what);
  fixed = read_front<Body>(rest);
  if (const Fault fault = check(fixed)) return refused(fault);
  const auto taken = take_all<Entry>(rest.subspan(sizeof(Body)), fixed.count);
  if (!taken) return wrong_size(what);
  entries = *taken;
  return {};
}

template <class Entry>
Status check_each(const Records<Entry>& entries) {
  for (const Entry entry : entries) {
    if (const Fault fault = check(entry)) return refused(fault);
  }
  return {};
}

Status decode_step(ByteView rest, CommandBody& body) {
  auto& step = body.emplace<StepCommand>();
  KVD_TRY(take(rest, "step", step.body, step.reports));
  if (const Fault fault = check(step.reports)) return refused(fault);
  return {};
}

Status decode_place(ByteView rest, CommandBody& body) {
  PlaceBody fixed;
  auto& place = body.emplace<PlaceCommand>();
  KVD_TRY(take(rest, "place", fixed, place.requests));
  if (std::any_of(place.requests.begin(), place.requests.end(), [](auto id) { return id == 0; })) {
    return invalid("place", "request id 0 is reserved");
  }
  return {};
}

Status decode_name(ByteView rest, CommandBody& body) {
  NameBody fixed;
  auto& name = body.emplace<NameCommand>();
  KVD_TRY(take(rest, "name", fixed, name.blocks));
  name.fingerprint = fixed.fingerprint;
  return check_each(name.blocks);
}

Status decode_layers(ByteView rest, CommandBody& body) {
  auto& asked = body.emplace<LayersCommand>();
  KVD_TRY(take(rest, "layers", asked.body, asked.requests));
  return check_each(asked.requests);
}

Status decode_needs(ByteView rest, CommandBody& body) {
  auto& told = body.emplace<NeedsCommand>();
  KVD_TRY(take(rest, "needs", told.body, told.needs));
  return check_each(told.needs);
}

Status decode_gaps(ByteView rest, CommandBody& body) {
  GapsBody fixed;
  auto& named = body.emplace<GapsCommand>();
  KVD_TRY(take(rest, "gaps", fixed, named.gaps));
  return check_each(named.gaps);
}

Status decode_schedule(ByteView rest, CommandBody& body) {
  auto& schedule = body.emplace<ScheduleCommand>();
  KVD_TRY(take(rest, "schedule", schedule.body, schedule.requests));
  return check_each(schedule.requests);
}

Status decode_cache_open(ByteView rest, CommandBody& body) {
  auto& open = body.emplace<CacheOpenCommand>();
  return take(rest, "cache open", open.body, open.pieces);
}

Status decode_cache(ByteView rest, CommandBody& body) {
  auto& cache = body.emplace<CacheCommand>();
  KVD_TRY(take(rest, "cache", cache.body, cache.blocks));
  for (const CacheBlock& block : cache.blocks) {
    if (block.reserved != 0) return invalid("cache", "reserved field is not zero");
    if (block.block != 0 && cache.body.ticket == 0) {
      return invalid("cache", "a block without a copy");
    }
  }
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
  auto& space = body.emplace<SpaceCommand>();
  return take(rest, "space", space.body, space.positions);
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
    case MessageType::kLayers:
      return decode_layers(rest, body);
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
      MessageType::kCacheLabel, MessageType::kCacheChanges, MessageType::kClaim,
      MessageType::kLayers};
  static_assert(std::size(kTypes) == std::variant_size_v<CommandBody>);
  return kTypes[body.index()];
}

Status encode_command(const Command& command, FrameBuffer& out) {
  const Encoder to{command.header, static_cast<std::uint16_t>(type_of(command.body)), out};
  return std::visit(
      Overloaded{
          [&](const StepCommand& step) { return to.counted(step.body, step.reports); },
          [&](const PlaceCommand& place) { return to.counted(PlaceBody{}, place.requests); },
          [&](const NameCommand& name) {
            return to.counted(NameBody{name.fingerprint, 0, 0}, name.blocks);
          },
          [&](const CacheOpenCommand& open) { return to.counted(open.body, open.pieces); },
          [&](const CacheCommand& cache) { return to.counted(cache.body, cache.blocks); },
          [&](const CacheLabelCommand& label) { return encode_label(to, label); },
          [&](const ScheduleCommand& schedule) { return encode_schedule(to, schedule); },
          [&](const SpaceCommand& space) { return to.counted(space.body, space.positions); },
          [&](const GapsCommand& named) { return to.counted(GapsBody{}, named.gaps); },
          [&](const NeedsCommand& told) { return encode_needs(to, told); },
          [&](const LayersCommand& asked) { return to.counted(asked.body, asked.requests); },
          [&](const auto& body) { return to.alone(body); },
      },
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
