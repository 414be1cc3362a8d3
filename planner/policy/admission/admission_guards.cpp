#include "planner/policy/admission/admission_guards.hpp"

#include <algorithm>
#include <map>

namespace kvd::planner {
namespace {

/// The loosest S_B of the requests that decode.
Seconds loosest_goal(const AdmissionSnapshot& snapshot) {
  Seconds loosest = snapshot.guard->tbt_slo;
  for (const auto& request : snapshot.decoding) {
    loosest = std::max(loosest, request.tbt_slo.value_or(snapshot.guard->tbt_slo));
  }
  return loosest;
}

/// Requests that decode with one S_B. A map of these has the tightest first.
struct GoalClass {
  std::int64_t requests = 0;
  Seconds lasts{0};  ///< how long the longest of their answers takes
  Seconds dry{0};    ///< when the first of them runs out of tokens
};

/// Leaves out requests that no chunk saves.
std::map<Seconds, GoalClass> classes_of(const AdmissionSnapshot& snapshot) {
  const auto& guard = *snapshot.guard;
  const Seconds alone = guard.step - guard.per_request * double(snapshot.decoding.size());
  std::map<Seconds, GoalClass> classes;
  for (const auto& request : snapshot.decoding) {
    const Seconds slo = request.tbt_slo.value_or(guard.tbt_slo);
    if (alone > kStepShare * slo) continue;
    // With d tokens saved the next one is needed d intervals from now; with none saved, in one
    // interval.
    const Seconds dry = slo * double(std::max<std::int64_t>(1, request.deposit));
    GoalClass& its = classes[slo];
    its.dry = its.requests == 0 ? dry : std::min(its.dry, dry);
    its.lasts = std::max(its.lasts, slo * double(request.n_past + request.n_future));
    ++its.requests;
  }
  return classes;
}

/// The prompt can wait until these answers have ended, and others that came meanwhile.
bool can_wait(const QueuedPrompt& prompt, Seconds lasts) {
  return prompt.spare && *prompt.spare > lasts;
}

/// Prefill time of one step that ends before any decoding request runs dry. A few with a tight goal
/// are given up where they would keep many more prompts from being in time.
/// Precondition: there is a class.
Seconds guarded_pace(const AdmissionSnapshot& snapshot, std::map<Seconds, GoalClass> classes) {
  std::int64_t total = 0;
  std::optional<Seconds> looser;
  for (auto at = classes.rbegin(); at != classes.rend(); ++at) {
    total += at->second.requests;
    at->second.dry = looser ? std::min(at->second.dry, *looser) : at->second.dry;
    looser = at->second.dry;
  }
  const Seconds strict = classes.begin()->second.lasts;
  const auto pressing = std::count_if(
      snapshot.queue.begin(), snapshot.queue.end(),
      [&](const QueuedPrompt& prompt) { return !prompt.begun && !can_wait(prompt, strict); });
  std::optional<Seconds> pace;
  double worth = 0;  // prompts prefilled a second of steps, times the share that is still in time
  std::int64_t given_up = 0;
  for (const auto& [slo, its] : classes) {
    if (given_up > pressing) break;
    const Seconds step_end = kStepShare * its.dry;
    Seconds budget = step_end - snapshot.guard->step;
    // Where other engines take turns their steps grow as much, and the goal is for all of them
    // together.
    if (pace) budget = budget / double(snapshot.guard->turns);
    const double share = double(total - given_up) / double(total);
    const double value = std::max(0.0, budget / step_end) * share;
    if (!pace || value > kGivesUpFor * worth) {
      pace = budget;
      worth = value;
    }
    given_up += its.requests;
  }
  return *pace;
}

/// For how long all decoding requests can do without a token and still meet the goal of their mean.
/// No pause is short enough for those that miss it without one, so these do not count.
std::optional<Seconds> pause_allowed(const AdmissionSnapshot& snapshot) {
  std::optional<Seconds> least;
  for (const auto& request : snapshot.decoding) {
    const Seconds one = request.allowance(request.n_sure.value_or(request.n_future));
    if (one >= Seconds{0}) least = least ? std::min(*least, one) : one;
  }
  return least;
}

// Prefill time of one step that keeps prompts from being late where prefill at the pace would not:
// as much as they and the prompts before them take. It is given only where it saves all that are
// not late yet, all decoding requests can pause so long and still meet the goal of their mean (eq.
// 1 of LayerKV), and steps with all of them take no longer than `most`. Source: kvd (MODEL.md "Who
// may prefill").
Seconds rescue_time(const AdmissionSnapshot& snapshot, Seconds pace, Seconds most) {
  const Seconds step = snapshot.guard->step;
  const auto allowance = pause_allowed(snapshot);
  Seconds work{0}, saves{0}, later = step;
  for (const auto& prompt : snapshot.queue) {
    work += snapshot.costs.prefill(prompt.tokens) - snapshot.costs.prefill(prompt.done);
    later += snapshot.guard->per_request;
    if (later > most || (allowance && step + work > *allowance)) return Seconds{0};
    if (!prompt.left) continue;
    if (step + work > *prompt.left) return Seconds{0};
    const bool late = pace <= Seconds{0} || work * (1 + step / pace) > *prompt.left;
    if (late) saves = work;
  }
  return saves;
}

std::int32_t retained(const DecodingRequest& request, const PrefillCosts& costs) {
  return request.retained_layers.value_or(costs.layers);
}

}  // namespace

StepGuardCount::StepGuardCount(const AdmissionSnapshot& snapshot) : snapshot_(snapshot) {
  if (!snapshot.guard) return;
  const auto classes = classes_of(snapshot);
  if (classes.empty()) return;
  const auto& guard = *snapshot.guard;
  const auto& [tightest, strict] = *classes.begin();
  const Seconds most = kStepShare * loosest_goal(snapshot);
  const Seconds pace = guarded_pace(snapshot, classes);
  rescue_ = rescue_time(snapshot, pace, most);
  budget_ = std::max(pace, rescue_);
  strict_ = strict.lasts;
  too_long_ = guard.step + guard.per_request > most;
  too_long_for_strict_ = guard.step + guard.per_request > kStepShare * tightest;
}

bool StepGuardCount::admit(const QueuedPrompt& prompt) {
  if (!budget_) return true;
  const bool full = prefills_ && backlog_ >= kStepsAhead * *budget_;
  const bool too_long = can_wait(prompt, strict_) ? too_long_for_strict_ : too_long_;
  if (!prompt.begun && (too_long || full)) return false;
  backlog_ += snapshot_.costs.prefill(prompt.tokens) - snapshot_.costs.prefill(prompt.done);
  prefills_ = true;
  return true;
}

std::optional<Tokens> StepGuardCount::chunk(std::size_t admitted) const {
  if (!budget_) return std::nullopt;
  Seconds left = *budget_;
  Tokens chunk;
  for (std::size_t i = 0; i < admitted; ++i) {
    const auto& prompt = snapshot_.queue[i];
    const Tokens remaining = prompt.tokens - prompt.done;
    const Tokens part = snapshot_.costs.tokens_within(left, prompt.done, remaining);
    chunk += part;
    left -= snapshot_.costs.prefill_part(prompt.done, part);
    if (part < remaining) break;
  }
  return admitted > 0 ? std::max(chunk, kLeastChunk) : chunk;
}

Blocks blocks_per_layer(const DecodingRequest& request, Tokens block_tokens) {
  return Blocks(pieces(request.prompt + Tokens(request.n_past), block_tokens));
}

// A request takes a block of each layer at every stage before its last, and gives all of them back
// there.
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
