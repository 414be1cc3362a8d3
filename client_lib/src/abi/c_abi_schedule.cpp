#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "client_lib/src/abi/c_handle.hpp"
#include "ipc/wire/messages.hpp"

namespace kc = kvd_client;
using namespace kvd::client::c;  // NOLINT(google-build-using-namespace): this file is C outside

namespace {

static_assert(KVD_SCHED_MAX_REQUESTS == kc::kMostScheduled);
static_assert(KVD_SCHED_RECOMPUTED == kc::kRecomputed);
static_assert(sizeof(kvd_sched_request) == sizeof(kc::ScheduleRequest) &&
              offsetof(kvd_sched_request, state) == offsetof(kc::ScheduleRequest, state) &&
              offsetof(kvd_sched_request, blocks) == offsetof(kc::ScheduleRequest, blocks) &&
              offsetof(kvd_sched_request, slo_class) == offsetof(kc::ScheduleRequest, slo_class) &&
              offsetof(kvd_sched_request, age_ns) == offsetof(kc::ScheduleRequest, age_ns) &&
              offsetof(kvd_sched_request, tbt_ns) == offsetof(kc::ScheduleRequest, tbt_ns));
static_assert(static_cast<std::uint32_t>(kc::ScheduleState::kWaiting) == KVD_SCHED_WAITING &&
              static_cast<std::uint32_t>(kc::ScheduleState::kParked) == KVD_SCHED_PARKED &&
              static_cast<std::uint32_t>(kc::ScheduleState::kRunning) == KVD_SCHED_RUNNING);

std::vector<kc::ScheduleRequest> requests_of(const kvd_sched_input& input) {
  std::vector<kc::ScheduleRequest> requests(input.count);
  if (input.count != 0) {
    std::memcpy(static_cast<void*>(requests.data()), input.requests,
                input.count * sizeof(kc::ScheduleRequest));
  }
  return requests;
}

}  // namespace

kvd_status kvd_schedule(kvd_handle* handle, const kvd_sched_input* input, uint64_t timeout_ns,
                        kvd_sched_result* result) {
  kvd_sched_input in{};
  kvd_sched_result out{};
  if (handle == nullptr) return invalid(kNoHandle);
  if (!read_struct(input, in) || !read_struct(result, out)) return invalid(kNoStruct);
  out.preempt_count = out.admit_count = 0;
  out.prefill_tokens = KVD_SCHED_ANY_TOKENS;
  write_struct(out, result);
  if (in.count > KVD_SCHED_MAX_REQUESTS) {
    return invalid("more than 2048 requests: leave out those at the end of the queue");
  }
  if (in.requests == nullptr && in.count != 0) return invalid("requests is NULL");
  if (in.count != 0 && (out.preempt == nullptr || out.admit == nullptr)) {
    return invalid("an array of the result is NULL");
  }
  if (out.preempt_capacity < in.count || out.admit_capacity < in.count) {
    return invalid("the arrays of the result need room for as many ids as there are requests");
  }
  const auto requests = requests_of(in);
  const auto answer =
      handle->client.schedule({in.free_blocks, in.total_blocks, in.block_bytes, in.last_step_ns,
                               in.block_tokens, in.last_step_prefill_tokens, in.last_step_decodes,
                               in.max_batched_tokens, in.max_running, requests},
                              duration(timeout_ns));
  if (!answer.ok()) return fail(answer.error());
  if (answer->preempt.size() > in.count || answer->admit.size() > in.count) {
    return fail({kc::ErrorCode::kInternal, "the daemon named more requests than it was told"});
  }
  std::copy(answer->preempt.begin(), answer->preempt.end(), out.preempt);
  std::copy(answer->admit.begin(), answer->admit.end(), out.admit);
  out.preempt_count = answer->preempt.size();
  out.admit_count = answer->admit.size();
  out.prefill_tokens = answer->prefill_tokens;
  return write_struct(out, result);
}

kvd_status kvd_set_gaps(kvd_handle* handle, const kvd_request_gap* gaps, size_t count,
                        uint64_t timeout_ns) {
  if (handle == nullptr) return invalid(kNoHandle);
  if (gaps == nullptr && count != 0) return invalid("gaps is NULL");
  if (count > kvd::wire::kMaxRequestsPerStep) {
    return invalid("more than 4096 gaps: tell them in several calls");
  }
  std::vector<kc::RequestGap> named;
  named.reserve(count);
  for (const kvd_request_gap& gap : std::span(gaps, count)) named.push_back({gap.id, gap.gap_ns});
  return done(handle->client.set_gaps(named, duration(timeout_ns)));
}

uint32_t kvd_slo_class(const char* name) {
  return name == nullptr ? 0 : kc::Client::slo_class_number(name);
}
