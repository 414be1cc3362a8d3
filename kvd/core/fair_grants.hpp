#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::core {

/// What a space has of a device's HBM, and what its requests need. In slabs.
struct Want {
  DomainId domain;
  std::int64_t held = 0;
  std::int64_t kept = 0;    ///< never handed back; what it lacks of that is wanted like the rest
  std::int64_t least = 0;   ///< what its oldest request needs to run, with `kept`
  std::int64_t wanted = 0;  ///< what all its requests would use
  std::int64_t grain = 1;   ///< it comes and goes by so many
  Nanoseconds age{0};       ///< of its oldest request; 0: there is none
};

/// How many slabs each may have, of `budget` that all may have together. `limits` are the most of a
/// domain; one that is not named has none.
///
/// What is kept stays. The rest is shared between domains first, so that the least share is as
/// large as it can be, no domain having more than it wants. Then within each: its oldest request
/// gets what it needs to run, then the next oldest where that still fits, and what is left is
/// shared likewise. So somebody gets on whatever the others want, and nobody gains by what it says
/// of itself what another domain has. Where no domain's share lets its oldest run, the one that
/// holds most has what its oldest takes. What nobody wants stays with whoever holds it: taking it
/// would gain nothing.
///
/// Source: kvd design; "as large as the least can be" is max-min fairness.
/// Cost: O(n log budget) each of domains and wants. Pure.
[[nodiscard]] std::vector<std::int64_t> fair_grants(std::span<const Want> wants,
                                                    std::int64_t budget,
                                                    const std::map<DomainId, std::int64_t>& limits);

}  // namespace kvd::core
