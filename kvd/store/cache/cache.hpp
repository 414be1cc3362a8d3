#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/store/blocks/blocks.hpp"
#include "kvd/store/index/disk_admission.hpp"
#include "kvd/store/index/expected_chains.hpp"
#include "kvd/store/index/index.hpp"

namespace kvd::store {

/// A row that is to be written to disk, or to the remote store.
struct ForDisk {
  RowId row;
  std::uint32_t touches = 0;  ///< as Entry::touches
  KeySpace space;
  Digest digest;
  Bytes slot_bytes;
  std::vector<SlotId> dram;  ///< by layer group
};

/// Rows that were read from disk into DRAM slots (state filling), neighbours in a chain.
struct FromDisk {
  KeySpace space;
  Taker taker;
  std::vector<Digest> chain;  ///< from the first block of the prompt on, to the last row
  std::vector<std::vector<SlotId>> rows;  ///< the last ones of the chain, by layer group
  SecondsPerByte saved;
};

/// A cached row on its way from HBM to DRAM.
struct RowCopy {
  DomainId domain;
  EntryId entry;
  RowId row;
  Bytes slot_bytes;
  std::vector<SlotId> from;  ///< by layer group
  std::vector<SlotId> to;
};

/// Rows that somebody comes back for (PlacedRows::retain).
struct Retained {
  Bytes bytes;
  std::uint64_t evicted = 0;  ///< bytes that made way all the same
};

/// Which row the blocks of an entry are. Kept by the entry's number, as entries come and go by
/// thousands. Owner: control thread. Cost: O(1).
class RowsByEntry {
 public:
  /// None: the entry has no row.
  [[nodiscard]] RowId find(EntryId entry) const {
    return entry.value < rows_.size() ? rows_[entry.value] : RowId();
  }
  [[nodiscard]] bool contains(EntryId entry) const { return bool(find(entry)); }
  /// Precondition: the entry has a row.
  [[nodiscard]] RowId at(EntryId entry) const {
    KVD_CHECK(contains(entry), "an entry of the cache has no row");
    return rows_[entry.value];
  }
  void add(EntryId entry, RowId row) {
    rows_.grow(std::size_t{entry.value} + 1);
    rows_[entry.value] = row;
  }
  void erase(EntryId entry) { rows_[entry.value] = RowId(); }
  /// No entry from this one on has a row.
  [[nodiscard]] EntryId end() const { return EntryId(static_cast<std::uint32_t>(rows_.size())); }
  template <class F>
  void each(F visit) const {
    for (EntryId entry(1); entry.value < rows_.size(); ++entry.value) {
      if (rows_[entry.value]) visit(entry, rows_[entry.value]);
    }
  }

 private:
  Pieces<RowId> rows_;
};

/// Blocks that outlive their requests, and are found by what they hold. Joins the index, which
/// knows keys, and Blocks, which knows places: a row that has a key has an entry, in each tier that
/// has all of the row's blocks complete. Each table that names the row holds a lease on the entry,
/// so what may leave is exactly what no table names.
///
/// Each domain has an index of its own, so what one caches pushes out nothing of another's.
///
/// Slots are handed to the caller, as Blocks does.
///
/// Source: kvd design. Owner: control thread. Errors: as said per call. Cost: that of the index and
/// of Blocks; every call O(blocks that moved since the last).
class Cache {
 public:
  /// `quotas` in force, by tier; they outlive it.
  Cache(Tiers& tiers, Blocks& blocks, Index::Config config,
        std::array<const pool::Quotas*, kTiers> quotas)
      : tiers_(tiers),
        blocks_(blocks),
        labels_(config.secret),
        config_(std::move(config)),
        quotas_(quotas) {
    config_.labels = &labels_;
  }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  /// A block of the table that is to be found from now on.
  struct NewRow {
    KeySpace space;
    std::uint32_t block = 0;  ///< its number: sealed in all layer groups, and all before it named
    Digest digest;
    SecondsPerByte saved;
  };
  /// False: a row of another table, or one that is cached, has the key. This one, and those after
  /// it, remain the table's own. Errors: those of Index::insert.
  [[nodiscard]] Result<bool> name(BlockTable& table, const NewRow& row);
  /// As Index::set_cost().
  void set_cost(const KeySpace& space, double times);
  /// The table gets the leading rows of the chain that are known. Returns how many it has then.
  /// Precondition: blocks of the space have as many layer groups as the table; what it has already
  /// are the first rows of the chain.
  std::uint32_t share(BlockTable& table, const KeySpace& space, std::span<const Digest> chain);
  /// The table gives up all blocks of each layer group beyond the first `blocks`. Returns the slots
  /// of blocks that nothing else can find, among them all slots of a row that no tier has whole.
  /// `leave_hbm`: an engine may still write to HBM, so rows that no other table names stay in DRAM
  /// alone.
  [[nodiscard]] SlotsByTier truncate(BlockTable& table, std::uint32_t blocks,
                                     bool leave_hbm = false);

  /// As Tiers::take. Where the tier is short, cached rows make way: first rows of the domain
  /// outside the taker's own chain, then rows that other domains have beyond their guarantees. At
  /// most `most` rows go. Where more would have to, it says WouldBlock and is to be asked again.
  [[nodiscard]] pool::SlotGrant take(Tier tier, const Taker& taker, std::uint32_t count,
                                     std::size_t most = SIZE_MAX);
  [[nodiscard]] pool::SlotGrant take(const Taker& taker, std::span<const DeviceSlots> wanted);
  /// The same without a look for slabs that others left empty.
  [[nodiscard]] pool::SlotGrant try_take(Tier tier, const Taker& taker, std::uint32_t count,
                                         std::size_t most = SIZE_MAX);
  /// The taker was refused: cached rows make way. False where that cannot help.
  [[nodiscard]] bool make_way(Tier tier, const Taker& taker, Bytes needed, ErrorCode refused);
  /// Evicts rows of the domain that no table names (in HBM those on the device) until enough bytes
  /// have left or no row remains. Returns how many bytes have left.
  Bytes make_room(DomainId domain, Tier tier, Bytes needed, DeviceId device = {});
  /// The same of other domains, for this one.
  Bytes make_others_room(DomainId domain, Tier tier, Bytes needed, DeviceId device = {});
  /// What take() could grant the domain at once, over all classes, from free and cached memory.
  [[nodiscard]] Bytes available(DomainId domain, Tier tier, DeviceId device = {}) const;
  /// Evicts the rows that no table names, of all domains or of one, at most `most` in this call.
  /// False: some are left.
  bool clear(std::size_t most = SIZE_MAX, std::optional<DomainId> only = {});

  /// The most that evict() can free of the domain in the tier.
  [[nodiscard]] Bytes evictable(DomainId domain, Tier tier, DeviceId device = {}) const;
  /// Evicts rows that no table names, in the order of the eviction policy, until `needed` bytes
  /// have left or no row remains. What no other tier has is lost.
  [[nodiscard]] std::vector<SlotId> evict(DomainId domain, Tier tier, Bytes needed,
                                          DeviceId device = {});
  /// What evict() could still free over all domains, and what it has freed so far.
  [[nodiscard]] Bytes cached(Tier tier) const;
  [[nodiscard]] std::uint64_t evicted(Tier tier) const {
    return evicted_[static_cast<std::size_t>(tier)];
  }

  // ---- copies of cached rows ----
  /// The next row that its last table has left in HBM alone. Each is named once. None: there is no
  /// other.
  [[nodiscard]] RowId next_alone();
  /// Takes DRAM for a copy of the row: free slots, or those of at most `most` rows of its domain
  /// that are wanted less. `most` then says how many more may go. None: there is too little.
  [[nodiscard]] std::vector<SlotId> take_for_copy(RowId row, std::size_t& most);
  /// A copy reads the cached row in HBM, so the row leaves no tier before end_copy().
  [[nodiscard]] RowCopy begin_copy(RowId row, std::vector<SlotId> to);
  /// Returns the slots of a copy that failed, or that nobody needs any more.
  [[nodiscard]] std::vector<SlotId> end_copy(const RowCopy& copy, bool ok);

  // ---- rows that go to disk and come from it (cache_disk.cpp) ----
  /// Rows that DRAM has and that the rule admits are told by next_for_disk() from now on.
  void offer_to_disk(SecondTouch rule) { disk_rule_ = rule; }
  /// A request begins with the row. next_for_disk() names it where the rule admits it.
  void offer_to_disk(RowId row);
  /// The next row that DRAM has complete. Some are named again. Domains take turns. None: there is
  /// no other, or the call has only met rows that have gone.
  [[nodiscard]] std::optional<ForDisk> next_for_disk();
  /// The row as next_for_disk() tells it. None: DRAM does not have it any more.
  [[nodiscard]] std::optional<ForDisk> for_disk(RowId row);
  /// Rows that were read from disk are cached in DRAM from now on. Returns the slots of those that
  /// are known by now, or cannot be.
  [[nodiscard]] std::vector<SlotId> adopt(const FromDisk& rows);

  /// Tells the indexes where rows are by now. Whatever asks an index calls it first. It also runs
  /// after each event, so that no event pays for the moves of many others.
  void follow();

  /// What routers are told of blocks.
  [[nodiscard]] Labels& labels() { return labels_; }

  /// Empty while entries, rows and tables say the same; else the fault in words.
  [[nodiscard]] std::string validate() const;

 private:
  friend void clear(Cache& cache, DomainId domain);
  friend void put_back_alone(Cache& cache, RowId row);
  friend Retained retained(const Cache& cache);
  friend TierSet tiers_of(Cache& cache, const KeySpace& space, const Digest& digest);
  friend class AllRows;
  friend class KeptRows;
  friend class PlacedRows;

  struct Shelf {
    explicit Shelf(const Index::Config& config) : index(config) {}
    Index index;
    RowsByEntry rows;
    std::set<EntryId> copied;    ///< those that copies read, each leased for it
    std::set<EntryId> read;      ///< in HBM, for their sums: the same
    std::set<EntryId> for_disk;  ///< some are not, or not any more
    EntryId told;                ///< of those the last one
    ExpectedChains expected;
  };
  [[nodiscard]] Shelf& shelf(DomainId domain);
  [[nodiscard]] DomainId domain_of(RowId row) const {
    return blocks_.kind(blocks_.row(row).blocks.front()).domain;
  }
  [[nodiscard]] Shelf& shelf_of(RowId row) { return shelf(domain_of(row)); }
  void consider_for_disk(DomainId domain, Shelf& shelf, EntryId entry);
  void leave(RowId row, bool leave_hbm, SlotsByTier& slots);
  void erase(Shelf& shelf, RowId row, SlotsByTier& slots);
  [[nodiscard]] std::string fault_of(const Shelf& shelf) const;

  /// What the domain has beyond its guarantee.
  [[nodiscard]] Bytes lent(DomainId domain, Tier tier, DeviceId device) const;
  /// How much of its cache the other domain may lose to others.
  [[nodiscard]] Bytes surplus(DomainId domain, Tier tier, DeviceId device) const;
  [[nodiscard]] Bytes bytes_on(RowId row, Tier tier, DeviceId device) const;
  [[nodiscard]] bool is_alone(RowId row) const;

  Tiers& tiers_;
  Blocks& blocks_;
  Labels labels_;
  Index::Config config_;
  std::array<const pool::Quotas*, kTiers> quotas_;
  std::map<DomainId, Shelf> shelves_;
  std::deque<std::pair<DomainId, EntryId>> alone_;  ///< some are not, or not any more
  std::array<std::uint64_t, kTiers> evicted_{};     ///< bytes
  std::uint64_t retained_evicted_ = 0;              ///< bytes of these that were retained
  std::optional<SecondTouch> disk_rule_;            ///< none: there is no disk
  std::deque<DomainId> disk_turns_;                 ///< of domains that have rows for it
  std::size_t evictions_left_ = SIZE_MAX;           ///< of the take in hand
  std::uint32_t keeps_ = 0;                         ///< the same: Taker::chain
  bool spares_retained_ = false;                    ///< the same
};

/// Evicts all rows of the domain that no table names.
void clear(Cache& cache, DomainId domain);
/// Cache::next_alone() names the row once more, and first.
void put_back_alone(Cache& cache, RowId row);
/// Returns the sums over all domains.
[[nodiscard]] Retained retained(const Cache& cache);
/// Returns the memories that have the block.
[[nodiscard]] TierSet tiers_of(Cache& cache, const KeySpace& space, const Digest& digest);

}  // namespace kvd::store
