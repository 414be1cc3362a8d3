#include "planner/policy/admission/layerkv.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "planner/policy/admission/admission_guards.hpp"

namespace kvd::planner {
namespace {

// The fewest blocks that must stay free at any stage.
Blocks reserve(const AdmissionMemory& memory) {
  return Blocks(
      static_cast<std::int64_t>(memory.threshold * static_cast<double>(memory.total.value)));
}

Blocks all_held(const AdmissionSnapshot& snapshot) {
  Blocks held;
  for (const auto& request : snapshot.decoding) {
    const std::int64_t layers = request.retained_layers.value_or(snapshot.costs.layers);
    held += blocks_per_layer(request, snapshot.memory->block_tokens) * layers;
  }
  return held;
}

// Room for the layers that prompts retain while they prefill.
class Room {
 public:
  explicit Room(const AdmissionSnapshot& snapshot) : memory_(snapshot.memory) {
    if (!memory_) return;
    forecast_ = forecast_blocks(snapshot);
    const Blocks least = *std::min_element(forecast_.begin(), forecast_.end());
    // The most that the second stage can free comes on top, at whichever stage it is needed.
    free_ = std::min(memory_->free, least) - reserve(*memory_) + all_held(snapshot);
  }
  [[nodiscard]] bool take(const QueuedPrompt& prompt, std::int32_t retained) {
    if (!memory_ || prompt.begun) return true;
    const Blocks needed = needs(prompt, retained);
    if (needed > free_) return false;
    free_ -= needed;
    taken_ += needed;
    return true;
  }
  // A layer is in HBM while it is computed, whether or not it is retained.
  [[nodiscard]] Blocks needs(const QueuedPrompt& prompt, std::int32_t retained) const {
    return Blocks(pieces(prompt.tokens, memory_->block_tokens)) * std::max(1, retained);
  }
  // Blocks free by stage, less what was taken.
  [[nodiscard]] std::vector<Blocks> forecast() && {
    for (Blocks& free : forecast_) free -= taken_;
    return std::move(forecast_);
  }

 private:
  const std::optional<AdmissionMemory>& memory_;
  std::vector<Blocks> forecast_;  // before anything is taken
  Blocks free_;
  Blocks taken_;
};

Status check_sizes(const AdmissionSnapshot& snapshot, const Room& room,
                   const std::vector<std::int32_t>& retained) {
  if (!snapshot.memory) return {};
  for (std::size_t i = 0; i < snapshot.queue.size(); ++i) {
    const Blocks most = snapshot.memory->total - reserve(*snapshot.memory);
    if (room.needs(snapshot.queue[i], retained[i]) <= most) continue;
    return make_error(ErrorCode::kInvalidArgument,
                      "the layers that the prompt queue[" + std::to_string(i) +
                          "] has to retain are larger than memory: it can never enter; refuse it");
  }
  return {};
}

std::vector<std::int32_t> retained_of(const AdmissionSnapshot& snapshot) {
  std::vector<std::int32_t> retained;
  retained.reserve(snapshot.queue.size());
  for (const auto& prompt : snapshot.queue) {
    retained.push_back(snapshot.costs.retained_layers(prompt.tokens));
  }
  return retained;
}

}  // namespace

std::optional<Seconds> LayerKvPolicy::least_allowance(const AdmissionSnapshot& snapshot) const {
  std::optional<Seconds> least;
  for (const auto& request : snapshot.decoding) {
    const Seconds allowance = request.allowance();
    if (!counts(allowance)) continue;
    least = least ? std::min(*least, allowance) : allowance;
  }
  return least;
}

Result<AdmissionDecision> LayerKvPolicy::decide(const AdmissionSnapshot& snapshot) const {
  KVD_TRY(check(snapshot));
  auto retained = retained_of(snapshot);
  Room room(snapshot);
  KVD_TRY(check_sizes(snapshot, room, retained));
  auto decision = begin_admission(snapshot, std::move(retained));
  decision.allow_prefill = least_allowance(snapshot);
  StepGuardCount guard(snapshot);
  Seconds sum{0};
  for (std::size_t i = 0; i < snapshot.queue.size(); ++i) {
    const auto& prompt = snapshot.queue[i];
    sum += decision.prefill[i] - snapshot.costs.prefill(prompt.done);
    const bool in_time = prompt.begun || !decision.allow_prefill || sum < *decision.allow_prefill ||
                         sum <= guard.rescue();
    if (!in_time || !room.take(prompt, decision.retained_layers[i]) || !guard.admit(prompt)) break;
    ++decision.admitted;
  }
  decision.chunk = guard.chunk(decision.admitted);
  if (!snapshot.memory) return decision;
  decision.forecast = std::move(room).forecast();
  const Blocks least = *std::min_element(decision.forecast.begin(), decision.forecast.end());
  decision.offload_layers = second_stage(snapshot, reserve(*snapshot.memory) - least);
  return decision;
}

}  // namespace kvd::planner
