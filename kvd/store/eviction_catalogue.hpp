#pragma once

#include <memory>

#include "kvd/store/entries.hpp"
#include "kvd/store/eviction.hpp"

namespace kvd::store {

/// The policy of that kind. `entries` outlives it.
[[nodiscard]] std::unique_ptr<Eviction> make_eviction(EvictionKind kind, const Entries& entries);

}  // namespace kvd::store
