#include "kvd/mover/mover.hpp"

#include "kernels/copy/merge_runs.hpp"

namespace kvd::mover {

void Mover::copy(const core::CopySlots& copy, std::atomic<std::uint64_t>* fence) {
  kernels::CopyBatch batch;
  batch.ticket = copy.ticket;
  batch.direction =
      copy.to_hbm ? kernels::Direction::kHostToDevice : kernels::Direction::kDeviceToHost;
  batch.fence = {fence, copy.ticket.value};
  batch.extents.reserve(copy.pairs.size());
  for (const core::CopySlots::Pair& pair : copy.pairs) {
    const std::uintptr_t hbm = slabs_->address(Tier::kHbm, pair.hbm, copy.slot_bytes);
    const std::uintptr_t dram = slabs_->address(Tier::kDram, pair.dram, copy.slot_bytes);
    batch.extents.push_back({copy.to_hbm ? hbm : dram, copy.to_hbm ? dram : hbm, copy.slot_bytes});
  }
  submit(std::move(batch));
}

void Mover::scrub(const core::Scrub& scrub) {
  kernels::CopyBatch batch;
  batch.ticket = scrub.ticket;
  batch.direction = scrub.tier == Tier::kHbm ? kernels::Direction::kHostToDevice
                                             : kernels::Direction::kDeviceToHost;
  for (const SlabIndex slab : scrub.slabs) {
    batch.extents.push_back({slabs_->address(scrub.tier, slab), 0, slabs_->slab_bytes(scrub.tier)});
  }
  for (const SlotId slot : scrub.slots) {
    batch.extents.push_back(
        {slabs_->address(scrub.tier, slot, scrub.slot_bytes), 0, scrub.slot_bytes});
  }
  submit(std::move(batch));
}

void Mover::submit(kernels::CopyBatch batch) {
  batch.extents = kernels::merge_runs(std::move(batch.extents));
  const Ticket ticket = batch.ticket;
  if (!backend_->submit(std::move(batch)).ok()) refused_.push_back({ticket, false, Bytes(0), {}});
}

void Mover::poll(std::vector<core::CopyFinished>& finished) {
  finished.insert(finished.end(), refused_.begin(), refused_.end());
  refused_.clear();
  completions_.clear();
  backend_->poll(completions_);
  for (const kernels::Completion& done : completions_) {
    finished.push_back({done.ticket, done.status.ok(), done.bytes, done.busy});
  }
}

}  // namespace kvd::mover
