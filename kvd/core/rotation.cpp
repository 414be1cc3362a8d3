#include <algorithm>

#include "kvd/core/state.hpp"

/// Who runs: builds the policy's snapshot of a domain and turns its decision into claims on memory
/// for the engine that steps, and into victims wherever they are.
namespace kvd::core {

namespace {

bool runs_on(const Request& request) {
  return request.runs() && !request.leaving && !request.promised && !request.paused;
}

}  // namespace

Bytes Controller::State::kept(const Request& request) const {
  if (yielding.empty()) return Bytes(0);
  std::int64_t count = 0;
  each_hbm_slot(request, [&](SlotId slot) { count += hbm.retiring(slot.slab()) ? 1 : 0; });
  return sessions.at(request.key.engine).shape.slot_bytes() * count;
}

Bytes Controller::State::incoming(DomainId domain) {
  Bytes sum;
  each_inside_in(domain, [&](Request& r) {
    const bool leaves = r.state == RequestState::kSwappingOut || r.leaving || r.promised;
    if (r.state != RequestState::kSwappingOut && !session_of(r).responsive) return;
    if (leaves) sum += hbm_bytes(r) - kept(r);
  });
  // What a silent engine may still use comes when it steps again, or never.
  return sum + tiers.held(domain, [&](EngineId engine) {
    const auto session = sessions.find(engine);
    return session == sessions.end() || session->second.responsive;
  });
}

Bytes Controller::State::claimed(DomainId domain) {
  Bytes sum;
  const auto found = domains.find(domain);
  if (found == domains.end()) return sum;
  for (const auto& [order, request] : found->second.claims) sum += need_bytes(*request);
  return sum;
}

Bytes Controller::State::hbm_limit(DomainId domain) const {
  return hbm.config().slab_bytes * std::int64_t{hbm.most_slabs(domain)};
}

Bytes Controller::State::dram_limit(DomainId domain) const {
  return dram.config().slab_bytes * std::int64_t{dram.most_slabs(domain)};
}

Bytes Controller::State::supply(DomainId domain) {
  return hbm.available(domain) + incoming(domain) + yieldable(domain) - claimed(domain);
}

Bytes Controller::State::transfer_budget() const {
  if (tuning.rotation.b_xfer) return *tuning.rotation.b_xfer;
  const Bytes share = Bytes(config.hbm.slab_bytes.value * config.hbm.slabs / 16);
  const double rate = std::min(link_rate[0], link_rate[1]);
  if (rate == 0 || mean_step_s == 0) return share;
  return std::min(share, Bytes(static_cast<std::int64_t>(std::min(rate * mean_step_s, 1e18))));
}

void Controller::State::refill_bucket() {
  const auto depth = static_cast<double>(transfer_budget().value);
  const double rate = std::min(link_rate[0], link_rate[1]);
  // Before the first copy the link is unmeasured: the budget alone bounds a step.
  const double added = rate == 0 ? depth : rate * to_seconds(now - bucket_filled);
  bucket_bytes = std::min(depth, bucket_bytes + added);
  bucket_filled = now;
}

// One request as the policy sees it.
planner::RotationRequest Controller::State::as_rotation(Request& request) {
  planner::RotationRequest entry;
  entry.t_arr = request.arrived;
  entry.skips = static_cast<std::int32_t>(request.skips);
  entry.ttft_slo = request.slo.ttft;
  entry.tbt_slo = request.slo.tbt;
  if (request.queues()) {
    entry.state = request.state == RequestState::kWaiting ? planner::RequestState::kWaiting
                                                          : planner::RequestState::kRotary;
    entry.bytes = need_bytes(request);
    if (request.has_token) entry.t_last = request.last_token;
  } else {
    entry.state = planner::RequestState::kRunning;
    entry.bytes = hbm_bytes(request);
    entry.t_run = request.run_since;
    // Where layers stream, whole requests are too coarse to rotate: nobody leaves.
    entry.prefilling = request.state == RequestState::kPrefill || session_of(request).streaming;
    // What came in must make a token before it may leave again, or nobody gets anywhere.
    entry.made_token = !request.fresh;
  }
  entry.deposit = saved_up(request);
  entry.output_tokens = expected_length(request).median;
  entry.tokens_made = request.answer();
  return entry;
}

// Everybody who came in may grow to all the tokens it asked for. If HBM cannot hold that, somebody
// has to leave for it, and DRAM must have room for a whole one with everything else there: or there
// could come a time when nobody can grow and nobody can leave.
std::vector<Request*> Controller::State::admissible(DomainId domain) {
  Bytes room_in_hbm = hbm.available(domain);
  Bytes room_in_dram = dram.available(domain);
  Bytes promised, largest;
  each_inside_in(domain, [&](Request& r) {
    room_in_hbm += session_of(r).shape.slot_bytes() * r.hbm_slots();
    room_in_dram += session_of(r).shape.slot_bytes() * r.dram_slots();
    if (!session_of(r).responsive) {  // neither grows nor leaves
      promised += session_of(r).shape.slot_bytes() * (r.hbm_slots() + r.dram_slots());
    } else {
      const Bytes most = session_of(r).bytes_for(r.prompt + r.max_new);
      promised += most;
      largest = std::max(largest, most);
    }
  });
  const Bytes room = room_in_hbm + room_in_dram;
  std::vector<Request*> out;
  const auto found = domains.find(domain);
  if (found == domains.end()) return out;
  for (Request* r : found->second.line) {
    const Session& owner = session_of(*r);
    if (!owner.responsive) continue;  // nobody waits behind the queue of a silent engine
    const Bytes most = owner.bytes_for(r->prompt + r->max_new);
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

planner::RotationSnapshot Controller::State::rotation_snapshot(DomainId domain,
                                                               std::vector<Request*>& index) {
  planner::RotationSnapshot snapshot;
  for (Request* r : admissible(domain)) {
    if (r->queues() && !r->held_back) index.push_back(r);
  }
  // Those inside are visited by key: only the others are to be sorted in among them.
  const auto by_key = [](const Request* a, const Request* b) { return a->key < b->key; };
  std::sort(index.begin(), index.end(), by_key);
  const auto inside = std::ssize(index);
  each_inside_in(domain, [&](Request& r) {
    const Session& owner = session_of(r);
    if (!owner.responsive) return;  // neither a victim, nor would it take what it is given
    const bool running = runs_on(r);
    if (running || r.queues()) index.push_back(&r);
    if (!running) return;
    const std::int64_t more =
        owner.blocks_for(r.planned + Tokens(1)) - std::int64_t{r.table.blocks()};
    snapshot.growth +=
        owner.shape.slot_bytes() * (std::max<std::int64_t>(0, more) * owner.groups());
  });
  std::inplace_merge(index.begin(), index.begin() + inside, index.end(), by_key);
  snapshot.requests.reserve(index.size());
  for (Request* r : index) snapshot.requests.push_back(as_rotation(*r));
  // The reserve is kept from who would come in. Nobody leaves for it.
  const Bytes room = supply(domain);
  const Bytes free = std::max(Bytes(0), room - snapshot.growth);
  snapshot.b_hbm = room - std::min(layerwise_reserve(domain), free);
  snapshot.b_xfer = Bytes(static_cast<std::int64_t>(bucket_bytes));
  snapshot.dram = planner::DramUse{dram_limit(domain), spare_dram(domain)};
  snapshot.mean_absence = planner::Seconds(mean_absence_s);
  return snapshot;
}

planner::RotationConfig Controller::State::rotation_config() const {
  const RotationTuning& r = tuning.rotation;
  const bool goodput = r.overload == "goodput";
  return {r.alpha, r.beta_b, r.beta_f, false,
          goodput ? planner::Overload::kGoodput : planner::Overload::kTtft};
}

// Somebody queues, and nobody has HBM or is about to get it.
bool Controller::State::stands_still(DomainId domain) {
  const auto found = domains.find(domain);
  if (found == domains.end()) return false;
  const Line& line = found->second.line;
  bool queues = std::any_of(line.begin(), line.end(), [](const Request* r) { return r->queues(); });
  bool moves = false;
  each_inside_in(domain, [&](const Request& r) {
    queues = queues || r.queues();
    moves = moves || r.holds_hbm() || r.claim != 0;
  });
  return queues && !moves;
}

// Free memory that another domain's engines know is no supply before it is new, so nobody would be
// admitted to it. Asked for is what those who queue may grow to, as admission counts that.
void Controller::State::renew_for_queue(DomainId domain) {
  Bytes wanted;
  each_request_in(domain, [&](const Request& r) {
    const Session& session = session_of(r);
    if (r.queues() && session.responsive) wanted += session.bytes_for(r.prompt + r.max_new);
  });
  if (wanted > Bytes(0)) tiers.renew_for(domain, wanted);
}

void Controller::State::decide(Session& caller) {
  const DomainId domain = caller.info.domain;
  expire_promises(domain);
  refill_bucket();
  std::vector<Request*> index;
  const planner::RotationSnapshot snapshot = rotation_snapshot(domain, index);
  const planner::RotationDecision& decision = rotation->decide(snapshot, now, rotation_config());
  renew_for_queue(domain);
  const bool full = decision.contention && hbm.available(domain) <= Bytes(0);
  const bool standing = decision.prioritized.empty() && stands_still(domain);
  if (full || standing) {
    // Slabs that another domain left empty can be had once they are zeroed.
    tiers.reclaim(domain);
  }
  carry_out(caller, decision, index);
  if (prefills_layerwise(caller)) prefill_layerwise(caller, decision, index);
  if (standing) bring_in_head(caller);
}

// With nobody inside there is nobody to spare room for, whatever a policy would keep free.
void Controller::State::bring_in_head(Session& caller) {
  const DomainId domain = caller.info.domain;
  Request* head = nullptr;
  each_request_in(domain, [&](Request& r) {
    if (!r.queues() || !session_of(r).responsive) return;
    if (!head || r.arrived < head->arrived) head = &r;
  });
  if (!head || head->key.engine != caller.id || need_bytes(*head) > supply(domain)) return;
  make_claim(*head);
  head->skips = 0;
}

// Prompts may prefill layer by layer into DRAM, a few blocks of HBM at a time.
bool Controller::State::prefills_layerwise(const Session& session) const {
  return !session.streaming && session.info.streams_layers && session.groups() >= kLeastGroups &&
         admission->traits().prefills_layerwise;
}

// A little HBM is kept for them, or whoever runs would fill it; what they hold of it is in use.
// With nobody else running there is nobody to keep it from.
Bytes Controller::State::layerwise_reserve(DomainId domain) {
  const bool wanted = std::any_of(sessions.begin(), sessions.end(), [&](const auto& entry) {
    const Session& session = entry.second;
    return session.info.domain == domain && session.class_id && prefills_layerwise(session);
  });
  if (!wanted) return Bytes(0);
  Bytes used;
  bool others = false;
  each_inside_in(domain, [&](Request& r) {
    if (r.layerwise) used += r.claim != 0 ? need_bytes(r) : hbm_bytes(r);
    others = others || (!r.layerwise && (r.runs() || r.state == RequestState::kSwappingIn));
  });
  if (!others) return Bytes(0);
  return std::max(Bytes(0), Bytes(hbm_limit(domain).value / kLayerwiseShare) - used);
}

// Source: LayerKV sec. 3.1 (every admitted prompt).
void Controller::State::prefill_layerwise(Session& caller,
                                          const planner::RotationDecision& decision,
                                          const std::vector<Request*>& index) {
  if (!decision.contention) return;
  std::vector<Request*> chosen;
  if (rotation->traits().chooses_layerwise) {
    for (const std::uint32_t i : decision.layerwise) chosen.push_back(index[i]);
  } else {
    chosen = index;
    std::stable_sort(chosen.begin(), chosen.end(),
                     [](const auto* a, const auto* b) { return a->arrived < b->arrived; });
  }
  Bytes room = supply(caller.info.domain);
  for (Request* r : chosen) {
    if (r->key.engine != caller.id || r->state != RequestState::kWaiting || !r->queues()) continue;
    room -= streamed_bytes(*r);
    if (room < Bytes(0)) return;
    r->layerwise = true;
    r->away.assign(caller.groups(), true);
    make_claim(*r);
    r->skips = 0;
    ++counters.layerwise;
  }
}

void Controller::State::carry_out(Session& caller, const planner::RotationDecision& decision,
                                  const std::vector<Request*>& index) {
  for (std::size_t i = 0; i < index.size(); ++i) {
    index[i]->vlt_s = decision.vlt_s[i];
    counters.vlt.add(decision.vlt_s[i]);
  }
  Bytes elsewhere;
  for (const std::uint32_t chosen : decision.prioritized) {
    Request& r = *index[chosen];
    if (r.key.engine == caller.id) {
      make_claim(r);
      r.skips = 0;
    } else {
      elsewhere += need_bytes(r);  // granted when its own engine steps
    }
  }
  if (decision.contention) {
    for (Request* r : index) {
      if (r->key.engine == caller.id && r->queues()) ++r->skips;
    }
  }
  Bytes wanted = decision.b_swap ? *decision.b_swap - elsewhere : Bytes(INT64_MAX);
  for (const std::uint32_t victim : decision.preempted) {
    if (wanted <= Bytes(0)) break;
    Request& r = *index[victim];
    wanted -= hbm_bytes(r);
    // What is in DRAM already need not move.
    const Bytes moves = session_of(r).shape.slot_bytes() * (r.hbm_slots() - r.table.doubled());
    bucket_bytes -= static_cast<double>(moves.value);
    preempt(r, caller.id, Promise::kForBytes);
  }
}

void Controller::State::preempt(Request& request, EngineId caller, Promise why) {
  if (request.leaving || request.promised) return;
  if (request.key.engine == caller) {
    request.leaving = true;
    return;
  }
  request.promised = true;
  request.promise = why;
  ++counters.promises;
}

void Controller::State::acknowledge_promises(Session& session) {
  each_inside_of(session.id, [](Request& r) {
    if (!r.promised) return;
    r.promised = false;
    r.leaving = r.state == RequestState::kRunning;
  });
}

void Controller::State::expire_promises(DomainId domain) {
  bool waits = false, promised = false;
  each_inside_in(domain, [&](const Request& r) {
    waits = waits || r.claim != 0 || r.starved;
    promised = promised || r.promised;
  });
  if (!promised) return;
  // A promise ends with its need: what is free or already on its way out may do by now, or nobody
  // waits any more. One made for a region ends with that.
  Bytes spare = supply(domain);
  each_inside_in(domain, [&](Request& r) {
    if (!r.promised) return;
    const bool needless = r.promise == Promise::kForBytes ? spare >= hbm_bytes(r) : !waits;
    if (!session_of(r).responsive || (needless && !in_retiring_slab(r))) {
      spare -= hbm_bytes(r);
      r.promised = false;
      ++counters.promises_expired;
    }
  });
}

}  // namespace kvd::core
