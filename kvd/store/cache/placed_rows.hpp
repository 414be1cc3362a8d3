#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "kvd/store/cache/cache.hpp"

namespace kvd::store {

/// Cached blocks of engines that place by themselves: rows of one block each, in DRAM, of which
/// every one stands for itself. In other spaces, but in the same cache as the rows of requests:
/// what makes room, and for whom, is decided there.
///
/// Source: kvd/DESIGN.md "Engines that place by themselves".
///
/// Owner: control thread. Errors: none. Cost: O(digests), each one look into a table.
class PlacedRows {
 public:
  explicit PlacedRows(Cache& cache) : cache_(cache) {}

  /// How many leading ones DRAM has. Nothing is touched: who asks may ask again and again.
  [[nodiscard]] std::uint32_t leading(const KeySpace& space, std::span<const Digest> digests);
  /// An engine asks for the chain: what is stored of it from now on, in however many stores, does
  /// not push out the rest of it.
  void asked(const KeySpace& space, std::span<const Digest> chain);
  /// The chain that a store of these belongs to; 0: not known.
  [[nodiscard]] std::uint32_t chain_of(const KeySpace& space,
                                       std::span<const Digest> digests) const;
  /// The row that DRAM has; none: it has none.
  [[nodiscard]] RowId row(const KeySpace& space, const Digest& digest);
  /// The DRAM slots of all these blocks. They count as asked for, and are offered to the disk where
  /// its rule admits them. None: some are not there. `next`: what comes after the last; none: not
  /// known.
  [[nodiscard]] std::optional<std::vector<SlotId>> find(const KeySpace& space,
                                                        std::span<const Digest> digests,
                                                        const Digest* next = nullptr);
  /// Blocks that DRAM has count as stored once more, are offered to the disk, and do not make way
  /// before release(): otherwise a store could lose its own head.
  [[nodiscard]] std::vector<EntryId> store_again(const KeySpace& space,
                                                 std::span<const Digest> digests,
                                                 std::uint32_t chain);
  void release(const KeySpace& space, const std::vector<EntryId>& held);
  /// How many of these are named by no table and so count as cached.
  [[nodiscard]] std::size_t cached(const KeySpace& space, const std::vector<EntryId>& held);
  /// Blocks of these that are in DRAM leave it after all others of the domain, until the time
  /// `until`; zero: they are like any other again. What has no end keeps none. All of them are
  /// retained, or none, so that at most `most` bytes of the domain are: a part of a conversation is
  /// worth little. Returns how many are.
  std::size_t retain(const KeySpace& space, std::span<const Digest> digests, TimePoint until,
                     Bytes most);
  /// Retained and demoted ones are like any other again. Returns how many of these are in DRAM.
  std::size_t unpin(const KeySpace& space, std::span<const Digest> digests);
  /// Bytes that the domain would have retained with those of these that are in DRAM.
  [[nodiscard]] Bytes retained_with(const KeySpace& space, std::span<const Digest> digests);
  /// Retains those that are in DRAM and not retained for as long yet, whatever that comes to.
  void retain_more(const KeySpace& space, std::span<const Digest> digests, TimePoint until);
  /// Blocks of these that are in DRAM, and not pinned, leave it before all others of the domain,
  /// until they are loaded or stored again. They are offered to the disk as if they had been asked
  /// for `touches` times. Returns how many are demoted.
  std::size_t demote(const KeySpace& space, std::span<const Digest> digests, std::uint16_t touches);
  /// Lets go what is due by the time of its domain, but of no more than `most` blocks.
  template <class TimeOf>
  void let_go_due(TimeOf time_of, std::size_t most) {
    for (auto& [domain, shelf] : cache_.shelves_) {
      const auto now = static_cast<double>(TimePoint(time_of(domain)).count());
      while (const EntryId entry = due(shelf.index, now)) {
        if (most-- == 0) return;
        let_go(shelf.index, entry);
      }
    }
  }
  /// Its bytes are complete in the slot (state filling). False: it is there by now, and the slot
  /// stays the caller's.
  struct NewBlock {
    KeySpace space;
    Taker taker;
    SecondsPerByte saved;
    Digest digest;
    SlotId slot;
  };
  [[nodiscard]] bool add(const NewBlock& block);
  /// It is not found any more. Returns its slot; none: it is not there, or a table names it.
  [[nodiscard]] SlotId forget(RowId row);

 private:
  /// Returns those that DRAM has, each once, though a call may name it twice.
  [[nodiscard]] std::set<EntryId> in_dram(const KeySpace& space, std::span<const Digest> digests);
  [[nodiscard]] Bytes bytes_of(const KeySpace& space, EntryId entry);

  Cache& cache_;
  std::uint32_t last_chain_ = 0;
};

}  // namespace kvd::store
