#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "kvd/admin/link/messages.hpp"
#include "kvd/pool/quota.hpp"

namespace kvd::admin {

/// What a [[domain]] of the configuration may have of each tier, and of HBM on each device.
struct DomainQuota {
  std::string name;
  bool per_user = false;  ///< of each user or group that it takes; such have no guarantee
  pool::Quota hbm;
  pool::Quota dram;
  /// What all its users and devices together have beyond that now. The domain gives it back.
  Bytes hbm_over;
  Bytes dram_over;
};

namespace link {

/// What there is to share out.
struct Capacities {
  pool::SlabCapacity hbm;
  pool::SlabCapacity dram;
};

/// Tells versions apart: the same quotas have the same tag, whoever set them.
[[nodiscard]] std::uint64_t tag_of(const std::vector<DomainQuota>& quotas);

/// The quotas after a change of them, in the same order. Pure.
/// Errors: StaleSession when the change is conditional and they have none of its tags; NotFound for
///         a domain that is not configured; Infeasible where a maximum would be below its
///         guarantee, or the guarantees above the pool. Messages begin with the key's path and a
///         colon.
[[nodiscard]] Result<std::vector<DomainQuota>> changed(std::vector<DomainQuota> quotas,
                                                       const Change& change,
                                                       std::span<const Assignment> assignments,
                                                       const Capacities& capacities);

}  // namespace link
}  // namespace kvd::admin
