#pragma once

#include <cstdint>
#include <map>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::pool {

/// A domain's share of one tier. A guarantee is never lent to others, because memory whose fd was
/// sent cannot be taken back; beyond it the domain borrows from what nobody is guaranteed.
/// Slabs count whole: a guarantee is rounded up to slabs, a maximum down, and where the two then
/// cross (both inside one slab) the maximum wins.
/// Source: kvd/DESIGN.md "Domains and quotas".
struct Quota {
  Bytes guarantee{};         ///< always available to the domain
  Bytes maximum{INT64_MAX};  ///< never more than this
};

/// A domain that is not named has no guarantee and no maximum.
using Quotas = std::map<DomainId, Quota>;
/// How many slabs each domain holds.
using HeldSlabs = std::map<DomainId, std::uint32_t>;

/// A tier as quotas see it.
struct SlabCapacity {
  Bytes slab_bytes;
  std::uint32_t slabs = 0;
};

/// InvalidArgument if a quota is negative, has its maximum below its guarantee, or the guarantees
/// in whole slabs exceed the capacity.
[[nodiscard]] Status check_quotas(const Quotas& quotas, SlabCapacity capacity);

[[nodiscard]] std::uint32_t maximum_slabs(const Quota& quota, SlabCapacity capacity);
[[nodiscard]] std::uint32_t guaranteed_slabs(const Quota& quota, SlabCapacity capacity);

/// The most slabs that the domain can ever hold, if the others give back all they can: bounded by
/// its maximum, and by what others are guaranteed.
[[nodiscard]] std::uint32_t most_slabs(const Quotas& quotas, DomainId domain,
                                       SlabCapacity capacity);

/// How many more slabs the domain may take: bounded by its maximum, and by what others hold or are
/// guaranteed.
[[nodiscard]] std::uint32_t room_slabs(const Quotas& quotas, const HeldSlabs& held, DomainId domain,
                                       SlabCapacity capacity);

/// How many slabs each domain holds beyond what it may have: all above its maximum, and, of the
/// slabs that others are guaranteed and lack, a part by what it has borrowed. Such excess arises
/// when quotas change while memory is lent.
[[nodiscard]] HeldSlabs excess_slabs(const Quotas& quotas, const HeldSlabs& held,
                                     SlabCapacity capacity);

/// What a domain would have of a tier now, in slabs.
struct Demand {
  std::uint32_t wants = 0;  ///< to hold in all
  std::uint32_t keeps = 0;  ///< of these, what it cannot give back before its requests end
};
using Demands = std::map<DomainId, Demand>;

/// What holds for as long as domains want more than there is.
struct Parts {
  Quotas quotas;
  std::uint32_t slabs =
      UINT32_MAX;  ///< an equal part; no bound where domains want no more than there is
};

/// Each domain is guaranteed what it wants, up to an equal part of what the others leave, and at
/// least what it keeps or is guaranteed anyway. Where what the domains keep does not fit, quotas
/// stay as they were.
[[nodiscard]] Parts equal_parts(const Quotas& quotas, const Demands& demands,
                                SlabCapacity capacity);

/// Slabs a domain could be given. Those it holds already cost it no quota.
struct SlabSupply {
  std::uint32_t held = 0;         ///< held by the domain and usable at once
  std::uint32_t loose = 0;        ///< held by nobody and usable at once
  std::uint32_t held_later = 0;   ///< usable after work that is under way or waits (scrubbing)
  std::uint32_t loose_later = 0;  ///< the same, held by nobody
  std::uint32_t room = 0;         ///< room_slabs now
  std::uint32_t room_later = 0;   ///< room_slabs when that work is done
};

/// Ok | WouldBlock (that work will do) | QuotaExceeded (the memory exists, the quota forbids it) |
/// OutOfMemory.
[[nodiscard]] ErrorCode judge(std::uint32_t wanted, const SlabSupply& supply);

}  // namespace kvd::pool
