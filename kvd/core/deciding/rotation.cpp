#include "kvd/core/deciding/rotation.hpp"

#include <algorithm>
#include <map>

namespace kvd::core {

namespace {

bool runs_on(const Request& request) {
  return request.runs() && !request.leaving && !request.promised && !request.paused();
}

}  // namespace

void Rotation::decide(Session& caller) {
  if (caller.devices().several()) return decide_on_several(caller);
  const Decided decided = ask(caller.share());
  carry_out(caller, decided, nullptr);
  if (needs_.prefills_layerwise(caller)) prefill_layerwise(caller, decided);
  if (decided.standing) bring_in_head(caller);
}

// A request that comes in on one device only would hold room there and not run.
void Rotation::decide_on_several(Session& caller) {
  std::vector<Decided> decided;
  std::vector<planner::RotationDecision> decisions;  // the policy's is valid until the next one
  std::map<const Request*, std::size_t> chosen;
  bool standing = true;
  for (const DeviceId device : caller.devices().all()) {
    decided.push_back(ask({caller.info.domain, device}));
    decisions.push_back(*decided.back().decision);
    standing = standing && decided.back().standing;
    for (const std::uint32_t i : decisions.back().prioritized) ++chosen[decided.back().index[i]];
  }
  Chosen everywhere;
  for (const auto& [request, times] : chosen) {
    if (times == decided.size()) everywhere.insert(request);
  }
  for (std::size_t i = 0; i < decided.size(); ++i) {
    decided[i].decision = &decisions[i];
    carry_out(caller, decided[i], &everywhere);
  }
  if (standing) bring_in_head(caller);
}

Rotation::Decided Rotation::ask(Share share) {
  promises_.expire(share);
  budget_.refill(share.device);
  Decided decided;
  decided.share = share;
  const planner::RotationSnapshot snapshot = rotation_snapshot(share, decided.index);
  decided.decision = &context_.rotation->decide(snapshot, context_.now, context_.rotation_config());
  renew_for_queue(share);
  const bool full = decided.decision->contention &&
                    store_.cache.available(share.domain, Tier::kHbm, share.device) <= Bytes(0);
  decided.standing = decided.decision->prioritized.empty() && stands_still(share);
  // Slabs that another domain left empty can be had once they are zeroed.
  if (full || decided.standing) store_.tiers.reclaim(share.domain, share.device);
  return decided;
}

planner::RotationSnapshot Rotation::rotation_snapshot(Share share, std::vector<Request*>& index) {
  planner::RotationSnapshot snapshot;
  const bool over = supply_.over_part(share);
  for (Request* r : reservations_.admissible(share)) {
    if (r->queues() && r->verdict != Verdict::kHeldBack && !over) index.push_back(r);
  }
  // Requests that are inside are visited by key, so only the others have to be sorted in among
  // them.
  const auto by_key = [](const Request* a, const Request* b) { return a->key < b->key; };
  std::sort(index.begin(), index.end(), by_key);
  const auto inside = std::ssize(index);
  requests_.each_inside_on(share, [&](Request& r) {
    const Session& owner = requests_.session_of(r);
    if (!owner.life.responsive) return;  // it gives no victim, and would not take what it is given
    const bool running = runs_on(r);
    if (running || (r.queues() && !r.order.curbed && !over)) index.push_back(&r);
    if (!running) return;
    const std::int64_t more =
        owner.blocks_for(r.progress.planned + Tokens(1)) - std::int64_t{r.table.blocks()};
    snapshot.growth += owner.shape.slot_bytes() *
                       (std::max<std::int64_t>(0, more) * owner.groups_on(share.device));
  });
  std::inplace_merge(index.begin(), index.begin() + inside, index.end(), by_key);
  snapshot.requests.reserve(index.size());
  for (Request* r : index) snapshot.requests.push_back(as_rotation(*r, share.device));
  // The reserve is kept from new requests. Nobody leaves for it.
  const Bytes room = supply_.of(share);
  const Bytes free = std::max(Bytes(0), room - snapshot.growth);
  snapshot.b_hbm = room - std::min(supply_.layerwise_reserve(share), free);
  snapshot.b_xfer = budget_.left(share.device);
  snapshot.dram = planner::DramUse{needs_.dram_limit(share.domain), copies_.spare(share.domain)};
  snapshot.step = planner::Seconds(knowledge_.mean_step_s(share.device));
  snapshot.mean_lateness = planner::Seconds(knowledge_.mean_lateness_s());
  return snapshot;
}

// One request as the policy sees it.
planner::RotationRequest Rotation::as_rotation(Request& request, DeviceId device) {
  // A request that named a longest gap may have a client that shows each token as it comes.
  const double step_s = request.session->costs.decode_s;
  planner::RotationRequest entry =
      knowledge_.as_rotation(request, request.goal.slo.gap ? std::optional(step_s) : std::nullopt);
  if (request.queues()) {
    if (request.waits()) entry.place = request.order.place;
    entry.bytes = needs_.to_run(request, device);
    return entry;
  }
  entry.bytes = memory_.hbm_bytes(request, device);
  // Where layers stream, whole requests are too coarse to rotate: nobody leaves.
  entry.prefilling = entry.prefilling || requests_.session_of(request).streaming;
  entry.made_token = entry.made_token && !request.order.sheltered;
  return entry;
}

// Free memory that another domain's engines know is no supply before it is zeroed, so nobody would
// be admitted to it. This asks for what queued requests may grow to, as admission counts it.
void Rotation::renew_for_queue(Share share) {
  Bytes wanted;
  requests_.each_request_in(share.domain, [&](const Request& r) {
    const Session& session = requests_.session_of(r);
    if (r.queues() && session.life.responsive)
      wanted += session.bytes_for(r.goal.prompt + r.goal.max_new, share.device);
  });
  if (wanted > Bytes(0)) store_.tiers.hbm().of(share.device).renew_for(share.domain, wanted);
}

bool Rotation::stands_still(Share share) {
  const auto found = requests_.domains().find(share.domain);
  if (found == requests_.domains().end()) return false;
  const Line& line = found->second.line;
  bool queues = std::any_of(line.begin(), line.end(), [&](const Request* r) {
    return r->queues() && requests_.session_of(*r).on(share.device);
  });
  bool moves = false;
  requests_.each_inside_on(share, [&](const Request& r) {
    queues = queues || r.queues();
    moves = moves || (r.holds_hbm() && !r.order.curbed) || r.order.claim != 0;
  });
  return queues && !moves;
}

// With nobody inside there is nobody to spare room for, whatever a policy would keep free. A paused
// request is inside and has its promise: with nobody else there its plan lets it go on. While some
// are curbed they end first.
void Rotation::bring_in_head(Session& caller) {
  const DomainId domain = caller.info.domain;
  Request* head = nullptr;
  bool resumes = false, curbed = false;
  requests_.each_inside_in(domain, [&](const Request& r) { curbed = curbed || r.order.curbed; });
  requests_.each_request_in(domain, [&](Request& r) {
    if (r.order.curbed || (curbed && r.waits())) return;
    const Session& owner = requests_.session_of(r);
    resumes = resumes ||
              (r.paused() && owner.life.responsive && owner.devices().overlap(caller.devices()));
    if (!r.queues() || !owner.life.responsive || !owner.devices().overlap(caller.devices())) return;
    if (!head || r.times.arrived < head->times.arrived) head = &r;
  });
  if (resumes || !head || head->key.engine != caller.id) return;
  for (const DeviceId device : caller.devices().all()) {
    if (needs_.to_run(*head, device) > supply_.of({domain, device})) return;
  }
  requests_.make_claim(*head);
  head->order.skips = 0;
}

// Source: LayerKV sec. 3.1 (every admitted prompt).
void Rotation::prefill_layerwise(Session& caller, const Decided& decided) {
  const planner::RotationDecision& decision = *decided.decision;
  const std::vector<Request*>& index = decided.index;
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
  Bytes room = supply_.of(decided.share);
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

// `everywhere`: for an engine with several devices, the requests that may come in on each of them.
void Rotation::carry_out(Session& caller, const Decided& decided, const Chosen* everywhere) {
  const planner::RotationDecision& decision = *decided.decision;
  const std::vector<Request*>& index = decided.index;
  const DeviceId device = decided.share.device;
  for (const double vlt_s : decision.vlt_s) context_.counters.vlt.add(vlt_s);
  Bytes elsewhere;
  for (const std::uint32_t chosen : decision.prioritized) {
    Request& r = *index[chosen];
    if (r.key.engine != caller.id || (everywhere && !everywhere->contains(&r))) {
      elsewhere +=
          needs_.to_run(r, device);  // granted when its own engine steps, or on all at once
    } else if (r.order.claim == 0) {
      requests_.make_claim(r);
      r.order.skips = 0;
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
    wanted -= memory_.hbm_bytes(r, device);
    // Blocks that are in DRAM already need not move.
    const Session& owner = requests_.session_of(r);
    const std::int64_t slots = r.hbm_slots() - r.table.doubled();
    budget_.take(device,
                 owner.shape.slot_bytes() * (slots * owner.groups_on(device) / owner.groups()));
    promises_.preempt(r, caller.id, Promise::kForBytes);
  }
}

}  // namespace kvd::core
