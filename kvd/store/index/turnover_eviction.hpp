#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kvd/store/blocks/entries.hpp"
#include "kvd/store/index/eviction.hpp"
#include "kvd/store/index/id_heap.hpp"

namespace kvd::store {

/// Tags of blocks that left a tier, each in the one place that it can have: a newer one takes the
/// place of an older one. Cost: O(1); growing O(places), each time it doubles.
class Ghosts {
 public:
  /// Makes room for at least this many. Known tags stay known.
  void grow(std::size_t places);
  void remember(std::uint32_t tag);
  /// Whether it was known; from now on it is not.
  [[nodiscard]] bool take(std::uint32_t tag);
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::size_t allocated_bytes() const { return tags_.capacity() * sizeof(tags_[0]); }

 private:
  [[nodiscard]] std::uint32_t& place(std::uint32_t tag) { return tags_[tag & (tags_.size() - 1)]; }
  std::vector<std::uint32_t> tags_ = std::vector<std::uint32_t>(64);  ///< 0: none
  std::size_t size_ = 0;
};

/// Evicts what was used least recently, but counts popular blocks as used later than they were.
/// Time is what was stored since (Entry::last), so a tier that nothing is stored into forgets
/// nothing, and a busy one forgets those that have left as fast as it needs the room.
///
/// A block is popular when prompts go on after it in different ways (Entry::uses): a system prompt
/// is popular; a conversation that only its own next turns ask for is not, however many turns it
/// has. There are three classes of popular blocks. Each counts as used later than the class below
/// it, by a turnover (as many blocks stored as the tier has) times a favour. The favour learns from
/// what comes back soon after it has left: it grows where that is popular, and shrinks where it is
/// not. What comes back of the popular ones is popular again at once.
///
/// The kind kLru is the same without classes.
///
/// The numbers are those that find most in `kvd-lab cache` on gen:chat (1, 5 and 20 requests a
/// second) and the Mooncake conversation trace at 1 % to 25 % of the blocks, and nowhere much less
/// than LRU: chats that leave, turns tried with several endings, agents with shared tools.
///
/// Source: kvd. Two kinds of ghosts that set a share between recency and frequency: ARC (Megiddo
/// and Modha, FAST 2003). Owner: control thread. Cost: O(log blocks) a call.
class TurnoverEviction final : public Eviction {
 public:
  /// `entries` outlive it.
  TurnoverEviction(Entries& entries, EvictionKind kind)
      : entries_(entries), classes_(kind != EvictionKind::kLru) {}

  void added(EntryId id) override;
  void removed(EntryId id) override;
  void may_leave(EntryId id) override { heap_.insert(id, entries_[id].last, class_of(id)); }
  void must_stay(EntryId id) override { heap_.erase(id, class_of(id)); }
  [[nodiscard]] EntryId victim() override;
  [[nodiscard]] double rank(EntryId id) const override {
    const std::uint32_t of_class = class_of(id);
    if (of_class == kRetained) return std::numeric_limits<double>::infinity();
    if (of_class == kDemoted) return -std::numeric_limits<double>::infinity();
    return entries_[id].last + bonus(of_class);
  }
  [[nodiscard]] bool may(EntryId id) const override { return heap_.contains(id); }
  [[nodiscard]] std::size_t size() const override { return heap_.size(); }
  [[nodiscard]] std::size_t allocated_bytes() const override {
    return heap_.allocated_bytes() + popular_.allocated_bytes() + others_.allocated_bytes();
  }
  /// Turnovers by which each class counts as used later.
  [[nodiscard]] double favour() const { return favour_; }

 private:
  /// Turnovers for which nothing that is older outranks a block by its class; a tier of fewer
  /// blocks than kLeastTurnover has no room for a conversation beside what is popular.
  static constexpr double kGrace = 0.125;
  static constexpr double kLeastFavour = 0.25;
  static constexpr double kMostFavour = 8;
  /// How much a returning popular block counts, compared with another.
  static constexpr double kPopularCounts = 4;
  static constexpr double kMostRatio = 16;
  static constexpr std::size_t kLeastTurnover = 64;
  static constexpr std::uint16_t kUsesOfReturned = 4;
  static constexpr std::uint32_t kRetained = 4;  ///< the class of retained blocks, the last to go
  static constexpr std::uint32_t kDemoted = 5;   ///< the class of those that go first

  [[nodiscard]] std::uint32_t class_of(EntryId id) const;
  [[nodiscard]] double bonus(std::uint32_t of_class) const {
    return static_cast<double>(blocks_) * favour_ * of_class;
  }
  [[nodiscard]] std::uint32_t tag(EntryId id) const;
  void learn(double counts, const Ghosts& hit, const Ghosts& other);

  Entries& entries_;
  bool classes_;
  IdHeap heap_;  ///< a group for each class, by Entry::last
  std::size_t blocks_ = 0;
  double now_ = 0;  ///< the latest Entry::last that was added
  double favour_ = 0.5;
  Ghosts popular_, others_;
};

}  // namespace kvd::store
