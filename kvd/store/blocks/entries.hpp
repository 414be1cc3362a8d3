#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "ipc/vocabulary/check.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "kvd/store/memory/key.hpp"
#include "kvd/store/memory/pieces.hpp"

namespace kvd::store {

/// An entry of the index; 0: none.
using EntryId = Id<struct EntryIdTag, std::uint32_t>;
/// A KeySpace that the index knows; 0: none.
using SpaceId = Id<struct SpaceIdTag, std::uint32_t>;

/// A cached block: the KV of block_tokens tokens, which only means something after those before it.
struct Entry {
  Digest digest;
  double last = 0;             ///< the index's clock when it was stored or found last
  float worth = 0;             ///< log2 of the seconds that a byte saves, as told when it was new
  SpaceId space;               ///< none: not in use
  EntryId parent;              ///< the block before it; none: it is the first
  EntryId next;                ///< the child that was last asked for; none: not known
  std::uint32_t children = 0;  ///< entries whose parent it is
  std::uint32_t leases = 0;    ///< readers and writers that count on it
  std::uint16_t touches = 0;   ///< how often it was stored or found; stops at the most it can be
  std::uint16_t uses = 1;      ///< how often prompts went on after it in another way than before
  std::uint32_t follower = 0;  ///< a tag of what the last prompt went on with; 0: not known
  std::uint32_t chain = 0;     ///< the tag of the blocks it was last asked for with; 0: not known
  std::array<Place, kCacheTiers> at{};
  std::array<std::uint32_t, kCacheTiers> children_in{};  ///< of its children, those in the tier
  bool retained = false;  ///< somebody comes back for it: all others leave DRAM before it
  bool demoted = false;   ///< nobody comes back for it soon: it leaves DRAM before all others

  [[nodiscard]] bool in(CacheTier tier) const { return bool(at[index(tier)]); }
  [[nodiscard]] bool anywhere() const { return at[0] || at[1] || at[2]; }
  /// A block goes from a tier only when nobody counts on it and no block after it is there: without
  /// it, those would be useless.
  [[nodiscard]] bool may_leave(CacheTier tier) const {
    return in(tier) && leases == 0 && children_in[index(tier)] == 0;
  }
};
static_assert(sizeof(Entry) == 104, "the index is to stay under 128 bytes a block, table included");

/// The entries by id; ids that were given back are given out again, the last one first. Source:
/// kvd. Owner: control thread. Errors: an id not in use is a bug and aborts.
class Entries {
 public:
  [[nodiscard]] Entry& operator[](EntryId id) {
    KVD_CHECK(live(id), "no such entry in the index");
    return entries_[id.value];
  }
  [[nodiscard]] const Entry& operator[](EntryId id) const {
    KVD_CHECK(live(id), "no such entry in the index");
    return entries_[id.value];
  }
  [[nodiscard]] bool live(EntryId id) const {
    return id && id.value < next_ && bool(entries_[id.value].space);
  }

  /// A new one, in the space.
  [[nodiscard]] EntryId make(SpaceId space) {
    const EntryId id = free_ ? free_ : EntryId(next_++);
    if (!free_) entries_.grow(next_);
    if (free_) free_ = entries_[id.value].parent;
    entries_[id.value] = {};
    entries_[id.value].space = space;
    ++size_;
    return id;
  }
  void erase(EntryId id) {
    (*this)[id] = {};
    entries_[id.value].parent = free_;
    free_ = id;
    --size_;
  }

  [[nodiscard]] std::size_t size() const { return size_; }
  /// All that it has allocated.
  [[nodiscard]] std::size_t allocated_bytes() const { return entries_.allocated_bytes(); }
  /// In the order of their ids.
  template <class F>
  void each(F visit) const {
    for (EntryId id(1); id.value < next_; ++id.value) {
      if (live(id)) visit(id, entries_[id.value]);
    }
  }

 private:
  Pieces<Entry> entries_;
  EntryId free_;            ///< the last id that was given back; its parent is the one before it
  std::uint32_t next_ = 1;  ///< never given out; id 0 is none
  std::size_t size_ = 0;
};

}  // namespace kvd::store
