#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>

#include "ipc/vocabulary/digest.hpp"
#include "kvd/store/index/digest_table.hpp"
#include "kvd/store/index/labels.hpp"
#include "kvd/store/memory/pieces.hpp"

namespace kvd::store {

/// Which cached block is in which slot of a class's files. Blocks and domains go by the names that
/// they have outside of this node, which a restart does not change. A name belongs to one domain.
///
/// The block that was not asked for the longest makes way: one of the domain itself where it has
/// its equal share of the slots, else one of the domain with the most. Who touches a chain does so
/// from its tail, so leaves go before heads. A slot that is read or written makes way for nobody.
///
/// Source: kvd design. Owner: control thread. Errors: none; a call that breaks a rule is a bug and
/// aborts. Cost: O(1) and O(domains).
class DiskDirectory {
 public:
  struct Place {
    std::uint32_t slot = 0;
    std::uint64_t generation = 0;
  };
  /// `labels` is told of each block that comes and goes, and outlives this object.
  explicit DiskDirectory(std::uint32_t slots, const TableSecret& secret = {},
                         Labels* labels = nullptr);

  // ---- reading ----
  /// Where the block is; none: it is not there, or not yet.
  [[nodiscard]] std::optional<Place> find(const Digest& domain, const Digest& name) const;
  /// The block is there, or being written.
  [[nodiscard]] bool knows(const Digest& domain, const Digest& name) const;
  /// Somebody asked for it.
  void touch(const Digest& domain, const Digest& name);
  /// The block is gone, or is to go once it is written.
  void forget(const Digest& domain, const Digest& name);
  /// From now on its slot is being read.
  void begin_read(std::uint32_t slot);
  /// `gone`: it turned out not to hold the block.
  void end_read(std::uint32_t slot, bool gone);

  // ---- writing ----
  /// A slot for a block that is not known; none: all are in use.
  [[nodiscard]] std::optional<std::uint32_t> begin_write(const Digest& domain, const Digest& name);
  void end_write(std::uint32_t slot, bool ok, std::uint64_t generation);
  /// A block was found in the files at a start. False: the slot is in use, or a later write has the
  /// block.
  bool restore(const Digest& domain, const Digest& name, const Place& place);
  /// Forgets all blocks at once. Their slots are free: sweep() or the next write empties them. A
  /// slot that is read or written is free when that has ended.
  void clear();
  /// Empties forgotten slots, and looks at `most`. False: all were looked at.
  bool sweep(std::size_t most);

  // ---- how many slots ----
  /// There are more from now on.
  void grow(std::uint32_t slots);
  /// Blocks in the slots from this one on are forgotten, and none is written there.
  void bound(std::uint32_t slots);
  /// Takes those slots away. False: some are still read or written.
  [[nodiscard]] bool cut();

  [[nodiscard]] std::size_t slots() const { return count_; }
  /// Slots that have no block.
  [[nodiscard]] std::size_t free() const { return free_ + forgotten_; }
  /// Slots that have a block.
  [[nodiscard]] std::size_t used() const { return bound_ - free(); }
  /// All blocks that are there.
  template <class F>
  void each(F visit) const {
    for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
      const Slot& one = slots_[slot];
      if (one.state == State::kThere && !is_ending(one)) {
        visit(one.domain, one.name, Place{slot, one.generation});
      }
    }
  }

 private:
  enum class State : std::uint8_t { kFree, kWriting, kThere };
  using Order = std::list<std::uint32_t>;
  struct Slot {
    Digest domain, name;
    std::uint64_t generation = 0;
    Order::iterator turn;  ///< in its domain's order, while it is not free
    std::uint32_t readers = 0;
    State state = State::kFree;
    bool ends = false;         ///< forgotten once nobody reads or writes it
    std::uint32_t clears = 0;  ///< as those of the directory when it got its block
  };

  [[nodiscard]] DigestTable::Hash hash(const Digest& domain, const Digest& name) const {
    return by_name_.hash(name) + by_name_.hash(domain) * 0x9e3779b1u;
  }
  [[nodiscard]] static EntryId entry(std::uint32_t slot) { return EntryId(slot + 1); }
  /// The slot that the block has, forgotten or not.
  [[nodiscard]] std::optional<std::uint32_t> known(const Digest& domain, const Digest& name) const;
  void tell(const Slot& slot, bool there) const {
    if (labels_ != nullptr) labels_->moved_on_disk(slot.name, there);
  }
  void occupy(std::uint32_t slot, const Digest& domain, const Digest& name, State state);
  void vacate(std::uint32_t slot);
  void end(std::uint32_t slot);
  [[nodiscard]] std::optional<std::uint32_t> free_slot();
  [[nodiscard]] bool is_in_use(std::uint32_t slot) const {
    return slot < slots_.size() && slots_[slot].state != State::kFree;
  }
  [[nodiscard]] bool is_forgotten(const Slot& slot) const {
    return slot.state != State::kFree && slot.clears != clears_;
  }
  [[nodiscard]] bool is_ending(const Slot& slot) const { return slot.ends || is_forgotten(slot); }
  /// Nobody reads or writes the segment, so it could be emptied.
  [[nodiscard]] bool is_left(const Slot& slot) const {
    return is_forgotten(slot) && slot.state == State::kThere && slot.readers == 0;
  }
  [[nodiscard]] bool make_way(const Digest& domain);
  [[nodiscard]] bool give_up_last(const Order& order);

  Pieces<Slot> slots_;   ///< those beyond have never been used
  std::uint32_t count_;  ///< of slots that there are
  DigestTable by_name_;
  Labels* labels_;
  /// The domains that have blocks; the one that was asked for last comes first.
  std::map<Digest, Order> orders_;
  std::size_t free_;           ///< below the bound
  std::size_t forgotten_ = 0;  ///< below the bound, not empty yet
  std::uint32_t clears_ = 0;
  std::uint32_t unswept_ = 0;  ///< slots from here on have no forgotten block
  std::uint32_t bound_;        ///< slots from here on are not used again
  std::uint32_t next_ = 0;     ///< where the search for a free one goes on
};

}  // namespace kvd::store
