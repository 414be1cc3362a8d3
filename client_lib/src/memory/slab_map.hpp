#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "client_lib/src/memory/slab_memory.hpp"
#include "client_lib/src/memory/unmap.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "ipc/wire/messages.hpp"

namespace kvd::client {

/// The slabs of one region, mapped back to back. They outlive their session: their bytes stay
/// readable after the daemon died, until the region is freed.
struct RegionMapping {
  explicit RegionMapping(std::shared_ptr<SlabMemory> of) : memory(std::move(of)) {}
  RegionMapping(const RegionMapping&) = delete;
  RegionMapping& operator=(const RegionMapping&) = delete;
  ~RegionMapping();

  const std::shared_ptr<SlabMemory> memory;
  std::unique_ptr<SlabRange> range;
  Bytes slab_bytes;
  std::vector<bool> mapped;  ///< by position
  std::uint32_t missing = 0;
  bool in_use = false;  ///< the engine knows its address: not to be unmapped under its kernels
};

/// The part of the daemon's pool that a session has mapped: slabs that back blocks, and regions.
/// Owner:   thread-safe; the keeper maps, callers look up and wait
class SlabMap {
 public:
  explicit SlabMap(std::shared_ptr<SlabMemory> memory = host_memory())
      : memory_(std::move(memory)) {}

  /// Maps one slab as the frame says. A frame that contradicts earlier ones or itself maps nothing.
  Status map(const wire::MapSlab& frame, const UniqueFd& file);
  /// Unmaps a slab that backs blocks; an unmapped one is no error. Waits for nothing: the daemon
  /// asks only for slabs in which, by the engine's word, all reads and writes are done.
  void unmap(SlabIndex slab);

  /// Reserves addresses for this many slabs, with no memory behind them.
  [[nodiscard]] Result<std::shared_ptr<RegionMapping>> reserve(std::uint32_t slabs,
                                                               Bytes slab_bytes);
  /// Waits until all slabs of the region are mapped and hands it over.
  Result<std::shared_ptr<RegionMapping>> take_region(RegionId region, TimePoint deadline);
  /// Regions whose slabs came but which nobody has taken, because their allocation was given up.
  [[nodiscard]] std::vector<RegionId> untaken_regions() const;
  /// Unmaps what has been mapped of a region nobody took, now or when its frames still come. For a
  /// region that was taken there is nothing to do.
  void discard_region(RegionId region);

  /// Address of a slot; NotFound while its slab is not mapped.
  Result<std::byte*> slot_address(SlotId slot, Bytes slot_bytes) const;

  /// The same for many at once. Precondition: as many addresses as slots.
  Status slot_addresses(std::span<const SlotId> slots, Bytes slot_bytes,
                        std::span<std::byte*> addresses) const;

  /// Ends all waits and maps no more. The daemon is gone: memory of blocks, and of regions that
  /// nobody took, goes at once where SlabRange::forsake() can; an iteration that is still under way
  /// reads zeros there, and finds its page poisoned when it ends.
  void forsake();
  /// The daemon is gone, and the engine has been told or has nothing under way: unmaps as
  /// close_and_unmap() does, but for memory that forsake() has given back. That stays mapped, as
  /// zeros, since a thread of the engine may not have heard yet.
  void unmap_lost(Nanoseconds limit);
  /// Ends all waits, maps nothing more and unmaps everything but the regions taken, as
  /// unmap_when_idle() does. From then on false if anything stayed mapped.
  bool close_and_unmap(Nanoseconds limit);
  /// Why a slab that backs blocks could not be mapped, if that ever happened.
  [[nodiscard]] std::optional<Error> failure() const;

 private:
  /// Caller holds mutex_.
  void close();
  Result<std::byte*> find(SlotId slot, Bytes slot_bytes) const;
  Status map_block_slab(const wire::MapSlab& frame, const UniqueFd& file);
  Status map_region_slab(const wire::MapSlab& frame, const UniqueFd& file);
  Result<RegionMapping*> region_of(const wire::MapSlab& frame);

  const std::shared_ptr<SlabMemory> memory_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  bool stays_ = false;     ///< some of it will never be unmapped
  bool forsaken_ = false;  ///< none of the daemon's memory backs blocks any more
  std::unordered_map<SlabIndex, std::unique_ptr<SlabRange>> slabs_;
  std::unordered_map<RegionId, std::shared_ptr<RegionMapping>> regions_;
  std::unordered_set<RegionId> discarded_;  ///< their late frames are let go
  std::unordered_map<RegionId, Error> failed_regions_;
  std::optional<Error> failure_;
};

}  // namespace kvd::client
