#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string_view>

#include "ipc/vocabulary/result.hpp"
#include "kvd/store/index/eviction.hpp"

namespace kvd::sim {

/// Makes the policy of a tier.
using MakeEviction = std::function<std::unique_ptr<store::Eviction>(store::Entries&)>;

/// A policy of eviction: those that kvd has, and those that it is compared with.
struct CachePolicy {
  std::string_view name;
  MakeEviction make;
};
[[nodiscard]] const std::array<CachePolicy, 4>& cache_policies();
/// Errors: InvalidArgument naming those there are.
[[nodiscard]] Result<MakeEviction> cache_policy(std::string_view name);

}  // namespace kvd::sim
