#include "kvd/pool/slot_state.hpp"

#include <array>

#include "ipc/vocabulary/check.hpp"

namespace kvd::pool {

const char* name(SlotState state) {
  constexpr std::array<const char*, kSlotStates> kNames = {
      "free", "filling", "open", "sealed", "draining", "quarantined", "scrubbing"};
  const auto index = static_cast<std::size_t>(state);
  KVD_CHECK(index < kNames.size(), "unknown slot state");
  return kNames[index];
}

const char* name(SlabUse use) {
  constexpr std::array<const char*, kSlabUses> kNames = {
      "clean", "dirty", "scrubbing", "class", "region", "quarantined", "renewing", "missing"};
  const auto index = static_cast<std::size_t>(use);
  KVD_CHECK(index < kNames.size(), "unknown slab use");
  return kNames[index];
}

}  // namespace kvd::pool
