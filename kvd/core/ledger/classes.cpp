#include "kvd/core/ledger/classes.hpp"

#include <algorithm>
#include <set>
#include <string>

#include "ipc/vocabulary/fair_shares.hpp"

namespace kvd::core {

namespace {

/// Far more shapes than one machine serves at a time. Engines choose their shapes, so there is a
/// bound.
constexpr std::int64_t kMostShared = 512;
/// Each domain can serve this many models, whatever others have.
constexpr std::int64_t kOfADomain = 4;
/// The most rows that one new shape evicts.
constexpr std::size_t kMostAtOnce = 2048;

}  // namespace

std::map<DomainId, std::set<ClassId>> Classes::in_use() const {
  std::map<DomainId, std::set<ClassId>> used;
  for (const auto& [id, session] : requests_.sessions()) {
    std::set<ClassId>& of_domain = used[session.info.domain];
    if (session.class_id) of_domain.insert(session.class_id);
    for (const auto& [number, cache] : session.leases.caches) {
      of_domain.insert(cache.space.model_class);
    }
  }
  return used;
}

std::set<ClassId> Classes::with_slabs(DomainId domain) const {
  std::set<ClassId> classes;
  const auto look = [&](const pool::TierPool& pool) {
    for (const pool::SlabView& slab : pool.slabs()) {
      if (slab.domain == domain && slab.model_class) classes.insert(slab.model_class);
    }
  };
  look(store_.dram);
  for (const pool::TierPool& device : store_.hbm) look(device);
  return classes;
}

Result<ClassId> Classes::of(const ModelClass& shape, DomainId domain) {
  const auto known = classes_.find(shape);
  std::map<DomainId, std::set<ClassId>> used = in_use();
  std::set<ClassId>& own = used[domain];
  if (known != classes_.end() && own.contains(known->second)) return of(shape);
  FairShares<DomainId> shares(kMostShared, kOfADomain);
  for (const auto& [other, classes] : used) shares.add(other, std::ssize(classes));
  if (!shares.fits(domain, 1)) {
    return make_error(ErrorCode::kQuotaExceeded,
                      "engines of the domain have " + std::to_string(own.size()) +
                          " model shapes in use, its share of them: end sessions or close caches "
                          "of some");
  }
  // Slabs that its earlier engines left cached count as well, and are its own to give up.
  own.merge(with_slabs(domain));
  if (std::ssize(own) >= shares.most(domain)) {
    // A large cache is given up in parts, since the control thread has other engines to serve. Each
    // further shape clears one part, and there are at most as many shapes with slabs as slabs.
    store_.cache.clear(kMostAtOnce, domain);
    forget();
  }
  return of(shape);
}

Result<ClassId> Classes::of(const ModelClass& shape) {
  // A known class may already be forgotten in one tier while slabs of the other still have it.
  const auto known = classes_.find(shape);
  const ClassId id = known == classes_.end() ? ClassId(++last_) : known->second;
  KVD_TRY(store_.tiers.add_class(id, shape.slot_bytes()));
  classes_[shape] = id;
  return id;
}

std::optional<ModelClass> Classes::shape(ClassId model_class) const {
  const auto found = std::find_if(classes_.begin(), classes_.end(),
                                  [&](const auto& entry) { return entry.second == model_class; });
  return found == classes_.end() ? std::nullopt : std::optional(found->first);
}

// Empty slabs remember their class without need.
void Classes::forget() {
  for (std::uint32_t device = 0; device < store_.hbm.count(); ++device) {
    store_.tiers.reclaim(DomainId(), DeviceId(device));
  }
  std::set<ClassId> used;
  for (auto& [domain, classes] : in_use()) used.merge(classes);
  std::erase_if(classes_, [&](const auto& entry) {
    const ClassId id = entry.second;
    return !used.contains(id) && store_.tiers.remove_class(id);
  });
}

void Classes::forget_unused() {
  if (std::ssize(classes_) > kMostShared / 4) forget();
}

}  // namespace kvd::core
