#include "kvd/core/deciding/admission.hpp"

#include <algorithm>

namespace kvd::core {

namespace {

planner::Seconds seconds(double value) { return planner::Seconds(value); }

// What one more decoding request adds to a step: the mean cost of their tokens.
planner::Seconds per_request(const Session& session) {
  std::int64_t decode = 0;
  double tokens = 0;
  for (const Request* r : session.inside) {
    if (!r->decodes()) continue;
    ++decode;
    tokens += static_cast<double>(r->progress.tokens.value);
  }
  if (decode == 0) return seconds(0);
  // One more costs no more than those that decode do on average, whatever the slope says.
  const double most = session.costs.decode_s;
  return seconds(std::min(session.costs.token_s * tokens, most) / static_cast<double>(decode));
}

}  // namespace

void Admission::admit(Session& session) {
  session.iterations.chunk.reset();
  std::size_t admitted = SIZE_MAX;
  std::vector<Request*> queue;
  const AdmissionInput input = admission_input(session, queue);
  if (const auto decision = context_.admission->decide(input.snapshot); decision.ok()) {
    admitted = decision->admitted;
    session.iterations.chunk = decision->chunk;
  }
  // While nobody decodes there is no pace that the head of the queue could disturb.
  if (input.decoding.empty()) admitted = std::max<std::size_t>(admitted, 1);
  // Where the policy cannot decide (for a prompt that it would never admit), memory alone decides.
  const bool rescues =
      context_.rotation->traits().serves_the_late && context_.tuning.rotation.overload == "ttft";
  Tokens rescued;
  for (std::size_t i = 0; i < queue.size(); ++i) {
    Request& r = *queue[i];
    const double patience = context_.tuning.rotation.beta_f * to_seconds(r.goal.slo.ttft);
    const bool urgent = rescues && to_seconds(context_.now - r.times.arrived) >= patience;
    const bool begun = r.prefills();  // the others have no memory yet
    if (urgent && begun) rescued += input.snapshot.queue[i].tokens - input.snapshot.queue[i].done;
    const bool held_back = i >= admitted && !urgent && r.waits();
    if (!held_back) r.lift(Verdict::kHeldBack);
    if (held_back && r.verdict == Verdict::kNone) r.verdict = Verdict::kHeldBack;
  }
  if (session.iterations.chunk)
    session.iterations.chunk = std::max(*session.iterations.chunk, rescued);
}

AdmissionInput Admission::admission_input(Session& session, std::vector<Request*>& queue) {
  AdmissionInput input;
  auto& snapshot = input.snapshot;
  snapshot.queue.reserve(session.active.size());
  snapshot.decoding.reserve(session.inside.size());
  input.queue.reserve(session.active.size());
  input.decoding.reserve(session.inside.size());
  queue.reserve(session.active.size());
  const Bytes token =
      session.shape.bytes_per_token_per_layer * std::int64_t{session.shape.layers_per_block};
  snapshot.costs =
      knowledge_.prefill_costs(session, session.groups(), static_cast<double>(token.value));
  Nanoseconds least_tbt = Nanoseconds::max();
  // Where layers stream, a step takes as long as the plan lets it, whoever takes part.
  const bool guarded = context_.rotation->traits().guards_steps && !session.streaming;
  std::optional<bool> long_steps;
  const auto enqueue = [&](Request& r) {
    const bool begun = !r.waits();
    if (!long_steps) long_steps = guarded && may_take_long_steps(session);
    const Nanoseconds left = r.times.arrived + r.goal.slo.ttft - context_.now;
    snapshot.queue.push_back(
        knowledge_.as_queued(r, begun, begun ? r.progress.planned : Tokens(0)));
    if (*long_steps && left > Nanoseconds(0)) snapshot.queue.back().left = planner::Seconds(left);
    input.queue.push_back(r.key);
    queue.push_back(&r);
    least_tbt = std::min(least_tbt, r.goal.slo.tbt);
  };
  std::vector<Request*> begun;
  requests_.each_inside_of(session.id, [&](Request& r) {
    if (r.prefills() && r.progress.planned < r.goal.prompt) begun.push_back(&r);
    if (!r.decodes() || !r.times.has_token || r.paused()) return;
    snapshot.decoding.push_back(decoding_request(session, r));
    input.decoding.push_back(r.key);
    least_tbt = std::min(least_tbt, r.goal.slo.tbt);
  });
  line_.sort(begun);
  for (Request* r : begun) enqueue(*r);
  for (Request* r : line_.in_line(session.info.domain)) {
    if (r->key.engine == session.id) enqueue(*r);
  }
  if (guarded && (!input.queue.empty() || !input.decoding.empty())) {
    snapshot.guard = planner::StepGuard{seconds(session.costs.decode_s), per_request(session),
                                        least_tbt, 1 + sharers(session)};
  }
  const Blocks total(needs_.most_hbm_slots(session));
  snapshot.memory =
      planner::AdmissionMemory{total, std::clamp(supply_blocks(session), Blocks(0), total),
                               Tokens(session.shape.block_tokens)};
  // A rotation policy that makes requests leave can give away all of HBM; a new request waits for
  // its blocks.
  if (context_.admission->traits().counts_evictable && context_.rotation->traits().evicts) {
    snapshot.memory->free = total;
  }
  // Where layers leave, memory is no bound for who may prefill.
  if (session.streaming || needs_.prefills_layerwise(session)) snapshot.memory.reset();
  return input;
}

planner::DecodingRequest Admission::decoding_request(const Session& session, Request& request) {
  planner::DecodingRequest seen =
      knowledge_.as_decoding(request, knowledge_.saved_up(request), session.costs.decode_s);
  seen.n_sure = knowledge_.guessed_to_come(request);
  return seen;
}

// A long step delays tokens that the policy does not see: those of other engines and of parked
// requests.
bool Admission::may_take_long_steps(const Session& session) {
  return sharers(session) == 0 && !parks(session) && holds_all(session);
}

// Counts the other engines that compute something there.
std::int64_t Admission::sharers(const Session& session) const {
  const auto shares = [&](const Session& other) {
    if (other.id == session.id || other.active.empty()) return false;
    const auto& devices = session.devices().all();
    return std::any_of(devices.begin(), devices.end(),
                       [&](DeviceId device) { return other.on(device); });
  };
  const auto& sessions = requests_.sessions();
  return std::count_if(sessions.begin(), sessions.end(),
                       [&](const auto& entry) { return shares(entry.second); });
}

// Some request that has begun to answer is out of HBM.
bool Admission::parks(const Session& session) {
  bool found = false;
  requests_.each_inside_of(session.id,
                           [&](const Request& r) { found |= r.times.has_token && !r.runs(); });
  return found;
}

// HBM has room for all that the engine's requests are likely to need, so that none will be parked.
bool Admission::holds_all(const Session& session) {
  std::int64_t lacks = 0;
  requests_.each_request_of(session.id, [&](const Request& r) {
    const Tokens all = r.goal.prompt + knowledge_.reserved_length(r);
    lacks += session.blocks_for(all) * session.groups() - r.hbm_slots();
  });
  return Blocks(lacks) <= supply_blocks(session);
}

// With several devices the scarcest one bounds how many blocks each can take.
Blocks Admission::supply_blocks(const Session& session) {
  const Bytes slot = session.shape.slot_bytes();
  if (!session.devices().several()) return Blocks(supply_.of(session.share()) / slot);
  std::int64_t a_group = INT64_MAX;
  for (const DeviceId device : session.devices().all()) {
    const Bytes there = supply_.of({session.info.domain, device});
    a_group = std::min(a_group, there / (slot * std::int64_t{session.groups_on(device)}));
  }
  return Blocks(a_group * session.groups());
}

}  // namespace kvd::core
