#include "kernels/copy/slot_copy.hpp"

#include "kernels/copy/host_copy.hpp"

namespace kvd::kernels {

void gather_slots(std::byte* packed, std::span<const std::uintptr_t> slots, Bytes slot_bytes) {
  for (const std::uintptr_t slot : slots) {
    copy_run(packed, reinterpret_cast<const void*>(slot), slot_bytes.size());
    packed += slot_bytes.size();
  }
}

void scatter_slots(std::span<const std::uintptr_t> slots, const std::byte* packed,
                   Bytes slot_bytes) {
  for (const std::uintptr_t slot : slots) {
    copy_run(reinterpret_cast<void*>(slot), packed, slot_bytes.size());
    packed += slot_bytes.size();
  }
}

}  // namespace kvd::kernels
