#include "kvd/core/classes.hpp"

#include <algorithm>
#include <set>
#include <string>

namespace kvd::core {

namespace {

/// Far more shapes than one machine serves at a time; engines choose theirs, so there is a bound.
constexpr std::size_t kMaxClasses = 256;

}  // namespace

Result<ClassId> Classes::of(const ModelClass& shape) {
  const auto known = classes_.find(shape);
  const bool fresh = known == classes_.end();
  if (fresh && classes_.size() >= kMaxClasses) {
    store_.cache.clear();  // blocks that nobody names keep their classes known
    forget();
  }
  if (fresh && classes_.size() >= kMaxClasses) {
    return make_error(ErrorCode::kQuotaExceeded,
                      std::to_string(kMaxClasses) +
                          " model shapes are in use, the most there can be: end sessions of some");
  }
  // A known one may be forgotten in one tier already while slabs of the other still have it.
  const ClassId id = fresh ? ClassId(++last_) : known->second;
  KVD_TRY(store_.tiers.add_class(id, shape.slot_bytes()));
  classes_[shape] = id;
  return id;
}

std::optional<ModelClass> Classes::shape(ClassId model_class) const {
  const auto found = std::find_if(classes_.begin(), classes_.end(),
                                  [&](const auto& entry) { return entry.second == model_class; });
  return found == classes_.end() ? std::nullopt : std::optional(found->first);
}

void Classes::forget() {
  std::set<ClassId> used;
  for (const auto& [id, session] : requests_.sessions()) {
    used.insert(session.class_id);
    for (const auto& [number, cache] : session.leases.caches) {
      used.insert(cache.space.model_class);
    }
  }
  std::erase_if(classes_, [&](const auto& entry) {
    const ClassId id = entry.second;
    return !used.contains(id) && store_.tiers.remove_class(id);
  });
}

void Classes::forget_unused() {
  if (classes_.size() <= kMaxClasses / 2) return;
  for (std::uint32_t device = 0; device < store_.hbm.count(); ++device) {
    store_.tiers.reclaim(DomainId(), DeviceId(device));
  }
  forget();
}

}  // namespace kvd::core
