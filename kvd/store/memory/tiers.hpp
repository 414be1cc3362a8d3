#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/pool/tier_pool.hpp"
#include "kvd/store/memory/device_pools.hpp"
#include "kvd/store/memory/holds.hpp"
#include "kvd/store/memory/mappings.hpp"
#include "kvd/store/memory/orders.hpp"

namespace kvd::store {

/// For whom slots are taken.
struct Taker {
  ClassId model_class;
  DomainId domain;
  EngineId engine;          ///< gets the slabs it does not map yet sent, where the tier is HBM
  Bytes slot_bytes;         ///< of the class
  DeviceId device{};        ///< where HBM is taken
  std::uint32_t chain = 0;  ///< whose cached blocks do not make way for it (Entry::chain); 0: none
  /// Nor do retained blocks, nor those of other domains: what it takes is wanted by nobody yet.
  bool spares_retained = false;
};
/// Slots of one device, of several that are taken.
struct DeviceSlots {
  DeviceId device;
  std::uint32_t count = 0;
};

/// The memory of one node by ids: a pool of HBM for each device and one of DRAM, which engine maps
/// which slab, why a slot that was given up is not free yet, and what is being zeroed or renewed.
/// Everything that changes a pool goes through here; everybody may read the pools.
///
/// Source: kvd design (DESIGN.md, safety rules 3, 4 and 8; "Domains and quotas").
///
/// Owner: control thread. Errors: as said per call. A call that breaks a state rule of the pools is
/// a bug and aborts. Cost: that of the pool's call; what goes by slab number O(slabs).
class Tiers {
 public:
  struct Config {
    std::vector<pool::TierPool::Config> hbm;  ///< by device
    pool::TierPool::Config dram;
    pool::Quotas hbm_quotas;  ///< of each device
    pool::Quotas dram_quotas;
  };
  /// Orders for the shell are appended to `orders`, which outlives this.
  Tiers(const Config& config, Orders& orders);

  /// Whole slabs retire, are renewed and end their regions there; slots change by what is below.
  [[nodiscard]] DevicePools& hbm() { return hbm_; }
  [[nodiscard]] const DevicePools& hbm() const { return hbm_; }
  /// For HBM, the pool of the device.
  [[nodiscard]] const pool::TierPool& pool(Tier tier, DeviceId device = {}) const {
    return tier == Tier::kHbm ? hbm_.of(device) : dram_;
  }
  [[nodiscard]] pool::SlotState state(Tier tier, SlotId slot) const {
    return tier == Tier::kHbm ? hbm_.state(slot) : dram_.state(slot);
  }
  [[nodiscard]] Mappings& mappings() { return mappings_; }
  [[nodiscard]] const Mappings& mappings() const { return mappings_; }

  // ---- classes and quotas ----
  /// In all pools, or in none: InvalidArgument as TierPool::add_class.
  [[nodiscard]] Status add_class(ClassId model_class, Bytes slot_bytes);
  /// False while a slab of any pool has the class.
  [[nodiscard]] bool remove_class(ClassId model_class);
  [[nodiscard]] Status set_quotas(Tier tier, const pool::Quotas& quotas);

  // ---- slots ----
  /// All or nothing, as TierPool::allocate. Slabs of HBM that the engine has yet to map are sent to
  /// it; where a tier is short, slabs that other domains left empty start being zeroed.
  [[nodiscard]] pool::SlotGrant take(Tier tier, const Taker& taker, std::uint32_t count);
  /// The same without a look for slabs of others.
  [[nodiscard]] pool::SlotGrant try_take(Tier tier, const Taker& taker, std::uint32_t count);
  /// HBM of several devices, all or nothing: as take on each, the slots one device after the other.
  /// Where one device has to be waited for, nothing of the others is touched: a slab that only
  /// joined the class would be empty, and be taken for a region and back without end.
  [[nodiscard]] pool::SlotGrant take(const Taker& taker, std::span<const DeviceSlots> wanted);
  void seal(Tier tier, pool::Slots slots);
  void open(Tier tier, pool::Slots slots);
  /// Frees slots that nothing touches; all others go by `hold`. A slot that is being moved waits
  /// for its move.
  void free(Tier tier, std::vector<SlotId> slots);
  void hold(Hold hold);
  /// As Holds::copy_reads.
  void copy_reads(Ticket copy, Tier tier, const std::vector<SlotId>& slots) {
    holds_.copy_reads(copy, tier, slots);
  }
  /// A copy or stream that read or wrote slots: see Hold::copies.
  void copy_ended(Ticket ticket);
  /// Orders a copy of DRAM slots, which are in one slab, into free slots of other slabs of the
  /// class and domain. Their owners keep them; slots that are given up before the copy has ended
  /// wait for it. None: there are too few free slots.
  [[nodiscard]] std::optional<MoveSlots> move(const Taker& owner, const std::vector<SlotId>& from);

  // ---- zeroing ----
  /// Empty slabs of other domains start being zeroed, in the tier or in both; of HBM the device's.
  void reclaim(Tier tier, DomainId asking, DeviceId device = {});
  void reclaim(DomainId asking, DeviceId device);
  /// Whether the ticket belongs to a Scrub that this ordered; a failed one is ordered again.
  [[nodiscard]] bool scrub_ended(Ticket ticket, bool ok);
  /// HBM of the domain on the device that was given up or is being zeroed and comes back to be
  /// granted. It leaves out slabs that retire, engines that die, and what is held for an engine for
  /// which `comes` says no.
  template <class Comes>
  [[nodiscard]] Bytes held(DomainId domain, DeviceId device, Comes comes) const {
    Bytes sum = zeroing(domain, device);
    for (const Hold& hold : holds_.all()) {
      if (hold.domain != domain || Holds::quarantined(hold) || !comes(hold.engine)) continue;
      sum += hold.slot_bytes * grantable(hold.hbm, device);
    }
    return sum;
  }
  /// Whether anything is being zeroed that the domain may get.
  [[nodiscard]] bool zeroes_for(DomainId domain) const;

  // ---- new memory ----
  /// Orders the new memory that the event in hand needs. Returns the number of slabs.
  std::uint64_t order_renewals();

  // ---- engines ----
  void engine_came(EngineId engine);
  /// In a group, all ranks have finished the iteration.
  void iteration_finished(EngineId engine, std::uint64_t iteration) {
    holds_.iteration_finished(engine, iteration);
  }
  void engine_dying(EngineId engine) { holds_.engine_dying(engine); }
  void engine_gone(EngineId engine);

  // ---- regions ----
  /// Leases whole slabs of the taker's device and sends them; errors as
  /// TierPool::allocate_region.
  [[nodiscard]] Result<std::vector<SlabIndex>> lease(RegionId region, const Taker& taker,
                                                     Bytes bytes);
  /// Its engine unmapped it.
  void end_lease(RegionId region, EngineId engine, const std::vector<SlabIndex>& slabs);
  /// Orders that all dirty slabs are zeroed.
  void scrub_slabs();

  /// Used slots that no block accounts for: held ones, and single ones that are being zeroed.
  [[nodiscard]] std::size_t slots(Tier tier) const;
  [[nodiscard]] std::string validate() const;

 private:
  friend std::uint32_t share_out(Tiers& tiers, Tier tier, const pool::Demands& demands,
                                 DeviceId device);
  friend void give_back(Tiers& tiers, Tier tier, DomainId domain, std::uint32_t excess,
                        DeviceId device);
  friend void slab_renewed(Tiers& tiers, Tier tier, SlabIndex slab);
  friend bool is_read(const Tiers& tiers, Tier tier, SlotId slot);
  friend Bytes held_hbm(const Tiers& tiers, EngineId engine);
  friend bool zeroes(const Tiers& tiers, Ticket after, Ticket until);
  friend std::vector<SlotId> adopt(Tiers& tiers, Tier tier, SlabIndex slab, const Taker& owner);
  friend void release(Tiers& tiers, RegionId region, const std::vector<SlabIndex>& slabs);
  [[nodiscard]] pool::TierPool& changing(Tier tier, DeviceId device) {
    return tier == Tier::kHbm ? hbm_.of(device) : dram_;
  }
  template <class SlabOrSlot>
  [[nodiscard]] pool::TierPool& with(Tier tier, SlabOrSlot id) {
    return tier == Tier::kHbm ? hbm_.with(id) : dram_;
  }
  void scrub_slots();
  [[nodiscard]] Bytes zeroing(DomainId domain, DeviceId device) const;
  [[nodiscard]] std::int64_t grantable(const std::vector<SlotId>& slots, DeviceId device) const;

  struct Zeroing {
    Scrub order;
    DomainId domain;  ///< of slots; none: slabs, which anybody may get
    Ticket first;     ///< under which it was ordered; one that fails is ordered again
  };

  Orders& orders_;
  DevicePools hbm_;
  pool::TierPool dram_;
  Holds holds_;
  Mappings mappings_;
  std::map<Ticket, Zeroing> zeroing_;
};

/// Nobody maps the region any more; Tiers::scrub_slabs() is to follow.
void release(Tiers& tiers, RegionId region, const std::vector<SlabIndex>& slabs);

/// The slab has new memory.
inline void slab_renewed(Tiers& tiers, Tier tier, SlabIndex slab) {
  tiers.with(tier, slab).slab_renewed(slab);
}
/// As Holds::reads.
[[nodiscard]] inline bool is_read(const Tiers& tiers, Tier tier, SlotId slot) {
  return tiers.holds_.reads(tier, slot);
}

/// HBM that the engine gave up, which it or a copy may still touch.
[[nodiscard]] Bytes held_hbm(const Tiers& tiers, EngineId engine);
/// Whether anything is still being zeroed that was ordered after the first ticket and not after the
/// second.
[[nodiscard]] bool zeroes(const Tiers& tiers, Ticket after, Ticket until);

/// As pool::adopt; the memory is known to no engine. Where nobody may have the slab,
/// Tiers::scrub_slabs() is to follow.
[[nodiscard]] std::vector<SlotId> adopt(Tiers& tiers, Tier tier, SlabIndex slab,
                                        const Taker& owner);

/// As pool::share_out.
std::uint32_t share_out(Tiers& tiers, Tier tier, const pool::Demands& demands,
                        DeviceId device = {});
/// As pool::give_back. What is empty is zeroed, and asked back of engines that map it.
void give_back(Tiers& tiers, Tier tier, DomainId domain, std::uint32_t excess,
               DeviceId device = {});

}  // namespace kvd::store
