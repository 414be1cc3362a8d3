#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::core {

/// What requests of a space that are due within a time would use.
struct UsedBy {
  Nanoseconds slack{0};     ///< time from now on
  std::int64_t wanted = 0;  ///< includes those due before them, and what is kept
};

/// What a space has of a device's HBM, and what its requests need, in slabs.
struct Want {
  DomainId domain;
  std::int64_t held = 0;
  std::int64_t kept = 0;    ///< never handed back; what it lacks of that is wanted like the rest
  std::int64_t least = 0;   ///< what its first request needs to run, with `kept`
  std::int64_t wanted = 0;  ///< what all its requests would use
  std::int64_t grain = 1;   ///< memory beyond `kept` comes and goes by so many slabs
  /// Time until its first request is due; none: it has no request.
  std::optional<Nanoseconds> slack{};
  std::vector<UsedBy> used{};  ///< by slack; empty: its engine does not tell
  /// What would be used together with requests that are likely to come.
  std::optional<UsedBy> soon{};
};

/// How many slabs each may have of `budget`, which is for all together. `limits` are the most of a
/// domain; a domain that is not named has none.
///
/// What is kept stays. The rest is first shared between domains, so that the least share is as
/// large as it can be, no domain having more than it wants. Then it is shared within each domain.
/// The request that is due first gets what it needs to run, then the first of the next space where
/// that still fits. Then requests with little slack get what they would use before those with more:
/// first those due within 8 s, then within 64, 512 and so on; behind each of these groups comes
/// what would be used soon with as little slack. What is left is shared, and within each group as
/// well, so that the least share is as large as it can be.
///
/// So some request gets on whatever the others want, patient requests get their turn as their time
/// comes, engines with the same goals have equal parts, and no domain gains from another by what it
/// says of itself. Where no domain's share lets its first request run, the domain that holds most
/// gets what its first request takes. What nobody wants stays with its holder: taking it would gain
/// nothing. What would be used soon is not lent meanwhile; that is at most a quarter of all, and it
/// costs no other domain any of its share.
///
/// Source: kvd design; "as large as the least can be" is max-min fairness.
/// Cost: O(n log budget) each of domains, wants and degrees of urgency. Pure.
[[nodiscard]] std::vector<std::int64_t> fair_grants(std::span<const Want> wants,
                                                    std::int64_t budget,
                                                    const std::map<DomainId, std::int64_t>& limits);

}  // namespace kvd::core
