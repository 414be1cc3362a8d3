#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string_view>

#include "ipc/vocabulary/result.hpp"
#include "kvd/store/index/eviction.hpp"

namespace kvd::sim {

/// Makes the eviction policy of a tier.
using MakeEviction = std::function<std::unique_ptr<store::Eviction>(store::Entries&)>;

/// An eviction policy: one that kvd has, or one that it is compared with.
struct CachePolicy {
  std::string_view name;
  MakeEviction make;
};
[[nodiscard]] const std::array<CachePolicy, 4>& cache_policies();
/// Errors: InvalidArgument naming those that exist.
[[nodiscard]] Result<MakeEviction> cache_policy(std::string_view name);

}  // namespace kvd::sim
