#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ipc/vocabulary/ids.hpp"

namespace kvd::pool {

/// One slot, or several.
class Slots : public std::span<const SlotId> {
 public:
  // NOLINTBEGIN(google-explicit-constructor): stand for them
  Slots(const SlotId& slot) : span(&slot, 1) {}
  Slots(const std::vector<SlotId>& slots) : span(slots) {}
  Slots(std::span<const SlotId> slots) : span(slots) {}
  // NOLINTEND(google-explicit-constructor)
};

/// Neighbouring slots of one slab, by index.
struct SlotRun {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

/// Calls visit(slab, its slots) for each stretch of slots that are in one slab.
template <class F>
void each_slab(Slots slots, F visit) {
  while (!slots.empty()) {
    const SlabIndex slab = slots.front().slab();
    const auto end = std::find_if(slots.begin(), slots.end(),
                                  [slab](SlotId slot) { return slot.slab() != slab; });
    const auto count = static_cast<std::size_t>(end - slots.begin());
    visit(slab, slots.first(count));
    slots = slots.subspan(count);
  }
}

/// Calls visit(slab, run) for each run of ascending neighbours.
template <class F>
void each_run(Slots slots, F visit) {
  for (std::size_t begin = 0, end = 0; begin < slots.size(); begin = end) {
    const SlotId first = slots[begin];
    const auto follows = [&](SlotId slot) {
      return slot.value == first.value + (end - begin) && slot.index() != 0;
    };
    for (end = begin + 1; end < slots.size() && follows(slots[end]);) ++end;
    visit(first.slab(), SlotRun{first.index(), static_cast<std::uint32_t>(end - begin)});
  }
}

}  // namespace kvd::pool
