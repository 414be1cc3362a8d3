#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ipc/digest/sha256.hpp"
#include "kvd/core/door/effects.hpp"
#include "kvd/mover/slab_store.hpp"
#include "kvd/tiers/disk/files/layout.hpp"

/// The core's words for blocks below DRAM in those of the tiers that keep them.
namespace kvd::daemon {

/// What all blocks of a class have in common, as the format wants it.
[[nodiscard]] inline disk::ClassShape shape_of(const core::DiskShape& shape) {
  std::vector<std::uint8_t> text(shape.fingerprint.digest.bytes.begin(),
                                 shape.fingerprint.digest.bytes.end());
  for (const std::uint32_t number :
       {shape.layers, shape.layers_per_block, shape.block_tokens, shape.ranks, shape.groups}) {
    for (int byte = 0; byte < 4; ++byte) {
      text.push_back(static_cast<std::uint8_t>(number >> (8 * byte)));
    }
  }
  return {digest::Sha256()(text).bytes, shape.groups, shape.slot_bytes};
}

[[nodiscard]] inline disk::BlockKey key_of(const core::DiskBlock& block) {
  return {block.domain.bytes, block.name.bytes};
}

/// The block's layer groups in DRAM.
template <class Byte>
[[nodiscard]] std::vector<std::span<Byte>> memory_of(const mover::SlabStore& slabs,
                                                     const core::DiskBlock& block) {
  std::vector<std::span<Byte>> groups;
  groups.reserve(block.dram.size());
  for (const SlotId slot : block.dram) {
    const std::uintptr_t at = slabs.address(Tier::kDram, slot, block.slot_bytes);
    groups.emplace_back(reinterpret_cast<Byte*>(at),
                        static_cast<std::size_t>(block.slot_bytes.value));
  }
  return groups;
}

}  // namespace kvd::daemon
