#include "kvd/mover/slab_store.hpp"

#include <utility>

namespace kvd::mover {

Result<SlabStore> SlabStore::create(kernels::DeviceBackend& backend, Size hbm, Size dram,
                                    const Progress& progress) {
  SlabStore store(backend);
  const Bytes total = hbm.slab_bytes * hbm.slabs + dram.slab_bytes * dram.slabs;
  Bytes done;
  KVD_TRY(store.add(Tier::kHbm, hbm, progress, done, total));
  KVD_TRY(store.add(Tier::kDram, dram, progress, done, total));
  return store;
}

Status SlabStore::add(Tier tier, Size size, const Progress& progress, Bytes& done, Bytes total) {
  auto& slabs = slabs_[static_cast<std::size_t>(tier)];
  slabs.reserve(size.slabs);
  for (std::uint32_t i = 0; i < size.slabs; ++i) {
    KVD_ASSIGN_OR_RETURN(const kernels::Slab slab, backend_->create_slab(tier, size.slab_bytes));
    slabs.push_back(slab);
    done += size.slab_bytes;
    if (progress) progress(done, total);
  }
  return {};
}

SlabStore::~SlabStore() {
  for (const auto& slabs : slabs_) {
    for (const kernels::Slab& slab : slabs) {
      // At the end of the process a slab that a dropped copy still touches goes with the backend.
      if (slab.handle) (void)backend_->destroy_slab(slab.handle).ok();
    }
  }
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

Bytes SlabStore::slab_bytes(Tier tier) const {
  return slabs(tier).empty() ? Bytes(0) : slabs(tier).front().size;
}

Result<UniqueFd> SlabStore::export_slab(Tier tier, SlabIndex slab) const {
  return backend_->export_slab(at(tier, slab).handle);
}

Bytes SlabStore::bytes_backed_by(Tier tier, kernels::PageKind kind) const {
  Bytes sum;
  for (const kernels::Slab& slab : slabs(tier)) {
    if (slab.pages == kind) sum += slab.size;
  }
  return sum;
}

}  // namespace kvd::mover
