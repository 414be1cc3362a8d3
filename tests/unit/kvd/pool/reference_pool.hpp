#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kvd/pool/tier_pool.hpp"

namespace kvd::pool {

/// What a TierPool may do, written as plainly as possible and with no sums kept: every question is
/// answered by looking at every slab. It does not predict which slab is chosen where the rules
/// leave it open; it judges the choice and then follows it.
class ReferencePool {
 public:
  ReferencePool(std::uint32_t slabs, Bytes slab_bytes, Quotas quotas,
                std::map<ClassId, Bytes> classes);

  /// Judges an allocation the pool has made and follows it. Empty, or the rule it broke.
  [[nodiscard]] std::string follow(const TierPool& pool, const SlotRequest& request,
                                   const SlotGrant& grant);
  [[nodiscard]] std::string follow(const TierPool& pool, RegionId region, DomainId domain,
                                   EngineId owner, Bytes bytes,
                                   const Result<std::vector<SlabIndex>>& outcome);
  /// The same for renew_for.
  [[nodiscard]] std::string follow_renew_for(const TierPool& pool, DomainId domain, Bytes wanted);

  void move(SlotId slot, SlotState to);
  void release_region(RegionId region);
  void quarantine_region(RegionId region);
  void set_mapped(SlabIndex slab, EngineId engine, bool mapped);
  [[nodiscard]] std::vector<SlabIndex> take_dirty();
  void slab_scrubbed(SlabIndex slab);
  void slab_renewed(SlabIndex slab);
  void stop_awaiting(EngineId engine);
  [[nodiscard]] std::vector<SlabIndex> reclaim_empty_slabs(DomainId asking);
  void retire(SlabIndex slab);
  void unretire(SlabIndex slab);
  void set_quotas(Quotas quotas) { quotas_ = std::move(quotas); }

  [[nodiscard]] Bytes available(DomainId domain) const;
  [[nodiscard]] Bytes used(DomainId domain) const;
  /// Empty, or where the pool differs.
  [[nodiscard]] std::string compare(const TierPool& pool,
                                    const std::vector<DomainId>& domains) const;

  /// What the test needs to choose its next action.
  [[nodiscard]] std::vector<SlotId> slots_in(SlotState state) const;
  [[nodiscard]] std::vector<RegionId> regions(SlabUse use) const;
  [[nodiscard]] std::vector<SlabIndex> slabs_as(SlabUse use) const;
  [[nodiscard]] std::vector<SlabIndex> retiring_slabs() const;
  [[nodiscard]] bool may_map(SlabIndex slab) const { return held(slabs_[slab.value]); }

 private:
  struct Slot {
    SlotState state = SlotState::kFree;
  };
  struct Entry {
    SlabUse use = SlabUse::kClean;
    ClassId model_class;
    DomainId domain;
    RegionId region;
    EngineId owner;
    EngineId awaited_by;  ///< it came into its class for an engine that did not reach it
    bool late_write = false;
    bool retiring = false;
    bool lent = false;  ///< engines of its domain were given its memory
    std::set<EngineId> mapped_by;
    std::vector<Slot> slots;
  };

  [[nodiscard]] static bool held(const Entry& slab);
  [[nodiscard]] static std::uint32_t free_slots(const Entry& slab);
  [[nodiscard]] std::int64_t count_held(DomainId domain, bool quarantined_too) const;
  [[nodiscard]] std::int64_t room(DomainId domain, bool quarantined_too) const;
  [[nodiscard]] bool usable(const Entry& slab, ClassId model_class, DomainId domain) const;
  [[nodiscard]] std::int64_t guaranteed(DomainId domain) const;
  /// Slabs it holds, or whose memory its engines were given.
  [[nodiscard]] std::int64_t home(DomainId domain) const;
  /// Free slabs that no engine knows and that other domains' guarantees leave to it.
  [[nodiscard]] std::int64_t fresh_room(DomainId domain) const;
  /// Slabs that must get new memory before it may have them.
  [[nodiscard]] std::int64_t renewals(DomainId domain, std::int64_t beyond_held) const;
  [[nodiscard]] std::string follow_renewals(const TierPool& pool, DomainId domain,
                                            std::int64_t beyond_held);
  [[nodiscard]] ErrorCode expected_code(const SlotRequest& request, std::int64_t missing,
                                        std::int64_t& beyond_held) const;
  [[nodiscard]] ErrorCode expected_code(DomainId domain, std::int64_t wanted,
                                        std::int64_t& beyond_held) const;
  [[nodiscard]] std::string follow_assignments(const TierPool& pool, const SlotRequest& request,
                                               std::int64_t at_most);
  [[nodiscard]] std::string follow_slots(const SlotRequest& request, const SlotGrant& grant);
  [[nodiscard]] bool keeps_clean_slab(DomainId domain) const;
  [[nodiscard]] bool has_run(const Entry& slab, std::size_t length) const;
  [[nodiscard]] std::string compare_slab(const TierPool& pool, std::uint32_t position) const;
  [[nodiscard]] std::string compare_stats(const TierPool& pool) const;
  void free_slab(Entry& slab);

  Bytes slab_bytes_;
  Quotas quotas_;
  std::map<ClassId, Bytes> classes_;
  std::vector<Entry> slabs_;
};

}  // namespace kvd::pool
