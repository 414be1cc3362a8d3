#include "kvd/pool/ledger.hpp"

#include <numeric>

namespace kvd::pool {
namespace {

std::uint32_t sum(const std::array<std::uint32_t, kSlabUses>& by_use) {
  return std::accumulate(by_use.begin(), by_use.end(), std::uint32_t{0});
}

}  // namespace

std::uint32_t DomainSums::held_slabs() const { return sum(held); }
std::uint32_t DomainSums::loose_slabs() const { return sum(loose); }
std::uint32_t DomainSums::lent_slabs() const { return sum(lent); }

Ledger::Ledger(const std::vector<Slab>& slabs) {
  for (const Slab& slab : slabs) add(slab);
}

std::uint32_t& Ledger::counter(const Slab& slab) {
  DomainSums& sums = sums_[slab.domain];
  return (slab.held() ? sums.held : sums.loose)[static_cast<std::size_t>(slab.use)];
}

void Ledger::add(const Slab& slab) {
  ++counter(slab);
  if (slab.lent && !slab.held()) ++sums_[slab.domain].lent[static_cast<std::size_t>(slab.use)];
  if (slab.retiring) ++sums_[slab.domain].retiring[static_cast<std::size_t>(slab.use)];
  sums_[slab.domain].free += slab.grantable_bytes();
  if (slab.held()) ++held_[slab.domain];
}

void Ledger::remove(const Slab& slab) {
  --counter(slab);
  if (slab.lent && !slab.held()) --sums_[slab.domain].lent[static_cast<std::size_t>(slab.use)];
  if (slab.retiring) --sums_[slab.domain].retiring[static_cast<std::size_t>(slab.use)];
  sums_[slab.domain].free -= slab.grantable_bytes();
  if (slab.held()) --held_[slab.domain];
  forget_if_empty(slab.domain);
}

void Ledger::change_free(DomainId domain, Bytes delta) { sums_[domain].free += delta; }

DomainSums Ledger::of(DomainId domain) const {
  const auto found = sums_.find(domain);
  return found == sums_.end() ? DomainSums{} : found->second;
}

DomainSums Ledger::total() const {
  DomainSums total;
  for (const auto& [domain, sums] : sums_) {
    for (std::size_t use = 0; use < kSlabUses; ++use) {
      total.held[use] += sums.held[use];
      total.loose[use] += sums.loose[use];
      total.lent[use] += sums.lent[use];
      total.retiring[use] += sums.retiring[use];
    }
    total.free += sums.free;
  }
  return total;
}

std::uint32_t Ledger::slabs(SlabUse use) const {
  std::uint32_t count = 0;
  for (const auto& [domain, sums] : sums_) count += sums.held_as(use) + sums.loose_as(use);
  return count;
}

void Ledger::forget_if_empty(DomainId domain) {
  if (const auto found = sums_.find(domain); found->second == DomainSums{}) sums_.erase(found);
  if (const auto found = held_.find(domain); found != held_.end() && found->second == 0) {
    held_.erase(found);
  }
}

}  // namespace kvd::pool
