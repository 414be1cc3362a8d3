#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "ipc/vocabulary/check.hpp"
#include "ipc/vocabulary/digest.hpp"
#include "kvd/store/entries.hpp"

namespace kvd::store {

/// Drawn at start, so that no engine can choose digests that meet in a table.
using TableSecret = std::array<std::uint64_t, 4>;

/// Finds an entry by its digest: slots of eight bytes, each an entry's number and 32 bits of the
/// digest's hash, in one array with open addressing. A slot's place is the upper part of the hash,
/// or the next free one after it; so an entry is taken out by moving up those behind it, and the
/// table grows without looking at a single entry. At most three quarters of the slots are taken.
///
/// Source: linear probing with deletion by shifting (Knuth, TAOCP 3, 6.4, Algorithm R).
///
/// Owner: control thread. Errors: none. Cost: O(1); growing O(size), 20 ns an entry.
class DigestTable {
 public:
  explicit DigestTable(const TableSecret& secret) : slots_(kLeastSlots) {
    // Digits of pi, so that a secret of nothing spreads as well as another one does.
    constexpr TableSecret kMix = {0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0,
                                  0x082efa98ec4e6c89};
    for (std::size_t i = 0; i < secret.size(); ++i) secret_[i] = secret[i] ^ kMix[i];
  }

  using Hash = std::uint32_t;
  [[nodiscard]] Hash hash(const Digest& digest) const {
    std::array<std::uint64_t, 4> word;
    static_assert(sizeof word == sizeof digest.bytes);
    std::memcpy(word.data(), digest.bytes.data(), sizeof word);
    return static_cast<Hash>((fold(word[0] ^ secret_[0], word[1] ^ secret_[1]) ^
                              fold(word[2] ^ secret_[2], word[3] ^ secret_[3])) >>
                             32);
  }

  /// The entry with this hash of which `same(id)` is true, or none. Counts the slots it looked at.
  template <class Same>
  [[nodiscard]] EntryId find(Hash hash, Same same, std::uint64_t& probes) const {
    for (std::size_t i = home(hash);; i = after(i)) {
      ++probes;
      if (slots_[i] == kEmpty) return {};
      if (hash_of(slots_[i]) == hash && same(id_of(slots_[i]))) return id_of(slots_[i]);
    }
  }
  /// Precondition: not there yet.
  void insert(Hash hash, EntryId id) {
    if (4 * (size_ + 1) > 3 * slots_.size()) grow();
    put(hash, id);
    ++size_;
  }
  /// Precondition: there.
  void erase(Hash hash, EntryId id) {
    const std::uint64_t gone = slot(hash, id);
    std::size_t hole = home(hash);
    while (slots_[hole] != gone) {
      KVD_CHECK(slots_[hole] != kEmpty, "no such entry in the table");
      hole = after(hole);
    }
    for (std::size_t i = after(hole); slots_[i] != kEmpty; i = after(i)) {
      // What stands at i may move up to the hole unless its home is behind the hole.
      const std::size_t from_home = (i - home(hash_of(slots_[i]))) & (slots_.size() - 1);
      if (from_home < ((i - hole) & (slots_.size() - 1))) continue;
      slots_[hole] = slots_[i];
      hole = i;
    }
    slots_[hole] = kEmpty;
    --size_;
  }

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::size_t allocated_bytes() const {
    return slots_.capacity() * sizeof(slots_[0]);
  }
  template <class F>
  void each(F visit) const {
    for (const std::uint64_t slot : slots_) {
      if (slot != kEmpty) visit(id_of(slot));
    }
  }

 private:
  static constexpr std::size_t kLeastSlots = 16;
  static constexpr std::uint64_t kEmpty = 0;  // no entry has the number 0

  static std::uint64_t slot(Hash hash, EntryId id) { return std::uint64_t{hash} << 32 | id.value; }
  static Hash hash_of(std::uint64_t slot) { return static_cast<Hash>(slot >> 32); }
  static EntryId id_of(std::uint64_t slot) { return EntryId(static_cast<std::uint32_t>(slot)); }
  static std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = Wide{a} * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }

  [[nodiscard]] std::size_t home(Hash hash) const {
    return hash >> (32 - std::countr_zero(slots_.size()));
  }
  [[nodiscard]] std::size_t after(std::size_t i) const { return (i + 1) & (slots_.size() - 1); }
  void put(Hash hash, EntryId id) {
    std::size_t i = home(hash);
    while (slots_[i] != kEmpty) i = after(i);
    slots_[i] = slot(hash, id);
  }
  void grow() {
    const std::vector<std::uint64_t> old = std::move(slots_);
    slots_ = std::vector<std::uint64_t>(2 * old.size());
    for (const std::uint64_t each : old) {
      if (each != kEmpty) put(hash_of(each), id_of(each));
    }
  }

  TableSecret secret_{};
  std::vector<std::uint64_t> slots_;  ///< a power of two
  std::size_t size_ = 0;
};

}  // namespace kvd::store
