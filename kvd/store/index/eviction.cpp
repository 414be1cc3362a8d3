#include "kvd/store/index/eviction.hpp"

#include <string>

namespace kvd::store {

std::string_view name(EvictionKind kind) {
  constexpr std::array<std::string_view, kEvictionKinds.size()> kNames = {"default", "lru"};
  return kNames[static_cast<std::size_t>(kind)];
}

Result<EvictionKind> eviction_kind(std::string_view text) {
  std::string known;
  for (const EvictionKind kind : kEvictionKinds) {
    if (name(kind) == text) return kind;
    known += (known.empty() ? "" : ", ") + std::string(name(kind));
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "no eviction policy is called " + std::string(text) + "; there are " + known);
}

}  // namespace kvd::store
