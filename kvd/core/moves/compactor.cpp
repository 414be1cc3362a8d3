#include "kvd/core/moves/compactor.hpp"

#include <algorithm>
#include <utility>

namespace kvd::core {

void Compactor::start() {
  const std::vector<SlabIndex> slabs = store_.compaction.candidates();
  if (slabs.empty()) return;
  Bytes most = budget_.per_step(DeviceId(0));
  for (std::uint32_t device = 1; device < store_.hbm.count(); ++device) {
    most = std::min(most, budget_.per_step(DeviceId(device)));
  }
  store_.compaction.start(slabs, movable(slabs), Bytes(most.value / 4));
}

// Blocks in DRAM are being read where a copy brings a request's blocks in, or an iteration streams
// them.
std::vector<store::Movable> Compactor::movable(const std::vector<SlabIndex>& slabs) const {
  std::vector<store::Movable> found;
  const pool::TierPool& dram = store_.dram;
  std::vector<bool> among(dram.config().slabs, false);
  for (const SlabIndex slab : slabs) among[slab.value] = true;
  for (const auto& [key, request] : requests_.all()) {
    const bool read =
        request.moves.rotation || request.moves.fetch || !request.layers.streams.empty();
    if (read || request.dram_slots() == 0) continue;
    const Bytes slot_bytes = requests_.session_of(request).shape.slot_bytes();
    for (std::uint32_t i = 0; i < request.table.size(); ++i) {
      const SlotId slot = store_.blocks.slot(request.table, i, Tier::kDram);
      // Others may begin to read a block that they share.
      if (slot.none() || !among[slot.slab().value] || store_.blocks.shared(request.table, i))
        continue;
      const pool::SlotState state = dram.state(slot);
      const bool complete = state == pool::SlotState::kSealed || state == pool::SlotState::kOpen;
      if (complete) found.push_back({key, i, slot, slot_bytes});
    }
  }
  return found;
}

// A block that was given up meanwhile, or that did not arrive, leaves its new slot free. The old
// slot is held for any copy that began to read it while the block moved.
void Compactor::finish(const store::Compaction::Round& round, bool ok) {
  std::vector<SlotId> unused;
  for (const auto& [block, to] : round.moves) {
    Request* const found = requests_.find(block.request.engine, block.request.request);
    // Nobody else gets the slot while it is read, so the block that is there now was there then.
    // Others that share it by now may be reading it at its old place.
    const bool stayed = found && block.place < found->table.size() &&
                        store_.blocks.slot(found->table, block.place, Tier::kDram) == block.slot &&
                        !store_.blocks.shared(found->table, block.place);
    if (!ok || !stayed) {
      unused.push_back(to);
      continue;
    }
    Request& request = *found;
    store::Hold left;
    left.copies = request.layers.streams;
    for (const Ticket reads : {request.moves.rotation, request.moves.fetch}) {
      if (reads) left.copies.push_back(reads);
    }
    left.dram = {store_.blocks.relocate(request.table, block.place, Tier::kDram, to)};
    store_.tiers.hold(std::move(left));
    ++context_.counters.compacted.blocks;
    context_.counters.compacted.bytes += static_cast<std::uint64_t>(round.slot_bytes.value);
  }
  store_.tiers.free(Tier::kDram, std::move(unused));
}

}  // namespace kvd::core
