#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "client_lib/src/abi/c_handle.hpp"
#include "ipc/wire/messages.hpp"

namespace kc = kvd_client;
using namespace kvd::client::c;  // NOLINT(google-build-using-namespace): this file is C outside

namespace {

// Checked before the array is read: a wild count must not be followed, nor wrap to a small number
// of bytes.
constexpr std::uint64_t kMostEntries = kvd::wire::kMaxRequestsPerStep;
constexpr const char* kTooMany = "more than 4096 entries: split them over several calls";
static_assert(kMostEntries == 4096);

kvd_run_entry c_entry(const kc::RunEntry& entry) {
  const std::uint32_t flags = (entry.prefill ? KVD_RUN_PREFILL : 0u) |
                              (entry.swapped_in ? KVD_RUN_SWAPPED_IN : 0u) |
                              (entry.streamed ? KVD_RUN_STREAMED : 0u);
  return {entry.request, entry.tokens_present, entry.ticket, entry.tokens,
          flags,         entry.distance,       entry.row};
}

std::vector<kc::StepReport> reports_of(const kvd_step_input& input) {
  std::vector<kc::StepReport> reports;
  for (const kvd_step_report& report : std::span(input.reports, input.report_count)) {
    reports.push_back({report.request, report.tokens, (report.flags & KVD_REPORT_FINISHED) != 0});
  }
  return reports;
}

/// Longer than any prompt: a wild count must not be followed.
constexpr std::uint64_t kMostTokens = std::uint64_t{1} << 28;
constexpr const char* kTooManyTokens = "more than 2^28 tokens: split them over several calls";

kc::Content content_of(const kvd_request& request) {
  kc::Content content;
  if (request.tokens != nullptr && request.prompt_tokens <= kMostTokens) {
    content.tokens = {request.tokens, request.prompt_tokens};
  }
  if (request.adapter != nullptr) content.adapter = request.adapter;
  if (request.salt != nullptr) content.salt = request.salt;
  return content;
}

kvd_status keep_placement(kvd_handle& handle, const kc::Result<kc::Placement>& plan,
                          kvd_placement* placement) {
  if (!plan.ok()) return fail(plan.error());
  handle.placement.clear();
  for (const auto& entry : plan->entries) {
    handle.placement.push_back({entry.request, entry.resident_blocks, entry.distance, 0});
  }
  const kvd_placement out{sizeof(kvd_placement), plan->budget_blocks, handle.placement.data(),
                          handle.placement.size()};
  return write_struct(out, placement);
}

kvd_step_result keep_step(kvd_handle& handle, const kc::StepResult& step) {
  handle.run.clear();
  handle.hold.clear();
  for (const kc::RunEntry& entry : step.run) handle.run.push_back(c_entry(entry));
  for (const kc::HoldEntry& entry : step.hold) {
    handle.hold.push_back({entry.request, static_cast<std::uint32_t>(entry.reason), 0});
  }
  return {sizeof(kvd_step_result), step.iteration,     handle.run.data(),
          handle.run.size(),       handle.hold.data(), handle.hold.size()};
}

}  // namespace

kvd_status kvd_submit(kvd_handle* handle, const kvd_request* request, uint64_t timeout_ns) {
  kvd_request in{};
  if (handle == nullptr) return invalid(kNoHandle);
  if (!read_struct(request, in)) return invalid(kNoStruct);
  return done(
      handle->client.submit({in.id, in.prompt_tokens, in.max_new_tokens, duration(in.ttft_slo_ns),
                             duration(in.tbt_slo_ns), content_of(in), duration(in.gap_slo_ns)},
                            duration(timeout_ns)));
}

kvd_status kvd_append_tokens(kvd_handle* handle, uint64_t request, const uint32_t* tokens,
                             size_t count, uint64_t timeout_ns) {
  if (handle == nullptr) return invalid(kNoHandle);
  if (tokens == nullptr && count != 0) return invalid("tokens is NULL");
  if (count > kMostTokens) return invalid(kTooManyTokens);
  return done(
      handle->client.append_tokens(request, std::span(tokens, count), duration(timeout_ns)));
}

kvd_status kvd_name_blocks(kvd_handle* handle, uint64_t request, uint32_t first,
                           const uint8_t* digests, size_t count, uint64_t timeout_ns) {
  if (handle == nullptr) return invalid(kNoHandle);
  if (digests == nullptr && count != 0) return invalid("digests is NULL");
  if (count > kMostEntries) return invalid(kTooMany);
  std::vector<kc::Digest> copies(count);
  if (count != 0) std::memcpy(copies.data(), digests, count * sizeof(kc::Digest));
  return done(handle->client.name_blocks(request, first, copies, duration(timeout_ns)));
}

kvd_status kvd_step(kvd_handle* handle, const kvd_step_input* input, uint64_t timeout_ns,
                    kvd_step_result* result) {
  kvd_step_input in{};
  if (handle == nullptr) return invalid(kNoHandle);
  if (!read_struct(input, in) || !is_writable(result)) return invalid(kNoStruct);
  if (in.report_count > kMostEntries) return invalid(kTooMany);
  if (in.reports == nullptr && in.report_count != 0) return invalid("reports is NULL");
  const auto step = handle->client.step(reports_of(in), in.iteration_finished, in.iteration_running,
                                        duration(timeout_ns));
  if (!step.ok()) return fail(step.error());
  return write_struct(keep_step(*handle, *step), result);
}

kvd_status kvd_wait(kvd_handle* handle, uint64_t ticket, uint64_t timeout_ns) {
  if (handle == nullptr) return invalid(kNoHandle);
  return done(handle->client.wait(ticket, duration(timeout_ns)));
}

kvd_status kvd_wait_layer(kvd_handle* handle, uint64_t iteration, uint32_t group,
                          uint64_t timeout_ns) {
  if (handle == nullptr) return invalid(kNoHandle);
  return done(handle->client.wait_layer(iteration, group, duration(timeout_ns)));
}

kvd_status kvd_layer_done(kvd_handle* handle, uint64_t iteration, uint32_t group) {
  if (handle == nullptr) return invalid(kNoHandle);
  return done(handle->client.layer_done(iteration, group));
}

kvd_status kvd_wait_on_stream(kvd_handle* handle, uint64_t ticket, void* custream) {
  if (handle == nullptr) return invalid(kNoHandle);
  return done(handle->client.wait_on_stream(ticket, custream));
}

kvd_status kvd_wait_layer_on_stream(kvd_handle* handle, uint64_t iteration, uint32_t group,
                                    void* custream) {
  if (handle == nullptr) return invalid(kNoHandle);
  return done(handle->client.wait_layer_on_stream(iteration, group, custream));
}

kvd_status kvd_layer_done_on_stream(kvd_handle* handle, uint64_t iteration, uint32_t group,
                                    void* custream) {
  if (handle == nullptr) return invalid(kNoHandle);
  return done(handle->client.layer_done_on_stream(iteration, group, custream));
}

kvd_status kvd_confirm(kvd_handle* handle) {
  if (handle == nullptr) return invalid(kNoHandle);
  return done(handle->client.confirm());
}

kvd_status kvd_wait_for_room(kvd_handle* handle, uint64_t timeout_ns) {
  if (handle == nullptr) return invalid(kNoHandle);
  return done(handle->client.wait_for_room(duration(timeout_ns)));
}

kvd_status kvd_block_address(kvd_handle* handle, uint32_t row, uint32_t group, uint32_t block,
                             void** address) {
  if (handle == nullptr) return invalid(kNoHandle);
  if (address == nullptr) return invalid("address is NULL");
  const auto found = handle->client.block_address(row, group, block);
  if (!found.ok()) return fail(found.error());
  *address = *found;
  return KVD_OK;
}

kvd_status kvd_block_addresses(kvd_handle* handle, uint32_t row, uint32_t group, uint64_t count,
                               void** addresses) {
  if (handle == nullptr) return invalid(kNoHandle);
  if (addresses == nullptr && count != 0) return invalid("addresses is NULL");
  if (count > std::numeric_limits<std::uint32_t>::max())
    return invalid("no row has so many blocks");
  // Nothing is allocated for a wild count: the last block has to be there.
  if (count > 0) {
    const auto last =
        handle->client.block_address(row, group, static_cast<std::uint32_t>(count - 1));
    if (!last.ok()) return fail(last.error());
  }
  std::vector<std::byte*> found(count);
  const auto status = handle->client.block_addresses(row, group, found);
  if (!status.ok()) return fail(status.error());
  std::copy(found.begin(), found.end(), addresses);
  return KVD_OK;
}

kvd_status kvd_finish(kvd_handle* handle, uint64_t request, uint64_t timeout_ns) {
  if (handle == nullptr) return invalid(kNoHandle);
  return done(handle->client.finish(request, duration(timeout_ns)));
}

kvd_status kvd_abort(kvd_handle* handle, uint64_t request, uint64_t timeout_ns) {
  if (handle == nullptr) return invalid(kNoHandle);
  return done(handle->client.abort(request, duration(timeout_ns)));
}

kvd_status kvd_rotate(kvd_handle* handle, uint64_t request, kvd_direction direction,
                      uint64_t timeout_ns) {
  if (handle == nullptr) return invalid(kNoHandle);
  return done(handle->client.rotate(request, static_cast<kc::RotateDirection>(direction),
                                    duration(timeout_ns)));
}

kvd_status kvd_allocate_blocks(kvd_handle* handle, uint64_t request, uint64_t tokens,
                               uint64_t timeout_ns, uint32_t* blocks) {
  if (handle == nullptr) return invalid(kNoHandle);
  if (blocks == nullptr) return invalid("blocks is NULL");
  const auto granted = handle->client.allocate_blocks(request, tokens, duration(timeout_ns));
  if (!granted.ok()) return fail(granted.error());
  *blocks = *granted;
  return KVD_OK;
}

kvd_status kvd_place(kvd_handle* handle, const uint64_t* requests, uint64_t count,
                     uint64_t timeout_ns, kvd_placement* placement) {
  if (handle == nullptr) return invalid(kNoHandle);
  if (!is_writable(placement)) return invalid(kNoStruct);
  if (count > kMostEntries) return invalid(kTooMany);
  if (requests == nullptr && count != 0) return invalid("requests is NULL");
  return keep_placement(
      *handle, handle->client.place(std::span(requests, count), duration(timeout_ns)), placement);
}

kvd_status kvd_place_layers(kvd_handle* handle, const kvd_layers_input* input, uint64_t timeout_ns,
                            kvd_placement* placement) {
  kvd_layers_input in{};
  if (handle == nullptr) return invalid(kNoHandle);
  if (!read_struct(input, in) || !is_writable(placement)) return invalid(kNoStruct);
  if (in.count > kMostEntries) return invalid(kTooMany);
  if (in.requests == nullptr && in.count != 0) return invalid("requests is NULL");
  std::vector<kc::LayersInput::Request> requests;
  for (const kvd_layers_request& each : std::span(in.requests, in.count)) {
    requests.push_back({each.id, each.tokens});
  }
  return keep_placement(*handle,
                        handle->client.place_layers({in.capacity_blocks, in.block_bytes, in.step_ns,
                                                     in.layers, in.block_tokens, requests},
                                                    duration(timeout_ns)),
                        placement);
}

kvd_status kvd_get_stats(kvd_handle* handle, uint64_t timeout_ns, kvd_stats* stats) {
  if (handle == nullptr) return invalid(kNoHandle);
  if (!is_writable(stats)) return invalid(kNoStruct);
  const auto counted = handle->client.stats(duration(timeout_ns));
  if (!counted.ok()) return fail(counted.error());
  const kvd_stats out{
      sizeof(kvd_stats),        counted->region_bytes,     counted->hbm_bytes,
      counted->dram_bytes,      counted->requests_waiting, counted->requests_running,
      counted->requests_rotary, counted->rotations_out,    counted->rotations_in};
  return write_struct(out, stats);
}
