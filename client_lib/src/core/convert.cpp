#include "client_lib/src/core/convert.hpp"

#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>

#include "ipc/digest/fingerprint.hpp"

namespace kvd::client {

static_assert(static_cast<int>(kvd_client::ErrorCode::kDraining) ==
              static_cast<int>(ErrorCode::kDraining));
static_assert(static_cast<int>(kvd_client::ErrorCode::kPeerGone) ==
              static_cast<int>(ErrorCode::kPeerGone));
static_assert(static_cast<int>(kvd_client::HoldReason::kDrained) ==
              static_cast<int>(wire::HoldReason::kDrained));
static_assert(kvd_client::kHostMemory == wire::slab_kind_bit(wire::SlabKind::kHostMemfd) &&
              kvd_client::kCudaMemory == wire::slab_kind_bit(wire::SlabKind::kCudaVmm) &&
              static_cast<int>(kvd_client::MemoryKind::kCuda) ==
                  static_cast<int>(wire::SlabKind::kCudaVmm));
static_assert(static_cast<int>(kvd_client::RotateDirection::kIn) ==
              static_cast<int>(wire::RotateDirection::kIn));

wire::ModelShape to_wire(const kvd_client::ModelShape& shape) {
  return {shape.layers, shape.layers_per_block, shape.block_tokens, 0,
          shape.bytes_per_token_per_layer};
}

wire::SubmitBody to_wire(const kvd_client::Request& request) {
  return {request.id, request.prompt_tokens, request.max_new_tokens, request.ttft_slo.count(),
          request.tbt_slo.count()};
}

std::vector<wire::StepReport> to_wire(std::span<const kvd_client::StepReport> reports) {
  std::vector<wire::StepReport> entries;
  entries.reserve(reports.size());
  for (const auto& report : reports) {
    const std::uint32_t flags = report.finished ? wire::kReportFinished : 0u;
    entries.push_back({report.request, report.tokens, flags, 0});
  }
  return entries;
}

std::vector<wire::RequestGap> to_wire(std::span<const kvd_client::RequestGap> gaps) {
  std::vector<wire::RequestGap> entries;
  entries.reserve(gaps.size());
  for (const auto& gap : gaps) entries.push_back({gap.id, gap.gap_ns});
  return entries;
}

std::vector<wire::SpaceNeed> to_wire(std::span<const kvd_client::Need> needs) {
  std::vector<wire::SpaceNeed> entries;
  entries.reserve(needs.size());
  for (const auto& need : needs) {
    entries.push_back(
        {need.bytes, need.least, need.age_ns, need.ttft_ns, need.slo_class, need.begun ? 1u : 0u});
  }
  return entries;
}

// The two structs are equal field by field, so hundreds of them are copied as they are.
std::vector<wire::ScheduleRequest> to_wire(std::span<const kvd_client::ScheduleRequest> requests) {
  using Public = kvd_client::ScheduleRequest;
  using Wire = wire::ScheduleRequest;
  static_assert(sizeof(Public) == sizeof(Wire) && std::is_trivially_copyable_v<Public>);
  static_assert(offsetof(Public, state) == offsetof(Wire, state) &&
                offsetof(Public, computed_tokens) == offsetof(Wire, computed_tokens) &&
                offsetof(Public, max_new_tokens) == offsetof(Wire, max_new_tokens) &&
                offsetof(Public, blocks) == offsetof(Wire, blocks) &&
                offsetof(Public, slo_class) == offsetof(Wire, slo_class) &&
                offsetof(Public, age_ns) == offsetof(Wire, age_ns) &&
                offsetof(Public, tbt_ns) == offsetof(Wire, tbt_ns));
  static_assert(static_cast<int>(kvd_client::ScheduleState::kRunning) ==
                static_cast<int>(wire::ScheduleState::kRunning));
  static_assert(kvd_client::kMostScheduled == wire::kMaxScheduleRequests);
  static_assert(kvd_client::kRecomputed == wire::kRecomputed);
  std::vector<Wire> out(requests.size());
  if (!requests.empty())
    std::memcpy(static_cast<void*>(out.data()), requests.data(), requests.size_bytes());
  return out;
}

wire::ScheduleBody to_wire(const kvd_client::ScheduleInput& input) {
  return {input.free_blocks,       input.total_blocks,
          input.block_bytes,       input.last_step_ns,
          input.block_tokens,      input.last_step_prefill_tokens,
          input.last_step_decodes, input.max_batched_tokens,
          input.max_running,       0};
}

wire::TargetBody target_of(RequestId request) {
  return {request.value, static_cast<std::uint32_t>(wire::TargetKind::kRequest), 0};
}

wire::TargetBody target_of(RegionId region) {
  return {region.value, static_cast<std::uint32_t>(wire::TargetKind::kRegion), 0};
}

wire::TargetBody space_target(RegionId space) {
  return {space.value, static_cast<std::uint32_t>(wire::TargetKind::kSpace), 0};
}

wire::TargetBody orphaned_target(Bytes bytes) {
  return {static_cast<std::uint64_t>(bytes.value),
          static_cast<std::uint32_t>(wire::TargetKind::kOrphaned), 0};
}

kvd_client::SessionInfo to_public(const wire::Welcome& welcome) {
  kvd_client::SessionInfo info;
  info.engine = welcome.engine_id;
  info.generation = welcome.generation;
  info.shape = {welcome.shape.layers, welcome.shape.layers_per_block, welcome.shape.block_tokens,
                welcome.shape.bytes_per_token_per_layer};
  info.layer_groups = welcome.layer_groups;
  info.block_bytes = welcome.slot_bytes;
  info.slab_bytes = welcome.slab_bytes;
  info.memory = static_cast<kvd_client::MemoryKind>(welcome.slab_kind);
  info.device_uuid = welcome.device_uuid;
  info.boot_id = welcome.boot_id;
  return info;
}

kvd_client::StepResult to_public(const wire::StepReply& step) {
  kvd_client::StepResult result;
  result.iteration = step.body.iteration;
  result.run.reserve(step.run.size());
  for (const wire::RunEntry entry : step.run) {
    result.run.push_back({entry.request, entry.tokens_present, entry.ticket, entry.tokens,
                          entry.distance, entry.row, (entry.flags & wire::kRunPrefill) != 0,
                          (entry.flags & wire::kRunSwappedIn) != 0,
                          (entry.flags & wire::kRunStreamed) != 0});
  }
  result.hold.reserve(step.hold.size());
  for (const wire::HoldEntry entry : step.hold) {
    result.hold.push_back({entry.request, static_cast<kvd_client::HoldReason>(entry.reason)});
  }
  return result;
}

kvd_client::Placement to_public(const wire::PlaceReply& plan) {
  kvd_client::Placement placement;
  placement.budget_blocks = plan.body.budget_blocks;
  placement.entries.reserve(plan.entries.size());
  for (const wire::PlaceEntry entry : plan.entries) {
    placement.entries.push_back({entry.request, entry.resident_blocks, entry.distance});
  }
  return placement;
}

kvd_client::Stats to_public(const wire::StatsReplyBody& stats) {
  return {stats.region_bytes,     stats.hbm_bytes,        stats.dram_bytes,
          stats.requests_waiting, stats.requests_running, stats.requests_rotary,
          stats.rotations_out,    stats.rotations_in};
}

std::array<std::uint8_t, 32> fingerprint_of(const std::string& model,
                                            const wire::ModelShape& shape) {
  digest::BlockFacts facts;
  facts.model = model;
  facts.layers = Layers(shape.layers);
  facts.block_tokens = Tokens(shape.block_tokens);
  return digest::fingerprint(facts).digest.bytes;
}

kvd_client::CacheChanges to_public(const wire::CacheChangesReply& reply) {
  const wire::CacheCursor& next = reply.body.next;
  kvd_client::CacheChanges changes{{next.life, next.start, next.position},
                                   (reply.body.flags & wire::kChangesOver) != 0,
                                   (reply.body.flags & wire::kChangesMore) != 0,
                                   {}};
  auto tokens = reply.tokens.begin();
  for (const wire::CacheChange change : reply.changes) {
    kvd_client::CacheChange& each = changes.all.emplace_back();
    each.digest = change.digest;
    each.parent = change.parent;
    each.lora = change.lora.data();
    each.in_dram = (change.tiers & wire::kInDram) != 0;
    each.on_disk = (change.tiers & wire::kOnDisk) != 0;
    each.in_hbm = (change.tiers & wire::kInHbm) != 0;
    for (std::uint32_t i = 0; i < change.tokens; ++i, ++tokens) each.tokens.push_back(*tokens);
  }
  return changes;
}

kvd_client::ScheduleResult to_public(const wire::ScheduleReply& answer) {
  return {{answer.preempt.begin(), answer.preempt.end()},
          {answer.admit.begin(), answer.admit.end()},
          answer.body.prefill_tokens};
}

kvd_client::Error public_error(const Error& error) {
  return {static_cast<kvd_client::ErrorCode>(error.code), error.message};
}

kvd_client::Status public_result(const Status& status) {
  if (!status.ok()) return public_error(status.error());
  return std::monostate();
}

Error wrong_reply() {
  return make_error(ErrorCode::kInternal, "the daemon's reply does not belong to the command");
}

Error invalid(std::string message) {
  return make_error(ErrorCode::kInvalidArgument, std::move(message));
}

Result<std::uint64_t> value_of(const Result<wire::Reply>& reply) {
  return answer_of<wire::ValueReplyBody>(
      reply, [](const wire::ValueReplyBody& body) { return body.value; });
}

}  // namespace kvd::client
