#include "planner/baselines/admission_baselines.hpp"

#include <algorithm>
#include <string>

namespace kvd::planner {
namespace {

Status check_memory(const AdmissionSnapshot& snapshot, std::string_view policy) {
  if (snapshot.memory) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    std::string(policy) + " decides by memory: give free and total blocks");
}

Error too_large(std::size_t index) {
  return make_error(ErrorCode::kInvalidArgument,
                    "the prompt queue[" + std::to_string(index) +
                        "] is larger than memory: it can never enter; refuse it");
}

struct Holding {
  std::int64_t used;
  std::int64_t remaining;
};

// Precondition: sorted by tokens still to come, the most first.
std::int64_t peak(const std::vector<Holding>& requests) {
  std::int64_t used = 0;
  std::int64_t most = 0;
  std::int64_t count = 0;
  for (const auto& request : requests) {
    used += request.used;
    most = std::max(most, used + ++count * request.remaining);
  }
  return most;
}

void insert(std::vector<Holding>& requests, Holding one) {
  const auto shorter = [&](const Holding& other) { return other.remaining < one.remaining; };
  requests.insert(std::find_if(requests.begin(), requests.end(), shorter), one);
}

}  // namespace

Result<AdmissionDecision> WholeRequestPolicy::decide(const AdmissionSnapshot& snapshot) const {
  KVD_TRY(check(snapshot));
  KVD_TRY(check_memory(snapshot, name()));
  auto decision = begin_admission(snapshot, all_layers(snapshot));
  const auto& memory = *snapshot.memory;
  const Blocks kept(
      static_cast<std::int64_t>(kWatermark * static_cast<double>(memory.total.value)));
  Blocks free = memory.free - kept;
  for (std::size_t i = 0; i < snapshot.queue.size(); ++i) {
    const auto& prompt = snapshot.queue[i];
    const Blocks whole(pieces(prompt.tokens, memory.block_tokens) * snapshot.costs.layers);
    if (whole > memory.total - kept) return too_large(i);
    const Blocks needed = prompt.begun ? Blocks{0} : whole;
    if (needed > free || decision.admitted < i) continue;
    free -= needed;
    ++decision.admitted;
  }
  return decision;
}

Result<AdmissionDecision> PastFuturePolicy::decide(const AdmissionSnapshot& snapshot) const {
  KVD_TRY(check(snapshot));
  KVD_TRY(check_memory(snapshot, name()));
  auto decision = begin_admission(snapshot, all_layers(snapshot));
  const auto& memory = *snapshot.memory;
  const auto capacity =
      Tokens(memory.total.value / snapshot.costs.layers * memory.block_tokens.value).value;
  std::vector<Holding> inside;
  for (const auto& request : snapshot.decoding) {
    insert(inside, {request.prompt.value + request.n_past, request.n_future});
  }
  for (std::size_t i = 0; i < snapshot.queue.size(); ++i) {
    const auto& prompt = snapshot.queue[i];
    if (prompt.tokens.value + prompt.output >= capacity) return too_large(i);
    if (decision.admitted < i) continue;
    insert(inside, {prompt.tokens.value, prompt.output});
    if (peak(inside) < capacity || prompt.begun) ++decision.admitted;
  }
  return decision;
}

}  // namespace kvd::planner
