#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "ipc/vocabulary/check.hpp"
#include "ipc/vocabulary/digest.hpp"
#include "kvd/store/blocks/entries.hpp"

namespace kvd::store {

/// Drawn at start, so that no engine can choose digests that meet in a table.
using TableSecret = std::array<std::uint64_t, 4>;

/// Finds an entry by its digest: slots of eight bytes, each an entry's number and 32 bits of the
/// digest's hash, in arrays with open addressing. The first byte of the hash says in which of 256
/// arrays, the next bits at which place, or the next free one after it; so an entry is taken out by
/// moving up those behind it, and an array grows without looking at a single entry. At most three
/// quarters of its slots are taken. There are that many arrays so that no insertion has to wait for
/// a large one to grow.
///
/// Source: linear probing with deletion by shifting (Knuth, TAOCP 3, 6.4, Algorithm R).
///
/// Owner: control thread. Errors: none. Cost: O(1); the insertion that makes an array grow O(size /
/// 256), 20 ns an entry of the array.
class DigestTable {
 public:
  explicit DigestTable(const TableSecret& secret) {
    // Digits of pi, so that a secret of zeros spreads digests as well as any other.
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
  /// The space of the key does not count: an engine chooses fingerprints as it chooses digests.
  [[nodiscard]] Hash hash(const Key& key) const {
    const Hash space = hash(key.space.fingerprint.digest) + key.space.domain.value * 0x85ebca6bu +
                       key.space.model_class.value * 0xc2b2ae35u;
    return hash(key.digest) + space * 0x9e3779b1u;
  }

  /// The entry with this hash of which `same(id)` is true, or none. Counts the slots it looked at.
  template <class Same>
  [[nodiscard]] EntryId find(Hash hash, Same same, std::uint64_t& probes) const {
    const Part& in = part(hash);
    for (std::size_t i = in.home(hash);; i = in.after(i)) {
      ++probes;
      if (in.at(i) == kEmpty) return {};
      if (hash_of(in.at(i)) == hash && same(id_of(in.at(i)))) return id_of(in.at(i));
    }
  }
  /// Precondition: not there yet.
  void insert(Hash hash, EntryId id) {
    part(hash).insert(slot(hash, id));
    ++size_;
  }
  /// Precondition: there.
  void erase(Hash hash, EntryId id) {
    part(hash).erase(slot(hash, id));
    --size_;
  }

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::size_t allocated_bytes() const {
    std::size_t sum = sizeof parts_;
    for (const Part& part : parts_) sum += part.allocated_bytes();
    return sum;
  }
  template <class F>
  void each(F visit) const {
    for (const Part& part : parts_) {
      for (const std::uint64_t slot : part.slots()) {
        if (slot != kEmpty) visit(id_of(slot));
      }
    }
  }

 private:
  static constexpr unsigned kPartBits = 8;
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

  /// One of the arrays. Without an entry it has one slot, which is empty, so that a search ends.
  class Part {
   public:
    [[nodiscard]] std::uint64_t at(std::size_t i) const { return slots_[i]; }
    [[nodiscard]] const std::vector<std::uint64_t>& slots() const { return slots_; }
    [[nodiscard]] std::size_t home(Hash hash) const {
      const std::uint64_t below = std::uint64_t{hash << kPartBits} << 32;
      return slots_.size() == 1 ? 0 : below >> (64 - std::countr_zero(slots_.size()));
    }
    [[nodiscard]] std::size_t after(std::size_t i) const { return (i + 1) & (slots_.size() - 1); }
    [[nodiscard]] std::size_t allocated_bytes() const {
      return slots_.capacity() * sizeof(slots_[0]);
    }
    void insert(std::uint64_t slot) {
      if (4 * (taken_ + 1) > 3 * slots_.size()) grow();
      put(slot);
      ++taken_;
    }
    void erase(std::uint64_t gone) {
      std::size_t hole = home(hash_of(gone));
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
      --taken_;
    }

   private:
    void put(std::uint64_t slot) {
      std::size_t i = home(hash_of(slot));
      while (slots_[i] != kEmpty) i = after(i);
      slots_[i] = slot;
    }
    void grow() {
      const std::vector<std::uint64_t> old = std::move(slots_);
      slots_ = std::vector<std::uint64_t>(std::max(kLeastSlots, 2 * old.size()));
      for (const std::uint64_t each : old) {
        if (each != kEmpty) put(each);
      }
    }

    std::vector<std::uint64_t> slots_ = {kEmpty};  ///< a power of two
    std::size_t taken_ = 0;
  };

  [[nodiscard]] const Part& part(Hash hash) const { return parts_[hash >> (32 - kPartBits)]; }
  [[nodiscard]] Part& part(Hash hash) { return parts_[hash >> (32 - kPartBits)]; }

  TableSecret secret_{};
  std::array<Part, std::size_t{1} << kPartBits> parts_;
  std::size_t size_ = 0;
};

}  // namespace kvd::store
