#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/pool/quota.hpp"

namespace kvd::pool {

/// A slot is in exactly one of these; per tier the sums equal the capacity (architecture section
/// 2).
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

/// What a whole slab is used for.
enum class SlabUse : std::uint8_t {
  kClean,        ///< unassigned and zeroed
  kDirty,        ///< unassigned; may hold old bytes: to be scrubbed
  kScrubbing,    ///< unassigned, being zeroed
  kClass,        ///< divided into slots of one class, for one domain
  kRegion,       ///< leased whole to one session (level 1)
  kQuarantined,  ///< a region whose engine died and may still write it
};
[[nodiscard]] const char* name(SlabUse use);

/// Which slabs a session has acknowledged to have mapped; slots are granted only there.
using SlabSet = std::vector<bool>;

struct SlotRequest {
  ClassId model_class;
  DomainId domain;
  EngineId owner;
  std::uint32_t count = 0;
  const SlabSet* mapped = nullptr;  ///< null: no mapping needed (DRAM is never mapped by engines)
};

/// Outcome of an allocation, all or nothing.
struct SlotGrant {
  ErrorCode code =
      ErrorCode::kOk;  ///< Ok | WouldBlock (map `to_map` first) | OutOfMemory | QuotaExceeded
  std::vector<SlotId>
      slots;  ///< `count` slots in state filling when Ok; runs are contiguous where possible
  std::vector<SlabIndex>
      to_map;  ///< slabs of this class the owner must map before they can be granted
};

struct SlabView {
  SlabIndex index;
  SlabUse use = SlabUse::kClean;
  ClassId model_class;
  DomainId domain;
  RegionId region;
  EngineId owner;           ///< of a region
  std::uint32_t slots = 0;  ///< slots the class divides it into
  std::uint32_t used = 0;   ///< slots not free
};

/// Counts for metrics and REST; bytes unless said otherwise.
struct TierStats {
  Bytes capacity;
  Bytes slab_bytes;
  std::uint32_t slabs = 0;
  std::uint32_t slabs_unassigned = 0;
  Bytes free;         ///< unassigned slabs + free slots
  Bytes region;       ///< leased to level-1 sessions
  Bytes quarantined;  ///< slots and regions
  Bytes stranded;     ///< free slots in slabs that also hold used slots
  std::vector<std::uint64_t> slots_by_state = std::vector<std::uint64_t>(kSlotStates);
};

/// Owns which slot of one tier belongs to whom and in which state. Knows ids only: no address, no
/// copy, no I/O, so that the daemon, the simulator and the tests run the same code.
/// Source:  kvd design (architecture sections 2, 4, 5, 7).
/// Owner:   control thread.
/// Errors:  as said per call; never throws. A call that breaks a state rule is a bug and aborts.
/// Cost:    allocate O(count + slabs of the class); state changes O(1).
class TierPool {
 public:
  struct Config {
    Tier tier = Tier::kHbm;
    Bytes slab_bytes;
    std::uint32_t slabs = 0;
  };

  /// Precondition: slab_bytes > 0 and slabs < SlotId::kMaxSlabs.
  TierPool(Config config, Quotas quotas);

  // ---- classes and slots
  // -------------------------------------------------------------------------
  /// InvalidArgument if the slot does not fit a slab, or a slab would hold too many; adding the
  /// same class again with the same size is fine.
  [[nodiscard]] Status add_class(ClassId model_class, Bytes slot_bytes);
  [[nodiscard]] Bytes slot_bytes(ClassId model_class) const;

  /// Fullest slab of the class first; then an unassigned slab; then an empty slab of another class
  /// of the same domain (it changes class). A slab that changes domain must be clean and unmapped
  /// by everyone: see set_mapped.
  [[nodiscard]] SlotGrant allocate(const SlotRequest& request);

  void mark_open(SlotId slot);   ///< filling -> open
  void seal(SlotId slot);        ///< filling | open -> sealed
  void drain(SlotId slot);       ///< filling | open | sealed -> draining: a copy still touches it
  void release(SlotId slot);     ///< filling | open | sealed | draining -> free
  void quarantine(SlotId slot);  ///< filling | open | sealed | draining -> quarantined
  void scrub(SlotId slot);       ///< quarantined -> scrubbing
  void scrubbed(SlotId slot);    ///< scrubbing -> free

  [[nodiscard]] SlotState state(SlotId slot) const;
  [[nodiscard]] EngineId owner(SlotId slot) const;

  // ---- regions (level 1)
  // -------------------------------------------------------------------------
  /// Leases whole clean slabs. WouldBlock if enough slabs exist but some are still dirty, scrubbing
  /// or quarantined; OutOfMemory if not; QuotaExceeded beyond the domain's maximum.
  [[nodiscard]] Result<std::vector<SlabIndex>> allocate_region(RegionId region, DomainId domain,
                                                               EngineId owner, Bytes bytes);
  void release_region(RegionId region);     ///< its slabs become dirty
  void quarantine_region(RegionId region);  ///< until released

  // ---- slabs
  // -------------------------------------------------------------------------------------
  /// Records who maps a slab (or no longer does), for domain changes.
  void set_mapped(SlabIndex slab, EngineId engine, bool mapped);
  /// Slabs that wait to be zeroed; the caller copies zeros and reports back.
  [[nodiscard]] std::vector<SlabIndex> take_dirty();  ///< dirty -> scrubbing
  void slab_scrubbed(SlabIndex slab);                 ///< scrubbing -> clean
  /// Empty class slabs go back to unassigned (dirty) so that regions and other classes find them.
  std::vector<SlabIndex> reclaim_empty_slabs();
  [[nodiscard]] SlabView slab(SlabIndex index) const;
  [[nodiscard]] std::vector<SlabView> slabs() const;
  /// The slab of another class and the same domain with the fewest used slots; for class pressure.
  [[nodiscard]] std::optional<SlabIndex> emptiest_foreign_slab(ClassId model_class,
                                                               DomainId domain) const;

  // ---- budgets
  // -----------------------------------------------------------------------------------
  /// What the domain could still be granted, in bytes, over all classes and within its quota.
  [[nodiscard]] Bytes available(DomainId domain) const;
  [[nodiscard]] Bytes used(DomainId domain) const;  ///< whole slabs it holds
  [[nodiscard]] TierStats stats() const;
  [[nodiscard]] const Config& config() const { return config_; }
  /// Replaces quotas (SIGHUP, REST). InvalidArgument if guarantees exceed the capacity.
  [[nodiscard]] Status set_quotas(Quotas quotas);

  /// Checks every invariant; empty when they hold, else the first broken one in words (rule 10).
  [[nodiscard]] std::string validate() const;

 private:
  Config config_;
};

}  // namespace kvd::pool
