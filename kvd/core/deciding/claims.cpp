#include "kvd/core/deciding/claims.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

namespace kvd::core {

void Claims::serve_everyone() {
  regions_.serve();
  for (const auto& [domain, kept] : requests_.domains()) serve(domain);
}

void Claims::serve(DomainId domain) {
  const auto found = requests_.domains().find(domain);
  if (found == requests_.domains().end() || found->second.claims.empty()) return;
  const auto& claims = found->second.claims;
  const std::uint64_t last = claims.rbegin()->first;
  std::set<DeviceId> kept;  // reserved for an earlier claim
  const auto is_kept = [&](DeviceId device) { return kept.contains(device); };
  // Usually the first claim waits, and with it all behind it, which may be thousands. A served
  // claim leaves the list.
  std::uint64_t order = 0;
  for (auto claim = claims.begin(); claim != claims.end() && kept.size() < store_.hbm.count();
       claim = claims.upper_bound(order)) {
    order = claim->first;
    if (order > last) return;
    Request* const request = claim->second;
    const std::vector<DeviceId>& devices = requests_.session_of(*request).devices().all();
    if (request->order.curbed) continue;  // another one is to end first
    if (!kept.empty() && std::any_of(devices.begin(), devices.end(), is_kept)) continue;
    const ErrorCode code = serve_claim(*request);
    const bool soon = code == ErrorCode::kWouldBlock;
    request->order.awaits_mapping = soon && store_.tiers.mappings().awaited_by(request->key.engine);
    if (soon && request->content.awaits_disk)
      continue;  // the claim holds nothing, so others need not wait
    if (code == ErrorCode::kOk) {
      requests_.drop_claim(*request);
    } else if (soon && !request->order.awaits_mapping) {
      // Slabs that are being zeroed would otherwise go to the next claim.
      for (const DeviceId device : short_devices(*request)) kept.insert(device);
    } else if (!request->order.awaits_mapping) {
      // Later claims must not overtake for ever. Three kinds of claims may be overtaken: one that
      // waits for a mapping, one whose slots become free only when later requests have ended, and
      // one of a request that may not grow and cannot leave.
      if (!relieve_class_pressure(*request)) continue;
      for (const DeviceId device : short_devices(*request)) {
        if (!is_curbed({domain, device})) kept.insert(device);
      }
    }
  }
}

// The requests that run there wait for others to end, and nothing is on its way out.
bool Claims::is_curbed(Share share) {
  bool curbed = false;
  requests_.each_inside_on(
      share, [&](const Request& r) { curbed = curbed || (r.runs() && r.order.curbed); });
  return curbed && supply_.incoming(share) <= Bytes(0);
}

// Where the claim waits: on the devices that lack room, or on all devices if none does.
std::vector<DeviceId> Claims::short_devices(const Request& request) {
  const Session& session = requests_.session_of(request);
  std::vector<DeviceId> devices = session.devices().all();
  const auto has_room = [&](DeviceId device) {
    const Bytes available = store_.cache.available(session.info.domain, Tier::kHbm, device);
    return available >= needs_.to_run(request, device);
  };
  if (!std::all_of(devices.begin(), devices.end(), has_room)) std::erase_if(devices, has_room);
  return devices;
}

ErrorCode Claims::serve_claim(Request& request) {
  if (request.place == Location::kParked) return swaps_.swap_in(request);
  const Found found = prefixes_.find(request);
  if (found == Found::kSoon) return ErrorCode::kWouldBlock;
  const ErrorCode code = found == Found::kInDram ? swaps_.swap_in(request) : grow_prefill(request);
  if (code != ErrorCode::kOk && found != Found::kNothing) prefixes_.give_back(request);
  if (code == ErrorCode::kOk) prefixes_.count(request);
  if (code == ErrorCode::kOk && found != Found::kInDram) {
    request.place = Location::kIn;
    request.lift(Verdict::kHeldBack);
    request.times.run_since = context_.now;
  }
  return code;
}

// Empties the slab of another class that costs the least work. False: there are bytes enough, but
// no request can leave the slabs they are in.
bool Claims::relieve_class_pressure(const Request& request) {
  const Session& session = requests_.session_of(request);
  for (const DeviceId device : session.devices().all()) {
    const Share share{session.info.domain, device};
    const Bytes available = store_.cache.available(share.domain, Tier::kHbm, device);
    if (available >= needs_.to_run(request, device)) continue;
    ask_paused(request, share);
    return true;
  }
  bool pinned = false;
  for (const DeviceId device : session.devices().all()) {
    const pool::TierPool& hbm = store_.hbm.of(device);
    for (const SlabIndex slab : hbm.foreign_slabs(session.class_id, session.info.domain)) {
      const Emptying emptying = empty_slab(request, slab);
      if (emptying == Emptying::kStarted) return true;
      pinned = pinned || emptying == Emptying::kPinned;
    }
  }
  return !pinned;
}

// A prompt that has begun cannot leave the slab. A parked request needs nothing there: what it
// shares stays for others.
Claims::Emptying Claims::empty_slab(const Request& request, SlabIndex slab) {
  const Share share{requests_.session_of(request).info.domain, store_.hbm.device_of(slab)};
  std::vector<Request*> inside;
  bool under_way = false, stays = false;
  requests_.each_inside_on(share, [&](Request& r) {
    bool uses = false;
    store_.blocks.each_slot(r.table, Tier::kHbm, [&](SlotId slot) { uses |= slot.slab() == slab; });
    if (!uses || r.table.parked()) return;
    under_way |= r.leaving || r.promised || !r.runs();
    stays |= r.prefills();
    // A request that came in and was paused at once makes no token, so there is nothing to keep it
    // for.
    const bool may_leave = !r.fresh || ((r.paused() || r.order.curbed) && copies_.takes(r));
    if (r.decodes() && may_leave) inside.push_back(&r);
  });
  if (under_way) return Emptying::kStarted;
  if (stays) return Emptying::kPinned;
  if (inside.empty()) return Emptying::kNone;
  for (Request* r : inside) promises_.preempt(*r, request.key.engine, Promise::kForSlots);
  return Emptying::kStarted;
}

// A prompt whose layers leave comes in chunk by chunk: the full blocks of one chunk make way for
// the next.
ErrorCode Claims::grow_prefill(Request& request) {
  if (request.layers.away.empty()) return memory_.grow(request, request.room_to_run());
  constexpr std::int64_t kMostBlocks = 128;  // 2,048 tokens: more than keeps an engine busy
  constexpr std::int64_t kShare = 4;         // the chunk before is still on its way out
  Session& session = requests_.session_of(request);
  std::int64_t room = kMostBlocks;
  for (const DeviceId device : session.devices().all()) {
    const Bytes block = session.shape.slot_bytes() * std::int64_t{session.groups_on(device)};
    const Bytes there = store_.cache.available(session.info.domain, Tier::kHbm, device);
    room = std::min(room, there / (block * kShare));
  }
  std::int64_t more = std::clamp<std::int64_t>(room, 1, kMostBlocks);
  const std::int64_t whole = session.blocks_for(request.room_to_run());
  const std::int64_t begun = request.progress.planned.value / session.shape.block_tokens;
  ErrorCode code = ErrorCode::kOk;
  for (; more > 0; more /= 2) {
    const std::int64_t wanted = std::min(whole, begun + more);
    if (wanted <= request.table.blocks()) return ErrorCode::kOk;
    code = memory_.grow(request, Tokens(wanted * session.shape.block_tokens));
    if (code != ErrorCode::kOutOfMemory) break;
  }
  if (code == ErrorCode::kOutOfMemory) session.ahead.crowded = true;
  return code;
}

ErrorCode Claims::grow_next(Request& request) {
  const bool prefill = request.prefills() && request.progress.planned < request.goal.prompt;
  return prefill ? grow_prefill(request)
                 : memory_.grow(request, request.progress.planned + Tokens(1));
}

void Claims::feed_starved(Session& session) {
  requests_.each_inside_of(session.id, [&](Request& r) {
    if (r.starved && !r.order.curbed && r.runs() && !r.leaving && !r.promised && !r.paused()) {
      r.starved = grow_next(r) != ErrorCode::kOk || !streams_.stage(session, r);
    }
  });
}

void Claims::grow_running(Session& session) {
  Request* hungry = nullptr;
  requests_.each_inside_of(session.id, [&](Request& r) {
    r.starved = false;
    if (!r.runs() || r.leaving || r.promised || r.paused()) return;
    if (r.order.curbed) {
      r.starved = true;
      if (copies_.takes(r)) promises_.preempt(r, session.id, Promise::kForSlots);
      return;
    }
    const ErrorCode code = grow_next(r);
    r.starved = code != ErrorCode::kOk;
    if (code == ErrorCode::kWouldBlock) return;  // the slab is being mapped
    if (r.starved) {
      ++context_.counters.rotation_blocked_growth;
      hungry = &r;
    }
  });
  if (hungry) make_way(session, *hungry);
}

// Called where nothing is on its way out. Whatever the policy, the latest arrival gives way, or
// nobody would ever run again (vLLM's rule for a full cache).
void Claims::make_way(Session& session, Request& hungry) {
  const Share share = short_share(session);
  if (supply_.incoming(share) > Bytes(0)) return;
  session.plan.steps_left = 0;  // its forecast did not come true

  Request* victim = nullptr;
  Request* second = nullptr;  // could not leave before, or came in and was hungry at once
  std::size_t running = 0;
  requests_.each_inside_on(share, [&](Request& r) {
    if (!r.runs() || r.paused() || !requests_.session_of(r).life.responsive) return;
    ++running;
    if (!r.decodes() || r.order.sheltered || (r.fresh && !r.starved)) return;
    Request*& choice = r.fresh ? second : victim;
    if (!choice || r.times.arrived >= choice->times.arrived) choice = &r;
  });
  if (!victim && second && copies_.takes(*second)) victim = second;
  if (victim && running > 1) {
    promises_.preempt(*victim, session.id, Promise::kForSlots);
  } else if (hungry.prefills() && needs_.layers_may_stream(session) && hungry.layers.away.empty()) {
    // Nobody can leave for this prompt: the blocks that it has so far make way for the rest.
    hungry.layers.away.assign(session.groups(), true);
  } else if (Request* paused = latest_paused(share)) {
    promises_.preempt(*paused, session.id, Promise::kForSlots);
  } else if (Request* staged = latest_staged(session)) {
    plans_.pause(session, *staged);
  }
}

// DRAM is full, too: no request whose layers stream can leave, and none finds a block. The staging
// of one becomes room for the others.
Request* Claims::latest_staged(Session& session) {
  Request* latest = nullptr;
  std::size_t running = 0;
  requests_.each_inside_of(session.id, [&](Request& r) {
    if (!r.runs() || r.paused() || r.leaving || r.promised) return;
    ++running;
    if (!r.starved || r.order.sheltered || r.layers.staging.empty()) return;
    if (!latest || r.times.arrived >= latest->times.arrived) latest = &r;
  });
  return session.streaming && running > 1 ? latest : nullptr;
}

// Called where nobody runs, nobody is hungry, and no end gives the paused requests their turn: one
// of them makes way for the claim.
void Claims::ask_paused(const Request& request, Share share) {
  const auto& sessions = requests_.sessions();
  const bool streams = std::any_of(sessions.begin(), sessions.end(),
                                   [](const auto& entry) { return entry.second.streaming; });
  if (!streams) return;
  bool runs = false;
  requests_.each_inside_on(share, [&](const Request& r) {
    runs = runs || (r.runs() && !r.paused()) || r.place == Location::kComing;
  });
  if (runs || supply_.incoming(share) > Bytes(0)) return;
  if (Request* paused = latest_paused(share)) {
    promises_.preempt(*paused, request.key.engine, Promise::kForSlots);
  }
}

// A plan leaves a paused request a few blocks in HBM: those that it shares, and those that are not
// full. The next request to run may need just these, or the slab they are in.
Request* Claims::latest_paused(Share share) {
  Request* latest = nullptr;
  requests_.each_inside_on(share, [&](Request& r) {
    const bool may_leave = r.runs() && r.paused() && r.decodes() && r.holds_hbm() && !r.promised &&
                           requests_.session_of(r).life.responsive;
    if (!may_leave || !copies_.takes(r)) return;
    if (!latest || r.times.arrived >= latest->times.arrived) latest = &r;
  });
  return latest;
}

// The first of the session's devices that lacks a block for one of its groups there; otherwise its
// first device.
Share Claims::short_share(const Session& session) const {
  const DomainId domain = session.info.domain;
  for (const DeviceId device : session.devices().all()) {
    const Bytes next = session.shape.slot_bytes() * std::int64_t{session.groups_on(device)};
    if (store_.cache.available(domain, Tier::kHbm, device) < next) return {domain, device};
  }
  return session.share();
}

}  // namespace kvd::core
