#include "kvd/store/index/disk_shares.hpp"

#include <algorithm>
#include <map>
#include <tuple>

namespace kvd::store {

std::optional<std::uint32_t> disk_gives_way(const std::vector<DiskUse>& all, const DiskWish& wish,
                                            Bytes size) {
  std::map<DomainId, double> taken{{wish.domain, 0}};
  Bytes own;
  for (const DiskUse& use : all) {
    if (use.id == wish.id) own = use.bytes;
    for (const DomainId domain : use.domains) {
      taken[domain] +=
          static_cast<double>(use.bytes.value) / static_cast<double>(use.domains.size());
    }
  }
  const double share = static_cast<double>(size.value) / static_cast<double>(taken.size());
  const bool may_push = taken[wish.domain] + static_cast<double>(wish.bytes.value) <= share;
  const auto gives_way = [&](const DiskUse& use) {
    if (!use.free || use.id == wish.id) return false;
    // A domain cannot give away a class that others use as well: any engine may join a class by
    // naming its model.
    if (use.domains == std::set{wish.domain}) {
      return use.idle || use.bytes - use.grain >= own + wish.bytes;
    }
    return may_push && std::all_of(use.domains.begin(), use.domains.end(),
                                   [&](DomainId domain) { return taken[domain] > share; });
  };
  // The least goes first.
  const auto order = [](const DiskUse& use) {
    return std::tuple(!use.idle, use.idle ? use.used : TimePoint{0}, -use.bytes.value);
  };
  const DiskUse* first = nullptr;
  for (const DiskUse& use : all) {
    if (gives_way(use) && (first == nullptr || order(use) < order(*first))) first = &use;
  }
  return first == nullptr ? std::nullopt : std::optional(first->id);
}

}  // namespace kvd::store
