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

void Ledger::count(DomainSums& sums, const Slab& slab, int by) {
  const auto use = static_cast<std::size_t>(slab.use);
  const auto more = static_cast<std::uint32_t>(by);  // one less wraps
  (slab.held() ? sums.held : sums.loose)[use] += more;
  if (slab.lent && !slab.held()) sums.lent[use] += more;
  if (slab.retiring) sums.retiring[use] += more;
  sums.free += slab.grantable_bytes() * std::int64_t{by};
}

void Ledger::add(const Slab& slab) {
  count(sums_[slab.domain], slab, 1);
  count(total_, slab, 1);
  if (slab.held()) ++held_[slab.domain];
}

void Ledger::remove(const Slab& slab) {
  count(sums_[slab.domain], slab, -1);
  count(total_, slab, -1);
  if (slab.held()) --held_[slab.domain];
  forget_if_empty(slab.domain);
}

void Ledger::change_free(DomainId domain, Bytes delta) {
  sums_[domain].free += delta;
  total_.free += delta;
}

const DomainSums& Ledger::of(DomainId domain) const {
  static const DomainSums kNothing;
  const auto found = sums_.find(domain);
  return found == sums_.end() ? kNothing : found->second;
}

void Ledger::forget_if_empty(DomainId domain) {
  if (const auto found = sums_.find(domain); found->second == DomainSums{}) sums_.erase(found);
  if (const auto found = held_.find(domain); found != held_.end() && found->second == 0) {
    held_.erase(found);
  }
}

}  // namespace kvd::pool
