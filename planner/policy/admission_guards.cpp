#include "planner/policy/admission_guards.hpp"

#include <algorithm>

namespace kvd::planner {
namespace {

std::int32_t retained(const DecodingRequest& request, const PrefillCosts& costs) {
  return request.retained_layers.value_or(costs.layers);
}

}  // namespace

Seconds mean_prefill(const PrefillCosts& costs, Tokens prompt, std::int64_t output) {
  return costs.prefill(prompt) / static_cast<double>(std::max<std::int64_t>(1, output));
}

StepGuardCount::StepGuardCount(const AdmissionSnapshot& snapshot)
    : snapshot_(snapshot), empty_(snapshot.decoding.empty()) {
  if (!snapshot.guard) return;
  step_ = snapshot.guard->step;
  for (const auto& request : snapshot.decoding) {
    step_ += mean_prefill(snapshot.costs, request.prompt, request.n_past + request.n_future);
  }
}

bool StepGuardCount::admit(const QueuedPrompt& prompt) {
  if (!snapshot_.guard) return true;
  const auto& guard = *snapshot_.guard;
  const Seconds with =
      step_ + guard.per_request + mean_prefill(snapshot_.costs, prompt.tokens, prompt.output);
  if (!prompt.begun && !empty_ && with > kStepShare * guard.tbt_slo) return false;
  step_ = with;
  empty_ = false;
  return true;
}

void keep_guard(const AdmissionSnapshot& snapshot, AdmissionDecision& decision) {
  StepGuardCount guard(snapshot);
  std::size_t admitted = 0;
  while (admitted < decision.admitted && guard.admit(snapshot.queue[admitted])) ++admitted;
  decision.admitted = admitted;
  decision.chunk = prefill_chunk(snapshot, admitted);
}

std::optional<Tokens> prefill_chunk(const AdmissionSnapshot& snapshot, std::size_t admitted) {
  if (!snapshot.guard || snapshot.decoding.empty()) return std::nullopt;
  std::int64_t least = snapshot.decoding.front().deposit;
  for (const auto& request : snapshot.decoding) least = std::min(least, request.deposit);
  // With d tokens saved the next one is needed d intervals from now; without any, in one.
  const auto intervals = static_cast<double>(std::max<std::int64_t>(1, least));
  Seconds left = kStepShare * intervals * snapshot.guard->tbt_slo - snapshot.guard->step;
  Tokens chunk;
  for (std::size_t i = 0; i < admitted; ++i) {
    const auto& prompt = snapshot.queue[i];
    const Tokens remaining = prompt.tokens - prompt.done;
    const Tokens part = snapshot.costs.tokens_within(left, prompt.done, remaining);
    chunk += part;
    left -= snapshot.costs.prefill_part(prompt.done, part);
    if (part < remaining) break;
  }
  return admitted > 0 ? std::max(chunk, kLeastChunk) : chunk;
}

Blocks blocks_per_layer(const DecodingRequest& request, Tokens block_tokens) {
  return Blocks(pieces(request.prompt + Tokens(request.n_past), block_tokens));
}

// A request takes a block of each layer at every stage before its last, and gives all back there.
std::vector<Blocks> forecast_blocks(const AdmissionSnapshot& snapshot) {
  const auto& memory = *snapshot.memory;
  const auto stages = static_cast<std::size_t>(memory.stages);
  std::vector<Blocks> freed(stages + 1), stops(stages + 1);
  Blocks growing;  // at a stage
  for (const auto& request : snapshot.decoding) {
    const std::int64_t ends = pieces(Tokens(request.n_future), memory.block_tokens);
    if (ends < 1) continue;
    const Blocks layers(retained(request, snapshot.costs));
    growing += layers;
    if (ends > memory.stages) continue;
    const auto held = blocks_per_layer(request, memory.block_tokens) + Blocks(ends - 1);
    freed[static_cast<std::size_t>(ends)] += held * layers.value;
    stops[static_cast<std::size_t>(ends)] += layers;
  }
  std::vector<Blocks> free = {memory.free};
  for (std::size_t stage = 1; stage <= stages; ++stage) {
    growing -= stops[stage];
    free.push_back(free.back() + freed[stage] - growing);
  }
  return free;
}

std::vector<std::int32_t> second_stage(const AdmissionSnapshot& snapshot, Blocks shortage) {
  const auto& decoding = snapshot.decoding;
  std::vector<std::int32_t> layers(decoding.size(), 0);
  for (const int part : {2, 1}) {
    for (std::size_t i = decoding.size(); i-- > 0 && shortage > Blocks{0};) {
      const std::int32_t all = retained(decoding[i], snapshot.costs);
      const std::int32_t more = (all + part - 1) / part - layers[i];
      layers[i] += more;
      shortage -= blocks_per_layer(decoding[i], snapshot.memory->block_tokens) * more;
    }
  }
  return layers;
}

}  // namespace kvd::planner
