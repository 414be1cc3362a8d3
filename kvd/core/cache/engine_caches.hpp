#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvd/core/cache/disk_cache.hpp"
#include "kvd/core/cache/hints.hpp"
#include "kvd/core/ledger/classes.hpp"
#include "kvd/core/ledger/context.hpp"
#include "kvd/core/ledger/knowledge.hpp"
#include "kvd/core/ledger/region_copies.hpp"
#include "kvd/core/ledger/requests.hpp"
#include "kvd/core/ledger/spaces.hpp"
#include "kvd/store/cache/parked_rows.hpp"
#include "kvd/store/cache/placed_rows.hpp"
#include "kvd/store/index/keys_being_stored.hpp"

namespace kvd::core {

/// Caches of engines that place their blocks themselves, in regions that kvd lent them. Blocks are
/// stored into DRAM under a digest, found by any session of the domain that names the same
/// fingerprint, and loaded into other blocks. They are rows of the one cache (store/cache.hpp), so
/// quotas, eviction and metrics apply to them as to all cached blocks. Blocks that an engine parks
/// are named by a table, as a request's blocks are, and leave with it.
///
/// Blocks that only the disk has are found, too, where reading them pays. A load of such blocks
/// stays open while they come to DRAM one part at a time, and goes on from there. It fails where a
/// block does not come within the time that computing it takes (DiskCache::bring).
///
/// A copy is identified by a ticket that the engine chose; its state stands in the engine's page.
/// Tickets end in any order. A copy copies everything or nothing: a block that is not there is
/// never loaded, and a block that could not be stored is not found. A region with copies under way
/// is given to nobody else before they have ended (RegionCopies), and DRAM that is read waits for
/// the end as always (Holds).
///
/// Source: kvd/DESIGN.md "Engines that place by themselves"; ipc/PROTOCOL.md.
///
/// Owner: control thread. Errors: as the replies say. Cost: O(blocks) a command, in a space
/// O(pieces).
class EngineCaches {
 public:
  EngineCaches(Context& context, store::Store& store, Requests& requests, Classes& classes,
               RegionCopies& region_copies, DiskCache& disk)
      : context_(context),
        store_(store),
        requests_(requests),
        classes_(classes),
        region_copies_(region_copies),
        disk_(disk),
        rows_(store.cache),
        parked_(store.cache),
        hints_(context, store, requests, disk),
        storing_(context.config.index.secret) {}

  void on_open(const Command& command, const OpenCache& open);
  void on_close(const Command& command, const CloseCache& close);
  void on_describe(const Command& command, const DescribeCache& described);
  /// True: DRAM may have become free.
  [[nodiscard]] bool on_blocks(const Command& command, const CacheBlocks& asked);
  /// False: the copy is not one of these.
  [[nodiscard]] bool on_copy(const CopyFinished& finished);
  /// Reads of the disk have ended: loads that waited for them go on.
  void on_read();
  /// The session ends, and what it parked is given up: some at once, the rest in later events.
  /// `dies`: what it still writes is not stored.
  void end(Session& session, bool dies);
  [[nodiscard]] Hints& hints() { return hints_; }
  /// Gives up a part of what ended sessions had parked. True: DRAM may have become free.
  [[nodiscard]] bool give_up_parked();

  // ---- reading ----
  /// DRAM slots that copies fill.
  [[nodiscard]] std::size_t slots() const;
  [[nodiscard]] std::size_t parked() const { return parked_.size(); }

 private:
  /// The number of places for tickets in the engine's page; PROTOCOL.md section 6.
  static constexpr std::uint64_t kTicketPlaces = 256;

  struct Storing {
    Digest digest;
    SlotId slot;
  };
  /// What a session has asked for and that is not over yet.
  struct UnderWay {
    std::size_t blocks = 0;
    Bytes bytes;
    DomainId domain{};
  };
  struct Copy {
    EngineId engine;
    std::uint64_t ticket = 0;
    std::set<RegionId> regions;  ///< regions that it reads or writes
    bool park = false;
    bool lost = false;  ///< its engine may have written the blocks meanwhile
    store::KeySpace space;
    store::Taker taker;
    store::SecondsPerByte saved;
    std::vector<Storing> storing;  ///< none: the copy loads
    std::uint64_t load = 0;        ///< the load that it is a part of; 0: it stands for itself
    UnderWay counts{};
  };
  /// A load that asked for blocks of which some were on disk.
  struct Load {
    EngineId engine;
    std::uint64_t ticket = 0;
    DiskCache::Asked by;  ///< all but its chain
    std::vector<Digest> digests;
    std::vector<std::uint32_t> blocks;  ///< by digest: where in the region
    std::shared_ptr<const store::BlockLayout> layout;
    std::set<RegionId> regions;  ///< regions that it writes
    UnderWay counts;
    std::size_t copied = 0;        ///< leading blocks that were copied, or are being copied
    std::size_t read = 0;          ///< leading blocks that have come to DRAM, or are coming
    std::set<std::uint64_t> runs;  ///< runs of the disk that bring them
    std::size_t copies = 0;        ///< copies under way
    bool failed = false;
    [[nodiscard]] bool over() const {
      return copies == 0 && runs.empty() && (failed || copied == digests.size());
    }
  };

  [[nodiscard]] Status check_pieces(const OpenCache& open, const Session& session) const;
  [[nodiscard]] Status check_copy(const EngineCache& cache, const Session& session,
                                  const CacheBlocks& asked) const;
  /// WouldBlock: the session, or its domain, has as much under way as it may have.
  [[nodiscard]] Status check_under_way(const Session& session, const UnderWay& more) const;
  [[nodiscard]] static UnderWay counts_of(const EngineCache& cache, std::size_t blocks) {
    return {blocks, cache.block_bytes * static_cast<std::int64_t>(blocks), {}};
  }
  [[nodiscard]] static store::Taker taker_of(const Session& session, const EngineCache& cache);
  void on_store(const Command& command, EngineCache& cache, const CacheBlocks& asked);
  void on_load(const Command& command, EngineCache& cache, const CacheBlocks& asked);
  void on_lookup(const Command& command, const EngineCache& cache, const CacheBlocks& asked);
  struct Leading {
    std::uint64_t blocks = 0;  ///< leading blocks that can be loaded
    bool awaits = false;       ///< whether remote servers may soon say more
  };
  [[nodiscard]] Leading leading(const Session& session, const EngineCache& cache,
                                std::span<const Digest> digests);
  [[nodiscard]] DiskCache::Asked asked_by(const Session& session, const EngineCache& cache,
                                          std::span<const Digest> digests) const;
  void load_from_disk(const Command& command, EngineCache& cache, const CacheBlocks& asked);
  /// Copies what is in DRAM, and has the next part brought there.
  void go_on(std::uint64_t load);
  void copy_part(std::uint64_t load, std::size_t count);
  void end_load(std::uint64_t load);
  void give_up_loads(EngineId engine);
  [[nodiscard]] std::uint64_t drop(const EngineCache& cache, std::span<const Digest> digests);
  void forget(store::RowId row, std::vector<SlotId>& slots);
  /// False: the engine has parked it already.
  bool park(const Copy& copy, const Digest& digest);
  void finish_store(Ticket ticket, const Copy& copy, bool ok);
  /// Takes DRAM for `count` blocks. Cached blocks make way, except those in `held`. None: refused.
  [[nodiscard]] std::optional<std::vector<SlotId>> take(const Command& command,
                                                        const store::Taker& taker,
                                                        std::size_t count, std::size_t held);
  [[nodiscard]] Status check_backed(const EngineCache& cache, const Session& session,
                                    const std::vector<std::uint32_t>& blocks) const;
  /// The layout of the cache as its slabs stand now.
  [[nodiscard]] std::shared_ptr<const store::BlockLayout> layout_of(const Session& session,
                                                                    EngineCache& cache) const;
  /// The regions that blocks of the order are in.
  [[nodiscard]] static std::set<RegionId> regions_of(const Session& session,
                                                     const EngineCache& cache,
                                                     const std::vector<std::uint32_t>& blocks);
  [[nodiscard]] store::CopyRanges order_for(const Session& session, EngineCache& cache,
                                            bool to_hbm) const;
  [[nodiscard]] Bytes slab_bytes(const Session& session) const {
    return store_.hbm.of(session.share().device).config().slab_bytes;
  }
  void start(const Session& session, Copy copy, store::CopyRanges order);
  void begin(const Session& session, std::uint64_t ticket, const std::set<RegionId>& regions,
             const UnderWay& counts);
  void over(EngineId engine, std::uint64_t ticket, const std::set<RegionId>& regions,
            const UnderWay& counts);

  Context& context_;
  store::Store& store_;
  Requests& requests_;
  Classes& classes_;
  RegionCopies& region_copies_;
  DiskCache& disk_;
  store::PlacedRows rows_;
  std::map<Ticket, Copy> copies_;
  std::map<std::uint64_t, Load> loads_;
  std::uint64_t last_load_ = 0;
  store::ParkedRows parked_;
  Hints hints_;
  store::KeysBeingStored storing_;                     ///< by copies_
  std::vector<EngineId> gone_;                         ///< ended sessions that may have some parked
  std::set<std::pair<EngineId, std::uint64_t>> open_;  ///< places of tickets that are not over
  std::map<EngineId, UnderWay> under_way_;             ///< sums over all these tickets
  std::uint64_t last_cache_ = 0;
};

/// The session's cache. Null: it has none of that number, and the command is refused.
[[nodiscard]] EngineCache* cache_of(Context& context, Requests& requests, const Command& command,
                                    CacheId id);

}  // namespace kvd::core
