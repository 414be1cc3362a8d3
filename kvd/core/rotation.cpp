#include "kvd/core/rotation.hpp"

#include <algorithm>

namespace kvd::core {

namespace {

bool runs_on(const Request& request) {
  return request.runs() && !request.leaving && !request.promised && !request.paused();
}

}  // namespace

void Rotation::decide(Session& caller) {
  const DomainId domain = caller.info.domain;
  promises_.expire(domain);
  budget_.refill();
  std::vector<Request*> index;
  const planner::RotationSnapshot snapshot = rotation_snapshot(domain, index);
  const planner::RotationDecision& decision =
      context_.rotation->decide(snapshot, context_.now, rotation_config());
  renew_for_queue(domain);
  const bool full = decision.contention && store_.hbm.available(domain) <= Bytes(0);
  const bool standing = decision.prioritized.empty() && stands_still(domain);
  if (full || standing) {
    // Slabs that another domain left empty can be had once they are zeroed.
    store_.tiers.reclaim(domain);
  }
  carry_out(caller, decision, index);
  if (needs_.prefills_layerwise(caller)) prefill_layerwise(caller, decision, index);
  if (standing) bring_in_head(caller);
}

planner::RotationSnapshot Rotation::rotation_snapshot(DomainId domain,
                                                      std::vector<Request*>& index) {
  planner::RotationSnapshot snapshot;
  for (Request* r : admissible(domain)) {
    if (r->queues() && r->verdict != Verdict::kHeldBack) index.push_back(r);
  }
  // Those inside are visited by key: only the others are to be sorted in among them.
  const auto by_key = [](const Request* a, const Request* b) { return a->key < b->key; };
  std::sort(index.begin(), index.end(), by_key);
  const auto inside = std::ssize(index);
  requests_.each_inside_in(domain, [&](Request& r) {
    const Session& owner = requests_.session_of(r);
    if (!owner.life.responsive) return;  // neither a victim, nor would it take what it is given
    const bool running = runs_on(r);
    if (running || r.queues()) index.push_back(&r);
    if (!running) return;
    const std::int64_t more =
        owner.blocks_for(r.progress.planned + Tokens(1)) - std::int64_t{r.table.blocks()};
    snapshot.growth +=
        owner.shape.slot_bytes() * (std::max<std::int64_t>(0, more) * owner.groups());
  });
  std::inplace_merge(index.begin(), index.begin() + inside, index.end(), by_key);
  snapshot.requests.reserve(index.size());
  for (Request* r : index) snapshot.requests.push_back(as_rotation(*r));
  // The reserve is kept from who would come in. Nobody leaves for it.
  const Bytes room = supply_.of(domain);
  const Bytes free = std::max(Bytes(0), room - snapshot.growth);
  snapshot.b_hbm = room - std::min(supply_.layerwise_reserve(domain), free);
  snapshot.b_xfer = budget_.left();
  snapshot.dram = planner::DramUse{needs_.dram_limit(domain), copies_.spare(domain)};
  snapshot.mean_absence = planner::Seconds(knowledge_.mean_absence_s());
  return snapshot;
}

planner::RotationConfig Rotation::rotation_config() const {
  const RotationTuning& r = context_.tuning.rotation;
  const bool goodput = r.overload == "goodput";
  return {r.alpha, r.beta_b, r.beta_f, false,
          goodput ? planner::Overload::kGoodput : planner::Overload::kTtft};
}

// One request as the policy sees it.
planner::RotationRequest Rotation::as_rotation(Request& request) {
  planner::RotationRequest entry;
  entry.t_arr = request.times.arrived;
  entry.skips = static_cast<std::int32_t>(request.order.skips);
  entry.ttft_slo = request.goal.slo.ttft;
  entry.tbt_slo = request.goal.slo.tbt;
  if (request.queues()) {
    entry.state =
        request.waits() ? planner::RequestState::kWaiting : planner::RequestState::kRotary;
    entry.bytes = needs_.to_run(request);
    if (request.times.has_token) entry.t_last = request.times.last_token;
  } else {
    entry.state = planner::RequestState::kRunning;
    entry.bytes = memory_.hbm_bytes(request);
    entry.t_run = request.times.run_since;
    // Where layers stream, whole requests are too coarse to rotate: nobody leaves.
    entry.prefilling = request.prefills() || requests_.session_of(request).streaming;
    // What came in must make a token before it may leave again, or nobody gets anywhere.
    entry.made_token = !request.fresh;
  }
  entry.deposit = knowledge_.saved_up(request);
  entry.output_tokens = knowledge_.expected_length(request).median;
  entry.tokens_made = request.answer();
  return entry;
}

// Everybody who came in may grow to all the tokens it asked for. If HBM cannot hold that, somebody
// has to leave for it, and DRAM must have room for a whole one with everything else there: or there
// could come a time when nobody can grow and nobody can leave.
std::vector<Request*> Rotation::admissible(DomainId domain) {
  Bytes room_in_hbm = store_.hbm.available(domain);
  Bytes room_in_dram = store_.dram.available(domain);
  Bytes promised, largest;
  requests_.each_inside_in(domain, [&](Request& r) {
    room_in_hbm += requests_.session_of(r).shape.slot_bytes() * r.hbm_slots();
    room_in_dram += requests_.session_of(r).shape.slot_bytes() * r.dram_slots();
    if (!requests_.session_of(r).life.responsive) {  // neither grows nor leaves
      promised += requests_.session_of(r).shape.slot_bytes() * (r.hbm_slots() + r.dram_slots());
    } else {
      const Bytes most = requests_.session_of(r).bytes_for(r.goal.prompt + r.goal.max_new);
      promised += most;
      largest = std::max(largest, most);
    }
  });
  const Bytes room = room_in_hbm + room_in_dram;
  std::vector<Request*> out;
  const auto found = requests_.domains().find(domain);
  if (found == requests_.domains().end()) return out;
  for (Request* r : found->second.line) {
    const Session& owner = requests_.session_of(*r);
    if (!owner.life.responsive) continue;  // nobody waits behind the queue of a silent engine
    const Bytes most = owner.bytes_for(r->goal.prompt + r->goal.max_new);
    if (most > room) continue;               // regions may end; until then it alone waits
    const bool alone = largest == Bytes(0);  // and makes way for nobody
    promised += most;
    largest = std::max(largest, most);
    const bool fits = promised <= room_in_hbm || promised + (alone ? Bytes(0) : largest) <= room;
    if (!fits) break;  // first come, first served: nobody overtakes for ever
    out.push_back(r);
  }
  return out;
}

// Free memory that another domain's engines know is no supply before it is new, so nobody would be
// admitted to it. Asked for is what those who queue may grow to, as admission counts that.
void Rotation::renew_for_queue(DomainId domain) {
  Bytes wanted;
  requests_.each_request_in(domain, [&](const Request& r) {
    const Session& session = requests_.session_of(r);
    if (r.queues() && session.life.responsive)
      wanted += session.bytes_for(r.goal.prompt + r.goal.max_new);
  });
  if (wanted > Bytes(0)) store_.tiers.renew_for(domain, wanted);
}

// Somebody queues, and nobody has HBM or is about to get it.
bool Rotation::stands_still(DomainId domain) {
  const auto found = requests_.domains().find(domain);
  if (found == requests_.domains().end()) return false;
  const Line& line = found->second.line;
  bool queues = std::any_of(line.begin(), line.end(), [](const Request* r) { return r->queues(); });
  bool moves = false;
  requests_.each_inside_in(domain, [&](const Request& r) {
    queues = queues || r.queues();
    moves = moves || r.holds_hbm() || r.order.claim != 0;
  });
  return queues && !moves;
}

// With nobody inside there is nobody to spare room for, whatever a policy would keep free.
void Rotation::bring_in_head(Session& caller) {
  const DomainId domain = caller.info.domain;
  Request* head = nullptr;
  requests_.each_request_in(domain, [&](Request& r) {
    if (!r.queues() || !requests_.session_of(r).life.responsive) return;
    if (!head || r.times.arrived < head->times.arrived) head = &r;
  });
  if (!head || head->key.engine != caller.id || needs_.to_run(*head) > supply_.of(domain)) return;
  requests_.make_claim(*head);
  head->order.skips = 0;
}

// Source: LayerKV sec. 3.1 (every admitted prompt).
void Rotation::prefill_layerwise(Session& caller, const planner::RotationDecision& decision,
                                 const std::vector<Request*>& index) {
  if (!decision.contention) return;
  std::vector<Request*> chosen;
  if (context_.rotation->traits().chooses_layerwise) {
    for (const std::uint32_t i : decision.layerwise) chosen.push_back(index[i]);
  } else {
    chosen = index;
    std::stable_sort(chosen.begin(), chosen.end(), [](const auto* a, const auto* b) {
      return a->times.arrived < b->times.arrived;
    });
  }
  Bytes room = supply_.of(caller.info.domain);
  for (Request* r : chosen) {
    if (r->key.engine != caller.id || !r->waits() || !r->queues()) continue;
    room -= needs_.to_stream(*r);
    if (room < Bytes(0)) return;
    r->layerwise = true;
    r->layers.away.assign(caller.groups(), true);
    requests_.make_claim(*r);
    r->order.skips = 0;
    ++context_.counters.layerwise;
  }
}

void Rotation::carry_out(Session& caller, const planner::RotationDecision& decision,
                         const std::vector<Request*>& index) {
  for (std::size_t i = 0; i < index.size(); ++i) {
    index[i]->order.vlt_s = decision.vlt_s[i];
    context_.counters.vlt.add(decision.vlt_s[i]);
  }
  Bytes elsewhere;
  for (const std::uint32_t chosen : decision.prioritized) {
    Request& r = *index[chosen];
    if (r.key.engine == caller.id) {
      requests_.make_claim(r);
      r.order.skips = 0;
    } else {
      elsewhere += needs_.to_run(r);  // granted when its own engine steps
    }
  }
  if (decision.contention) {
    for (Request* r : index) {
      if (r->key.engine == caller.id && r->queues()) ++r->order.skips;
    }
  }
  Bytes wanted = decision.b_swap ? *decision.b_swap - elsewhere : Bytes(INT64_MAX);
  for (const std::uint32_t victim : decision.preempted) {
    if (wanted <= Bytes(0)) break;
    Request& r = *index[victim];
    wanted -= memory_.hbm_bytes(r);
    // What is in DRAM already need not move.
    const Bytes moves =
        requests_.session_of(r).shape.slot_bytes() * (r.hbm_slots() - r.table.doubled());
    budget_.take(moves);
    promises_.preempt(r, caller.id, Promise::kForBytes);
  }
}

}  // namespace kvd::core
