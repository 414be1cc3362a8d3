#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/tiers/disk/files/checksum.hpp"
#include "kvd/tiers/disk/files/fault.hpp"

/// Where each byte of the tier lies, and what the bytes of its headers say: pure. FORMAT.md is the
/// authority.
namespace kvd::disk {

constexpr std::uint32_t kFormatVersion = 1;
/// The unit of every offset and of every length but the end of a layer group; also the size of a
/// header.
constexpr Bytes kSector{4096};
using Sector = std::array<std::byte, 4096>;
/// The most sums that a header has room for.
constexpr std::uint32_t kMaxGroups = 320;
constexpr Bytes kMaxGroupBytes = 256 * kMiB;

using Digest = std::array<std::uint8_t, 32>;
/// A slot of the tier, over all segments. Counts from 0.
using DiskSlot = Id<struct DiskSlotTag, std::uint32_t>;
/// Grows with every store into the tier, over restarts too.
using SlotGeneration = Id<struct SlotGenerationTag, std::uint64_t>;

/// What a block is found by within its class. Both are opaque here. They must mean the same after a
/// restart of the daemon, and tell a reader of the disk nothing about the tokens.
struct BlockKey {
  Digest domain{};
  Digest digest{};
  friend auto operator<=>(const BlockKey&, const BlockKey&) = default;
};

/// The class of all blocks of a tier.
struct ClassShape {
  Digest fingerprint{};
  std::uint32_t groups = 0;  ///< layer groups of a block
  Bytes group_bytes;         ///< of one layer group: the class's slot size in memory
  friend bool operator==(const ClassShape&, const ClassShape&) = default;
};

/// A segment file: one sector of superblock, then slots. A slot: one sector of header, then the
/// layer groups one after another, each from the start of a sector. Owner: immutable. Errors:
/// InvalidArgument for a shape or a size that cannot be.
class Layout {
 public:
  static Result<Layout> make(const ClassShape& shape, Bytes segment_bytes);

  [[nodiscard]] const ClassShape& shape() const { return shape_; }
  [[nodiscard]] Bytes segment_bytes() const { return segment_bytes_; }
  [[nodiscard]] std::uint32_t slots_per_segment() const { return slots_; }
  [[nodiscard]] Bytes group_stride() const { return stride_; }
  [[nodiscard]] Bytes slot_bytes() const { return kSector + stride_ * shape_.groups; }
  /// Layer groups fill their sectors: a block is one run of bytes, and direct I/O can take it.
  [[nodiscard]] bool fills_sectors() const { return stride_ == shape_.group_bytes; }

  [[nodiscard]] std::uint32_t segment(DiskSlot slot) const { return slot.value / slots_; }
  [[nodiscard]] std::uint32_t position(DiskSlot slot) const { return slot.value % slots_; }
  /// From the start of the segment.
  [[nodiscard]] Bytes header_offset(DiskSlot slot) const {
    return kSector + slot_bytes() * position(slot);
  }
  [[nodiscard]] Bytes group_offset(DiskSlot slot, std::uint32_t group) const {
    return header_offset(slot) + kSector + stride_ * group;
  }

 private:
  ClassShape shape_;
  Bytes segment_bytes_, stride_;
  std::uint32_t slots_ = 0;
};

/// What a slot's header says besides the class, which is the tier's.
struct SlotHeader {
  DiskSlot slot;
  SlotGeneration generation;
  BlockKey key;
  std::vector<GroupSum> sums;  ///< by layer group
};

[[nodiscard]] Sector encode_header(const Layout& layout, const SlotHeader& header);
/// Fills `header` where the answer is kNone. `slot` is the slot that was read.
[[nodiscard]] Fault decode_header(const Layout& layout, DiskSlot slot,
                                  std::span<const std::byte, 4096> bytes, SlotHeader& header);

[[nodiscard]] Sector encode_superblock(const Layout& layout, std::uint32_t segment);
/// kEmpty where all bytes are zero, kMisplaced for another segment's. `size`, where the answer is
/// kNone: bytes of the segment.
[[nodiscard]] Fault decode_superblock(const ClassShape& shape, std::uint32_t segment,
                                      std::span<const std::byte, 4096> bytes, Bytes& size);

}  // namespace kvd::disk
