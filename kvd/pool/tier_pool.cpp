// Classes, slots, quotas; tier_pool_slabs.cpp moves whole slabs, tier_pool_views.cpp reports and
// checks.
#include "kvd/pool/tier_pool.hpp"

#include <algorithm>

#include "ipc/vocabulary/check.hpp"
#include "kvd/pool/budget.hpp"

namespace kvd::pool {
namespace {

constexpr SlotStates kReleasable =
    any_of(SlotState::kFilling, SlotState::kOpen, SlotState::kSealed, SlotState::kDraining);

/// Slabs of the request's class with free slots, fullest first and lowest index first among equals,
/// as many as `wanted` slots take.
struct WithRoom {
  Positions slabs;
  std::uint64_t free = 0;  ///< slots in them

  WithRoom(const SlabBook& book, const SlotRequest& request, bool mapped, std::uint64_t wanted) {
    const SlabBook::Room& room = book.room(request.model_class, request.domain);
    slabs.reserve(room.size());
    for (const auto& [slots, position] : room) {
      if (free >= wanted) break;
      if (request.reaches(position) != mapped) continue;
      slabs.push_back(position);
      free += slots;
    }
  }
};

/// How a request for slots is met. Making it changes nothing.
struct Plan {
  ErrorCode code = ErrorCode::kOk;
  Positions reachable;        ///< slabs of the class that the owner maps
  Positions unmapped;         ///< positions that it has yet to map
  Positions joining;          ///< slabs that join the class
  std::uint32_t lacking = 0;  ///< slabs to be renewed for it

  [[nodiscard]] bool maps(const SlotRequest& request) const {
    const auto unknown = [&](std::uint32_t position) { return !request.reaches(position); };
    return !unmapped.empty() || std::any_of(joining.begin(), joining.end(), unknown);
  }
};

Plan plan_for(const SlabBook& book, const Quotas& quotas, const SlotRequest& request) {
  Plan plan;
  WithRoom reachable(book, request, true, request.count);
  plan.reachable = std::move(reachable.slabs);
  if (reachable.free >= request.count) return plan;
  if (request.no_new_slab) {
    plan.code = ErrorCode::kOutOfMemory;
    return plan;
  }
  const std::uint64_t missing = request.count - reachable.free;
  WithRoom unmapped(book, request, false, missing);
  plan.unmapped = std::move(unmapped.slabs);
  const std::uint64_t lacking = missing - std::min(missing, unmapped.free);
  const std::uint32_t per_slab = book.class_of(request.model_class).slots_per_slab;
  const auto wanted = static_cast<std::uint32_t>((lacking + per_slab - 1) / per_slab);
  const Budget budget(book, quotas);
  const SlabSupply supply = budget.supply_for_class(request.model_class, request.domain);
  plan.code = judge(wanted, supply);
  const std::uint32_t own = supply.held + supply.held_later;
  if (plan.code == ErrorCode::kWouldBlock) plan.lacking = wanted - std::min(wanted, own);
  if (plan.code == ErrorCode::kOk) plan.joining = budget.choose_for_class(request, wanted);
  return plan;
}

std::vector<SlotId> take(SlabBook& book, const SlotRequest& request, const Positions& from) {
  std::vector<SlotId> slots;
  slots.reserve(request.count);
  for (const std::uint32_t position : from) {
    const auto missing = request.count - static_cast<std::uint32_t>(slots.size());
    book.take(SlabIndex(position), missing, slots);
  }
  return slots;
}

/// Slabs that become the request's class; those the owner has to map first.
std::vector<SlabIndex> assign(SlabBook& book, const SlotRequest& request, const Positions& chosen) {
  std::vector<SlabIndex> to_map;
  for (const std::uint32_t position : chosen) {
    const SlabIndex index(position);
    book.assign(index, request.model_class, request.domain);
    if (request.reaches(position)) continue;
    book.await(index, request.owner);
    to_map.push_back(index);
  }
  return to_map;
}

}  // namespace

TierPool::TierPool(const Config& config, Quotas quotas)
    : config_(config),
      quotas_(std::move(quotas)),
      shared_(quotas_),
      book_({config.slab_bytes, config.slabs}, config.first) {
  KVD_CHECK(config.slab_bytes > Bytes{}, "a tier needs slabs of some size");
  KVD_CHECK(config.first.value + config.slabs < SlotId::kMaxSlabs,
            "a slot id cannot number that many slabs");
  KVD_CHECK(check_quotas(quotas_, book_.capacity()).ok(),
            "quotas were not checked against the tier");
  for (const SlabIndex slab : config_.missing) {
    book_.change(slab, [](Slab& without) { without.use = SlabUse::kMissing; });
  }
}

Status TierPool::add_class(ClassId model_class, Bytes slot_bytes) {
  return book_.add_class(model_class, slot_bytes);
}

bool TierPool::remove_class(ClassId model_class) { return book_.remove_class(model_class); }

SlotGrant TierPool::allocate(const SlotRequest& request) {
  KVD_CHECK(request.domain, "slots are granted to a domain");
  const Plan plan = plan_for(book_, shared_, request);
  if (plan.lacking > 0) renewals_.renew(book_, shared_, request.domain, plan.lacking);
  if (plan.code != ErrorCode::kOk) return {.code = plan.code, .slots = {}, .to_map = {}};
  SlotGrant grant;
  for (const std::uint32_t position : plan.unmapped) grant.to_map.emplace_back(position);
  const auto more = assign(book_, request, plan.joining);
  grant.to_map.insert(grant.to_map.end(), more.begin(), more.end());
  if (!grant.to_map.empty()) {
    grant.code = ErrorCode::kWouldBlock;
    return grant;
  }
  grant.slots = plan.joining.empty()
                    ? take(book_, request, plan.reachable)
                    : take(book_, request, WithRoom(book_, request, true, request.count).slabs);
  return grant;
}

Outlook outlook(const TierPool& pool, const SlotRequest& request) {
  const Plan plan = plan_for(pool.book_, pool.shared_, request);
  if (plan.code != ErrorCode::kOk) return Outlook::kNot;
  return plan.maps(request) ? Outlook::kOnceMapped : Outlook::kNow;
}

std::vector<SlotId> adopt(TierPool& pool, SlabIndex index, ClassId model_class, DomainId domain) {
  SlabBook& book = pool.book_;
  KVD_CHECK(book.at(index).use == SlabUse::kClean && !book.at(index).held(),
            "a slab is adopted that somebody has");
  const Budget budget(book, pool.shared_);
  if (!domain || judge(1, budget.supply_for_class(model_class, domain)) != ErrorCode::kOk) {
    book.change(index, [](Slab& slab) { slab.use = SlabUse::kDirty; });
    return {};
  }
  book.assign(index, model_class, domain);
  std::vector<SlotId> slots;
  book.take(index, book.class_of(model_class).slots_per_slab, slots);
  return slots;
}

void TierPool::move(Slots slots, SlotStates from, SlotState to) {
  each_run(slots, [&](SlabIndex slab, SlotRun run) { book_.move(slab, run, from, to); });
}

void TierPool::mark_open(Slots slots) {
  move(slots, any_of(SlotState::kFilling), SlotState::kOpen);
}

void TierPool::seal(Slots slots) {
  move(slots, any_of(SlotState::kFilling, SlotState::kOpen), SlotState::kSealed);
}

void TierPool::drain(Slots slots) {
  move(slots, any_of(SlotState::kFilling, SlotState::kOpen, SlotState::kSealed),
       SlotState::kDraining);
}

void TierPool::release(Slots slots) {
  each_slab(slots, [&](SlabIndex slab, Slots there) { book_.free(slab, there, kReleasable); });
}

void TierPool::quarantine(Slots slots) { move(slots, kReleasable, SlotState::kQuarantined); }

void TierPool::scrub(Slots slots) {
  move(slots, any_of(SlotState::kQuarantined), SlotState::kScrubbing);
}

void TierPool::scrubbed(Slots slots) {
  each_slab(slots, [&](SlabIndex slab, Slots there) {
    book_.free(slab, there, any_of(SlotState::kScrubbing));
  });
}

Bytes TierPool::available(DomainId domain) const {
  const Budget budget(book_, shared_);
  const std::uint32_t loose = std::min(budget.loose_now(domain, true), budget.room(domain));
  return book_.ledger().of(domain).free +
         config_.slab_bytes * std::int64_t{budget.held_idle(domain) + loose};
}

Bytes TierPool::used(DomainId domain) const {
  const HeldSlabs& held = book_.ledger().held();
  const auto found = held.find(domain);
  return found == held.end() ? Bytes{} : config_.slab_bytes * std::int64_t{found->second};
}

std::uint32_t TierPool::most_slabs(DomainId domain) const {
  return pool::most_slabs(quotas_, domain, book_.capacity());
}

Status TierPool::set_quotas(Quotas quotas) {
  KVD_TRY(check_quotas(quotas, book_.capacity()));
  quotas_ = shared_ = std::move(quotas);
  return {};
}

std::uint32_t share_out(TierPool& pool, const Demands& demands) {
  Parts parts = demands.empty() ? Parts{pool.quotas_}
                                : equal_parts(pool.quotas_, demands, pool.book_.capacity());
  pool.shared_ = std::move(parts.quotas);
  return parts.slabs;
}

HeldSlabs excess(const TierPool& pool) {
  return excess_slabs(pool.shared_, pool.book_.ledger().held(), pool.book_.capacity());
}

}  // namespace kvd::pool
