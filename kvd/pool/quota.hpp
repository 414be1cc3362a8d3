#pragma once

#include <map>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::pool {

/// A domain's share of one tier. A guarantee is never lent to others, because memory whose fd was
/// sent cannot be taken back; beyond it the domain borrows from what nobody is guaranteed.
/// Source: kvd design (architecture section 7).
struct Quota {
  Bytes guarantee;           ///< always available to the domain
  Bytes maximum{INT64_MAX};  ///< never more than this
};

using Quotas = std::map<DomainId, Quota>;

}  // namespace kvd::pool
