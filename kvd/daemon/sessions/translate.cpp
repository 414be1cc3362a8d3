#include "kvd/daemon/sessions/translate.hpp"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "ipc/vocabulary/overloaded.hpp"
#include "ipc/wire/attach_codec.hpp"
#include "kvd/daemon/sessions/session_key.hpp"

namespace kvd::daemon {

namespace {

/// Smaller ones cost more to count than they hold, and an engine chooses its own.
constexpr Bytes kLeastSlot{4096};
constexpr Bytes kGoodSlot = 256 * kKiB;  ///< copies are near the link's peak from here on

Error bad(std::string message) {
  return make_error(ErrorCode::kInvalidArgument, std::move(message));
}

Tokens tokens(std::uint64_t count) { return Tokens(static_cast<std::int64_t>(count)); }
Bytes bytes(std::uint64_t count) { return Bytes(static_cast<std::int64_t>(count)); }
std::uint64_t count(std::int64_t value) { return static_cast<std::uint64_t>(value); }

using Body = decltype(core::Command::body);

Result<Body> from(const wire::SubmitBody& b) {
  return Body(core::Submit{RequestId(b.request), tokens(b.prompt_tokens), tokens(b.max_new_tokens),
                           Nanoseconds(b.ttft_slo_ns), Nanoseconds(b.tbt_slo_ns)});
}

Result<Body> from(const wire::StepCommand& b) {
  core::Step step{
      b.body.iteration_finished, b.body.iteration_running, PlanVersion(b.body.table_version), {}};
  step.reports.reserve(b.reports.size());
  for (const wire::StepReport report : b.reports) {
    step.reports.push_back({RequestId(report.request), tokens(report.tokens),
                            (report.flags & wire::kReportFinished) != 0});
  }
  return Body(std::move(step));
}

Result<Body> from(const wire::AllocateBody& b) {
  switch (static_cast<wire::AllocateKind>(b.kind)) {
    case wire::AllocateKind::kRegion:
      return Body(core::AllocateRegion{bytes(b.amount)});
    case wire::AllocateKind::kBlocks:
      return Body(core::AllocateBlocks{RequestId(b.request), tokens(b.amount)});
  }
  return bad("unknown kind of allocation: use 1 (region) or 2 (blocks)");
}

Result<Body> from(const wire::ClaimBody& b) {
  return Body(core::ClaimRegion{{BootId{b.boot_id}, RegionId(b.region)},
                                proof_of(SessionKey{b.session_key})});
}

Result<Body> from(const wire::PlaceCommand& b) {
  core::Place place;
  for (const std::uint64_t request : b.requests) place.requests.emplace_back(request);
  return Body(std::move(place));
}

Result<Body> from(const wire::LayersCommand& b) {
  core::PlanLayers asked{Blocks(static_cast<std::int64_t>(b.body.capacity_blocks)),
                         bytes(b.body.block_bytes),
                         Nanoseconds(static_cast<std::int64_t>(b.body.step_ns)),
                         b.body.layers,
                         Tokens(b.body.block_tokens),
                         {}};
  asked.requests.reserve(b.requests.size());
  for (const wire::LayersRequest each : b.requests) {
    asked.requests.push_back({RequestId(each.request), tokens(each.tokens)});
  }
  return Body(std::move(asked));
}

Result<Body> from(const wire::NameCommand& b) {
  core::NameBlocks names;
  names.fingerprint.digest.bytes = b.fingerprint;
  names.blocks.reserve(b.blocks.size());
  for (const wire::BlockName block : b.blocks) {
    names.blocks.push_back({RequestId(block.request), block.block, Digest{block.digest}});
  }
  return Body(std::move(names));
}

Result<Body> from(const wire::CacheOpenCommand& b) {
  if (b.body.blocks > wire::kMaxRegionBytes) return bad("more blocks than a region has bytes");
  core::OpenCache open{Fingerprint{Digest{b.body.fingerprint}},
                       RegionId(b.body.region),
                       static_cast<std::int64_t>(b.body.blocks),
                       bytes(b.body.block_bytes),
                       b.body.block_tokens,
                       {}};
  for (const wire::BlockPiece piece : b.pieces) {
    if (std::max({piece.offset, piece.stride, piece.bytes}) > wire::kMaxRegionBytes) {
      return bad("a piece of a block is beyond 2^50 bytes");
    }
    open.pieces.push_back({bytes(piece.offset), bytes(piece.stride), bytes(piece.bytes)});
  }
  return Body(std::move(open));
}

Result<Body> from(const wire::GapsCommand& b) {
  core::SetGaps named;
  named.gaps.reserve(b.gaps.size());
  for (const wire::RequestGap gap : b.gaps) {
    named.gaps.push_back(
        {RequestId(gap.request), Nanoseconds(static_cast<std::int64_t>(gap.gap_ns))});
  }
  return Body(std::move(named));
}

Result<Body> from(const wire::CacheModelBody& b) {
  return Body(core::DescribeCache{core::CacheId(b.cache), b.model.data()});
}

Result<Body> from(const wire::CacheLabelCommand& b) {
  core::LabelBlocks told{
      core::CacheId(b.body.cache), Digest{b.body.parent}, b.body.lora.data(), {}, {}};
  for (const auto& digest : b.digests) told.digests.push_back(Digest{digest});
  told.tokens.assign(b.tokens.begin(), b.tokens.end());
  return Body(std::move(told));
}

Result<Body> from(const wire::CacheChangesBody& b) {
  return Body(
      core::AskChanges{core::CacheId(b.cache), {b.seen.life, b.seen.start, b.seen.position}});
}

Result<Body> from(const wire::CacheCommand& b) {
  using Op = core::CacheBlocks::Op;
  static_assert(static_cast<int>(wire::CacheOp::kLookup) == static_cast<int>(Op::kLookup) + 1 &&
                static_cast<int>(wire::CacheOp::kUnpin) == static_cast<int>(Op::kUnpin) + 1);
  core::CacheBlocks asked{core::CacheId(b.body.cache),
                          static_cast<Op>(b.body.op - 1),
                          (b.body.flags & wire::kCachePark) != 0,
                          b.body.ticket,
                          {},
                          {},
                          (b.body.flags & wire::kCacheAwait) != 0,
                          std::chrono::milliseconds(b.body.retain_ms)};
  asked.digests.reserve(b.blocks.size());
  for (const wire::CacheBlock block : b.blocks) {
    asked.digests.push_back(Digest{block.digest});
    if (b.body.ticket != 0) asked.blocks.push_back(block.block);
  }
  return Body(std::move(asked));
}

Result<Body> from(const wire::RotateBody& b) {
  switch (static_cast<wire::RotateDirection>(b.direction)) {
    case wire::RotateDirection::kOut:
      return Body(core::Rotate{RequestId(b.request), true});
    case wire::RotateDirection::kIn:
      return Body(core::Rotate{RequestId(b.request), false});
  }
  return bad("unknown direction: use 1 (out) or 2 (in)");
}

Result<Body> from(const wire::SpaceCommand& b) {
  if (b.body.space == 0) return Body(core::OpenSpace{b.body.slabs});
  core::PlaceRegion place{RegionId(b.body.space), RegionId(b.body.region), {}};
  for (const std::uint32_t position : b.positions) place.positions.push_back(position);
  return Body(std::move(place));
}

core::ShareSpace share_of(const wire::ShareBody& b) {
  return {RegionId(b.space),
          {bytes(b.kept), bytes(b.least), bytes(b.wanted), bytes(b.grain),
           Nanoseconds(static_cast<std::int64_t>(b.age_ns))}};
}

Result<Body> from(const wire::ShareBody& b) { return Body(share_of(b)); }

Result<Body> from(const wire::NeedsCommand& b) {
  core::ShareSpace share = share_of(b.body.share);
  for (const wire::SpaceNeed need : b.needs) {
    share.demand.needs.push_back(
        {bytes(need.bytes), bytes(need.least), Nanoseconds(static_cast<std::int64_t>(need.age_ns)),
         Nanoseconds(static_cast<std::int64_t>(need.ttft_ns)), need.slo_class, need.begun != 0});
  }
  return Body(std::move(share));
}

template <class OfRequest>
Result<Body> from_target(const wire::TargetBody& b) {
  switch (static_cast<wire::TargetKind>(b.kind)) {
    case wire::TargetKind::kRequest:
      return Body(OfRequest{RequestId(b.target)});
    case wire::TargetKind::kRegion:
      return Body(core::ReleaseRegion{RegionId(b.target)});
    case wire::TargetKind::kOrphaned:
      return Body(core::ReleaseOrphaned{bytes(std::min(b.target, wire::kMaxRegionBytes))});
    case wire::TargetKind::kCache:
      return Body(core::CloseCache{core::CacheId(b.target)});
    case wire::TargetKind::kSpace:
      return Body(core::CloseSpace{RegionId(b.target)});
  }
  return bad(
      "unknown kind of target: use 1 (request), 2 (region), 3 (bytes of an earlier boot), 4 "
      "(cache), 5 (space)");
}

Result<Body> from(const wire::FinishCommand& b) { return from_target<core::Finish>(b.body); }
Result<Body> from(const wire::AbortCommand& b) { return from_target<core::Abort>(b.body); }
Result<Body> from(const wire::StatsCommand&) { return Body(core::Stats{}); }
Result<Body> from(const wire::PingCommand&) { return Body(core::Ping{}); }

Result<Body> from(const wire::ScheduleCommand& b, TimePoint now) {
  const auto before = [&](std::uint64_t age) {
    return now - Nanoseconds(static_cast<std::int64_t>(age));
  };
  const auto whole = [](std::uint64_t value) { return static_cast<std::int64_t>(value); };
  core::Schedule out;
  out.free_blocks = whole(b.body.free_blocks);
  out.total_blocks = whole(b.body.total_blocks);
  out.block_bytes = bytes(b.body.block_bytes);
  out.block_tokens = tokens(b.body.block_tokens);
  out.last_step = Nanoseconds(whole(b.body.last_step_ns));
  out.last_step_prefill = tokens(b.body.last_step_prefill_tokens);
  out.last_step_decodes = b.body.last_step_decodes;
  out.max_batched_tokens = tokens(b.body.max_batched_tokens);
  out.max_running = b.body.max_running;
  out.requests.resize(b.requests.size());
  std::size_t i = 0;
  for (const wire::ScheduleRequest r : b.requests) {
    core::Schedule::Request& to = out.requests[i++];
    to.request = RequestId(r.request);
    to.state = static_cast<core::Schedule::State>(r.state - 1);
    to.prompt = tokens(r.prompt_tokens);
    to.computed = tokens(r.computed_tokens);
    to.generated = tokens(r.generated_tokens);
    to.max_new = tokens(r.max_new_tokens);
    to.blocks = r.blocks;
    to.blocks_to_return = r.blocks_to_return;
    to.stays =
        to.state == core::Schedule::State::kRunning && r.blocks_to_return == wire::kRecomputed;
    to.slo_class = r.slo_class;
    to.arrived = before(r.age_ns);
    if (r.first_token_age_ns != 0) to.first_token = before(r.first_token_age_ns);
    if (r.last_token_age_ns != 0) to.last_token = before(r.last_token_age_ns);
    to.ttft = Nanoseconds(whole(r.ttft_ns));
    to.tbt = Nanoseconds(whole(r.tbt_ns));
  }
  return Body(std::move(out));
}
static_assert(static_cast<int>(core::Schedule::State::kWaiting) + 1 ==
                  static_cast<int>(wire::ScheduleState::kWaiting) &&
              static_cast<int>(core::Schedule::State::kRunning) + 1 ==
                  static_cast<int>(wire::ScheduleState::kRunning));

/// Entries a reply views; they must live until it is encoded.
struct Entries {
  std::vector<wire::RunEntry> run;
  std::vector<wire::HoldEntry> hold;
  std::vector<wire::PlaceEntry> place;
  std::vector<std::uint64_t> preempt, admit;
  std::vector<wire::CacheChange> changes;
  std::vector<std::uint32_t> tokens;
};

wire::ReplyBody from(const core::StepReply& reply, Entries& entries) {
  for (const core::RunEntry& r : reply.run) {
    const std::uint32_t flags = (r.prefill ? wire::kRunPrefill : 0u) |
                                (r.swapped_in ? wire::kRunSwappedIn : 0u) |
                                (r.streamed ? wire::kRunStreamed : 0u);
    entries.run.push_back({r.request.value, count(r.present.value), r.ticket.value,
                           static_cast<std::uint32_t>(r.tokens.value), flags, r.distance, r.row});
  }
  for (const core::HoldEntry& h : reply.hold) {
    entries.hold.push_back({h.request.value, static_cast<std::uint32_t>(h.reason), 0});
  }
  wire::StepReply out;
  out.body.iteration = reply.iteration;
  out.body.table_version = reply.table_version.value;
  out.run = entries.run;
  out.hold = entries.hold;
  return out;
}

wire::ReplyBody from(const core::RegionReply& reply) {
  return wire::AllocateReplyBody{reply.region.value, count(reply.slab_bytes.value), reply.slabs, 0};
}

wire::ReplyBody from(const core::BlocksReply& reply) {
  return wire::AllocateReplyBody{0, 0, reply.blocks, 0};
}

wire::ReplyBody from(const core::PlaceReply& reply, Entries& entries) {
  for (const auto& e : reply.entries) {
    entries.place.push_back({e.request.value, count(e.resident.value), e.distance, 0});
  }
  wire::PlaceReply out;
  out.body.budget_blocks = count(reply.budget.value);
  out.entries = entries.place;
  return out;
}

wire::ReplyBody from(const core::ScheduleReply& reply, Entries& entries) {
  for (const RequestId id : reply.preempt) entries.preempt.push_back(id.value);
  for (const RequestId id : reply.admit) entries.admit.push_back(id.value);
  wire::ScheduleReply out;
  out.body.prefill_tokens = reply.prefill_tokens;
  out.preempt = entries.preempt;
  out.admit = entries.admit;
  return out;
}

wire::ReplyBody from(const store::Labels::Changes& reply, Entries& entries) {
  const auto in = [](store::TierSet tiers, store::CacheTier tier, std::uint32_t flag) {
    return (tiers & store::bit(tier)) != 0 ? flag : 0u;
  };
  for (const store::Labels::Change& each : reply.all) {
    const store::Label& label = each.label;
    wire::CacheChange& change = entries.changes.emplace_back();
    change.digest = label.digest.bytes;
    change.parent = label.parent.bytes;
    wire::set_text(change.lora, label.lora);
    change.tiers = in(each.tiers, store::CacheTier::kDram, wire::kInDram) |
                   in(each.tiers, store::CacheTier::kDisk, wire::kOnDisk) |
                   in(each.tiers, store::CacheTier::kHbm, wire::kInHbm);
    change.tokens = static_cast<std::uint32_t>(label.tokens.size());
    entries.tokens.insert(entries.tokens.end(), label.tokens.begin(), label.tokens.end());
  }
  wire::CacheChangesReply out;
  out.body.next = {reply.next.life, reply.next.start, reply.next.position};
  out.body.flags = (reply.over ? wire::kChangesOver : 0u) | (reply.more ? wire::kChangesMore : 0u);
  out.changes = entries.changes;
  out.tokens = entries.tokens;
  return out;
}

wire::ReplyBody from(const core::ValueReply& reply) { return wire::ValueReplyBody{reply.value}; }

wire::ReplyBody from(const core::StatsReply& s) {
  return wire::StatsReplyBody{count(s.region.value),
                              count(s.hbm.value),
                              count(s.dram.value),
                              s.waiting,
                              s.running,
                              s.rotary,
                              s.rotations_out,
                              s.rotations_in};
}

/// layers_per_block of a model that names none: the smallest divisor of its layers that makes a
/// good slot, or the largest whose slot fits into a slab. At least 1, fitting or not.
std::uint32_t default_group(std::uint32_t layers, Bytes per_layer, Bytes slab) {
  std::uint32_t best = 1;
  for (std::uint32_t g = 1; g <= layers && per_layer * g <= slab; ++g) {
    if (layers % g != 0) continue;
    best = g;
    if (per_layer * g >= kGoodSlot) break;
  }
  return best;
}

}  // namespace

Result<std::optional<core::ModelClass>> complete_shape(const wire::ModelShape& shape,
                                                       Bytes slab_bytes) {
  if (shape.layers == 0) return std::optional<core::ModelClass>();
  core::ModelClass out;
  out.layers = shape.layers;
  out.block_tokens = shape.block_tokens == 0 ? 16 : shape.block_tokens;
  out.bytes_per_token_per_layer = bytes(shape.bytes_per_token_per_layer);
  if (shape.layers > wire::kMaxLayers || out.block_tokens > wire::kMaxBlockTokens ||
      shape.bytes_per_token_per_layer == 0 ||
      shape.bytes_per_token_per_layer > wire::kMaxBytesPerTokenPerLayer ||
      shape.layers_per_block > shape.layers) {
    return bad(
        "the model shape is out of range: 1..1024 layers, at most as many a block, 1..1024 "
        "tokens a block, 1 B..1 MiB a token and layer");
  }
  out.layers_per_block = shape.layers_per_block;
  if (out.layers_per_block == 0) {
    const Bytes per_layer = out.bytes_per_token_per_layer * out.block_tokens;
    out.layers_per_block = default_group(out.layers, per_layer, slab_bytes);
  }
  if (out.slot_bytes() < kLeastSlot) {
    return bad("a block of this model takes " + std::to_string(out.slot_bytes().value) +
               " bytes, the least is " + std::to_string(kLeastSlot.value) +
               ": raise layers_per_block or block_tokens");
  }
  if (out.slot_bytes() > slab_bytes) {
    return bad("a block of this model takes " + std::to_string(out.slot_bytes().value) +
               " bytes, a slab has " + std::to_string(slab_bytes.value) +
               ": lower layers_per_block or block_tokens, or raise pool.slab");
  }
  return std::optional(out);
}

wire::ModelShape to_wire(const core::ModelClass& shape) {
  return {shape.layers, shape.layers_per_block, shape.block_tokens, 0,
          count(shape.bytes_per_token_per_layer.value)};
}

Result<Body> to_core(const wire::CommandBody& body, TimePoint now) {
  return std::visit(
      [now](const auto& b) {
        if constexpr (std::is_same_v<std::decay_t<decltype(b)>, wire::ScheduleCommand>) {
          return from(b, now);
        } else {
          return from(b);
        }
      },
      body);
}

Status encode(const ReplyHead& head, const decltype(core::Reply::body)& body,
              wire::FrameBuffer& out) {
  wire::Reply reply;
  reply.header.frame.version = head.version;
  reply.header.boot_id = head.boot.bytes;
  reply.header.generation = head.generation.value;
  reply.header.sequence = head.sequence;
  reply.command = head.command;
  Entries entries;
  reply.body = std::visit(Overloaded{
                              [](const core::Done&) { return wire::ReplyBody(); },
                              [&](const Error& error) {
                                reply.header.code = static_cast<std::uint16_t>(error.code);
                                reply.message = error.message;
                                return wire::ReplyBody();
                              },
                              [&](const core::StepReply& r) { return from(r, entries); },
                              [&](const core::PlaceReply& r) { return from(r, entries); },
                              [&](const core::ScheduleReply& r) { return from(r, entries); },
                              [&](const store::Labels::Changes& r) { return from(r, entries); },
                              [](const auto& r) { return from(r); },
                          },
                          body);
  return wire::encode_reply(reply, out);
}

}  // namespace kvd::daemon
