#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvd/core/classes.hpp"
#include "kvd/core/context.hpp"
#include "kvd/core/knowledge.hpp"
#include "kvd/core/region_copies.hpp"
#include "kvd/core/requests.hpp"
#include "kvd/core/spaces.hpp"
#include "kvd/store/placed_rows.hpp"

namespace kvd::core {

/// Caches of engines that place their blocks themselves, in regions that kvd lent them: blocks are
/// stored into DRAM under a digest, found by any session of the domain that names the same
/// fingerprint, and loaded into other blocks. They are rows of the one cache (store/cache.hpp), so
/// quotas, eviction and metrics are those of all cached blocks; what an engine parks is named by a
/// table, as a request's blocks are, and leaves with it.
///
/// A copy is a ticket of the engine's, whose state stands in its page. Tickets end in any order.
/// All of it is copied or none: what is not there is never loaded, and what could not be stored is
/// not found. A region whose copies are under way is not given to anybody else before they have
/// ended (RegionCopies), and DRAM that is read waits for the end as ever (Holds).
///
/// Source: kvd/DESIGN.md "Engines that place by themselves"; ipc/PROTOCOL.md.
///
/// Owner: control thread. Errors: as the replies say. Cost: O(blocks) a command, O(pieces) a copy.
class EngineCaches {
 public:
  EngineCaches(Context& context, store::Store& store, Requests& requests, Classes& classes,
               RegionCopies& region_copies)
      : context_(context),
        store_(store),
        requests_(requests),
        classes_(classes),
        region_copies_(region_copies),
        rows_(store.cache) {}

  void on_open(const Command& command, const OpenCache& open);
  void on_close(const Command& command, const CloseCache& close);
  /// True: DRAM may have become free.
  [[nodiscard]] bool on_blocks(const Command& command, const CacheBlocks& asked);
  /// False: it was no copy of these.
  [[nodiscard]] bool on_copy(const CopyFinished& finished);
  /// The session ends, and what it parked is given up. `dies`: what it still writes is not stored.
  void end(Session& session, bool dies);

  // ---- reading ----
  /// DRAM slots that copies fill.
  [[nodiscard]] std::size_t slots() const;
  [[nodiscard]] std::size_t parked() const { return parked_.size(); }

 private:
  struct Storing {
    Digest digest;
    SlotId slot;
    bool dropped = false;
  };
  struct Copy {
    EngineId engine;
    std::uint64_t ticket = 0;
    std::set<RegionId> regions;  ///< that it reads or writes
    bool park = false;
    bool lost = false;  ///< its engine may have written the blocks meanwhile
    store::KeySpace space;
    store::Taker taker;
    store::SecondsPerByte saved;
    std::vector<Storing> storing;  ///< none: it loads
  };
  struct Parked {
    store::BlockTable table{1};
    std::set<EngineId> by;
  };

  [[nodiscard]] Status check_pieces(const OpenCache& open, const Session& session) const;
  [[nodiscard]] Status check_copy(const EngineCache& cache, const Session& session,
                                  const CacheBlocks& asked) const;
  [[nodiscard]] static store::Taker taker_of(const Session& session, const EngineCache& cache);
  void on_store(const Command& command, const EngineCache& cache, const CacheBlocks& asked);
  void on_load(const Command& command, const EngineCache& cache, const CacheBlocks& asked);
  [[nodiscard]] std::uint64_t drop(const EngineCache& cache, std::span<const Digest> digests);
  /// None: whoever has it parked.
  void unpark(const store::Key& key, std::optional<EngineId> by);
  void forget(const store::Key& key, std::vector<SlotId>& slots);
  /// False: the engine has it parked already.
  bool park(const Copy& copy, const Digest& digest);
  void finish_store(const Copy& copy, bool ok);
  /// DRAM for so many blocks, which cached ones make way for. None: refused.
  [[nodiscard]] std::optional<std::vector<SlotId>> take(const Command& command,
                                                        const store::Taker& taker,
                                                        std::size_t count);
  [[nodiscard]] Status check_backed(const EngineCache& cache, const Session& session,
                                    const std::vector<std::uint32_t>& blocks) const;
  /// Calls use(backing, offset, bytes) with the ranges that are block `block`, each in one slab.
  template <class Use>
  void each_range(const EngineCache& cache, const Session& session, std::uint32_t block,
                  const Use& use) const;
  /// And the regions they are in.
  void add_ranges(const EngineCache& cache, const Session& session, std::uint32_t block,
                  SlotId slot, store::CopyRanges& order, std::set<RegionId>& regions) const;
  [[nodiscard]] Bytes slab_bytes(const Session& session) const {
    return store_.hbm.of(session.share().device).config().slab_bytes;
  }
  void start(Session& session, Copy copy, store::CopyRanges order);
  void tell(const Copy& copy, SetTicket::State state);

  Context& context_;
  store::Store& store_;
  Requests& requests_;
  Classes& classes_;
  RegionCopies& region_copies_;
  store::PlacedRows rows_;
  std::map<Ticket, Copy> copies_;
  std::map<store::Key, Parked> parked_;
  std::multiset<store::Key> storing_;                  ///< of copies under way
  std::set<std::pair<EngineId, std::uint64_t>> open_;  ///< places of tickets not over
  std::uint64_t last_cache_ = 0;
};

}  // namespace kvd::core
