#include "kvd/mover/slab_store.hpp"

#include <algorithm>
#include <utility>

namespace kvd::mover {

Result<SlabStore> SlabStore::create(kernels::DeviceBackend& backend, Size hbm, Size dram,
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
  for (const Device& device : devices) {
    store.backends_.push_back(device.backend);
    store.ends_.push_back(slabs += device.hbm.slabs);
  }
  for (const Device& device : devices) {
    KVD_TRY(store.add(*device.backend, Tier::kHbm, device.hbm, added, reopen));
  }
  KVD_TRY(store.add(*devices.front().backend, Tier::kDram, dram, added, reopen));
  KVD_TRY(store.adopt_dram());
  return store;
}

Status SlabStore::add(kernels::DeviceBackend& backend, Tier tier, Size size,
                      const std::function<void(Bytes)>& added, const Reopen& reopen) {
  auto& slabs = slabs_[static_cast<std::size_t>(tier)];
  slabs.reserve(slabs.size() + size.slabs);
  for (std::uint32_t i = 0; i < size.slabs; ++i) {
    const SlabIndex number(static_cast<std::uint32_t>(slabs.size()));
    std::optional<kernels::Slab> slab = reopen ? reopen(backend, tier, number) : std::nullopt;
    if (!slab) {
      KVD_ASSIGN_OR_RETURN(slab, backend.create_slab(tier, size.slab_bytes));
    }
    slabs.push_back(*slab);
    added(size.slab_bytes);
  }
  return {};
}

Status SlabStore::adopt_dram() {
  for (std::size_t device = 1; device < backends_.size(); ++device) {
    for (const kernels::Slab& slab : slabs(Tier::kDram)) {
      KVD_ASSIGN_OR_RETURN(const kernels::SlabHandle handle, backends_[device]->adopt_slab(slab));
      adopted_.emplace_back(backends_[device], handle);
    }
  }
  return {};
}

// At the end of the process a slab that a dropped copy still touches goes with the backend. DRAM
// goes with the first one, and all of it where another backend still copies.
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

void SlabStore::put(Tier tier, SlabIndex slab, const kernels::Slab& memory) {
  KVD_CHECK(slab.value < slabs(tier).size(), "a slab index beyond the pool");
  kernels::Slab& empty = slabs_[static_cast<std::size_t>(tier)][slab.value];
  KVD_CHECK(!empty.handle && memory.size == empty.size, "memory is put where there is some");
  empty = memory;
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
    if (slab.pages == kind) sum += slab.size;
  }
  return sum;
}

}  // namespace kvd::mover
