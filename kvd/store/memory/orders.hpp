#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/store/memory/shared_list.hpp"

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
  bool background = false;  ///< nobody waits for it, so it goes last in its direction
  DomainId domain{};        ///< whose turn it takes
};
/// A piece of every block of a region: block b has `bytes` at offset + b * stride.
struct BlockPiece {
  Bytes offset;
  Bytes stride;
  Bytes bytes;
};
/// Where the blocks of a region lie. In its DRAM slot a block's pieces follow each other.
struct BlockLayout {
  std::vector<BlockPiece> pieces;
  std::vector<SlabIndex> slabs;  ///< of HBM, by position
  Bytes slab_bytes;

  /// Calls use(position, offset, at, bytes) for each stretch of the block within one slab: the
  /// slab's position, where in it, and where in the DRAM slot.
  template <class Use>
  void each_range(std::uint32_t block, const Use& use) const {
    Bytes at;
    for (const BlockPiece& piece : pieces) {
      const Bytes begin = piece.offset + piece.stride * std::int64_t{block};
      for (Bytes done; done < piece.bytes;) {
        const Bytes from = begin + done;
        const Bytes offset(from.value % slab_bytes.value);
        const Bytes bytes = std::min(piece.bytes - done, slab_bytes - offset);
        use(static_cast<std::size_t>(from.value / slab_bytes.value), offset, at, bytes);
        at += bytes;
        done += bytes;
      }
    }
  }
};
/// Copy blocks of a region from or to DRAM slots. No two slots on the written side are the same.
/// Reported back as CopyFinished with the ticket. Kept short, as an engine may have many under way:
/// the layout is shared, and its pieces are worked out when they are copied.
struct CopyRanges {
  struct Block {
    std::uint32_t block = 0;  ///< of the region
    SlotId slot;              ///< of DRAM
  };
  Ticket ticket;
  DomainId domain;  ///< whose turn it takes, and within it
  EngineId engine;  ///< whose
  bool to_hbm = false;
  Bytes slot_bytes;
  std::shared_ptr<const BlockLayout> layout;
  std::vector<Block> blocks;
};
/// Stop handing a CopySlots or CopyRanges to the device, because nobody needs it any more. Its
/// CopyFinished follows once nothing of it is in flight: `dropped`, unless it was too late.
struct DropCopy {
  Ticket ticket;
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
  DomainId domain{};
};
/// Bring streamed blocks into staging slots, layer group by layer group, while an iteration runs. A
/// fetch may start once the engine's progress word has reached `after`: until then the iteration
/// before, or an earlier group of this one, reads the same slots. The earliest group comes first,
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
  DomainId domain{};           ///< whose turn it takes
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
  DomainId domain{};  ///< whose turn it takes: the domain that had it
};
/// Put new, zeroed memory in the place of an HBM slab's, since engines of another domain may still
/// map what is there; reported back as SlabRenewed. Nothing of the slab is in use until then.
struct RenewSlab {
  SlabIndex slab;
  /// An engine that kvd does not know may compute in the old memory, which stays as it is.
  bool in_use = false;
};
/// The slots are about to hold something else: what was written down about them is wrong from now
/// on. Slot 0 of a slab stands for a region's slab.
struct ForgetKept {
  std::array<std::vector<SlotId>, kTiers> slots;
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
using Order = std::variant<CopySlots, CopyRanges, DropCopy, MoveSlots, StreamLayers, EndStream,
                           Scrub, RenewSlab, SendSlab, AskUnmap, ForgetKept>;

/// Orders of the event in hand, in the order in which they must be carried out.
/// Owner: control thread. Errors: none.
class Orders {
 public:
  /// The ticket of an order whose end is reported back. Tickets grow, and every part draws its own
  /// from here.
  [[nodiscard]] Ticket next_ticket() { return Ticket(++last_ticket_); }
  [[nodiscard]] Ticket last_ticket() const { return Ticket(last_ticket_); }
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
