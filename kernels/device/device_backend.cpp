#include "kernels/device/device_backend.hpp"

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

Status DeviceBackend::check_size(Tier tier, Bytes size) const {
  const Bytes grain = granularity(tier);
  if (size > Bytes(0) && size.value % grain.value == 0) return {};
  return invalid("slab size " + std::to_string(size.value) + " is not a positive multiple of " +
                 std::to_string(grain.value) + " bytes, the granularity of tier " + name(tier));
}

Result<Slab> DeviceBackend::create_slab(Tier tier, Bytes size) {
  KVD_TRY(check_size(tier, size));
  return made(tier, do_create_slab(tier, size));
}

Result<Slab> DeviceBackend::reopen_slab(Bytes size, UniqueFd memory, bool zeroed) {
  return made(Tier::kDram, do_reopen_slab(size, std::move(memory), zeroed));
}

Result<Slab> DeviceBackend::do_reopen_slab(Bytes, UniqueFd, bool) {
  return make_error(ErrorCode::kUnsupported,
                    kind() + " cannot take over memory of another process");
}

Result<Slab> DeviceBackend::copy_slab(Bytes size, const UniqueFd& memory,
                                      std::span<const SlabExtent> extents) {
  KVD_TRY(check_size(Tier::kHbm, size));
  for (const SlabExtent& extent : extents) {
    if (extent.from >= Bytes(0) && extent.length > Bytes(0) && extent.from <= size &&
        extent.length <= size - extent.from) {
      continue;
    }
    return invalid("no stretch of a slab of " + std::to_string(size.value) +
                   " bytes: " + std::to_string(extent.length.value) + " bytes from " +
                   std::to_string(extent.from.value) + " on");
  }
  return made(Tier::kHbm, do_copy_slab(size, memory, extents));
}

Status DeviceBackend::read_slab(std::uintptr_t address, Bytes length, const Look& look) {
  if (length <= Bytes(0)) return invalid("a read of no bytes");
  SlabHandle handle;
  {
    const std::lock_guard lock(mutex_);
    KVD_ASSIGN_OR_RETURN(handle, slab_of(address, length));
    ++slabs_.at(handle).uses;
  }
  Status read = do_read_slab(address, length, look);
  const std::lock_guard lock(mutex_);
  release({handle});
  return read;
}

Status DeviceBackend::do_read_slab(std::uintptr_t address, Bytes length, const Look& look) {
  look({reinterpret_cast<const std::byte*>(address), length.size()});
  return {};
}

Result<Slab> DeviceBackend::made(Tier tier, Result<Slab> slab) {
  const std::lock_guard lock(mutex_);
  if (!slab.ok()) {
    ++counters_.slab_failures;
    return slab;
  }
  slabs_.emplace(slab->handle, LiveSlab{*slab});
  by_address_.emplace(slab->address, slab->handle);
  ++counters_.slabs_created;
  counters_.live[index(tier)] += slab->size;
  return slab;
}

Status DeviceBackend::destroy_slab(SlabHandle handle) {
  KVD_TRY(forget(handle));
  return (handle.value & kAdopted) != 0 ? Status() : do_destroy_slab(handle);
}

Result<SlabHandle> DeviceBackend::adopt_slab(const Slab& slab) {
  if (slab.tier != Tier::kDram) return invalid("a slab of HBM belongs to one device");
  if (slab.pages == PageKind::kDevice) {
    return make_error(ErrorCode::kUnsupported,
                      "DRAM that a GPU's driver made is reached by that GPU alone: with several "
                      "devices DRAM has to be memfd");
  }
  KVD_TRY(do_adopt_slab(slab));
  const std::lock_guard lock(mutex_);
  Slab adopted = slab;
  adopted.handle = SlabHandle(kAdopted | ++last_adopted_);
  slabs_.emplace(adopted.handle, LiveSlab{adopted});
  by_address_.emplace(adopted.address, adopted.handle);
  counters_.live[index(slab.tier)] += slab.size;
  return adopted.handle;
}

Status DeviceBackend::discard_slab(SlabHandle handle) {
  KVD_TRY(forget(handle));
  return do_discard_slab(handle);
}

// Forgets the slab before it goes, so that no batch submitted meanwhile can name it.
Status DeviceBackend::forget(SlabHandle handle) {
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

Result<UniqueFd> DeviceBackend::export_slab(SlabHandle handle) {
  {
    const std::lock_guard lock(mutex_);
    if (!slabs_.contains(handle)) return unknown_slab(handle);
  }
  return do_export_slab(handle);
}

Status DeviceBackend::submit(CopyBatch batch) {
  const Ticket ticket = batch.ticket;
  const Direction direction = batch.direction;
  {
    const std::lock_guard lock(mutex_);
    KVD_ASSIGN_OR_RETURN(InFlight entry, check(batch));
    for (const SlabHandle handle : entry.touched) ++slabs_.at(handle).uses;
    in_flight_.emplace(ticket, std::move(entry));
    ++counters_.batches_submitted[index(direction)];
  }
  Status submitted = do_submit(std::move(batch));
  if (!submitted.ok()) {
    const std::lock_guard lock(mutex_);
    release(in_flight_.at(ticket).touched);
    in_flight_.erase(ticket);
    --counters_.batches_submitted[index(direction)];
  }
  return submitted;
}

void DeviceBackend::poll(std::vector<Completion>& completed) {
  const std::size_t before = completed.size();
  do_poll(completed);
  const std::lock_guard lock(mutex_);
  for (std::size_t i = before; i < completed.size(); ++i) settle(completed[i]);
}

DeviceCounters DeviceBackend::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

Slab DeviceBackend::slab_holding(std::uintptr_t address) const {
  const std::lock_guard lock(mutex_);
  return slabs_.at(std::prev(by_address_.upper_bound(address))->second).slab;
}

Result<SlabHandle> DeviceBackend::slab_of(std::uintptr_t address, Bytes length) const {
  auto next = by_address_.upper_bound(address);
  if (next != by_address_.begin()) {
    const Slab& slab = slabs_.at(std::prev(next)->second).slab;
    const std::size_t offset = address - slab.address;
    if (offset < slab.size.size() && length.size() <= slab.size.size() - offset) return slab.handle;
  }
  return invalid("copy of " + std::to_string(length.value) +
                 " bytes touches memory outside every live slab");
}

Status DeviceBackend::check_extent(const CopyExtent& extent,
                                   std::vector<SlabHandle>& touched) const {
  if (extent.length <= Bytes(0)) return invalid("copy of no bytes");
  KVD_ASSIGN_OR_RETURN(const SlabHandle to, slab_of(extent.destination, extent.length));
  touched.push_back(to);
  if (extent.source == 0) return {};
  KVD_ASSIGN_OR_RETURN(const SlabHandle from, slab_of(extent.source, extent.length));
  touched.push_back(from);
  if (overlap(extent)) return invalid("source and destination of a copy overlap");
  return {};
}

Result<DeviceBackend::InFlight> DeviceBackend::check(const CopyBatch& batch) const {
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

void DeviceBackend::release(const std::vector<SlabHandle>& touched) {
  for (const SlabHandle handle : touched) --slabs_.at(handle).uses;
}

// A completion whose ticket is not in flight was reported twice by the device: it counts once.
void DeviceBackend::settle(const Completion& completion) {
  const auto found = in_flight_.find(completion.ticket);
  if (found == in_flight_.end()) return;
  const std::size_t direction = index(found->second.direction);
  release(found->second.touched);
  in_flight_.erase(found);
  ++counters_.batches_completed[direction];
  counters_.busy[direction] += completion.busy;
  if (completion.status.ok()) {
    counters_.bytes[direction] += completion.bytes;
  } else {
    ++counters_.batches_failed[direction];
  }
}

}  // namespace kvd::kernels
