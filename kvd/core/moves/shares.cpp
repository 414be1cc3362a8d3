#include "kvd/core/moves/shares.hpp"

#include <algorithm>

namespace kvd::core {
namespace {

std::uint32_t slabs_for(Bytes bytes, const pool::TierPool& pool) {
  const std::int64_t slabs = pieces(std::max(Bytes(0), bytes), pool.config().slab_bytes);
  return static_cast<std::uint32_t>(std::min<std::int64_t>(slabs, pool.config().slabs));
}

std::uint32_t whole_slabs(Bytes bytes, const pool::TierPool& pool) {
  const std::int64_t slabs = std::max(Bytes(0), bytes) / pool.config().slab_bytes;
  return static_cast<std::uint32_t>(std::min<std::int64_t>(slabs, pool.config().slabs));
}

}  // namespace

void Shares::begin() {
  domains_.clear();
  to_move_.clear();
  supply_.end_over_part();
  for (const auto& [id, session] : requests_.sessions()) domains_.insert(session.info.domain);
}

bool Shares::share_out(DeviceId device, const std::map<DomainId, Bytes>& awaited) {
  const pool::TierPool& hbm = store_.hbm.of(device);
  pool::Demands demands;
  bool in_vain = false;
  if (domains_.size() > 1) {
    const auto equal = static_cast<std::uint32_t>(hbm.config().slabs / domains_.size());
    const bool rotates = context_.rotation->traits().evicts;
    for (const DomainId domain : domains_) {
      const Share share{domain, device};
      Requested requested = this->requested(share, hbm.config().slab_bytes * std::int64_t{equal});
      const auto regions = awaited.find(domain);
      if (regions != awaited.end()) requested.lacks += regions->second;
      const Bytes leaves = rotates ? std::min(requested.leaves, copies_.spare(domain)) : Bytes(0);
      if (rotates) to_move_[domain] += std::min(requested.leaves, requested.lacks);
      in_vain |= requested.lacks > store_.cache.available(domain, Tier::kHbm, device);
      const std::uint32_t has = firm(domain, Tier::kHbm, device, Bytes(0));
      const std::uint32_t stays = has - std::min(has, whole_slabs(leaves, hbm));
      const std::uint32_t grows = stays < has ? 0 : slabs_for(requested.grows, hbm);
      demands[domain] = {has + slabs_for(requested.lacks - hbm.available(domain), hbm),
                         std::max(stays + grows, slabs_for(requested.largest, hbm))};
    }
  }
  if (!in_vain) demands.clear();
  const std::uint32_t part = store::share_out(store_.tiers, Tier::kHbm, demands, device);
  for (const auto& [domain, demand] : demands) {
    if (firm(domain, Tier::kHbm, device, Bytes(0)) > part) supply_.set_over_part({domain, device});
  }
  return part != UINT32_MAX;
}

// Parked blocks stay until they come back to HBM, or until their request ends.
bool Shares::share_out_dram() {
  pool::Demands demands;
  bool in_vain = false;
  for (const DomainId domain : domains_) {
    const Bytes spare = copies_.spare(domain);
    const Bytes copied = spare - store_.cache.available(domain, Tier::kDram);
    const Bytes lacks = to_move_[domain] - spare;
    in_vain |= lacks > Bytes(0);
    const std::uint32_t has = firm(domain, Tier::kDram, {}, copied);
    demands[domain] = {has + slabs_for(lacks, store_.dram), has};
  }
  if (!in_vain || domains_.size() < 2) demands.clear();
  return store::share_out(store_.tiers, Tier::kDram, demands) != UINT32_MAX;
}

std::uint32_t Shares::firm(DomainId domain, Tier tier, DeviceId device, Bytes copied) const {
  const pool::TierPool& pool = store_.tiers.pool(tier, device);
  const Bytes makes_way = store_.cache.evictable(domain, tier, device) + copied;
  return whole_slabs(pool.used(domain) - std::min(pool.used(domain), makes_way), pool);
}

Shares::Requested Shares::requested(Share share, Bytes most) {
  Requested sum = inside(share, most);
  sum.lacks += in_line(share, most);
  const Bytes slab = store_.hbm.of(share.device).config().slab_bytes;
  for (const auto& [id, session] : requests_.sessions()) {
    if (session.share() != share) continue;
    // A part of what a space lacks is useful as well.
    for (const auto& [region, space] : session.leases.spaces) {
      sum.lacks += std::min(most, lacks(space, slab, context_.now));
    }
    const auto& refused = session.leases.refused;
    // An engine that was refused a region asks again in a while.
    const bool is_fresh = refused && context_.now - refused->at < context_.config.step_timeout;
    if (is_fresh && refused->bytes <= most) sum.lacks += refused->bytes;
  }
  sum.lacks = std::max(Bytes(0), sum.lacks - supply_.incoming(share));
  return sum;
}

Shares::Requested Shares::inside(Share share, Bytes most) {
  Requested sum;
  requests_.each_inside_on(share, [&](Request& r) {
    if (!requests_.session_of(r).life.responsive) return;
    const Bytes held = memory_.hbm_bytes(r, share.device);
    const Bytes need = needs_.to_run(r, share.device);
    const Bytes more = std::max(Bytes(0), need - held);
    const bool starves = r.runs() && r.starved;
    const bool waits = r.queues() || (r.order.claim != 0 && !r.order.awaits_mapping);
    if ((starves || waits) && need <= most) sum.lacks += more;
    if (starves) sum.grows += more;
    if (r.decodes()) sum.leaves += held;
    if (!r.waits()) sum.largest = std::max(sum.largest, need);
  });
  return sum;
}

// Stops counting once the sum exceeds what there is.
Bytes Shares::in_line(Share share, Bytes most) const {
  Bytes sum;
  const auto found = requests_.domains().find(share.domain);
  if (found == requests_.domains().end()) return sum;
  const pool::TierPool::Config& hbm = store_.hbm.of(share.device).config();
  for (const Request* r : found->second.line) {
    const Session& owner = requests_.session_of(*r);
    if (!owner.life.responsive || r->verdict != Verdict::kNone) continue;
    const Bytes need = needs_.to_run(*r, share.device);
    if (need <= most) sum += need;
    if (sum >= hbm.slab_bytes * std::int64_t{hbm.slabs}) break;
  }
  return sum;
}

}  // namespace kvd::core
