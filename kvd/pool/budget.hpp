#pragma once

#include <cstdint>

#include "kvd/pool/quota.hpp"
#include "kvd/pool/slab_book.hpp"
#include "kvd/pool/slot_request.hpp"

namespace kvd::pool {

/// Says how much of a tier a domain may be given now, and which slabs. This follows from its quota,
/// the guarantees of the others, and whose engines know which slab's memory. Changes nothing.
/// Source: kvd/DESIGN.md "Domains and quotas".
/// Owner:  control thread; made for one question, since it refers to the book and the quotas.
/// Cost:   O(domains), O(slabs) for a choice.
class Budget {
 public:
  Budget(const SlabBook& book, const Quotas& quotas) : book_(book), quotas_(quotas) {}

  /// Slabs the domain may take besides those it holds.
  [[nodiscard]] std::uint32_t room(DomainId domain) const;
  /// How many of the slabs that no engine knows other domains' guarantees leave.
  [[nodiscard]] std::uint32_t fresh_room(DomainId domain) const;
  /// Clean and dirty slabs the domain holds and that do not retire.
  [[nodiscard]] std::uint32_t held_idle(DomainId domain) const;
  /// Loose slabs that the domain may take at once: its own, and as many that no engine knows as
  /// other domains' guarantees leave. `dirty_too`: its own old bytes do no harm.
  [[nodiscard]] std::uint32_t loose_now(DomainId domain, bool dirty_too) const;
  /// The whole slabs that hold this many bytes.
  [[nodiscard]] std::uint32_t slabs_for(Bytes bytes) const;
  /// Whether the domain may have the slab with new memory.
  [[nodiscard]] bool renewable(const Slab& slab, DomainId domain) const;
  /// Whether the domain could have one slab more if the slab's own domain held one less.
  [[nodiscard]] bool helps(const Slab& slab, DomainId domain) const;

  [[nodiscard]] SlabSupply supply_for_class(ClassId model_class, DomainId domain) const;
  [[nodiscard]] SlabSupply supply_for_region(DomainId domain) const;
  /// Precondition of both: judge() said Ok to this number.
  [[nodiscard]] Positions choose_for_class(const SlotRequest& request, std::uint32_t wanted) const;
  [[nodiscard]] Positions choose_for_region(DomainId domain, std::uint32_t wanted) const;

 private:
  [[nodiscard]] Positions loose_for_class(const Positions& lent, Positions fresh,
                                          DomainId domain) const;

  const SlabBook& book_;
  const Quotas& quotas_;
};

}  // namespace kvd::pool
