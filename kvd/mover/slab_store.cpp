#include "kvd/mover/slab_store.hpp"

#include <algorithm>
#include <utility>

namespace kvd::mover {

Result<SlabStore> SlabStore::create(kernels::SlabSource& backend, Size hbm, Size dram,
                                    const Progress& progress) {
  return create({{&backend, hbm}}, dram, progress);
}

Result<SlabStore> SlabStore::create(const std::vector<Device>& devices, Size dram,
                                    const Progress& progress, const Reopen& reopen) {
  SlabStore store;
  Bytes total = dram.slab_bytes * dram.slabs;
  for (const Device& device : devices) total += device.hbm.slab_bytes * device.hbm.slabs;
  Bytes done;
  const auto added = [&](Bytes bytes) {
    done += bytes;
    if (progress) progress(done, total);
  };
  std::uint32_t slabs = 0;
  std::vector<Pool> pools;
  for (const Device& device : devices) {
    pools.push_back({Tier::kHbm, device.backend, slabs, device.hbm.slabs});
    store.backends_.push_back(device.backend);
    store.ends_.push_back(slabs += device.hbm.slabs);
    store.slabs_[0].resize(slabs, {{}, Tier::kHbm, device.hbm.slab_bytes});
  }
  pools.push_back({Tier::kDram, devices.front().backend, 0, dram.slabs});
  store.slabs_[1].resize(dram.slabs, {{}, Tier::kDram, dram.slab_bytes});
  KVD_TRY(store.fill(std::move(pools), added, reopen));
  return store;
}

// The pool that has the smallest share of its slabs is next, so that a shortage hits all alike.
Status SlabStore::fill(std::vector<Pool> pools, const std::function<void(Bytes)>& added,
                       const Reopen& reopen) {
  const auto left = [](const Pool& pool) {
    return pool.slabs == 0 ? 0.0 : 1.0 - static_cast<double>(pool.done) / pool.slabs;
  };
  for (;;) {
    Pool& pool = *std::max_element(pools.begin(), pools.end(),
                                   [&](const Pool& a, const Pool& b) { return left(a) < left(b); });
    if (pool.done == pool.slabs) return {};
    const SlabIndex number(pool.first + pool.done++);
    KVD_ASSIGN_OR_RETURN(const auto slab, make(pool, number, reopen));
    if (!slab) continue;
    slabs_[static_cast<std::size_t>(pool.tier)][number.value] = *slab;
    if (pool.tier == Tier::kDram) KVD_TRY(adopt_dram(*slab));
    added(slab->size);
  }
}

Result<std::optional<kernels::Slab>> SlabStore::make(Pool& pool, SlabIndex number,
                                                     const Reopen& reopen) {
  std::optional<kernels::Slab> slab =
      reopen ? reopen(*pool.backend, pool.tier, number) : std::nullopt;
  if (slab || pool.is_short) return slab;
  Result<kernels::Slab> made = pool.backend->create_slab(pool.tier, slab_bytes(pool.tier));
  if (made.ok()) return std::optional(*made);
  if (made.error().code != ErrorCode::kOutOfMemory) return made.error();
  pool.is_short = true;
  if (shortage_.ok()) shortage_ = made.error();
  return slab;
}

Status SlabStore::adopt_dram(const kernels::Slab& slab) {
  const std::size_t before = adopted_.size();
  for (std::size_t device = 1; device < backends_.size(); ++device) {
    const Result<kernels::SlabHandle> handle = backends_[device]->adopt_slab(slab);
    if (handle.ok()) {
      adopted_.emplace_back(backends_[device], *handle);
      continue;
    }
    for (; adopted_.size() > before; adopted_.pop_back()) {
      (void)adopted_.back().first->destroy_slab(adopted_.back().second);
    }
    return handle.error();
  }
  return {};
}

// At the end of the process the backend takes along a slab that a dropped copy still touches. The
// first backend takes DRAM along, all of it where another backend still copies.
SlabStore::~SlabStore() {
  bool in_use = false;
  for (const auto& [backend, handle] : adopted_) in_use |= !backend->destroy_slab(handle).ok();
  for (const Tier tier : {Tier::kHbm, Tier::kDram}) {
    if (tier == Tier::kDram && in_use) return;
    for (std::uint32_t i = 0; i < slabs(tier).size(); ++i) {
      const kernels::SlabHandle handle = slabs(tier)[i].handle;
      if (handle) (void)backend_of(tier, SlabIndex(i)).destroy_slab(handle).ok();
    }
  }
}

DeviceId SlabStore::device_of(SlabIndex slab) const {
  const auto end = std::upper_bound(ends_.begin(), ends_.end(), slab.value);
  KVD_CHECK(end != ends_.end(), "a slab index beyond the pools");
  return DeviceId(static_cast<std::uint32_t>(end - ends_.begin()));
}

const kernels::Slab& SlabStore::at(Tier tier, SlabIndex slab) const {
  KVD_CHECK(slab.value < slabs(tier).size(), "a slab index beyond the pool");
  const kernels::Slab& memory = slabs(tier)[slab.value];
  KVD_CHECK(memory.handle, "a slab without memory is used");
  return memory;
}

std::uintptr_t SlabStore::address(Tier tier, SlabIndex slab) const {
  return at(tier, slab).address;
}

kernels::SlabHandle SlabStore::take(Tier tier, SlabIndex slab) {
  (void)at(tier, slab);
  return std::exchange(slabs_[static_cast<std::size_t>(tier)][slab.value].handle, {});
}

Status SlabStore::put(Tier tier, SlabIndex slab, const kernels::Slab& memory) {
  KVD_CHECK(slab.value < slabs(tier).size(), "a slab index beyond the pool");
  kernels::Slab& empty = slabs_[static_cast<std::size_t>(tier)][slab.value];
  KVD_CHECK(!empty.handle && memory.size == empty.size, "memory is put where there is some");
  if (tier == Tier::kDram) KVD_TRY(adopt_dram(memory));
  empty = memory;
  return {};
}

std::vector<SlabIndex> SlabStore::missing(Tier tier) const {
  std::vector<SlabIndex> found;
  for (std::uint32_t i = 0; i < count(tier); ++i) {
    if (!has(tier, SlabIndex(i))) found.emplace_back(i);
  }
  return found;
}

std::uintptr_t SlabStore::address(Tier tier, SlotId slot, Bytes slot_bytes) const {
  return address(tier, slot.slab()) + slot.index() * slot_bytes.size();
}

Status SlabStore::read(Tier tier, SlotId slot, Bytes slot_bytes, const kernels::Look& look) const {
  return backend_of(tier, slot.slab()).read_slab(address(tier, slot, slot_bytes), slot_bytes, look);
}

Bytes SlabStore::slab_bytes(Tier tier) const {
  return slabs(tier).empty() ? Bytes(0) : slabs(tier).front().size;
}

Result<UniqueFd> SlabStore::export_slab(Tier tier, SlabIndex slab) const {
  return backend_of(tier, slab).export_slab(at(tier, slab).handle);
}

Bytes SlabStore::bytes_backed_by(Tier tier, kernels::PageKind kind) const {
  Bytes sum;
  for (const kernels::Slab& slab : slabs(tier)) {
    if (slab.handle && slab.pages == kind) sum += slab.size;
  }
  return sum;
}

}  // namespace kvd::mover
