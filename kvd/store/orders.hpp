#pragma once

#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/store/shared_list.hpp"

/// What the store wants its shell to do with memory.
namespace kvd::store {

/// Move slots between the tiers. `pairs` are (hbm, dram); the direction says which is the source.
struct CopySlots {
  struct Pair {
    SlotId hbm;
    SlotId dram;
  };
  Ticket ticket;
  EngineId engine;  ///< whose fence carries the ticket
  bool to_hbm = false;
  Bytes slot_bytes;
  std::vector<Pair> pairs;
  bool background = false;  ///< nobody waits for it: after everything else of its direction
};
/// Copy between ranges of regions, within one slab each, and ranges of DRAM slots. The ranges on
/// the side that is written do not overlap. Reported back as CopyFinished with the ticket.
struct CopyRanges {
  struct Range {
    SlabIndex slab;  ///< of HBM
    Bytes offset;    ///< in the slab
    SlotId slot;     ///< of DRAM
    Bytes at;        ///< in the slot
    Bytes bytes;
  };
  Ticket ticket;
  bool to_hbm = false;
  Bytes slot_bytes;
  std::vector<Range> ranges;
};
/// Copy slots of DRAM into other slots of DRAM, which nothing else uses. Nobody waits for it at a
/// fence, and no byte crosses the link; reported back as CopyFinished with the ticket.
struct MoveSlots {
  struct Pair {
    SlotId from;
    SlotId to;
  };
  Ticket ticket;
  Bytes slot_bytes;
  std::vector<Pair> pairs;
};
/// Bring streamed blocks into staging slots, layer group by layer group, while an iteration runs.
/// A fetch may start once the engine's progress word has reached `after`, because until then the
/// iteration before, or an earlier group of this one, reads the same slots. Earliest group first,
/// ahead of every other copy into HBM. Once all fetches of the groups 0..l are complete, the
/// session's layers' fence becomes layer_mark(iteration, l + 1); after the last one
/// layer_mark(iteration, groups). One CopyFinished with the ticket ends the stream; not ok: some
/// fetch failed for good, and the session cannot go on.
/// Source: OrbitFlow sec. 4.1; kvd/DESIGN.md "Blocks that come and go".
struct StreamLayers {
  struct Fetch {
    std::uint32_t group = 0;  ///< 0-based
    std::uint64_t after = 0;  ///< layer_mark
    SharedList<CopySlots::Pair> pairs;
  };
  Ticket ticket;
  EngineId engine;
  std::uint64_t iteration = 0;
  std::uint32_t groups = 0;  ///< of the model; of one rank
  Bytes slot_bytes;
  std::vector<Fetch> fetches;  ///< by ascending group
  std::uint32_t rank = 0;      ///< of a tensor-parallel group: whose layers
};
/// Start no further fetch of the stream: its iteration is over, or its engine. CopyFinished follows
/// once nothing of it is in flight.
struct EndStream {
  Ticket ticket;
};
/// Zero a whole slab or single slots of `tier`; reported back as CopyFinished with the ticket.
struct Scrub {
  Ticket ticket;
  Tier tier = Tier::kHbm;
  std::vector<SlabIndex> slabs;
  std::vector<SlotId> slots;
  Bytes slot_bytes;
};
/// Put new, zeroed memory in the place of an HBM slab's, since engines of another domain may still
/// map what is there; reported back as SlabRenewed. Nothing of the slab is in use until then.
struct RenewSlab {
  SlabIndex slab;
};
/// Send the slab's fd. Region none: it backs slots; else it is `position` of `count` of the
/// region.
struct SendSlab {
  EngineId engine;
  SlabIndex slab;
  RegionId region;
  std::uint32_t position = 0;
  std::uint32_t count = 0;
};
/// Ask the engine to unmap a slab (cooperative).
struct AskUnmap {
  EngineId engine;
  SlabIndex slab;
};
using Order = std::variant<CopySlots, CopyRanges, MoveSlots, StreamLayers, EndStream, Scrub,
                           RenewSlab, SendSlab, AskUnmap>;

/// Orders of the event in hand, in the order in which they must be carried out.
/// Owner: control thread. Errors: none.
class Orders {
 public:
  /// For an order whose end is reported back. Tickets grow, and every part draws its own from here.
  [[nodiscard]] Ticket next_ticket() { return Ticket(++last_ticket_); }
  template <class O>
  void add(O order) {
    list_.emplace_back(std::move(order));
  }
  /// Hands over all orders since the last call.
  template <class F>
  void drain(F take) {
    for (Order& order : list_) std::visit([&](auto& one) { take(std::move(one)); }, order);
    list_.clear();
  }

 private:
  std::vector<Order> list_;
  std::uint64_t last_ticket_ = 0;
};

}  // namespace kvd::store
