#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/store/blocks/entries.hpp"
#include "kvd/store/index/digest_table.hpp"
#include "kvd/store/index/eviction.hpp"
#include "kvd/store/index/id_heap.hpp"
#include "kvd/store/index/labels.hpp"
#include "kvd/store/memory/key.hpp"

namespace kvd::store {

/// Cached blocks that follow each other, in one tier.
struct Run {
  CacheTier tier;
  std::uint32_t blocks;
  friend bool operator==(const Run&, const Run&) = default;
};

/// The leading blocks of a chain that were found, each leased to the asker.
struct Hit {
  std::vector<EntryId> blocks;
  std::vector<Run> runs;  ///< the same blocks, each in the fastest tier that has it
};

/// Seconds of recomputing that a byte of a cached block saves.
struct SecondsPerByte {
  double value = 0;
};

/// A block that is to be cached.
struct NewBlock {
  SpaceId space;
  EntryId parent;  ///< the block before it, leased by the caller; none: it is the first
  Digest digest;
  SecondsPerByte saved;  ///< more than nothing; set_cost() says what has been learned since
};

/// Finds cached blocks by what they hold: for every kept block it knows the digest, the tiers that
/// have it, the block before it, how many come after it, how often it was asked for, and how many
/// lease it. A lookup walks a chain once and answers its leading part.
///
/// Each space (fingerprint and domain) has a table of its own: a lookup in one makes the same steps
/// whatever others have cached.
///
/// A block is leased to whoever stored or found it, until it is released, and leaves no tier before
/// (forget() aside). A block without place stays known while somebody leases it or blocks after it
/// are known; it is found again once it has a place.
///
/// The caller decides which place is whose and when bytes may be written over: a place is handed in
/// when its bytes are complete and handed back when the index has forgotten it.
///
/// Source: kvd. Owner: control thread. Errors: as said per call; an id that is not in use is a bug
/// and aborts. Cost: O(1) a block, a victim O(log blocks); DigestTable says what growing costs.
class Index {
 public:
  struct Config {
    TableSecret secret{};  ///< random, but in a simulation
    EvictionKind eviction = EvictionKind::kDefault;
    Labels* labels = nullptr;  ///< told of each block that a tier gets or loses; outlives the index
    /// Puts another policy in its place in each tier, to compare the two.
    std::function<std::unique_ptr<Eviction>(Entries&)> policy{};
  };
  explicit Index(const Config& config);

  // ---- spaces ----
  /// None: the most spaces that there may be have blocks.
  [[nodiscard]] SpaceId open(const KeySpace& space);
  /// None: it has no blocks. Looking there finds nothing.
  [[nodiscard]] SpaceId known(const KeySpace& space) const;
  /// Its domain is gone. Hands back every place. Precondition: none of its blocks is leased.
  [[nodiscard]] std::array<std::vector<Place>, kCacheTiers> close(SpaceId space);

  /// Its engine has been measured: computing any block of the space costs this many times what was
  /// or will be said of it. 1 until then. Precondition: more than nothing.
  void set_cost(SpaceId space, double times);

  // ---- blocks ----
  [[nodiscard]] Hit lookup(SpaceId space, std::span<const Digest> chain);
  /// The same of blocks that were each inserted without a block before it. `next`: what comes after
  /// the last of them; none: not known. Prompts that end at the same block again and again, as far
  /// as is known, go on in different ways.
  [[nodiscard]] Hit lookup_each(SpaceId space, std::span<const Digest> digests, const Digest* next);
  /// The block was stored once more, in the chain where there is one. Precondition: leased.
  void store_again(EntryId id, std::uint32_t chain = 0);
  void set_chain(EntryId id, std::uint32_t chain) { entries_[id].chain = chain; }
  /// The block after `parent`, or one that was inserted without, not touched and not leased; none:
  /// not known.
  [[nodiscard]] EntryId peek(SpaceId space, const Digest& digest, EntryId parent = {}) {
    return space ? child(parent, this->space(space), digest) : EntryId();
  }
  /// Inserts a computed block. Whether it was known or not, it is leased to the caller.
  /// Errors: InvalidArgument where the digest is known as that of a block after another one.
  [[nodiscard]] Result<EntryId> insert(const NewBlock& block);
  /// The tier has its complete bytes at this place. False where it had them already: the place
  /// stays the caller's. Precondition: leased.
  [[nodiscard]] bool place(EntryId id, CacheTier tier, Place place);
  /// The tier does not have it any more: it made way, or the bytes turned out to be bad. Returns
  /// where it was. An id without place, lease and blocks after it is not in use any more.
  [[nodiscard]] Place forget(EntryId id, CacheTier tier);
  void lease(EntryId id);
  void release(EntryId id);
  void release(std::span<const EntryId> blocks);
  /// The next to leave the tier; none: nobody may. Whoever first copies it to another tier leases
  /// it meanwhile.
  [[nodiscard]] EntryId victim(CacheTier tier) { return policy(tier).victim(); }

  // ---- reading ----
  [[nodiscard]] const Entry& at(EntryId id) const { return entries_[id]; }
  [[nodiscard]] Key key(EntryId id) const;
  /// Seconds of recomputing that a byte of it saves, by what is known now.
  [[nodiscard]] double saves(EntryId id) const;
  /// Whether the first would leave the tier before the second if both were there.
  [[nodiscard]] bool less_wanted(CacheTier tier, EntryId first, EntryId second) const {
    return policy(tier).rank(first) < policy(tier).rank(second);
  }
  /// Blocks known, those without place included.
  [[nodiscard]] std::size_t size() const { return entries_.size(); }
  [[nodiscard]] std::uint32_t in(SpaceId space, CacheTier tier) const {
    return this->space(space).in[index(tier)];
  }
  /// Slots of tables looked at since the start.
  [[nodiscard]] std::uint64_t probes() const { return probes_; }
  [[nodiscard]] std::size_t allocated_bytes() const;
  /// Empty while all counts are those of a walk over all blocks; else the fault in words.
  [[nodiscard]] std::string validate() const;
  /// How many blocks were stored since the block was stored or found last.
  friend double age(const Index& index, EntryId id) {
    return index.clock_ - index.entries_[id].last;
  }
  /// The block leaves DRAM after all that are not retained, until it is let go; due() names it from
  /// `until` on, by the caller's clock. `bytes`: those of each block of its space. Precondition:
  /// DRAM has it, and it is not retained.
  friend void retain(Index& index, EntryId id, double until, Bytes bytes);
  /// It leaves DRAM before all others, until it is found or stored again. It counts as stored or
  /// found at least `touches` times. Precondition: DRAM has it.
  friend void demote(Index& index, EntryId id, std::uint16_t touches);
  /// It is like any other again. Nothing happens where it is neither retained nor demoted.
  friend void let_go(Index& index, EntryId id);
  /// Returns a retained block whose time is over; none: there is no other.
  friend EntryId due(const Index& index, double now) {
    const EntryId first = index.retained_.least();
    return first && index.retained_.least_number(0) <= now ? first : EntryId();
  }
  friend Bytes retained(const Index& index) { return index.retained_bytes_; }
  /// Precondition: it is retained.
  friend double retained_until(const Index& index, EntryId id) {
    return index.retained_.number(id, 0);
  }
  /// Returns the memories that have the block, whatever comes before it.
  friend TierSet tiers_of(Index& index, SpaceId space, const Digest& digest);

 private:
  struct Space {
    KeySpace key;
    DigestTable table;
    std::array<std::uint32_t, kCacheTiers> in{};  ///< blocks that the tier has
    double log2_cost = 0;                         ///< of set_cost()
    Bytes retained{};                             ///< bytes of each block, as retain() was told
  };

  [[nodiscard]] Space& space(SpaceId id) const;
  [[nodiscard]] Eviction& policy(CacheTier tier) const { return *policies_[index(tier)]; }
  [[nodiscard]] EntryId find(const Space& space, DigestTable::Hash hash, const Digest& digest);
  /// The block after `parent` (none: a first one) that has the digest, or none.
  [[nodiscard]] EntryId child(EntryId parent, const Space& space, const Digest& digest);
  [[nodiscard]] EntryId make(const NewBlock& block, DigestTable::Hash hash);
  /// Changes an entry, and tells the policies whether it may leave their tiers now.
  template <class Change>
  void change(EntryId id, Change apply);
  void found(EntryId id, Hit& hit);
  void touch(std::span<const EntryId> blocks);
  void touch(EntryId id);
  bool followed(EntryId id, const Digest& next);
  bool followed_by(EntryId id, std::uint32_t tag);
  void erase_unused(EntryId id);

  [[nodiscard]] std::string fault_of(EntryId id, const Entry& entry) const;
  [[nodiscard]] std::string fault_of_counts() const;

  TableSecret secret_;
  Labels* labels_;
  Entries entries_;
  std::array<std::unique_ptr<Eviction>, kCacheTiers> policies_;
  std::map<KeySpace, SpaceId> ids_;
  std::vector<std::unique_ptr<Space>> spaces_;  ///< by id - 1; null: closed
  std::uint64_t probes_ = 0;
  IdHeap retained_;  ///< by the time until which they are
  Bytes retained_bytes_;
  /// Blocks stored since the start. A found block moves it, too, by next to nothing.
  double clock_ = 0;
};

void retain(Index& index, EntryId id, double until, Bytes bytes);
void demote(Index& index, EntryId id, std::uint16_t touches);
void let_go(Index& index, EntryId id);

}  // namespace kvd::store
