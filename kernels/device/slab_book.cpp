#include "kernels/device/slab_book.hpp"

#include <iterator>
#include <string>
#include <utility>

namespace kvd::kernels {
namespace {

std::size_t index(Tier tier) { return static_cast<std::size_t>(tier); }
std::size_t index(Direction direction) { return static_cast<std::size_t>(direction); }

/// Keeps these handles apart from those that backends give their own slabs.
constexpr std::uint64_t kAdopted = std::uint64_t{1} << 63;

Error invalid(std::string message) {
  return make_error(ErrorCode::kInvalidArgument, std::move(message));
}

Error unknown_slab(SlabHandle handle) {
  return make_error(ErrorCode::kNotFound, "no live slab " + std::to_string(handle.value));
}

bool overlap(const CopyExtent& e) {
  const std::uintptr_t apart =
      e.source > e.destination ? e.source - e.destination : e.destination - e.source;
  return e.source != 0 && apart < e.length.size();
}

}  // namespace

void SlabBook::enter(const Slab& slab) {
  slabs_.emplace(slab.handle, LiveSlab{slab});
  by_address_.emplace(slab.address, slab.handle);
  counters_.live[index(slab.tier)] += slab.size;
}

Result<Slab> SlabBook::made(Result<Slab> slab) {
  const std::lock_guard lock(mutex_);
  if (slab.ok()) enter(*slab);
  ++(slab.ok() ? counters_.slabs_created : counters_.slab_failures);
  return slab;
}

SlabHandle SlabBook::adopt(Slab slab) {
  const std::lock_guard lock(mutex_);
  slab.handle = SlabHandle(kAdopted | ++last_adopted_);
  enter(slab);
  return slab.handle;
}

bool SlabBook::is_adopted(SlabHandle handle) { return (handle.value & kAdopted) != 0; }

Status SlabBook::forget(SlabHandle handle) {
  const std::lock_guard lock(mutex_);
  const auto found = slabs_.find(handle);
  if (found == slabs_.end()) return unknown_slab(handle);
  if (found->second.uses > 0) {
    return make_error(ErrorCode::kWouldBlock, "slab " + std::to_string(handle.value) +
                                                  " has copies in flight: poll them first");
  }
  const Slab& slab = found->second.slab;
  counters_.live[index(slab.tier)] -= slab.size;
  ++counters_.slabs_destroyed;
  by_address_.erase(slab.address);
  slabs_.erase(found);
  return {};
}

Status SlabBook::check_live(SlabHandle handle) const {
  const std::lock_guard lock(mutex_);
  return slabs_.contains(handle) ? Status() : Status(unknown_slab(handle));
}

Result<SlabHandle> SlabBook::hold(std::uintptr_t address, Bytes length) {
  const std::lock_guard lock(mutex_);
  KVD_ASSIGN_OR_RETURN(const SlabHandle handle, slab_of(address, length));
  ++slabs_.at(handle).uses;
  return handle;
}

void SlabBook::let_go(SlabHandle handle) {
  const std::lock_guard lock(mutex_);
  --slabs_.at(handle).uses;
}

Slab SlabBook::holding(std::uintptr_t address) const {
  const std::lock_guard lock(mutex_);
  return slabs_.at(std::prev(by_address_.upper_bound(address))->second).slab;
}

Result<SlabHandle> SlabBook::slab_of(std::uintptr_t address, Bytes length) const {
  auto next = by_address_.upper_bound(address);
  if (next != by_address_.begin()) {
    const Slab& slab = slabs_.at(std::prev(next)->second).slab;
    const std::size_t offset = address - slab.address;
    if (offset < slab.size.size() && length.size() <= slab.size.size() - offset) return slab.handle;
  }
  return invalid("copy of " + std::to_string(length.value) +
                 " bytes touches memory outside every live slab");
}

Status SlabBook::check_extent(const CopyExtent& extent, std::vector<SlabHandle>& touched) const {
  if (extent.length <= Bytes(0)) return invalid("copy of no bytes");
  KVD_ASSIGN_OR_RETURN(const SlabHandle to, slab_of(extent.destination, extent.length));
  touched.push_back(to);
  if (extent.source == 0) return {};
  KVD_ASSIGN_OR_RETURN(const SlabHandle from, slab_of(extent.source, extent.length));
  touched.push_back(from);
  if (overlap(extent)) return invalid("source and destination of a copy overlap");
  return {};
}

Result<SlabBook::InFlight> SlabBook::check(const CopyBatch& batch) const {
  if (!batch.ticket) return invalid("a copy batch needs a ticket");
  if (in_flight_.contains(batch.ticket)) {
    return invalid("ticket " + std::to_string(batch.ticket.value) + " is already in flight");
  }
  if (index(batch.direction) >= kDirections) return invalid("no such copy direction");
  InFlight entry{batch.direction, {}};
  entry.touched.reserve(2 * batch.extents.size());
  for (const CopyExtent& extent : batch.extents) KVD_TRY(check_extent(extent, entry.touched));
  return entry;
}

Status SlabBook::begin(const CopyBatch& batch) {
  const std::lock_guard lock(mutex_);
  KVD_ASSIGN_OR_RETURN(InFlight entry, check(batch));
  for (const SlabHandle handle : entry.touched) ++slabs_.at(handle).uses;
  in_flight_.emplace(batch.ticket, std::move(entry));
  ++counters_.batches_submitted[index(batch.direction)];
  return {};
}

SlabBook::InFlight SlabBook::end(Ticket ticket) {
  InFlight entry = std::move(in_flight_.extract(ticket).mapped());
  for (const SlabHandle handle : entry.touched) --slabs_.at(handle).uses;
  return entry;
}

void SlabBook::take_back(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  --counters_.batches_submitted[index(end(ticket).direction)];
}

void SlabBook::settle(const Completion& completion) {
  const std::lock_guard lock(mutex_);
  if (!in_flight_.contains(completion.ticket)) return;
  const std::size_t direction = index(end(completion.ticket).direction);
  ++counters_.batches_completed[direction];
  counters_.busy[direction] += completion.busy;
  if (completion.status.ok()) {
    counters_.bytes[direction] += completion.bytes;
  } else {
    ++counters_.batches_failed[direction];
  }
}

DeviceCounters SlabBook::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

}  // namespace kvd::kernels
