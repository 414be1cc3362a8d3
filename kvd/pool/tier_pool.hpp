#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/pool/quota.hpp"
#include "kvd/pool/region_leases.hpp"
#include "kvd/pool/renewals.hpp"
#include "kvd/pool/slab_book.hpp"
#include "kvd/pool/slot_request.hpp"
#include "kvd/pool/slot_state.hpp"

namespace kvd::pool {

struct SlabView {
  SlabIndex index;
  SlabUse use = SlabUse::kClean;
  bool retiring = false;  ///< kept for a region of its domain: see TierPool::retire
  ClassId model_class;
  DomainId
      domain;  ///< its holder; for a loose dirty slab the domain whose bytes it may still contain
  RegionId region;
  EngineId owner;                                     ///< of a region
  std::uint32_t slots = 0;                            ///< slots the class divides it into
  std::uint32_t used = 0;                             ///< slots not free
  std::array<std::uint32_t, kSlotStates> by_state{};  ///< slots in each SlotState
  static constexpr std::size_t kNamedEngines = 4;
  std::array<EngineId, kNamedEngines> mapped_by{};  ///< the first engines that map it
  std::uint32_t engines = 0;                        ///< how many map it
};

/// Counts for metrics and REST, in bytes unless said otherwise. Counts of several pools add up. The
/// rest of a slab behind the last slot of its class is in none of them.
struct TierStats {
  Bytes capacity;
  Bytes slab_bytes;
  std::uint32_t slabs = 0;
  std::uint32_t slabs_unassigned = 0;
  std::uint32_t slabs_retiring = 0;  ///< kept for a region: see TierPool::retire
  Bytes free;                        ///< unassigned slabs that have memory + free slots
  Bytes missing;                     ///< slabs that have no memory yet
  Bytes region;                      ///< leased to level-1 sessions
  Bytes quarantined;                 ///< slots and regions
  Bytes stranded;                    ///< free slots in slabs that also hold used slots
  std::vector<std::uint64_t> slots_by_state = std::vector<std::uint64_t>(kSlotStates);

  TierStats& operator+=(const TierStats& other);
};

/// Owns which slab and slot of one tier is whose and in which state. Knows ids only: no address, no
/// copy, no I/O, so that the daemon, the simulator and the tests run the same code. SlabBook keeps
/// what there is, Budget says what a domain may have of it, RegionLeases and Renewals keep their
/// lists; the decisions that join them are made here.
/// Source:  kvd/DESIGN.md "Words", "Safety rules", "Domains and quotas".
/// Owner:   control thread.
/// Errors:  as said per call; never throws. A call that breaks a state rule is a bug and aborts.
/// Cost:    allocate: O(count + slabs of the class that the owner does not map), and O(slabs) when
///          it needs a new slab. Becoming free: O(log slabs); other state changes: O(1). available
///          and used: O(domains).
class TierPool {
 public:
  struct Config {
    Tier tier = Tier::kHbm;
    Bytes slab_bytes;
    std::uint32_t slabs = 0;
    SlabIndex first{0};  ///< number of its first slab; the others follow
    /// Slabs that have no memory yet; slab_renewed() says when they have.
    std::vector<SlabIndex> missing = {};
  };

  /// Every slab that has memory starts clean: the tier hands it over zeroed.
  /// Precondition: slab_bytes > 0, first + slabs < SlotId::kMaxSlabs, check_quotas is content.
  TierPool(const Config& config, Quotas quotas);

  // ---- classes and slots ----
  /// InvalidArgument if the slot does not fit a slab, or a slab would hold too many; adding the
  /// same class again with the same size is fine.
  [[nodiscard]] Status add_class(ClassId model_class, Bytes slot_bytes);
  /// Forgets a class that no slab has; false when one does.
  bool remove_class(ClassId model_class);

  /// Fullest slab of the class first; then an unassigned slab; then an empty slab of another class
  /// of the same domain (it changes class). A slab that changes domain must be clean and unmapped
  /// by everyone: see set_mapped. A dirty slab goes back at once to the domain that used it last,
  /// as a domain trusts itself. Slabs the owner has mapped come before those it would have to map.
  [[nodiscard]] SlotGrant allocate(const SlotRequest& request);

  // Each call takes one slot or many. Neighbours change together, and the bookkeeping of a slab is
  // done once for each stretch of its slots.
  void mark_open(Slots slots);   ///< filling -> open
  void seal(Slots slots);        ///< filling | open -> sealed
  void drain(Slots slots);       ///< filling | open | sealed -> draining: a copy still touches it
  void release(Slots slots);     ///< filling | open | sealed | draining -> free
  void quarantine(Slots slots);  ///< filling | open | sealed | draining -> quarantined
  void scrub(Slots slots);       ///< quarantined -> scrubbing
  void scrubbed(Slots slots);    ///< scrubbing -> free

  [[nodiscard]] SlotState state(SlotId slot) const {
    return book_.at(slot.slab()).slots.state(slot.index());
  }

  // ---- regions (level 1) ----
  /// Leases whole clean slabs, ascending; retiring ones first. InvalidArgument if bytes is not
  /// positive; WouldBlock if enough slabs exist but some are still dirty, scrubbing, quarantined,
  /// retiring or renewing; QuotaExceeded if the memory exists but the domain's maximum or others'
  /// guarantees forbid it; else OutOfMemory.
  [[nodiscard]] Result<std::vector<SlabIndex>> allocate_region(RegionId region, DomainId domain,
                                                               EngineId owner, Bytes bytes);
  /// Slabs that regions of the domain can have beside those they have, when all that is free, on
  /// its way or retiring is counted, within its quota.
  [[nodiscard]] std::uint32_t region_room(DomainId domain) const;
  void release_region(RegionId region);     ///< its slabs become dirty
  void quarantine_region(RegionId region);  ///< until released

  // ---- slabs ----
  /// Records who can reach a slab's bytes (or no longer can), for domain changes: set it before the
  /// fd is sent, clear it when the engine has unmapped or died. While anyone maps a slab its domain
  /// holds it. A slab mapped while it was zeroed is dirty again once nobody maps it. Repeating a
  /// call changes nothing. Only slabs in use may be newly mapped.
  void set_mapped(SlabIndex slab, EngineId engine, bool mapped);
  /// A slab that came into a class for an engine that has yet to map it keeps that class until the
  /// engine has had its chance to use it.
  [[nodiscard]] bool awaited(SlabIndex slab, EngineId engine) const;
  void stop_awaiting(EngineId engine);
  /// Slabs that wait to be zeroed, ascending; the caller copies zeros and reports back.
  [[nodiscard]] std::vector<SlabIndex> take_dirty();  ///< dirty -> scrubbing
  void slab_scrubbed(SlabIndex slab);                 ///< scrubbing -> clean

  /// Empty class slabs go back to unassigned (dirty) so that regions and other domains find them.
  /// Slabs of the asking domain stay: it finds its own as they are.
  std::vector<SlabIndex> reclaim_empty_slabs(DomainId asking = {});
  /// Keeps a class slab for a region of its domain: no further slot of it is granted, and with its
  /// last slot free it becomes unassigned (dirty). From then on it is scrubbed like any other, but
  /// no class and no other domain gets it: a request that made way would be back at once. Ends with
  /// the lease of a region, or unretire. Repeating either call changes nothing.
  void retire(SlabIndex index);
  void unretire(SlabIndex index);
  [[nodiscard]] bool retiring(SlabIndex index) const { return book_.at(index).retiring; }
  [[nodiscard]] SlabView slab(SlabIndex index) const;
  [[nodiscard]] std::vector<SlabView> slabs() const;
  /// Slabs of other classes and the same domain that do not retire, those with the fewest used
  /// slots first; for class pressure.
  [[nodiscard]] std::vector<SlabIndex> foreign_slabs(ClassId model_class, DomainId domain) const;
  /// Slabs in use that an allocation of the class for the domain could have if they were empty:
  /// slabs of the domain's other classes, and slabs of other domains where quotas let the domain
  /// have one more. It leaves out slabs that retire, wait for their engine, or are known to
  /// engines. Those with the fewest used slots first; for compaction.
  [[nodiscard]] std::vector<SlabIndex> wanted_if_empty(ClassId model_class, DomainId domain) const;

  // ---- new memory (renewals.hpp) ----
  // A slab whose memory engines of a domain were given (set_mapped) stays that domain's, free or
  // not. Another domain that has room for more than its own slabs and those no engine knows gets it
  // with new memory: an allocation that answers WouldBlock for that has it renewed. What a domain
  // is guaranteed is never taken so: where guarantees share the pool out, slabs keep their domain.

  /// Does the same ahead of allocations of a domain that will take this many bytes.
  void renew_for(DomainId domain, Bytes wanted);
  /// The slabs that need new memory since the last call. Nothing in them is in use.
  [[nodiscard]] std::vector<SlabIndex> take_renewals();
  void slab_renewed(SlabIndex slab);  ///< renewing, missing -> clean; known to nobody

  // ---- budgets ----
  /// What the domain could be granted at once, in bytes, over all classes and within its quota: its
  /// free slots, its empty slabs whole, since they can change class, and unassigned slabs that need
  /// neither scrubbing nor new memory first. Nothing of retiring slabs.
  [[nodiscard]] Bytes available(DomainId domain) const;
  [[nodiscard]] Bytes used(DomainId domain) const;  ///< whole slabs it holds
  /// Slabs the domain can come to hold, whatever the others give back.
  [[nodiscard]] std::uint32_t most_slabs(DomainId domain) const;
  [[nodiscard]] TierStats stats() const;
  [[nodiscard]] const Config& config() const { return config_; }
  /// Replaces quotas (SIGHUP, REST). InvalidArgument if guarantees exceed the capacity.
  [[nodiscard]] Status set_quotas(Quotas quotas);

  /// Checks every invariant; empty when they hold, else the first broken one in words (rule 10).
  [[nodiscard]] std::string validate() const;

 private:
  friend std::vector<SlotId> adopt(TierPool& pool, SlabIndex slab, ClassId model_class,
                                   DomainId domain);
  friend Outlook outlook(const TierPool& pool, const SlotRequest& request);
  friend bool lease(TierPool& pool, const RegionLeases::Lease& lease, const Positions& slabs);
  friend void claim(TierPool& pool, RegionId region, EngineId owner);
  friend void renew(TierPool& pool, SlabIndex slab);
  friend std::vector<SlabIndex> renew(TierPool& pool, RegionId region);
  friend HeldSlabs excess(const TierPool& pool);
  friend void give_back(TierPool& pool, DomainId domain, std::uint32_t excess);
  friend std::uint32_t share_out(TierPool& pool, const Demands& demands);
  void move(Slots slots, SlotStates from, SlotState to);

  Config config_;
  Quotas quotas_;  ///< as set
  Quotas shared_;  ///< in force, with what domains have a right to while several want more
  SlabBook book_;
  RegionLeases regions_;
  Renewals renewals_;
};

/// A clean slab has bytes of an earlier daemon. Returns all its slots, in state filling, where the
/// domain may have it. Otherwise none, and the slab is dirty.
[[nodiscard]] std::vector<SlotId> adopt(TierPool& pool, SlabIndex slab, ClassId model_class,
                                        DomainId domain);

// Clean slabs may be memory in which an engine of an earlier daemon computes.

/// Leases exactly these slabs, to nobody yet. False, and nothing has changed: somebody has one of
/// them, or the domain may not have as many.
[[nodiscard]] bool lease(TierPool& pool, const RegionLeases::Lease& lease, const Positions& slabs);
/// The region is the engine's from now on, which maps it.
void claim(TierPool& pool, RegionId region, EngineId owner);
/// A clean slab, or all of a region that nobody maps, gets new memory: the caller orders it.
void renew(TierPool& pool, SlabIndex slab);
std::vector<SlabIndex> renew(TierPool& pool, RegionId region);

/// What allocate() would come to. Changes nothing.
[[nodiscard]] Outlook outlook(const TierPool& pool, const SlotRequest& request);

/// Until the next call each domain has a right to an equal part, up to what it wants, as if it were
/// guaranteed that. Returns the part in slabs, as Parts::slabs. No demands: quotas alone hold.
std::uint32_t share_out(TierPool& pool, const Demands& demands);
/// The slabs that domains hold beyond what they may have now.
[[nodiscard]] HeldSlabs excess(const TierPool& pool);
/// Lets exactly this many slabs of the domain retire, the emptiest first. Empty slabs that no
/// engine maps go at once. 0: retired slabs serve again.
void give_back(TierPool& pool, DomainId domain, std::uint32_t excess);

}  // namespace kvd::pool
