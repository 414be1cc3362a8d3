#include "kvd/pool/region_leases.hpp"

#include <algorithm>

namespace kvd::pool {

std::vector<SlabIndex> RegionLeases::lease(SlabBook& book, const Lease& lease,
                                           const Positions& slabs) {
  std::vector<SlabIndex>& leased = leases_[lease.region];
  for (const std::uint32_t position : slabs) {
    book.change(SlabIndex(position), [&](Slab& slab) {
      slab.use = SlabUse::kRegion;
      slab.retiring = false;
      slab.domain = lease.domain;
      slab.region = lease.region;
      slab.owner = lease.owner;
    });
    leased.emplace_back(position);
  }
  return leased;
}

void RegionLeases::release(SlabBook& book, RegionId region) {
  const auto found = leases_.find(region);
  KVD_CHECK(found != leases_.end(), "a region is released that does not exist");
  for (const SlabIndex index : found->second) book.unassign(index);
  leases_.erase(found);
}

void RegionLeases::claim(SlabBook& book, RegionId region, EngineId owner) {
  for (const SlabIndex index : leases_.at(region)) {
    book.change(index, [owner](Slab& slab) { slab.owner = owner; });
  }
}

std::vector<SlabIndex> RegionLeases::renew(SlabBook& book, RegionId region) {
  std::vector<SlabIndex> slabs = leases_.at(region);
  release(book, region);
  for (const SlabIndex index : slabs) {
    book.change(index, [](Slab& slab) {
      slab.use = SlabUse::kRenewing;
      slab.domain = DomainId{};
      slab.lent = false;
    });
  }
  return slabs;
}

void RegionLeases::quarantine(SlabBook& book, RegionId region) {
  const auto found = leases_.find(region);
  KVD_CHECK(found != leases_.end(), "a region is quarantined that does not exist");
  for (const SlabIndex index : found->second) {
    KVD_CHECK(book.at(index).use == SlabUse::kRegion, "a region is quarantined twice");
    book.change(index, [](Slab& slab) { slab.use = SlabUse::kQuarantined; });
  }
}

std::string RegionLeases::validate(const SlabBook& book) const {
  std::size_t leased = 0;
  for (const auto& [region, indices] : leases_) {
    if (indices.empty()) return "region " + std::to_string(region.value) + " has no slab";
    for (const SlabIndex index : indices) {
      if (book.at(index).region != region) {
        return "slab " + std::to_string(index.value) + ": its region does not know it";
      }
    }
    leased += indices.size();
  }
  const auto in_region = [](const Slab& slab) { return static_cast<bool>(slab.region); };
  const auto marked = std::count_if(book.slabs().begin(), book.slabs().end(), in_region);
  return leased == static_cast<std::size_t>(marked)
             ? std::string()
             : "a slab says it is of a region that does not list it";
}

}  // namespace kvd::pool
