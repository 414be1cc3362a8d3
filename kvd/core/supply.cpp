#include "kvd/core/supply.hpp"

#include <algorithm>

namespace kvd::core {

Bytes Supply::of(DomainId domain) {
  return store_.hbm.available(domain) + incoming(domain) + yieldable(domain) - claimed(domain);
}

Bytes Supply::kept(const Request& request) const {
  if (retiring_.empty()) return Bytes(0);
  std::int64_t count = 0;
  memory_.each_hbm_slot(request,
                        [&](SlotId slot) { count += store_.hbm.retiring(slot.slab()) ? 1 : 0; });
  return requests_.session_of(request).shape.slot_bytes() * count;
}

bool Supply::in_retiring_slab(const Request& request) const { return kept(request) > Bytes(0); }

Bytes Supply::incoming(DomainId domain) {
  Bytes sum;
  requests_.each_inside_in(domain, [&](Request& r) {
    const bool leaves = r.place == Location::kGoing || r.leaving || r.promised;
    if (r.place != Location::kGoing && !requests_.session_of(r).life.responsive) return;
    if (leaves) sum += memory_.hbm_bytes(r) - kept(r);
  });
  // What a silent engine may still use comes when it steps again, or never.
  return sum + store_.tiers.held(domain, [&](EngineId engine) {
    const auto session = requests_.sessions().find(engine);
    return session == requests_.sessions().end() || session->second.life.responsive;
  });
}

Bytes Supply::claimed(DomainId domain) {
  Bytes sum;
  const auto found = requests_.domains().find(domain);
  if (found == requests_.domains().end()) return sum;
  for (const auto& [order, request] : found->second.claims) sum += needs_.to_run(*request);
  return sum;
}

// What plans could still make free, less what prompts that come in chunk by chunk will need.
Bytes Supply::yieldable(DomainId domain) {
  Bytes sum;
  requests_.each_inside_in(domain, [&](Request& r) {
    const Session& session = requests_.session_of(r);
    if (!session.life.responsive || (!session.streaming && !r.layerwise)) return;
    if (r.paused()) {
      const std::int64_t open = session.groups();
      sum += session.shape.slot_bytes() * std::max<std::int64_t>(0, r.hbm_slots() - open);
    } else if (r.runs() && !r.leaving && !r.promised) {
      const Bytes more = memory_.hbm_bytes(r) - needs_.to_stream(r);
      if (session.streaming || more < Bytes(0)) sum += more;
    }
  });
  return sum;
}

// A little HBM is kept for them, or whoever runs would fill it; what they hold of it is in use.
// With nobody else running there is nobody to keep it from.
Bytes Supply::layerwise_reserve(DomainId domain) {
  const bool wanted =
      std::any_of(requests_.sessions().begin(), requests_.sessions().end(), [&](const auto& entry) {
        const Session& session = entry.second;
        return session.info.domain == domain && session.class_id &&
               needs_.prefills_layerwise(session);
      });
  if (!wanted) return Bytes(0);
  Bytes used;
  bool others = false;
  requests_.each_inside_in(domain, [&](Request& r) {
    if (r.layerwise) used += r.order.claim != 0 ? needs_.to_run(r) : memory_.hbm_bytes(r);
    others = others || (!r.layerwise && (r.runs() || r.place == Location::kComing));
  });
  if (!others) return Bytes(0);
  return std::max(Bytes(0), Bytes(needs_.hbm_limit(domain).value / kLayerwiseShare) - used);
}

// Blocks of a silent engine come back when it steps, or is evicted; nobody can rotate them out.
std::string Supply::silent_holder(DomainId domain) {
  std::string text;
  requests_.each_inside_in(domain, [&](Request& r) {
    const Session& owner = requests_.session_of(r);
    if (!text.empty() || owner.life.responsive || !r.holds_hbm()) return;
    text = "engine '" + owner.info.name + "' holds blocks in HBM and has been silent for " +
           std::to_string(to_seconds(context_.now - owner.life.last_step)) +
           " s: repeat the command once it steps again or has ended (engine.evict_after)";
  });
  return text;
}

}  // namespace kvd::core
