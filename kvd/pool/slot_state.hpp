#pragma once

#include <cstddef>
#include <cstdint>

namespace kvd::pool {

/// A slot is in exactly one of these, and per tier their sums equal the capacity.
/// Source: kvd/DESIGN.md "Words" (slot states).
enum class SlotState : std::uint8_t {
  kFree,
  kFilling,      ///< being written: by a swap-in copy, or by the engine's prefill
  kOpen,         ///< the tail block of a request, partly filled, still written
  kSealed,       ///< full; never changes again (safety rule 5)
  kDraining,     ///< given up, but a copy still reads it (safety rule 4)
  kQuarantined,  ///< its engine died and may still write it until the pidfd says it is gone
  kScrubbing,    ///< being zeroed
};
constexpr std::size_t kSlotStates = 7;
[[nodiscard]] const char* name(SlotState state);

/// A set of slot states, one bit each.
using SlotStates = unsigned;

template <class... State>
[[nodiscard]] constexpr SlotStates any_of(State... states) {
  return ((1u << static_cast<unsigned>(states)) | ...);
}

/// What a whole slab is used for.
enum class SlabUse : std::uint8_t {
  kClean,        ///< unassigned and zeroed
  kDirty,        ///< unassigned; may hold old bytes: to be scrubbed
  kScrubbing,    ///< unassigned, being zeroed
  kClass,        ///< divided into slots of one class, for one domain
  kRegion,       ///< leased whole to one session (level 1)
  kQuarantined,  ///< a region whose engine died and may still write it
  kRenewing,     ///< unassigned; gets new memory, as engines of another domain know the old
  kMissing,      ///< unassigned; there was no memory for it yet
};
constexpr std::size_t kSlabUses = 8;
[[nodiscard]] const char* name(SlabUse use);

constexpr bool unassigned(SlabUse use) {
  return use == SlabUse::kClean || use == SlabUse::kDirty || use == SlabUse::kScrubbing ||
         use == SlabUse::kRenewing || use == SlabUse::kMissing;
}

}  // namespace kvd::pool
