#include "kvd/core/moves/supply.hpp"

#include <algorithm>

#include "ipc/vocabulary/human.hpp"

namespace kvd::core {

Bytes Supply::of(Share share) {
  return store_.cache.available(share.domain, Tier::kHbm, share.device) + incoming(share) +
         yieldable(share) - claimed(share);
}

Bytes Supply::kept(const Request& request, DeviceId device) const {
  if (retiring_.empty()) return Bytes(0);
  const pool::TierPool& hbm = store_.hbm.of(device);
  std::int64_t count = 0;
  memory_.each_hbm_slot(request, [&](SlotId slot) {
    if (store_.hbm.device_of(slot) == device && hbm.retiring(slot.slab())) ++count;
  });
  return requests_.session_of(request).shape.slot_bytes() * count;
}

bool Supply::in_retiring_slab(const Request& request) const {
  const std::vector<DeviceId>& devices = requests_.session_of(request).devices().all();
  return std::any_of(devices.begin(), devices.end(),
                     [&](DeviceId device) { return kept(request, device) > Bytes(0); });
}

Bytes Supply::incoming(Share share) {
  Bytes sum;
  requests_.each_inside_on(share, [&](Request& r) {
    const bool leaves = r.place == Location::kGoing || r.leaving || r.promised;
    if (r.place != Location::kGoing && !requests_.session_of(r).life.responsive) return;
    if (leaves) sum += memory_.hbm_bytes(r, share.device) - kept(r, share.device);
  });
  // Memory that a silent engine may still use comes back when it steps again, or never.
  return sum + store_.tiers.held(share.domain, share.device, [&](EngineId engine) {
    const auto session = requests_.sessions().find(engine);
    return session == requests_.sessions().end() || session->second.life.responsive;
  });
}

Bytes Supply::claimed(Share share) {
  Bytes sum;
  const auto found = requests_.domains().find(share.domain);
  if (found == requests_.domains().end()) return sum;
  for (const auto& [order, request] : found->second.claims) {
    sum += needs_.to_run(*request, share.device);
  }
  return sum;
}

// What plans could still make free, less what prompts that come in chunk by chunk will need.
Bytes Supply::yieldable(Share share) {
  Bytes sum;
  requests_.each_inside_on(share, [&](Request& r) {
    const Session& session = requests_.session_of(r);
    if (!session.life.responsive || (!session.streaming && !r.layerwise)) return;
    if (r.paused()) {
      const Bytes open = session.shape.slot_bytes() * std::int64_t{session.groups_on(share.device)};
      sum += std::max(Bytes(0), memory_.hbm_bytes(r, share.device) - open);
    } else if (r.runs() && !r.leaving && !r.promised) {
      const Bytes more = memory_.hbm_bytes(r, share.device) - needs_.to_stream(r, share.device);
      if (session.streaming || more < Bytes(0)) sum += more;
    }
  });
  return sum;
}

// A little HBM is kept for these prompts, because running requests would fill it; what they hold of
// it is in use. With no other request running there is no need to keep any. A policy that prefills
// this way only at need keeps nothing from requests larger than all of it: it would keep a whole
// request out, at all times.
Bytes Supply::layerwise_reserve(Share share) {
  const bool wanted =
      std::any_of(requests_.sessions().begin(), requests_.sessions().end(), [&](const auto& entry) {
        const Session& session = entry.second;
        return session.info.domain == share.domain && session.on(share.device) &&
               session.class_id && needs_.prefills_layerwise(session);
      });
  if (!wanted) return Bytes(0);
  Bytes used, held;
  std::int64_t others = 0;
  requests_.each_inside_on(share, [&](Request& r) {
    if (r.layerwise)
      used +=
          r.order.claim != 0 ? needs_.to_run(r, share.device) : memory_.hbm_bytes(r, share.device);
    if (r.layerwise || !(r.runs() || r.place == Location::kComing)) return;
    held += memory_.hbm_bytes(r, share.device);
    ++others;
  });
  const Bytes reserve(needs_.hbm_limit(share).value / kLayerwiseShare);
  const bool at_need = context_.rotation->traits().chooses_layerwise;
  if (others == 0 || (at_need && held > reserve * others)) return Bytes(0);
  return std::max(Bytes(0), reserve - used);
}

// Blocks of a silent engine come back when it steps or is evicted; nobody can rotate them out.
std::string Supply::silent_holder(Share share) {
  std::string text;
  requests_.each_inside_on(share, [&](Request& r) {
    const Session& owner = requests_.session_of(r);
    if (!text.empty() || owner.life.responsive || !r.holds_hbm()) return;
    text = "engine '" + owner.info.name + "' holds blocks in HBM and has been silent for " +
           human_time(context_.now - owner.life.last_step) +
           ": repeat the command once it steps again or has ended (engine.evict_after)";
  });
  return text;
}

}  // namespace kvd::core
