#pragma once

#include <cstdint>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"

namespace kvd::pool {

/// Which slabs a session has acknowledged to have mapped; slots are granted only there.
using SlabSet = std::vector<bool>;

struct SlotRequest {
  ClassId model_class;
  DomainId domain;
  EngineId owner;
  std::uint32_t count = 0;
  const SlabSet* mapped = nullptr;  ///< null: no mapping needed (DRAM is never mapped by engines)
  bool no_new_slab = false;         ///< only in slabs that are of the class and mapped

  [[nodiscard]] bool reaches(std::uint32_t position) const {
    if (mapped == nullptr) return true;
    return position < mapped->size() && (*mapped)[position];
  }
};

/// Outcome of an allocation, all or nothing.
/// - Ok: `slots` holds `count` slots in state filling; runs are contiguous where possible.
/// - WouldBlock with `to_map`: the owner maps these slabs, which are of its class now, and asks
///   again.
/// - WouldBlock without: enough slabs are free, but they hold another domain's bytes, are being
///   zeroed or get new memory. Ask again after take_dirty and slab_scrubbed, or take_renewals and
///   slab_renewed.
/// - QuotaExceeded: the memory is free, but the domain's maximum or others' guarantees forbid it.
/// - OutOfMemory: everything else. Slots that drain or are quarantined do not count as free, nor do
///   empty class slabs of other domains (see reclaim_empty_slabs).
struct SlotGrant {
  ErrorCode code = ErrorCode::kOk;
  std::vector<SlotId> slots;
  std::vector<SlabIndex> to_map;
};

/// The outcome that an allocation would have now.
enum class Outlook : std::uint8_t {
  kNow,         ///< Ok
  kOnceMapped,  ///< WouldBlock with `to_map`
  kNot          ///< any other code
};

}  // namespace kvd::pool
