#include "kvd/core/moves/left_regions.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace kvd::core {

namespace {

/// Engines attach again within a second or two of the start.
constexpr Nanoseconds kPatience = std::chrono::seconds(10);

}  // namespace

void LeftRegions::adopt(const AdoptRegions& left) {
  until_ = context_.now + kPatience;
  for (const AdoptRegions::Left& one : left.regions) {
    pool::TierPool& pool = store_.tiers.hbm().with(one.slabs.front());
    const DeviceId device = store_.hbm.device_of(one.slabs.front());
    const RegionId id = spaces_.next_id();
    pool::Positions at;
    bool fits = one.domain && !left_.contains(one.name);
    for (const SlabIndex slab : one.slabs) {
      at.push_back(slab.value);
      fits = fits && store_.hbm.device_of(slab) == device;  // pools may have another size now
    }
    if (fits && pool::lease(pool, {id, one.domain, EngineId()}, at)) {
      left_.emplace(one.name, Left{one.proof, one.domain, {id, one.slabs, one.name}});
      continue;
    }
    for (const SlabIndex slab : one.slabs) {
      pool::renew(store_.tiers.hbm().with(slab), slab);
      renew(slab);
    }
  }
  if (left_.empty()) return;
  context_.note(
      Note::Level::kInfo, EngineId(),
      "regions of the kvd before wait 10 s for their engines: " + std::to_string(left_.size()));
}

void LeftRegions::on_claim(const Command& command, const ClaimRegion& claim) {
  Session& session = requests_.sessions().at(command.engine);
  const auto found = left_.find(claim.name);
  const bool is_its =
      found != left_.end() && found->second.proof == claim.proof &&
      found->second.domain == session.info.domain && !session.ranks &&
      store_.hbm.device_of(found->second.region.slabs.front()) == session.share().device;
  if (is_its) {
    give(session, std::move(found->second.region));
    left_.erase(found);
  }
  const auto& regions = session.leases.regions;
  const auto region = std::find_if(regions.begin(), regions.end(), [&](const auto& each) {
    return each.second.name == claim.name;
  });
  if (region == regions.end()) {
    return context_.refuse(command, ErrorCode::kNotFound,
                           "no such region of an earlier kvd waits for this engine: it keeps its "
                           "memory as it is, and gets a new region by allocating one");
  }
  const auto& [id, its] = *region;
  context_.reply(command,
                 RegionReply{id, store_.tiers.hbm().with(its.slabs.front()).config().slab_bytes,
                             static_cast<std::uint32_t>(its.slabs.size())});
}

void LeftRegions::give(Session& session, Region region) {
  pool::TierPool& pool = store_.tiers.hbm().with(region.slabs.front());
  pool::claim(pool, region.id, session.id);
  for (const SlabIndex slab : region.slabs) pool.set_mapped(slab, session.id, true);
  Bytes& orphaned = session.info.orphaned;
  orphaned -= std::min(orphaned, pool.config().slab_bytes * std::ssize(region.slabs));
  const RegionId id = region.id;
  session.leases.regions.emplace(id, std::move(region));
}

bool LeftRegions::expire() {
  if (left_.empty() || context_.now < until_) return false;
  for (const auto& [name, left] : std::exchange(left_, {})) {
    pool::TierPool& pool = store_.tiers.hbm().with(left.region.slabs.front());
    for (const SlabIndex slab : pool::renew(pool, left.region.id)) renew(slab);
  }
  context_.note(Note::Level::kWarning, EngineId(),
                "regions of the kvd before are let go, as their engines did not come back within "
                "10 s: an engine that still lives keeps the memory beside this kvd's until it "
                "frees it");
  return true;
}

// The records end first.
void LeftRegions::renew(SlabIndex slab) {
  ForgetKept ended;
  ended.slots[0].emplace_back(slab, 0);
  context_.emit(std::move(ended));
  context_.emit(RenewSlab{slab, true});
}

}  // namespace kvd::core
