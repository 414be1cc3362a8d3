#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "kvd/core/cache/disk_cache.hpp"
#include "kvd/core/ledger/context.hpp"
#include "kvd/core/ledger/requests.hpp"
#include "kvd/store/cache/placed_rows.hpp"
#include "kvd/store/store.hpp"

namespace kvd::core {

/// What engines say of cached blocks that will be asked for, or will not.
///
/// Retained blocks leave DRAM after all others of their domain, for a time; pinned ones until their
/// engine says otherwise, or until no engine of the domain has been here for the longest time that
/// blocks are retained. Demoted ones leave first, and are offered to the disk. What is prefetched
/// comes to DRAM from below it and is retained there. A share of what the domain may have bounds
/// what is retained (Config::Retain).
///
/// Prefetches take turns. A few blocks are read at once, and only while nothing else is read, so
/// that whoever waits for a load waits for little more. They push out nothing that is retained.
///
/// Source: kvd/DESIGN.md "Engines that place by themselves". Owner: control thread. Errors: as the
/// replies say. Cost: O(digests) a call.
class Hints {
 public:
  Hints(Context& context, store::Store& store, const Requests& requests, DiskCache& disk)
      : context_(context), store_(store), requests_(requests), disk_(disk), rows_(store.cache) {}

  /// Retains all blocks of the command that DRAM has, or none. The answer says how many are.
  void retain(const Command& command, const store::KeySpace& space, const CacheBlocks& asked);
  /// The same until they are unpinned. Refused where that would be too many.
  void pin(const Command& command, const store::KeySpace& space, const CacheBlocks& asked);
  void unpin(const Command& command, const store::KeySpace& space, const CacheBlocks& asked);
  void demote(const Command& command, const store::KeySpace& space, const CacheBlocks& asked);
  /// The leading blocks of `of`.chain come to DRAM, and are retained there. The answer says how
  /// many are on their way.
  void prefetch(const Command& command, const DiskCache::Asked& of, Nanoseconds retain);

  /// At the end of each event: begins to read where nobody else does.
  void go_on();
  /// These runs of the disk have ended.
  void on_read(std::span<const std::uint64_t> ended);
  /// At each tick: lets those go whose time is over, and says what made way before its time.
  void let_go_due();
  /// The engine is gone, or has closed a cache: it awaits nothing any more.
  void end(EngineId engine);

  /// Bytes that prefetches brought.
  [[nodiscard]] std::uint64_t prefetched() const { return prefetched_; }

 private:
  struct Prefetch {
    EngineId engine;
    DiskCache::Asked by;  ///< all but its chain
    std::vector<Digest> digests;
    std::size_t done = 0;    ///< leading ones that have come
    std::size_t coming = 0;  ///< those after them that are being read
    TimePoint until{0};
    [[nodiscard]] std::span<const Digest> rest() const { return std::span(digests).subspan(done); }
  };

  [[nodiscard]] Bytes most(DomainId domain) const;
  [[nodiscard]] TimePoint until(Nanoseconds retain) const {
    return context_.now + std::min(retain, context_.config.retain.most);
  }
  [[nodiscard]] std::size_t waiting(EngineId engine) const;
  /// The later hint counts: a prefetch of the engine that begins with the same block ends.
  void end_prefetch(EngineId engine, const store::KeySpace& space, const CacheBlocks& asked);
  template <class Ends>
  void end_those(Ends ends);
  /// False: nothing more comes of it.
  [[nodiscard]] bool read(Prefetch& next);

  Context& context_;
  store::Store& store_;
  const Requests& requests_;
  DiskCache& disk_;
  store::PlacedRows rows_;
  std::deque<Prefetch> waiting_;
  std::optional<Prefetch> reading_;     ///< none: nothing is
  std::set<std::uint64_t> runs_;        ///< those that bring its blocks
  std::map<DomainId, TimePoint> seen_;  ///< when an engine of the domain was here last
  std::uint64_t prefetched_ = 0;        ///< bytes
  std::uint64_t told_ = 0;              ///< bytes that made way
};

}  // namespace kvd::core
