#include "planner/policy/admission/admission.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace kvd::planner {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 40;

Error invalid(std::string why) { return make_error(ErrorCode::kInvalidArgument, std::move(why)); }

bool not_negative(double value) { return std::isfinite(value) && value >= 0; }
bool within(std::int64_t value, std::int64_t least) { return value >= least && value <= kMost; }

Status check(const DecodingRequest& request, const PrefillCosts& costs) {
  if (!not_negative(request.tpot_slo.count()) || !not_negative(request.t_past.count()) ||
      !not_negative(request.tpot.count())) {
    return invalid("times of a decoding request must be finite and not negative");
  }
  if (!within(request.n_past, 0)) return invalid("n_past must be within 0..2^40");
  if (!within(request.n_future, 1)) {
    return invalid("n_future must be at least 1 and at most 2^40");
  }
  if (!within(request.prompt.value, 0) || !within(request.deposit, 0)) {
    return invalid("prompt_tokens and deposit must be within 0..2^40");
  }
  const auto retained = request.retained_layers.value_or(0);
  if (retained < 0 || retained > costs.layers) {
    return invalid("retained_layers must be within 0..layers");
  }
  return {};
}

Status check(const QueuedPrompt& prompt, const PrefillCosts& costs) {
  if (!within(prompt.tokens.value, 1)) {
    return invalid("tokens of a queued request must be at least 1 and at most 2^40");
  }
  if (prompt.done < Tokens{0} || prompt.done >= prompt.tokens) {
    return invalid("done_tokens must be at least 0 and below tokens");
  }
  if (!within(prompt.output, 1)) return invalid("output_tokens must be within 1..2^40");
  if (!std::isfinite(costs.prefill(prompt.tokens).count()) ||
      !std::isfinite(costs.offload(prompt.tokens, 0).count())) {
    return invalid("prefill or offload time leaves the range of numbers; check rates and sizes");
  }
  return {};
}

Status check(const AdmissionMemory& memory) {
  if (!within(memory.total.value, 0) || memory.free > memory.total || memory.free.value < -kMost) {
    return invalid("memory needs total_blocks within 0..2^40 and free_blocks up to that");
  }
  if (memory.block_tokens < Tokens{1} || memory.block_tokens > Tokens{65536}) {
    return invalid("block_tokens must be within 1..65536");
  }
  if (memory.stages < 0 || memory.stages > 1024) return invalid("stages must be within 0..1024");
  if (!(memory.threshold >= 0 && memory.threshold <= 1)) {
    return invalid("threshold must be within 0..1");
  }
  return {};
}

Status check(const StepGuard& guard) {
  if (!not_negative(guard.step.count()) || !not_negative(guard.per_request.count()) ||
      !not_negative(guard.tbt_slo.count())) {
    return invalid("times of the step guard must be finite and not negative");
  }
  if (guard.turns < 1) {
    return invalid("at least one engine takes turns: the guard's own");
  }
  return {};
}

}  // namespace

Seconds DecodingRequest::allowance(std::int64_t to_come) const {
  const Seconds due = tpot_slo * static_cast<double>(n_past + to_come);
  return due - (t_past + tpot * static_cast<double>(to_come));
}

Status check(const AdmissionSnapshot& snapshot) {
  KVD_TRY(check(snapshot.costs));
  for (const auto& request : snapshot.decoding) KVD_TRY(check(request, snapshot.costs));
  for (const auto& prompt : snapshot.queue) KVD_TRY(check(prompt, snapshot.costs));
  if (snapshot.memory) KVD_TRY(check(*snapshot.memory));
  if (snapshot.guard) KVD_TRY(check(*snapshot.guard));
  return {};
}

AdmissionDecision begin_admission(const AdmissionSnapshot& snapshot,
                                  std::vector<std::int32_t> retained) {
  AdmissionDecision decision;
  decision.retained_layers = std::move(retained);
  decision.prefill.reserve(snapshot.queue.size());
  decision.offload.reserve(snapshot.queue.size());
  for (std::size_t i = 0; i < snapshot.queue.size(); ++i) {
    const auto tokens = snapshot.queue[i].tokens;
    decision.prefill.push_back(snapshot.costs.prefill(tokens));
    decision.offload.push_back(snapshot.costs.offload(tokens, decision.retained_layers[i]));
  }
  return decision;
}

std::vector<std::int32_t> all_layers(const AdmissionSnapshot& snapshot) {
  return std::vector<std::int32_t>(snapshot.queue.size(), snapshot.costs.layers);
}

}  // namespace kvd::planner
