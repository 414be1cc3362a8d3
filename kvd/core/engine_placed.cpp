#include "kvd/core/engine_placed.hpp"

#include <algorithm>
#include <string>

#include "ipc/vocabulary/slo_class.hpp"
#include "planner/policy/admission_guards.hpp"

namespace kvd::core {

namespace {

using State = Schedule::State;

/// Bytes of a block where the engine does not say: blocks are all alike.
constexpr Bytes kAnyBlock{1};

Bytes block_bytes(const Schedule& told) { return std::max(told.block_bytes, kAnyBlock); }

std::int64_t blocks_for(const Schedule& told, Tokens tokens) {
  return pieces(tokens, told.block_tokens);
}

Tokens all_tokens(const Schedule::Request& request) { return request.prompt + request.generated; }

/// It has tokens to compute before it makes one.
bool computes_prompt(const Schedule::Request& request) {
  return request.generated == Tokens(0) || request.computed + Tokens(1) < all_tokens(request);
}

/// Its loss would cost computed work.
bool has_begun(const Schedule::Request& request) {
  return request.state != State::kWaiting || request.generated > Tokens(0);
}

/// Its answer has begun, and all that it had is to be computed again.
bool is_recomputed(const Schedule::Request& request) {
  return request.state == State::kWaiting && request.generated > Tokens(0);
}

/// The first of those by arrival; null: there is none.
const Schedule::Request* first_recomputed(const Schedule& told) {
  const Schedule::Request* first = nullptr;
  for (const Schedule::Request& request : told.requests) {
    if (!is_recomputed(request)) continue;
    if (first == nullptr || request.arrived < first->arrived) first = &request;
  }
  return first;
}

/// Blocks that it needs to come in.
std::int64_t size_of(const Schedule& told, const Schedule::Request& request) {
  std::int64_t blocks = request.blocks_to_return;
  if (blocks == 0) {
    blocks = blocks_for(told, std::max(all_tokens(request), request.computed + Tokens(1)));
  }
  return std::min(blocks, told.total_blocks);  // more there is not: it comes in when all is free
}

/// Blocks that come free when it leaves. Not more than there are, whatever the engine says: they
/// are multiplied.
std::int64_t held_by(const Schedule& told, const Schedule::Request& request) {
  return std::min(request.blocks, told.total_blocks);
}

/// Blocks of those whom nobody may preempt for others.
std::int64_t held_by_staying(const Schedule& told) {
  std::int64_t blocks = 0;
  for (const Schedule::Request& request : told.requests) {
    if (request.stays) blocks += held_by(told, request);
  }
  return std::min(blocks, told.total_blocks);
}

/// The blocks that a running request takes in the next step, and later until its prompt is
/// computed.
std::pair<std::int64_t, std::int64_t> growth_of(const Schedule& told,
                                                const Schedule::Request& request) {
  Tokens chunk(1);
  if (computes_prompt(request)) {
    chunk = std::max(chunk, all_tokens(request) - request.computed);
    if (told.max_batched_tokens > Tokens(0)) chunk = std::min(chunk, told.max_batched_tokens);
  }
  const std::int64_t held = blocks_for(told, request.computed);
  const std::int64_t next = blocks_for(told, request.computed + chunk);
  return {next - held, std::max<std::int64_t>(0, blocks_for(told, all_tokens(request)) - next)};
}

/// Tokens that the rest of its answer makes up for, one a step. Where only the longest gap is seen
/// it is the mean that counts. Half of what is expected is sure: half of the answers end sooner.
std::int64_t made_up(const planner::RotationRequest& request, double step_s) {
  if (request.tokens_made == Tokens(0)) return 0;
  const Tokens all = request.output_tokens.value_or(request.tokens_made);
  const double sure = static_cast<double>(std::max(Tokens(0), all - request.tokens_made).value) / 2;
  const double gains = 1 - step_s / request.tbt_slo.count();
  return static_cast<std::int64_t>(sure * std::max(0.0, gains));
}

/// What the record of so many requests takes, with the lists that lead to them.
Bytes bytes_of_known(std::size_t requests) {
  return Bytes(static_cast<std::int64_t>(2 * requests * sizeof(Placing::Known)));
}

}  // namespace

void EnginePlaced::set_gaps(const Session& session, const SetGaps& named) {
  const auto placing = engines_.find(session.id);
  if (placing == engines_.end()) return;
  for (const auto& [id, gap] : named.gaps) placing->second.set_gap(id, gap);
}

const Placing* EnginePlaced::find(EngineId engine) const {
  const auto it = engines_.find(engine);
  return it == engines_.end() ? nullptr : &it->second;
}

void EnginePlaced::watch() {
  std::erase_if(engines_,
                [&](const auto& entry) { return !requests_.sessions().contains(entry.first); });
  for (auto& [engine, placing] : engines_) {
    lateness_.watch(requests_.sessions().at(engine), placing);
  }
}

void EnginePlaced::on_schedule(const Command& command, const Schedule& told) {
  Session& session = requests_.sessions().at(command.engine);
  if (session.class_id) {
    context_.refuse(command, ErrorCode::kInvalidArgument,
                    "a session with a model shape has its blocks placed by kvd: call step, or "
                    "attach without a shape");
    return;
  }
  Placing& placing = engines_[command.engine];
  if (const auto twice = placing.named_twice(told)) {
    context_.refuse(command, ErrorCode::kInvalidArgument,
                    "request " + std::to_string(twice->value) + " is named twice: name each once");
    return;
  }
  const std::size_t known = placing.all().size();
  if (const Status fits = requests_.may_keep(
          session.info.domain, bytes_of_known(told.requests.size()) - bytes_of_known(known));
      !fits.ok()) {
    context_.refuse(command, fits.error().code, fits.error().message);
    return;
  }
  set_goals(session, told, placing);
  placing.learn(told, goals_, context_.now, session.costs, classes_);
  lateness_.take(session, placing);
  requests_.keep(session, bytes_of_known(placing.all().size()) - bytes_of_known(known));
  session.life.placed = std::count_if(told.requests.begin(), told.requests.end(), has_begun);
  ScheduleReply reply = decide(session, told, placing);
  auto& counters = context_.counters.schedule;
  ++counters.calls;
  counters.preempted += reply.preempt.size();
  counters.admitted += reply.admit.size();
  context_.reply(command, std::move(reply));
}

// What a request says itself, else its class, else its domain's. Where nobody set these, what the
// engine can do says more than a number for all engines.
void EnginePlaced::set_goals(Session& session, const Schedule& told, const Placing& placing) {
  const auto& classes = context_.tuning.slo;
  const std::string& usual = session.info.slo_class;
  goals_.clear();
  classes_.clear();
  for (const Schedule::Request& request : told.requests) {
    const auto of_class = class_of(classes, request.slo_class, usual);
    const bool known = of_class != classes.end();
    Slo goal = known ? of_class->second : Slo{};
    const bool named = known && request.slo_class != 0 && of_class->first != usual;
    std::uint8_t place = named ? session.totals.services.place_of(of_class->first) : 0;
    if (goal == Slo{}) goal = Knowledge::own_goals(session.costs, request.prompt).value_or(goal);
    if (request.ttft.count() > 0 || request.tbt.count() > 0)
      place = session.totals.services.place_of(kOwnGoals);
    if (request.ttft.count() > 0) goal.ttft = request.ttft;
    if (request.tbt.count() > 0) goal.tbt = request.tbt;
    if (const Nanoseconds gap = placing.own_gap(request.request); gap.count() > 0) goal.gap = gap;
    goals_.push_back(goal);
    classes_.push_back(place);
  }
}

// While nobody waits nothing is decided, unless those who run have no room to grow.
ScheduleReply EnginePlaced::decide(const Session& session, const Schedule& told, Placing& placing) {
  growth_ = {};
  for (const Schedule::Request& request : told.requests) {
    if (request.state != State::kRunning) continue;
    const auto [next, rest] = growth_of(told, request);
    growth_.next += next;
    growth_.rest += rest;
  }
  ScheduleReply reply;
  leaves_.assign(told.requests.size(), false);
  waits_for_.assign(told.requests.size(), WaitReason::kNone);
  const Allowed allowed = admit(session, told, placing);
  const std::size_t queues = placing.counts().waiting + placing.counts().parked;
  if (queues > 0 || growth_.next > told.free_blocks) {
    fill_snapshot(session, told, placing, allowed);
    const auto& decision =
        context_.rotation->decide(snapshot_, context_.now, context_.rotation_config());
    take(told, decision, reply);
    std::vector<bool> taken(told.requests.size());
    for (const std::uint32_t i : decision.prioritized) taken[index_[i]] = true;
    for (std::size_t i = 0; decision.contention && i < index_.size(); ++i) {
      const bool enters = told.requests[index_[i]].state != State::kRunning;
      if (enters && !taken[index_[i]]) placing.passed_over(index_[i]);
    }
  }
  let_grow(told, reply);
  for (std::size_t i = 0; i < waits_for_.size(); ++i) placing.explain(i, waits_for_[i]);
  placing.leave_waiting(queues > reply.admit.size());
  // A bound on chunks costs throughput. While somebody is parked memory is short, and small chunks
  // only keep it taken for longer.
  if (allowed.chunk && placing.counts().parked == 0) {
    reply.prefill_tokens = static_cast<std::uint32_t>(
        std::clamp<std::int64_t>(allowed.chunk->value, 0, UINT32_MAX - 1));
  }
  return reply;
}

EnginePlaced::Allowed EnginePlaced::admit(const Session& session, const Schedule& told,
                                          const Placing& placing) {
  Allowed allowed;
  allowed.held_back.assign(told.requests.size(), false);
  const planner::AdmissionSnapshot snapshot = admission_snapshot(session, told, placing);
  // Where the policy cannot decide (a prompt that it would never admit), memory alone does.
  const auto decision = context_.admission->decide(snapshot);
  if (!decision.ok()) return allowed;
  if (!queue_.empty()) allowed.chunk = decision->chunk;
  std::size_t admitted = decision->admitted;
  // With nobody decoding there is nobody whose pace the head of the queue could disturb.
  if (snapshot.decoding.empty()) admitted = std::max<std::size_t>(admitted, 1);
  for (std::size_t i = admitted; i < queue_.size(); ++i) {
    const bool begun = snapshot.queue[i].begun;
    allowed.held_back[queue_[i]] = !begun;
  }
  return allowed;
}

// A block is of all layers: one layer group.
planner::AdmissionSnapshot EnginePlaced::admission_snapshot(const Session& session,
                                                            const Schedule& told,
                                                            const Placing& placing) {
  const planner::RotationTraits traits = context_.rotation->traits();
  planner::AdmissionSnapshot snapshot;
  const double per_token =
      static_cast<double>(block_bytes(told).value) / static_cast<double>(told.block_tokens.value);
  snapshot.costs.alpha = context_.tuning.admission.alpha;
  snapshot.costs.beta = context_.tuning.admission.beta * per_token / 2;
  snapshot.costs.precision_bytes = 1;
  snapshot.costs.params = session.costs.prefill_token_s / 2;
  snapshot.costs.link = {knowledge_.link_or_default(session.devices().first())};
  const bool all = context_.admission->traits().counts_evictable && traits.evicts;
  const std::int64_t room = all ? told.total_blocks - held_by_staying(told) : told.free_blocks;
  snapshot.memory =
      planner::AdmissionMemory{Blocks(told.total_blocks), Blocks(room), told.block_tokens};
  Nanoseconds least_tbt = add_decoding(session, told, placing, snapshot);
  const Nanoseconds least_queued = add_queue(session, told, placing, snapshot);
  least_tbt = std::min(least_tbt, least_queued);
  if (traits.guards_steps && least_tbt != Nanoseconds::max()) {
    const std::int64_t decodes = std::ssize(snapshot.decoding);
    const planner::Seconds step(Knowledge::decode_beside_prefill_s(session.costs, decodes));
    const planner::Seconds longer(Knowledge::decode_beside_prefill_s(session.costs, decodes + 1));
    snapshot.guard = planner::StepGuard{step, longer - step, planner::Seconds(least_tbt)};
  }
  return snapshot;
}

// Returns the strictest goal between tokens, as the next one does.
Nanoseconds EnginePlaced::add_decoding(const Session& session, const Schedule& told,
                                       const Placing& placing,
                                       planner::AdmissionSnapshot& snapshot) const {
  const planner::Seconds step(Knowledge::decode_s(session.costs, placing.counts().running));
  Nanoseconds least = Nanoseconds::max();
  for (std::uint32_t i = 0; i < told.requests.size(); ++i) {
    const Schedule::Request& r = told.requests[i];
    if (r.state != State::kRunning || computes_prompt(r) || !r.first_token) continue;
    const Tokens low = Knowledge::expected_length(session.costs, r.generated, r.max_new).low;
    const std::int64_t left = std::max<std::int64_t>(1, (low - r.generated).value);
    const Nanoseconds past = std::max(Nanoseconds(0), context_.now - *r.first_token);
    snapshot.decoding.push_back({planner::Seconds(goals_[i].tpot), r.generated.value,
                                 planner::Seconds(past), left, step, r.prompt,
                                 placing.as_rotation(told, i, goals_[i], session.costs).deposit,
                                 std::nullopt, planner::Seconds(goals_[i].tbt)});
    least = std::min(least, goals_[i].tbt);
  }
  return least;
}

// Whoever has something to compute before its next token; those that hold memory, or have begun
// their answer, stand in front.
Nanoseconds EnginePlaced::add_queue(const Session& session, const Schedule& told,
                                    const Placing& placing, planner::AdmissionSnapshot& snapshot) {
  const auto begun = [&](std::uint32_t i) { return has_begun(told.requests[i]); };
  const bool late_last =
      context_.rotation->traits().serves_the_late && context_.tuning.rotation.overload == "goodput";
  queue_.clear();
  due_.assign(told.requests.size(), TimePoint(0));
  for (std::uint32_t i = 0; i < told.requests.size(); ++i) {
    const Schedule::Request& r = told.requests[i];
    if (r.state != State::kWaiting && !computes_prompt(r)) continue;
    queue_.push_back(i);
    due_[i] = r.arrived;
    if (!context_.rotation->traits().serves_the_late) continue;
    const bool late = placing.as_rotation(told, i, goals_[i], session.costs)
                          .hopeless(planner::Seconds(context_.now));
    due_[i] += planner::due_after(goals_[i].ttft, late && late_last);
  }
  std::stable_sort(queue_.begin(), queue_.end(), [&](std::uint32_t a, std::uint32_t b) {
    if (begun(a) != begun(b)) return begun(a);
    return due_[a] < due_[b];
  });
  Nanoseconds least = Nanoseconds::max();
  for (const std::uint32_t i : queue_) {
    const Schedule::Request& r = told.requests[i];
    const planner::RotationRequest seen = placing.as_rotation(told, i, goals_[i], session.costs);
    const Tokens done = std::clamp(r.computed, Tokens(0), all_tokens(r));
    const planner::Seconds left =
        planner::Seconds(r.arrived + goals_[i].ttft - context_.now) - seen.prefill;
    snapshot.queue.push_back({all_tokens(r), done, seen.output_tokens->value, begun(i),
                              std::nullopt,
                              left > planner::Seconds(0) ? std::optional(left) : std::nullopt});
    least = std::min(least, goals_[i].tbt);
  }
  return least;
}

void EnginePlaced::fill_snapshot(const Session& session, const Schedule& told,
                                 const Placing& placing, const Allowed& allowed) {
  const std::int64_t running = placing.counts().running;
  const bool seats = told.max_running == 0 || running < told.max_running;
  const bool drains = drains_.drains(session);
  // Nothing that is to be computed passes one that was computed before: it lost enough.
  const Schedule::Request* first = first_recomputed(told);
  const auto keeps_out = [&](const Schedule::Request& request, bool held_back) {
    if (drains && !has_begun(request)) return WaitReason::kDrained;
    if (!seats) return WaitReason::kSeats;
    if (held_back) return WaitReason::kHeldBack;
    const bool passes = first != nullptr && request.state == State::kWaiting && &request != first;
    return passes ? WaitReason::kBehind : WaitReason::kNone;
  };
  snapshot_.requests.clear();
  index_.clear();
  for (std::uint32_t i = 0; i < told.requests.size(); ++i) {
    const Schedule::Request& request = told.requests[i];
    const bool runs = request.state == State::kRunning;
    if (!runs) {
      waits_for_[i] = keeps_out(request, allowed.held_back[i]);
      if (waits_for_[i] != WaitReason::kNone) continue;
      const bool fits = size_of(told, request) <= told.free_blocks;
      waits_for_[i] = fits ? WaitReason::kBehind : WaitReason::kMemory;
    }
    planner::RotationRequest entry = placing.as_rotation(told, i, goals_[i], session.costs);
    if (context_.tuning.rotation.pacing == "client") entry.gap.reset();
    if (entry.gap)
      entry.deposit += made_up(entry, Knowledge::decode_s(session.costs, placing.counts().running));
    entry.bytes = block_bytes(told) * (runs ? held_by(told, request) : size_of(told, request));
    snapshot_.requests.push_back(entry);
    index_.push_back(i);
  }
  set_budgets(session, told, placing);
}

void EnginePlaced::set_budgets(const Session& session, const Schedule& told,
                               const Placing& placing) {
  const Bytes block = block_bytes(told);
  const std::int64_t running = placing.counts().running;
  // Room for those who run to grow for a while, and for prompts under way, is kept from who would
  // come in. Nobody leaves for it.
  const std::int64_t kept = growth_.rest + running / 2;
  const std::int64_t grows = std::min(growth_.next, told.free_blocks);
  snapshot_.b_hbm = block * std::max(told.free_blocks - kept, grows);
  snapshot_.growth = block * std::min(growth_.next, told.total_blocks);
  snapshot_.at_once = true;
  snapshot_.step = planner::Seconds(Knowledge::decode_s(session.costs, running));
  snapshot_.tokens_per_s = session.costs.tokens_per_s;
  snapshot_.mean_lateness = planner::Seconds(session.costs.lateness.mean());
  // What the link carries in a step, a sixteenth of all at most, and one whole request at least: a
  // smaller budget would let no large one come back.
  Bytes largest;
  for (const auto& request : snapshot_.requests) largest = std::max(largest, request.bytes);
  const double rate = knowledge_.slower_link(session.devices().first());
  const double carried = rate * Knowledge::decode_s(session.costs, running);
  Bytes share = block * std::max<std::int64_t>(1, told.total_blocks / 16);
  if (carried > 0) {
    share = std::min(share, Bytes(static_cast<std::int64_t>(std::min(carried, 1e18))));
  }
  snapshot_.b_xfer = context_.tuning.rotation.b_xfer.value_or(std::max(share, largest));
  const auto may_leave = [](const auto& each) {
    return each.state == State::kRunning && !each.stays;
  };
  if (std::none_of(told.requests.begin(), told.requests.end(), may_leave)) {
    snapshot_.b_xfer = Bytes(0);
  }
  // Parked blocks lie in kvd's DRAM. Where that is nearly full nobody leaves for others, but unlike
  // where kvd places, others may come in: whom the engine has to preempt it computes again.
  snapshot_.dram.reset();
  if (told.block_bytes == Bytes(0)) return;
  const DomainId domain = session.info.domain;
  const planner::DramUse dram{needs_.dram_limit(domain),
                              store_.cache.available(domain, Tier::kDram)};
  const bool full = (dram.total - dram.free) * 10 > dram.total * 9 || dram.total == Bytes(0);
  if (full) snapshot_.b_xfer = Bytes(0);
  if (!full) snapshot_.dram = dram;
}

// As many as there are seats. Whoever would leave only for those that are cut off stays.
void EnginePlaced::take(const Schedule& told, const planner::RotationDecision& decision,
                        ScheduleReply& reply) {
  std::int64_t seats = INT64_MAX;
  if (told.max_running > 0) {
    const auto running = std::count_if(
        told.requests.begin(), told.requests.end(),
        [](const Schedule::Request& request) { return request.state == State::kRunning; });
    seats = std::max<std::int64_t>(0, told.max_running - running) +
            static_cast<std::int64_t>(decision.preempted.size());
  }
  std::int64_t needed = growth_.next - told.free_blocks;
  for (const std::uint32_t i : decision.prioritized) {
    if (std::ssize(reply.admit) >= seats) break;
    const Schedule::Request& request = told.requests[index_[i]];
    needed += size_of(told, request);
    reply.admit.push_back(request.request);
    waits_for_[index_[i]] = WaitReason::kStep;
  }
  const bool cut = reply.admit.size() < decision.prioritized.size();
  for (const std::uint32_t i : decision.preempted) {
    if (cut && needed <= 0) break;
    const Schedule::Request& request = told.requests[index_[i]];
    needed -= held_by(told, request);
    leaves_[index_[i]] = true;
    reply.preempt.push_back(request.request);
  }
}

// Else the engine would preempt by itself, and admit nobody in that step. The latest gives way, of
// those that can be parked; the last one grows into what all others left.
void EnginePlaced::let_grow(const Schedule& told, ScheduleReply& reply) {
  std::int64_t lacking = growth_.next - told.free_blocks;
  std::vector<std::uint32_t> left;
  std::size_t running = 0;
  for (std::uint32_t i = 0; i < told.requests.size(); ++i) {
    const Schedule::Request& request = told.requests[i];
    if (request.state != State::kRunning) continue;
    if (leaves_[i]) {
      lacking -= held_by(told, request) + growth_of(told, request).first;
      continue;
    }
    ++running;
    if (!request.stays) left.push_back(i);
  }
  if (lacking <= 0) return;
  std::sort(left.begin(), left.end(), [&](std::uint32_t a, std::uint32_t b) {
    return told.requests[a].arrived < told.requests[b].arrived;
  });
  for (; lacking > 0 && running > 1 && !left.empty(); left.pop_back(), --running) {
    const Schedule::Request& request = told.requests[left.back()];
    lacking -= held_by(told, request) + growth_of(told, request).first;
    reply.preempt.push_back(request.request);
  }
  // Nobody comes into room that those who run lack.
  reply.admit.clear();
  std::replace(waits_for_.begin(), waits_for_.end(), WaitReason::kStep, WaitReason::kMemory);
}

}  // namespace kvd::core
