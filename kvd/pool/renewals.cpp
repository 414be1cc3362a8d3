#include "kvd/pool/renewals.hpp"

#include <algorithm>

namespace kvd::pool {

void Renewals::renew(SlabBook& book, const Quotas& quotas, DomainId domain, std::uint32_t wanted) {
  const Budget budget(book, quotas);
  wanted = std::min(wanted, budget.room(domain));
  std::uint32_t coming = book.ledger().of(domain).lent_slabs() + budget.fresh_room(domain);
  for (std::uint32_t at = book.begin(); at < book.end() && coming < wanted; ++at) {
    if (!budget.renewable(book.at(SlabIndex(at)), domain)) continue;
    book.change(SlabIndex(at), [](Slab& slab) {
      slab.use = SlabUse::kRenewing;
      slab.domain = DomainId{};
      slab.lent = false;
    });
    waiting_.emplace_back(at);
    ++coming;
  }
}

std::string Renewals::validate(const SlabBook& book) const {
  const bool broken = std::any_of(waiting_.begin(), waiting_.end(), [&](SlabIndex index) {
    return book.at(index).use != SlabUse::kRenewing;
  });
  return broken ? "a slab is to be renewed that is not renewing" : std::string();
}

}  // namespace kvd::pool
