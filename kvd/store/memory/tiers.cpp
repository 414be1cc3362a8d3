#include "kvd/store/memory/tiers.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "ipc/vocabulary/check.hpp"

namespace kvd::store {
namespace {

/// Engines map HBM alone.
pool::SlotRequest request_for(const Mappings& mappings, Tier tier, const Taker& taker,
                              std::uint32_t count) {
  const pool::SlabSet* mapped = tier == Tier::kHbm ? mappings.of(taker.engine) : nullptr;
  return {taker.model_class, taker.domain, taker.engine, count, mapped};
}

}  // namespace

Tiers::Tiers(const Config& config, Orders& orders)
    : orders_(orders),
      hbm_(config.hbm, config.hbm_quotas),
      dram_(config.dram, config.dram_quotas),
      holds_(hbm_, dram_),
      mappings_(hbm_, orders) {}

Status Tiers::add_class(ClassId model_class, Bytes slot_bytes) {
  std::vector<pool::TierPool*> added;
  const auto add = [&](pool::TierPool& pool) {
    Status status = pool.add_class(model_class, slot_bytes);
    if (status.ok()) added.push_back(&pool);
    return status;
  };
  Status status;
  for (pool::TierPool& device : hbm_) {
    if (status.ok()) status = add(device);
  }
  if (status.ok()) status = add(dram_);
  if (status.ok()) return status;
  for (pool::TierPool* pool : added) pool->remove_class(model_class);
  return status;
}

bool Tiers::remove_class(ClassId model_class) {
  bool gone = dram_.remove_class(model_class);
  for (pool::TierPool& device : hbm_) gone = device.remove_class(model_class) && gone;
  return gone;
}

Status Tiers::set_quotas(Tier tier, const pool::Quotas& quotas) {
  if (tier == Tier::kDram) return dram_.set_quotas(quotas);
  for (const pool::TierPool& device : std::as_const(hbm_)) {
    KVD_TRY(pool::check_quotas(quotas, {device.config().slab_bytes, device.config().slabs}));
  }
  for (pool::TierPool& device : hbm_) KVD_TRY(device.set_quotas(quotas));
  return {};
}

std::uint32_t share_out(Tiers& tiers, Tier tier, const pool::Demands& demands, DeviceId device) {
  return pool::share_out(tiers.changing(tier, device), demands);
}

void give_back(Tiers& tiers, Tier tier, DomainId domain, std::uint32_t excess, DeviceId device) {
  pool::give_back(tiers.changing(tier, device), domain, excess);
  tiers.scrub_slabs();
}

// ---- slots ----

pool::SlotGrant Tiers::try_take(Tier tier, const Taker& taker, std::uint32_t count) {
  const pool::SlotRequest request = request_for(mappings_, tier, taker, count);
  pool::SlotGrant grant = changing(tier, taker.device).allocate(request);
  if (request.mapped != nullptr) mappings_.send(taker.engine, grant.to_map);
  return grant;
}

pool::SlotGrant Tiers::take(Tier tier, const Taker& taker, std::uint32_t count) {
  pool::SlotGrant grant = try_take(tier, taker, count);
  if (grant.code != ErrorCode::kOk && grant.to_map.empty())
    reclaim(tier, taker.domain, taker.device);
  return grant;
}

pool::SlotGrant Tiers::take(const Taker& taker, std::span<const DeviceSlots> wanted) {
  const auto on = [&](DeviceId device) {
    Taker there = taker;
    there.device = device;
    return there;
  };
  pool::Outlook worst = pool::Outlook::kNow;
  std::vector<pool::Outlook> outlooks;
  for (const DeviceSlots& part : wanted) {
    const auto request = request_for(mappings_, Tier::kHbm, taker, part.count);
    outlooks.push_back(pool::outlook(hbm_.of(part.device), request));
    worst = std::max(worst, outlooks.back());
  }
  // The results are ordered from good to bad: if one device lacks memory for good, no other can
  // make up for it.
  const auto badness = [](ErrorCode code) {
    if (code == ErrorCode::kOk) return 0;
    return code == ErrorCode::kWouldBlock ? 1 : code == ErrorCode::kQuotaExceeded ? 2 : 3;
  };
  pool::SlotGrant all;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (outlooks[i] != worst) continue;
    const pool::SlotGrant grant = take(Tier::kHbm, on(wanted[i].device), wanted[i].count);
    all.slots.insert(all.slots.end(), grant.slots.begin(), grant.slots.end());
    all.to_map.insert(all.to_map.end(), grant.to_map.begin(), grant.to_map.end());
    if (badness(grant.code) > badness(all.code)) all.code = grant.code;
  }
  KVD_CHECK(all.slots.empty() || all.code == ErrorCode::kOk, "a device grants less than foreseen");
  mappings_.send(taker.engine, all.to_map);
  return all;
}

void Tiers::seal(Tier tier, pool::Slots slots) {
  if (tier == Tier::kDram) return dram_.seal(slots);
  hbm_.each(slots, [](pool::TierPool& pool, auto there) { pool.seal(there); });
}

void Tiers::open(Tier tier, pool::Slots slots) {
  if (tier == Tier::kDram) return dram_.mark_open(slots);
  hbm_.each(slots, [](pool::TierPool& pool, auto there) { pool.mark_open(there); });
}

void Tiers::free(Tier tier, std::vector<SlotId> slots) {
  if (tier == Tier::kHbm && !holds_.reads(tier)) return hbm_.release(slots);
  Hold given_up;
  (tier == Tier::kHbm ? given_up.hbm : given_up.dram) = std::move(slots);
  holds_.add(std::move(given_up));
}

void Tiers::hold(Hold hold) {
  holds_.add(std::move(hold));
  scrub_slots();
}

std::vector<SlotId> adopt(Tiers& tiers, Tier tier, SlabIndex slab, const Taker& owner) {
  return pool::adopt(tiers.with(tier, slab), slab, owner.model_class, owner.domain);
}

std::optional<MoveSlots> Tiers::move(const Taker& owner, const std::vector<SlotId>& from) {
  pool::SlabSet others(dram_.config().slabs, true);
  for (const SlotId slot : from) others[slot.slab().value] = false;
  const pool::SlotGrant grant = dram_.allocate({.model_class = owner.model_class,
                                                .domain = owner.domain,
                                                .owner = owner.engine,
                                                .count = static_cast<std::uint32_t>(from.size()),
                                                .mapped = &others,
                                                .no_new_slab = true});
  if (grant.code != ErrorCode::kOk) return std::nullopt;
  MoveSlots order{orders_.next_ticket(), owner.slot_bytes, {}, owner.domain};
  for (std::size_t i = 0; i < from.size(); ++i) order.pairs.push_back({from[i], grant.slots[i]});
  holds_.copy_reads(order.ticket, Tier::kDram, from);
  orders_.add(order);
  return order;
}

std::int64_t Tiers::grantable(const std::vector<SlotId>& slots, DeviceId device) const {
  return std::count_if(slots.begin(), slots.end(), [&](SlotId slot) {
    return hbm_.device_of(slot) == device && !hbm_.of(device).retiring(slot.slab());
  });
}

void Tiers::copy_ended(Ticket ticket) {
  holds_.copy_ended(ticket);
  scrub_slots();
}

// ---- zeroing ----

void Tiers::reclaim(Tier tier, DomainId asking, DeviceId device) {
  changing(tier, device).reclaim_empty_slabs(asking);
  scrub_slabs();
}

void Tiers::reclaim(DomainId asking, DeviceId device) {
  hbm_.of(device).reclaim_empty_slabs(asking);
  dram_.reclaim_empty_slabs(asking);
  scrub_slabs();
}

void Tiers::scrub_slabs() {
  const auto scrub = [this](Tier tier, pool::TierPool& pool) {
    const std::vector<SlabIndex> slabs = pool.take_dirty();
    if (tier == Tier::kHbm) mappings_.ask_back(slabs);
    std::map<DomainId, std::vector<SlabIndex>> by_domain;
    for (const SlabIndex slab : slabs) by_domain[pool.slab(slab).domain].push_back(slab);
    for (auto& [domain, dirty] : by_domain) {
      const Ticket ticket = orders_.next_ticket();
      Scrub order{ticket, tier, std::move(dirty), {}, Bytes(0), domain};
      orders_.add(order);
      zeroing_.emplace(ticket, Zeroing{std::move(order), DomainId(), ticket});
    }
  };
  for (pool::TierPool& device : hbm_) scrub(Tier::kHbm, device);
  scrub(Tier::kDram, dram_);
}

// Zeroes the slots of processes that are gone.
void Tiers::scrub_slots() {
  for (DirtySlots& dirty : holds_.take_dirty()) {
    hbm_.of(dirty.device).scrub(dirty.slots);
    const Ticket ticket = orders_.next_ticket();
    Scrub order{ticket, Tier::kHbm, {}, std::move(dirty.slots), dirty.slot_bytes, dirty.domain};
    orders_.add(order);
    zeroing_.emplace(ticket, Zeroing{std::move(order), dirty.domain, ticket});
  }
}

bool Tiers::scrub_ended(Ticket ticket, bool ok) {
  const auto found = zeroing_.extract(ticket);
  if (found.empty()) return false;
  Zeroing& ended = found.mapped();
  if (!ok) {  // it may still hold another domain's bytes: try again; until then nobody gets it
    ended.order.ticket = orders_.next_ticket();
    orders_.add(ended.order);
    zeroing_.emplace(ended.order.ticket, std::move(ended));
    return true;
  }
  for (const SlabIndex slab : ended.order.slabs) with(ended.order.tier, slab).slab_scrubbed(slab);
  for (const SlotId slot : ended.order.slots) hbm_.with(slot).scrubbed(slot);
  scrub_slabs();  // a slab that somebody stopped mapping meanwhile has to be zeroed again
  return true;
}

Bytes Tiers::zeroing(DomainId domain, DeviceId device) const {
  Bytes sum;
  for (const auto& [ticket, one] : zeroing_) {
    if (one.domain == domain) sum += one.order.slot_bytes * grantable(one.order.slots, device);
  }
  return sum;
}

bool Tiers::zeroes_for(DomainId domain) const {
  return std::any_of(zeroing_.begin(), zeroing_.end(), [&](const auto& entry) {
    return entry.second.domain == domain || !entry.second.domain;
  });
}

bool zeroes(const Tiers& tiers, Ticket after, Ticket until) {
  return std::any_of(tiers.zeroing_.begin(), tiers.zeroing_.end(), [&](const auto& entry) {
    const Ticket first = entry.second.first;
    return after < first && first <= until;
  });
}

Bytes held_hbm(const Tiers& tiers, EngineId engine) {
  Bytes sum;
  for (const Hold& hold : tiers.holds_.all()) {
    if (hold.engine == engine) sum += hold.slot_bytes * std::ssize(hold.hbm);
  }
  return sum;
}

std::uint64_t Tiers::order_renewals() {
  std::uint64_t count = 0;
  for (pool::TierPool& device : hbm_) {
    const std::vector<SlabIndex> slabs = device.take_renewals();
    for (const SlabIndex slab : slabs) orders_.add(RenewSlab{slab});
    count += slabs.size();
  }
  return count;
}

// ---- engines ----

void Tiers::engine_came(EngineId engine) {
  mappings_.engine_came(engine);
  holds_.engine_came(engine);
}

void Tiers::engine_gone(EngineId engine) {
  mappings_.engine_gone(engine);
  holds_.engine_gone(engine);
  scrub_slots();
}

// ---- regions ----

Result<std::vector<SlabIndex>> Tiers::lease(RegionId region, const Taker& taker, Bytes bytes) {
  pool::TierPool& hbm = hbm_.of(taker.device);
  auto slabs = hbm.allocate_region(region, taker.domain, taker.engine, bytes);
  // Slabs that no block uses any more can be had, once they are zeroed.
  if (!slabs.ok() && !hbm.reclaim_empty_slabs().empty()) {
    slabs = hbm.allocate_region(region, taker.domain, taker.engine, bytes);
  }
  if (!slabs.ok()) return slabs;
  const auto count = static_cast<std::uint32_t>(slabs->size());
  for (std::uint32_t i = 0; i < count; ++i) {
    hbm.set_mapped((*slabs)[i], taker.engine, true);
    orders_.add(SendSlab{taker.engine, (*slabs)[i], region, i, count});
  }
  return slabs;
}

void Tiers::end_lease(RegionId region, EngineId engine, const std::vector<SlabIndex>& slabs) {
  for (const SlabIndex slab : slabs) mappings_.region_unmapped(engine, slab);
  store::release(*this, region, slabs);
  scrub_slabs();
}

void release(Tiers& tiers, RegionId region, const std::vector<SlabIndex>& slabs) {
  ForgetKept ended;
  for (const SlabIndex slab : slabs) ended.slots[0].emplace_back(slab, 0);
  tiers.orders_.add(std::move(ended));
  tiers.hbm_.with(slabs.front()).release_region(region);
}

std::size_t Tiers::slots(Tier tier) const {
  std::size_t sum = holds_.slots(tier);
  for (const auto& [ticket, one] : zeroing_) {
    if (one.order.tier == tier) sum += one.order.slots.size();
  }
  return sum;
}

std::string Tiers::validate() const {
  for (const pool::TierPool& device : hbm_) {
    if (std::string fault = device.validate(); !fault.empty()) return "hbm: " + fault;
  }
  if (std::string fault = dram_.validate(); !fault.empty()) return "dram: " + fault;
  return holds_.validate();
}

}  // namespace kvd::store
