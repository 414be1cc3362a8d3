#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "kvd/store/blocks/entries.hpp"
#include "kvd/store/index/eviction.hpp"
#include "tests/lab/cache/id_queue.hpp"

namespace kvd::sim {

using store::Entries;
using store::Entry;
using store::EntryId;

/// SIEVE over blocks of chains. It has a queue by arrival and a hand that goes from old to new,
/// skips blocks that were touched since it last came by, and takes the first that was not. The
/// queue has the leaves of the tier. A leased block keeps its place and is skipped. A block that
/// becomes a leaf, because its last child has left, stands where the hand is: the child was as old.
/// Source: Zhang et al., "SIEVE is simpler than LRU", NSDI 2024, section 3; leaves and leases are
/// ours.
/// Owner:  control thread. Cost: O(1) a call; a victim O(blocks leased, or touched since the last).
class SieveEviction final : public store::Eviction {
 public:
  explicit SieveEviction(const Entries& entries) : entries_(entries) {}
  void added(EntryId id) override;
  void touched(EntryId id) override;
  void removed(EntryId id) override;
  void may_leave(EntryId id) override;
  void must_stay(EntryId id) override;
  [[nodiscard]] EntryId victim() override;
  [[nodiscard]] bool may(EntryId id) const override {
    return id.value < marks_.size() && marks_[id.value].may_leave;
  }
  [[nodiscard]] std::size_t size() const override { return size_; }
  [[nodiscard]] std::size_t allocated_bytes() const override {
    return queue_.allocated_bytes() + marks_.capacity() * sizeof(Mark);
  }

 private:
  struct Mark {
    bool arrived = false;  ///< it arrived and has not been in the queue since then
    bool touched = false;
    bool may_leave = false;
  };
  void unlink(EntryId id);

  const Entries& entries_;
  IdQueue queue_;
  EntryId hand_;             ///< the next entry to be looked at; none: the oldest
  std::vector<Mark> marks_;  ///< by entry
  std::size_t size_ = 0;     ///< entries that may leave
};

/// S3-FIFO over blocks of chains. An arriving block goes through a small queue, a tenth of all, and
/// gets into the main one only if it was touched twice in there or left the small one not long ago.
/// The main queue gives touched blocks another round, up to three. The queues have the leaves of
/// the tier. A leased block goes round. A block that becomes a leaf, because its last child has
/// left, stands at the old end of its queue.
///
/// Source: Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023, section 4;
/// leaves and leases are ours.
/// Owner:  control thread. Cost: O(1) a call; a victim O(blocks leased, or touched since the last).
class S3FifoEviction final : public store::Eviction {
 public:
  explicit S3FifoEviction(const Entries& entries) : entries_(entries) {}
  void added(EntryId id) override;
  void touched(EntryId id) override;
  void removed(EntryId id) override;
  void may_leave(EntryId id) override;
  void must_stay(EntryId id) override;
  [[nodiscard]] EntryId victim() override;
  [[nodiscard]] bool may(EntryId id) const override {
    return id.value < marks_.size() && marks_[id.value].may_leave;
  }
  [[nodiscard]] std::size_t size() const override { return small_.may_leave + main_.may_leave; }
  [[nodiscard]] std::size_t allocated_bytes() const override;

 private:
  static constexpr std::uint8_t kMostTouches = 3;
  static constexpr std::size_t kSmallShare = 10;  ///< a tenth

  struct Mark {
    bool arrived = false;  ///< it arrived and has not been in a queue since then
    bool in_main = false;
    bool may_leave = false;
    std::uint8_t touches = 0;
  };
  struct Part {
    IdQueue queue{};
    std::size_t may_leave = 0;
  };
  [[nodiscard]] Part& part(const Mark& mark) { return mark.in_main ? main_ : small_; }
  [[nodiscard]] std::uint64_t ghost(EntryId id) const;
  void remember(std::uint64_t ghost);
  /// Gives a block that may not leave another round, or takes it out if it is no leaf. False: it
  /// may leave.
  [[nodiscard]] bool passed(Part& part, EntryId id);
  [[nodiscard]] EntryId victim_of_small();
  [[nodiscard]] EntryId victim_of_main();

  const Entries& entries_;
  Part small_, main_;
  EntryId victim_;           ///< the victim that was answered; none: it has to be found
  std::vector<Mark> marks_;  ///< by entry
  /// Blocks that left the small queue recently, as many as the main queue has, the oldest first.
  std::deque<std::uint64_t> ghosts_;
  std::unordered_map<std::uint64_t, std::uint32_t> ghost_count_;
  std::size_t in_main_ = 0;  ///< blocks of the tier that are in the main queue
};

}  // namespace kvd::sim
