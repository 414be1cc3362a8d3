#include "tests/lab/cache/policies.hpp"

#include <string>

#include "kvd/store/index/turnover_eviction.hpp"
#include "tests/lab/cache/eviction_queues.hpp"

namespace kvd::sim {
namespace {

MakeEviction of_kvd(store::EvictionKind kind) {
  return
      [kind](Entries& entries) { return std::make_unique<store::TurnoverEviction>(entries, kind); };
}

template <class Policy>
std::unique_ptr<store::Eviction> make(Entries& entries) {
  return std::make_unique<Policy>(entries);
}

}  // namespace

const std::array<CachePolicy, 4>& cache_policies() {
  static const std::array<CachePolicy, 4> kPolicies = {{
      {store::name(store::EvictionKind::kDefault), of_kvd(store::EvictionKind::kDefault)},
      {store::name(store::EvictionKind::kLru), of_kvd(store::EvictionKind::kLru)},
      {"s3fifo", make<S3FifoEviction>},
      {"sieve", make<SieveEviction>},
  }};
  return kPolicies;
}

Result<MakeEviction> cache_policy(std::string_view name) {
  std::string known;
  for (const CachePolicy& policy : cache_policies()) {
    if (policy.name == name) return policy.make;
    known += (known.empty() ? "" : ", ") + std::string(policy.name);
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "no eviction policy is called " + std::string(name) + "; there are " + known);
}

}  // namespace kvd::sim
