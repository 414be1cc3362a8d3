#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "kvd/pool/budget.hpp"
#include "kvd/pool/slab_book.hpp"

namespace kvd::pool {

/// Slabs that get new memory, since engines of another domain were given the old.
/// Source: kvd/DESIGN.md "Domains and quotas".
/// Owner:  control thread.
class Renewals {
 public:
  /// Has slabs renewed until the domain can get this many beside those it holds.
  void renew(SlabBook& book, const Quotas& quotas, DomainId domain, std::uint32_t wanted);
  /// The slabs that became due since the last call. Nothing in them is in use.
  [[nodiscard]] std::vector<SlabIndex> take() { return std::exchange(waiting_, {}); }

  /// Empty, or what does not add up.
  [[nodiscard]] std::string validate(const SlabBook& book) const;

 private:
  std::vector<SlabIndex> waiting_;  ///< not yet taken
};

}  // namespace kvd::pool
