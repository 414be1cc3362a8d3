#include "kvd/core/deciding/engine_placed.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "ipc/vocabulary/slo_class.hpp"

namespace kvd::core {

namespace {

/// Stands for the bytes of a block where the engine does not say: all its blocks are alike.
constexpr Bytes kAnyBlock{1};

Bytes block_bytes(const Schedule& told) { return std::max(told.block_bytes, kAnyBlock); }

/// The first by arrival of the requests whose answer has begun and that compute again all that they
/// had; null: there is none.
const PlacedRequest* first_recomputed(std::span<PlacedRequest* const> requests) {
  const PlacedRequest* first = nullptr;
  for (const PlacedRequest* request : requests) {
    if (!request->waits() || !request->times.has_token) continue;
    if (first == nullptr || request->times.arrived < first->times.arrived) first = request;
  }
  return first;
}

/// Blocks of the requests that may not be preempted for others.
std::int64_t held_by_staying(const Schedule& told, std::span<PlacedRequest* const> requests) {
  std::int64_t blocks = 0;
  for (const PlacedRequest* request : requests) {
    if (request->stays) blocks += request->blocks;
  }
  return std::min(blocks, told.total_blocks);
}

/// The blocks that a running request takes in the next step, and those it takes later until its
/// prompt is computed.
std::pair<std::int64_t, std::int64_t> growth_of(const Schedule& told,
                                                const PlacedRequest& request) {
  const auto blocks = [&](Tokens tokens) { return pieces(tokens, told.block_tokens); };
  const Tokens has = request.progress.planned;
  Tokens chunk(1);
  if (request.prefills()) {
    chunk = std::max(chunk, request.to_compute());
    if (told.max_batched_tokens > Tokens(0)) chunk = std::min(chunk, told.max_batched_tokens);
  }
  const std::int64_t next = blocks(has + chunk);
  const std::int64_t all = blocks(request.goal.prompt + request.answer());
  return {next - blocks(has), std::max<std::int64_t>(0, all - next)};
}

/// What the record of `requests` requests takes.
Bytes bytes_of_known(std::size_t requests) {
  return Bytes(static_cast<std::int64_t>(requests * sizeof(PlacedRequest)));
}

}  // namespace

void EnginePlaced::on_schedule(const Command& command, const Schedule& told) {
  Session& session = requests_.sessions().at(command.engine);
  if (session.class_id) {
    context_.refuse(command, ErrorCode::kInvalidArgument,
                    "a session with a model shape has its blocks placed by kvd: call step, or "
                    "attach without a shape");
    return;
  }
  if (const auto twice = placing_.named_twice(told)) {
    context_.refuse(command, ErrorCode::kInvalidArgument,
                    "request " + std::to_string(twice->value) + " is named twice: name each once");
    return;
  }
  const Bytes kept = bytes_of_known(session.placed ? session.placed->all.size() : 0);
  const Bytes more = bytes_of_known(told.requests.size()) - kept;
  if (const Status fits = requests_.may_keep(session.info.domain, more); !fits.ok()) {
    context_.refuse(command, fits.error().code, fits.error().message);
    return;
  }
  requests_.keep(session, more);
  set_goals(session, told);
  Call call{session, told, placing_.learn(session, told, goals_)};
  ScheduleReply reply = decide(call);
  auto& counters = context_.counters.schedule;
  ++counters.calls;
  counters.preempted += reply.preempt.size();
  counters.admitted += reply.admit.size();
  context_.reply(command, std::move(reply));
}

// The goals of a request are its own, else those of its class, else those of its domain. If nobody
// set any, what this engine can do says more than one number for all engines.
void EnginePlaced::set_goals(Session& session, const Schedule& told) {
  const auto& classes = context_.tuning.slo;
  const std::string& usual = session.info.slo_class;
  goals_.clear();
  nobody_has_goals_ = true;
  for (const Schedule::Request& request : told.requests) {
    Goal& goal = goals_.emplace_back();
    goal.prompt = request.prompt;
    goal.max_new = request.max_new;
    const auto of_class = class_of(classes, request.slo_class, usual);
    const bool known = of_class != classes.end();
    if (known) goal.slo = of_class->second;
    if (known && request.slo_class != 0 && of_class->first != usual)
      goal.slo_class = session.totals.services.place_of(of_class->first);
    nobody_has_goals_ &= goal.slo == Slo{} && request.ttft.count() == 0 && request.tbt.count() == 0;
    if (goal.slo == Slo{}) {
      goal.slo = Knowledge::own_goals(session.costs, request.prompt).value_or(goal.slo);
    }
    if (request.ttft.count() > 0 || request.tbt.count() > 0)
      goal.slo_class = session.totals.services.place_of(kOwnGoals);
    if (request.ttft.count() > 0) goal.slo.ttft = request.ttft;
    if (request.tbt.count() > 0) goal.slo.tbt = request.tbt;
    const PlacedRequest* last = session.placed ? session.placed->find(request.request) : nullptr;
    if (last != nullptr && last->own_gap.count() > 0) goal.slo.gap = last->own_gap;
  }
}

// While nobody waits nothing is decided, unless running requests have no room to grow.
ScheduleReply EnginePlaced::decide(Call& call) {
  for (const PlacedRequest* request : call.requests) {
    if (!request->runs()) continue;
    const auto [next, rest] = growth_of(call.told, *request);
    call.next += next;
    call.rest += rest;
  }
  ScheduleReply reply;
  const std::optional<Tokens> chunk = admit(call);
  const std::size_t queues = call.placed().waiting + call.placed().parked;
  if (queues > 0 || call.next > call.told.free_blocks) rotate(call, reply);
  let_grow(call, reply);
  for (PlacedRequest* request : call.requests) {
    request->let_in = request->waits_for == WaitReason::kStep;
    if (request->let_in) request->waits_for = WaitReason::kNone;
  }
  call.session.placed->waited = queues > reply.admit.size();
  // A bound on chunks costs throughput. While a request is parked, memory is short, and small
  // chunks only keep it taken for longer.
  if (chunk && call.placed().parked == 0) {
    reply.prefill_tokens =
        static_cast<std::uint32_t>(std::clamp<std::int64_t>(chunk->value, 0, UINT32_MAX - 1));
  }
  return reply;
}

// Returns how many prompt tokens the step may have; none: any number.
std::optional<Tokens> EnginePlaced::admit(const Call& call) {
  const planner::AdmissionSnapshot snapshot = admission_snapshot(call);
  // Where the policy cannot decide (for a prompt that it would never admit), memory alone decides.
  const auto decision = context_.admission->decide(snapshot);
  if (!decision.ok() || queue_.empty()) return std::nullopt;
  std::size_t admitted = decision->admitted;
  // While nobody decodes there is no pace that the head of the queue could disturb.
  if (snapshot.decoding.empty()) admitted = std::max<std::size_t>(admitted, 1);
  for (std::size_t i = admitted; i < queue_.size(); ++i) {
    if (!queue_[i].begun) queue_[i].request->verdict = Verdict::kHeldBack;
  }
  return decision->chunk;
}

planner::AdmissionSnapshot EnginePlaced::admission_snapshot(const Call& call) {
  const Schedule& told = call.told;
  const Costs& costs = call.session.costs;
  const planner::RotationTraits traits = context_.rotation->traits();
  planner::AdmissionSnapshot snapshot;
  // A block spans all layers: one layer group.
  const double token =
      static_cast<double>(block_bytes(told).value) / static_cast<double>(told.block_tokens.value);
  snapshot.costs = knowledge_.prefill_costs(call.session, 1, token);
  const bool evicts = context_.admission->traits().counts_evictable && traits.evicts;
  const std::int64_t room =
      evicts ? told.total_blocks - held_by_staying(told, call.requests) : told.free_blocks;
  snapshot.memory =
      planner::AdmissionMemory{Blocks(told.total_blocks), Blocks(room), told.block_tokens};
  Nanoseconds least_tbt = Nanoseconds::max();
  const ServingOrder::Due due(context_);
  queue_.clear();
  for (std::size_t i = 0; i < call.requests.size(); ++i) {
    PlacedRequest& request = *call.requests[i];
    if (request.waits() || request.phase == Phase::kPrompt) {
      queue_.push_back({request.begun(), due.of(request, knowledge_).at, &request});
    } else if (request.runs() && told.requests[i].first_token) {
      snapshot.decoding.push_back(
          knowledge_.as_decoding(request, knowledge_.saved_up(request), call.step_s()));
    } else {
      continue;
    }
    least_tbt = std::min(least_tbt, request.goal.slo.tbt);
  }
  // Requests that hold memory or have begun their answer stand in front.
  std::stable_sort(queue_.begin(), queue_.end(), [](const Queued& a, const Queued& b) {
    return a.begun != b.begun ? a.begun : a.due < b.due;
  });
  for (const Queued& each : queue_) {
    const Seen& request = *each.request;
    snapshot.queue.push_back(
        knowledge_.as_queued(request, each.begun, std::max(Tokens(0), request.progress.planned)));
  }
  if (traits.guards_steps && least_tbt != Nanoseconds::max()) {
    const std::int64_t decodes = std::ssize(snapshot.decoding);
    const planner::Seconds step(Knowledge::decode_beside_prefill_s(costs, decodes));
    const planner::Seconds longer(Knowledge::decode_beside_prefill_s(costs, decodes + 1));
    snapshot.guard = planner::StepGuard{step, longer - step, planner::Seconds(least_tbt)};
  }
  return snapshot;
}

void EnginePlaced::rotate(const Call& call, ScheduleReply& reply) {
  fill_snapshot(call);
  planner::RotationConfig config = context_.rotation_config();
  // A goal that nobody set is no reason to let anybody wait longer.
  if (nobody_has_goals_) config.overload = planner::Overload::kTtft;
  const auto& decision = context_.rotation->decide(snapshot_, context_.now, config);
  take(call, decision, reply);
  if (!decision.contention) return;
  for (PlacedRequest* request : index_) {
    if (!request->runs()) ++request->order.skips;
  }
  for (const std::uint32_t i : decision.prioritized) --index_[i]->order.skips;
}

void EnginePlaced::fill_snapshot(const Call& call) {
  const Schedule& told = call.told;
  const bool seats = told.max_running == 0 || call.placed().running < told.max_running;
  const bool drains = drains_.drains(call.session);
  // A request that has computed nothing yet does not pass one that computes again: that one lost
  // enough.
  const PlacedRequest* first = first_recomputed(call.requests);
  const auto keeps_out = [&](const PlacedRequest& request) {
    if (drains && !request.begun()) return WaitReason::kDrained;
    if (!seats) return WaitReason::kSeats;
    if (request.verdict == Verdict::kHeldBack) return WaitReason::kHeldBack;
    const bool passes = first != nullptr && request.waits() && &request != first;
    return passes ? WaitReason::kBehind : WaitReason::kNone;
  };
  const bool shown = context_.tuning.rotation.pacing != "client";
  const auto shown_step_s = shown ? std::optional(call.step_s()) : std::nullopt;
  snapshot_.requests.clear();
  index_.clear();
  for (PlacedRequest* request : call.requests) {
    if (!request->runs()) {
      request->waits_for = keeps_out(*request);
      if (request->waits_for != WaitReason::kNone) continue;
      const bool fits = request->blocks <= told.free_blocks;
      request->waits_for = fits ? WaitReason::kBehind : WaitReason::kMemory;
    }
    planner::RotationRequest entry = knowledge_.as_rotation(*request, shown_step_s);
    entry.stays = request->stays;
    entry.bytes = block_bytes(told) * request->blocks;
    snapshot_.requests.push_back(entry);
    index_.push_back(request);
  }
  set_budgets(call);
}

void EnginePlaced::set_budgets(const Call& call) {
  const Schedule& told = call.told;
  const Bytes block = block_bytes(told);
  // Room for running requests to grow for a while, and for prompts under way, is kept from new
  // ones. Nobody leaves for it.
  const std::int64_t kept = call.rest + call.placed().running / 2;
  const std::int64_t grows = std::min(call.next, told.free_blocks);
  snapshot_.b_hbm = block * std::max(told.free_blocks - kept, grows);
  snapshot_.growth = block * std::min(call.next, told.total_blocks);
  snapshot_.at_once = true;
  snapshot_.step = planner::Seconds(call.step_s());
  snapshot_.tokens_per_s = call.session.costs.tokens_per_s;
  snapshot_.mean_lateness = planner::Seconds(call.session.costs.lateness.mean());
  // The link's capacity in a step, at most a sixteenth of all blocks, and at least one whole
  // request: a smaller budget would never let a large one come back.
  Bytes largest;
  for (const auto& request : snapshot_.requests) largest = std::max(largest, request.bytes);
  const double carried = knowledge_.slower_link(call.session.devices().first()) * call.step_s();
  Bytes share = block * std::max<std::int64_t>(1, told.total_blocks / 16);
  if (carried > 0) {
    share = std::min(share, Bytes(static_cast<std::int64_t>(std::min(carried, 1e18))));
  }
  snapshot_.b_xfer = context_.tuning.rotation.b_xfer.value_or(std::max(share, largest));
  const bool nobody =
      std::none_of(call.requests.begin(), call.requests.end(),
                   [](const PlacedRequest* request) { return request->runs() && !request->stays; });
  if (nobody) snapshot_.b_xfer = Bytes(0);
  // Parked blocks lie in kvd's DRAM. Where that is nearly full nobody leaves for others. New
  // requests may come in all the same, unlike where kvd places: the engine recomputes those that it
  // has to preempt.
  snapshot_.dram.reset();
  if (told.block_bytes == Bytes(0)) return;
  const DomainId domain = call.session.info.domain;
  const planner::DramUse dram{needs_.dram_limit(domain),
                              store_.cache.available(domain, Tier::kDram)};
  const bool full = (dram.total - dram.free) * 10 > dram.total * 9 || dram.total == Bytes(0);
  if (full) snapshot_.b_xfer = Bytes(0);
  if (!full) snapshot_.dram = dram;
}

// Takes as many as there are seats. A request that would leave only for those beyond the seats
// stays.
void EnginePlaced::take(const Call& call, const planner::RotationDecision& decision,
                        ScheduleReply& reply) {
  std::int64_t seats = INT64_MAX;
  if (call.told.max_running > 0) {
    seats = std::max<std::int64_t>(0, call.told.max_running - call.placed().running) +
            std::ssize(decision.preempted);
  }
  std::int64_t needed = call.next - call.told.free_blocks;
  for (const std::uint32_t i : decision.prioritized) {
    if (std::ssize(reply.admit) >= seats) break;
    needed += index_[i]->blocks;
    reply.admit.push_back(index_[i]->key.request);
    index_[i]->waits_for = WaitReason::kStep;
  }
  const bool cut = reply.admit.size() < decision.prioritized.size();
  for (const std::uint32_t i : decision.preempted) {
    if (cut && needed <= 0) break;
    needed -= index_[i]->blocks;
    index_[i]->sent_out = true;
    reply.preempt.push_back(index_[i]->key.request);
  }
}

// Without this the engine would preempt by itself, and admit nobody in that step. The latest of
// those that can be parked gives way; the last one grows into what all others left.
void EnginePlaced::let_grow(const Call& call, ScheduleReply& reply) {
  std::int64_t lacking = call.next - call.told.free_blocks;
  const auto leave = [&](const PlacedRequest& request) {
    lacking -= request.blocks + growth_of(call.told, request).first;
  };
  std::vector<const PlacedRequest*> left;
  std::size_t running = 0;
  for (const PlacedRequest* request : call.requests) {
    if (request->sent_out) leave(*request);
    if (request->sent_out || !request->runs()) continue;
    ++running;
    if (!request->stays) left.push_back(request);
  }
  if (lacking <= 0) return;
  std::sort(left.begin(), left.end(), [](const PlacedRequest* a, const PlacedRequest* b) {
    return a->times.arrived < b->times.arrived;
  });
  for (; lacking > 0 && running > 1 && !left.empty(); left.pop_back(), --running) {
    leave(*left.back());
    reply.preempt.push_back(left.back()->key.request);
  }
  // Nobody comes into room that running requests lack.
  reply.admit.clear();
  for (PlacedRequest* request : call.requests) {
    if (request->waits_for == WaitReason::kStep) request->waits_for = WaitReason::kMemory;
  }
}

}  // namespace kvd::core
