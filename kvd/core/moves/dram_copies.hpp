#pragma once

#include <cstdint>
#include <vector>

#include "kvd/core/moves/ground.hpp"

namespace kvd::core {

/// Copies in DRAM of blocks that HBM has, too. They are made ahead of need, so that a request can
/// leave without waiting (eager rotation) and layers can leave by plan. They are dropped when DRAM
/// is wanted for what has no other place.
///
/// Source: SuperInfer sec. 5; kvd/DESIGN.md "Blocks that come and go".
///
/// Owner: control thread. Cost: O(requests that have something to copy), or of the domain where it
/// says so.
class DramCopies : private Part {
 public:
  explicit DramCopies(Ground& ground) : Part(ground), budget_(ground.budget) {}

  /// Copies full blocks of the session's requests, within what rotation leaves of the link.
  void make_ahead(Session& session);
  /// DRAM that is free or holds a copy that can be dropped.
  [[nodiscard]] Bytes spare(DomainId domain);
  /// Whether DRAM has room for those blocks of the request that only HBM has.
  [[nodiscard]] bool takes(Request& request);
  /// Takes slots for what has no other place: copies make way for it. Errors as Tiers::take.
  [[nodiscard]] pool::SlotGrant take(const Session& session, std::uint32_t count);

  /// Drops copies of as many bytes, or all there are; returns how many bytes.
  Bytes drop(DomainId domain, Bytes needed);

 private:
  [[nodiscard]] bool short_of_dram(DomainId domain) const;
  [[nodiscard]] Bytes sync_request(Session& session, Request& request, bool away_only,
                                   Bytes budget);
  [[nodiscard]] std::int64_t spare_copies(const Request& request) const;
  [[nodiscard]] std::vector<std::uint32_t> spare_places(const Request& request) const;

  Budget& budget_;
};

}  // namespace kvd::core
