#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::core {

/// What a space's requests that are due by then would use.
struct UsedBy {
  Nanoseconds slack{0};     ///< from now on
  std::int64_t wanted = 0;  ///< those due before them, and what is kept, included
};

/// What a space has of a device's HBM, and what its requests need. In slabs.
struct Want {
  DomainId domain;
  std::int64_t held = 0;
  std::int64_t kept = 0;    ///< never handed back; what it lacks of that is wanted like the rest
  std::int64_t least = 0;   ///< what its first request needs to run, with `kept`
  std::int64_t wanted = 0;  ///< what all its requests would use
  std::int64_t grain = 1;   ///< it comes and goes by so many
  std::optional<Nanoseconds> slack{};  ///< until its first request is due; none: there is none
  std::vector<UsedBy> used{};          ///< by slack; empty: nobody told
  std::optional<UsedBy> soon{};        ///< what would be used with requests that are likely to come
};

/// How many slabs each may have, of `budget` that all may have together. `limits` are the most of a
/// domain; one that is not named has none.
///
/// What is kept stays. The rest is shared between domains first, so that the least share is as
/// large as it can be, no domain having more than it wants. Then within each: the request that is
/// due first gets what it needs to run, then the first of the next space where that still fits.
/// Then requests with little slack get what they would use before those with more: what is due
/// within 8 s, then within 64, 512 and so on; behind each of these what would be used soon with as
/// little slack. What is left is shared, and within each of these as well, so that the least is as
/// large as it can be. So somebody gets on whatever the others
/// want, who is patient gets his turn as his time comes, engines with the same goals have equal
/// parts, and nobody gains by what it says of itself what another domain has. Where no domain's
/// share lets its first run, the one that holds most has what its first takes. What nobody wants
/// stays with whoever holds it: taking it would gain nothing. What would be used soon is not lent
/// meanwhile: a quarter of all at most, and no domain has less for another one's.
///
/// Source: kvd design; "as large as the least can be" is max-min fairness.
/// Cost: O(n log budget) each of domains, wants and degrees of urgency. Pure.
[[nodiscard]] std::vector<std::int64_t> fair_grants(std::span<const Want> wants,
                                                    std::int64_t budget,
                                                    const std::map<DomainId, std::int64_t>& limits);

}  // namespace kvd::core
