#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/pool/quota.hpp"
#include "kvd/pool/slab.hpp"

namespace kvd::pool {

/// What a tier holds for one domain. The entry for "no domain" counts the clean slabs that nobody
/// holds.
struct DomainSums {
  std::array<std::uint32_t, kSlabUses> held{};   ///< slabs it holds, by use
  std::array<std::uint32_t, kSlabUses> loose{};  ///< held by nobody, with its bytes still inside
  /// Loose slabs whose memory its engines were given: no other domain gets them.
  std::array<std::uint32_t, kSlabUses> lent{};
  /// Held slabs that are kept for a region: no class gets them.
  std::array<std::uint32_t, kSlabUses> retiring{};
  Bytes free;  ///< free slots of its class slabs that do not retire, and empty ones whole

  [[nodiscard]] std::uint32_t held_as(SlabUse use) const {
    return held[static_cast<std::size_t>(use)];
  }
  [[nodiscard]] std::uint32_t loose_as(SlabUse use) const {
    return loose[static_cast<std::size_t>(use)];
  }
  [[nodiscard]] std::uint32_t lent_as(SlabUse use) const {
    return lent[static_cast<std::size_t>(use)];
  }
  /// The same over all uses.
  [[nodiscard]] std::uint32_t held_slabs() const;
  [[nodiscard]] std::uint32_t loose_slabs() const;
  [[nodiscard]] std::uint32_t lent_slabs() const;
  [[nodiscard]] std::uint32_t retiring_as(SlabUse use) const {
    return retiring[static_cast<std::size_t>(use)];
  }
  friend bool operator==(const DomainSums&, const DomainSums&) = default;
};

/// Sums over the slabs of a tier per domain, kept by telling it before and after each change.
/// Cost: O(log domains) a change.
class Ledger {
 public:
  Ledger() = default;
  explicit Ledger(const std::vector<Slab>& slabs);  ///< counts from scratch

  void add(const Slab& slab);
  void remove(const Slab& slab);
  /// The grantable bytes of a slab changed: slots became free (positive) or were taken (negative).
  /// The slab was added already and does not retire.
  void change_free(DomainId domain, Bytes delta);

  [[nodiscard]] const DomainSums& of(DomainId domain) const;
  [[nodiscard]] const DomainSums& total() const { return total_; }
  /// Slabs in that use, whoever holds them.
  [[nodiscard]] std::uint32_t slabs(SlabUse use) const {
    return total_.held_as(use) + total_.loose_as(use);
  }
  [[nodiscard]] const HeldSlabs& held() const { return held_; }

  friend bool operator==(const Ledger&, const Ledger&) = default;

 private:
  static void count(DomainSums& sums, const Slab& slab, int by);
  void forget_if_empty(DomainId domain);

  std::map<DomainId, DomainSums> sums_;
  DomainSums total_;
  HeldSlabs held_;
};

}  // namespace kvd::pool
