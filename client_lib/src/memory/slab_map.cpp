#include "client_lib/src/memory/slab_map.hpp"

#include <chrono>
#include <limits>
#include <string>
#include <utility>

namespace kvd::client {
namespace {

std::chrono::steady_clock::time_point on_steady_clock(TimePoint time) {
  return std::chrono::steady_clock::time_point(time);
}

Error over() { return make_error(ErrorCode::kUnavailable, "the session is over"); }

Error bad_frame(const char* what) {
  return make_error(ErrorCode::kInvalidArgument, std::string("the daemon's slab frame ") + what);
}

Status check_frame(const wire::MapSlab& frame) {
  constexpr std::uint64_t kLargest = std::numeric_limits<std::int64_t>::max();
  if (frame.bytes == 0 || frame.bytes > kLargest) return bad_frame("has an impossible size");
  if (frame.region == 0) return {};
  if (frame.count == 0 || frame.position >= frame.count) return bad_frame("has no valid position");
  if (frame.bytes > kLargest / frame.count) return bad_frame("announces an impossible region");
  return {};
}

}  // namespace

RegionMapping::~RegionMapping() {
  if (!in_use || range == nullptr) return;
  SlabRanges ranges;
  ranges.push_back(std::move(range));
  (void)unmap_when_idle(memory, std::move(ranges), kLongestDrain);
}

Status SlabMap::map(const wire::MapSlab& frame, const UniqueFd& file) {
  KVD_TRY(check_frame(frame));
  if (frame.region == 0) return map_block_slab(frame, file);
  const std::lock_guard lock(mutex_);
  if (closed_) return over();
  return map_region_slab(frame, file);
}

// The driver may take long, and a step that looks up other slabs must not wait for it.
Status SlabMap::map_block_slab(const wire::MapSlab& frame, const UniqueFd& file) {
  const Bytes size(static_cast<std::int64_t>(frame.bytes));
  const auto map_one = [&]() -> Result<std::unique_ptr<SlabRange>> {
    KVD_ASSIGN_OR_RETURN(auto range, memory_->reserve(size, size));
    KVD_TRY(range->map(Bytes(0), size, file));
    KVD_TRY(range->open());
    return range;
  };
  auto made = map_one();
  const std::lock_guard lock(mutex_);
  if (closed_) return over();
  if (!made.ok()) {
    failure_ = made.error();
    return made.error();
  }
  slabs_.insert_or_assign(SlabIndex(frame.slab), std::move(*made));
  return {};
}

Status SlabMap::map_region_slab(const wire::MapSlab& frame, const UniqueFd& file) {
  const RegionId id(frame.region);
  if (discarded_.contains(id)) return {};
  const auto map_one = [&]() -> Status {
    KVD_ASSIGN_OR_RETURN(RegionMapping * region, region_of(frame));
    if (region->mapped[frame.position]) return bad_frame("repeats a position");
    KVD_TRY(region->range->map(region->slab_bytes * std::int64_t{frame.position},
                               region->slab_bytes, file));
    region->mapped[frame.position] = true;
    // Complete only once it can be used: the caller may be waiting for that.
    if (region->missing == 1) KVD_TRY(region->range->open());
    --region->missing;
    return {};
  };
  Status status = map_one();
  if (!status.ok()) failed_regions_.insert_or_assign(id, status.error());
  changed_.notify_all();
  return status;
}

Result<RegionMapping*> SlabMap::region_of(const wire::MapSlab& frame) {
  const RegionId id(frame.region);
  const Bytes slab_bytes(static_cast<std::int64_t>(frame.bytes));
  const auto known = regions_.find(id);
  if (known != regions_.end()) {
    RegionMapping& region = *known->second;
    if (region.mapped.size() != frame.count || region.slab_bytes != slab_bytes) {
      return bad_frame("contradicts an earlier one of its region");
    }
    return &region;
  }
  KVD_ASSIGN_OR_RETURN(auto range,
                       memory_->reserve(slab_bytes * std::int64_t{frame.count}, slab_bytes));
  auto region = std::make_shared<RegionMapping>(memory_);
  region->range = std::move(range);
  region->slab_bytes = slab_bytes;
  region->mapped.assign(frame.count, false);
  region->missing = frame.count;
  return regions_.emplace(id, std::move(region)).first->second.get();
}

Result<std::shared_ptr<RegionMapping>> SlabMap::reserve(std::uint32_t slabs, Bytes slab_bytes) {
  KVD_ASSIGN_OR_RETURN(auto range, memory_->reserve(slab_bytes * std::int64_t{slabs}, slab_bytes));
  KVD_TRY(range->back_gaps(slab_bytes));
  auto region = std::make_shared<RegionMapping>(memory_);
  region->range = std::move(range);
  region->slab_bytes = slab_bytes;
  region->mapped.assign(slabs, false);
  region->in_use = true;
  return region;
}

void SlabMap::unmap(SlabIndex slab) {
  decltype(slabs_)::node_type gone;  // unmapped without the lock: the driver may wait
  const std::lock_guard lock(mutex_);
  gone = slabs_.extract(slab);
}

Result<std::shared_ptr<RegionMapping>> SlabMap::take_region(RegionId id, TimePoint deadline) {
  std::unique_lock lock(mutex_);
  const auto is_complete = [&] {
    const auto region = regions_.find(id);
    return region != regions_.end() && region->second->missing == 0;
  };
  const bool settled = changed_.wait_until(lock, on_steady_clock(deadline), [&] {
    return closed_ || failed_regions_.contains(id) || is_complete();
  });
  if (const auto failed = failed_regions_.find(id); failed != failed_regions_.end()) {
    return failed->second;
  }
  if (is_complete()) {
    auto region = std::move(regions_.at(id));
    regions_.erase(id);
    region->in_use = true;
    return region;
  }
  if (settled) {
    return make_error(ErrorCode::kUnavailable, "the daemon went away while it sent a region");
  }
  return make_error(ErrorCode::kDeadlineExceeded,
                    "the region's slabs did not all arrive in time; allow more time");
}

std::vector<RegionId> SlabMap::untaken_regions() const {
  const std::lock_guard lock(mutex_);
  std::vector<RegionId> ids;
  for (const auto& [id, region] : regions_) ids.push_back(id);
  return ids;
}

void SlabMap::discard_region(RegionId id) {
  const std::lock_guard lock(mutex_);
  const auto known = regions_.find(id);
  const bool more_to_come = known == regions_.end() || known->second->missing != 0;
  if (more_to_come) discarded_.insert(id);
  if (known != regions_.end()) regions_.erase(known);
  failed_regions_.erase(id);
}

Result<std::byte*> SlabMap::slot_address(SlotId slot, Bytes slot_bytes) const {
  const std::lock_guard lock(mutex_);
  return find(slot, slot_bytes);
}

Status SlabMap::slot_addresses(std::span<const SlotId> slots, Bytes slot_bytes,
                               std::span<std::byte*> addresses) const {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    KVD_ASSIGN_OR_RETURN(addresses[i], find(slots[i], slot_bytes));
  }
  return {};
}

Result<std::byte*> SlabMap::find(SlotId slot, Bytes slot_bytes) const {
  const auto slab = slabs_.find(slot.slab());
  if (slot.none() || slab == slabs_.end()) {
    return make_error(ErrorCode::kNotFound, "the block is not in memory of this process");
  }
  const Bytes offset = slot_bytes * std::int64_t{slot.index()};
  if (offset > slab->second->size() - slot_bytes) {
    return make_error(ErrorCode::kInternal, "the block table names a slot beyond its slab");
  }
  return slab->second->data() + offset.value;
}

bool SlabMap::close_and_unmap(Nanoseconds limit) {
  SlabRanges ranges;
  decltype(regions_) untaken;  // nobody knows their addresses
  {
    const std::lock_guard lock(mutex_);
    close();
    for (auto& [slab, range] : slabs_) ranges.push_back(std::move(range));
    slabs_.clear();
    regions_.swap(untaken);
  }
  const bool all = unmap_when_idle(memory_, std::move(ranges), limit);
  const std::lock_guard lock(mutex_);
  stays_ = stays_ || !all;
  return !stays_;
}

void SlabMap::forsake() {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  close();
  std::size_t stay = 0;
  for (auto& [slab, range] : slabs_) stay += range->forsake() ? 0U : 1U;
  forsaken_ = stay == 0;
  std::erase_if(regions_, [](const auto& entry) { return entry.second->range->forsake(); });
}

void SlabMap::unmap_lost(Nanoseconds limit) {
  const bool gone = [&] {
    const std::lock_guard lock(mutex_);
    return forsaken_;
  }();
  if (!gone) (void)close_and_unmap(limit);
}

void SlabMap::close() {
  closed_ = true;
  changed_.notify_all();
}

std::optional<Error> SlabMap::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace kvd::client
