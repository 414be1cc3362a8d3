#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/store/memory/tiers.hpp"

namespace kvd::store {

/// A block in DRAM that no copy reads or writes.
struct Movable {
  RequestKey request;
  std::uint32_t place = 0;  ///< in the request's block table
  SlotId slot;
  Bytes slot_bytes;
};

/// Slabs of the tier, emptiest first, that the class could have for the domain once their blocks
/// had moved, and whose blocks fit into free slots of other slabs of their own class and domain.
[[nodiscard]] std::vector<SlabIndex> emptiable(const pool::TierPool& tier, ClassId model_class,
                                               DomainId domain);

/// All blocks of the first slab whose used slots are all in `movable`; empty: there is no such
/// slab.
[[nodiscard]] std::vector<Movable> first_movable(const pool::TierPool& tier,
                                                 const std::vector<SlabIndex>& slabs,
                                                 const std::vector<Movable>& movable);

/// Makes slabs of DRAM whole again. DRAM is handed out by whole slabs to a class and domain, so its
/// free bytes may all lie in half-empty slabs of others, and nobody could leave HBM any more. When
/// a take has failed for that, the blocks of one slab move within DRAM until it is empty: one round
/// at a time, with a bounded number of bytes. Nothing moves so in HBM: engines map it, and requests
/// rotate out of it instead.
///
/// Source: kvd design (DESIGN.md "Compaction").
///
/// Owner: control thread. Errors: none. Cost: O(slabs) where a slab is wanted, else O(1).
class Compaction {
 public:
  struct Move {
    Movable block;
    SlotId to;  ///< state filling; nobody's
  };
  struct Round {
    Ticket ticket;
    DomainId domain;  ///< that wants the slab
    Bytes slot_bytes;
    std::vector<Move> moves;
  };

  explicit Compaction(Tiers& tiers) : tiers_(tiers) {}

  /// A take of this many bytes of DRAM failed. It counts where that much is free, in whichever
  /// slabs. Only the latest failure counts: an earlier taker tries again.
  void want(const Taker& taker, Bytes needed);
  /// Slabs of which one may be emptied now, best first: none while nothing is wanted or a round is
  /// under way. What was wanted is forgotten once a slab has been emptied or none can be.
  [[nodiscard]] std::vector<SlabIndex> candidates();
  /// Moves blocks of one of them, at most `most` bytes but at least one block. `movable`: all such
  /// blocks in them.
  void start(const std::vector<SlabIndex>& slabs, const std::vector<Movable>& movable, Bytes most);
  /// The round whose copy has ended; none: the ticket is of something else. The caller puts the
  /// blocks that are still where they were into the new slots and frees the new slots of the
  /// others.
  [[nodiscard]] std::optional<Round> ended(Ticket ticket);

  [[nodiscard]] bool under_way(DomainId domain) const { return round_ && round_->domain == domain; }
  /// Slots of DRAM that blocks are moving into.
  [[nodiscard]] std::size_t slots() const { return round_ ? round_->moves.size() : 0; }

 private:
  void forget();

  Tiers& tiers_;
  std::optional<Taker> wanted_;
  std::optional<SlabIndex> emptying_;
  std::optional<Round> round_;
};

}  // namespace kvd::store
