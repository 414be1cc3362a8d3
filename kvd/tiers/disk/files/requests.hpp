#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/tiers/disk/files/fault.hpp"
#include "kvd/tiers/disk/files/layout.hpp"

/// What is asked of the tier, and what it answers. The asker chooses the ticket, unique among the
/// requests under way. `patience` is the longest time from the call to the answer.
namespace kvd::disk {

/// Read neighbouring layer groups of a block into memory: each span takes one group and is as long
/// as a group. The memory is the tier's until its completion says otherwise.
struct Load {
  Ticket ticket;
  DiskSlot slot;
  SlotGeneration generation;  ///< that the slot must have
  BlockKey key;               ///< that it must have
  std::uint32_t first_group = 0;
  std::vector<std::span<std::byte>> groups;
  Nanoseconds patience{0};
};

/// Write a block: all its layer groups. The memory must not change until the completion.
struct Store {
  Ticket ticket;
  DiskSlot slot;
  BlockKey key;
  std::vector<std::span<const std::byte>> groups;
  Nanoseconds patience{0};
};

/// Most slots of one scan: what the header buffers of one request hold.
constexpr std::uint32_t kMaxScan = 64;

/// Read the headers of neighbouring slots.
struct Scan {
  Ticket ticket;
  DiskSlot first;
  std::uint32_t count = 0;
  Nanoseconds patience{0};
};

/// A block and where it was found. Its payload was not looked at.
struct FoundBlock {
  DiskSlot slot;
  SlotGeneration generation;
  BlockKey key;
  friend bool operator==(const FoundBlock&, const FoundBlock&) = default;
};

/// The end of a request. After a fault none of a load's bytes may be used, and a slot that was to
/// be written holds nothing that anybody will be given.
struct Completion {
  Ticket ticket;
  Fault fault = Fault::kNone;
  /// After kTimedOut the device still has the memory. A second completion with the ticket, where
  /// this is false, gives it back.
  bool memory_held = false;
  std::vector<FoundBlock> found;  ///< of a scan, by slot
  std::vector<Fault> bad;         ///< of a scan: the slots with neither a block nor zeros
};

/// How the tier works, for a person; numbers since it was opened.
struct DiskStatus {
  std::string io;             ///< "io_uring" or "threads"
  std::string io_reason;      ///< why not io_uring; empty: it is
  bool direct = false;        ///< O_DIRECT: the page cache is passed by
  std::string direct_reason;  ///< why not; empty: it is
  std::uint32_t segments = 0;
  std::string segments_reason;  ///< why there are fewer than asked for; empty: none is missing
  std::uint32_t registered_slabs = 0;
  std::string registered_reason;  ///< of the last slab that could not be; empty: all could
  std::uint64_t loads = 0;        ///< that ended without a fault, as the next three
  std::uint64_t stores = 0;
  Bytes loaded;
  Bytes stored;
  std::array<std::uint64_t, kFaults> faults{};  ///< by Fault: requests that ended with it, and
                                                ///< slots that a scan found bad
  std::uint32_t waiting = 0;                    ///< requests that have not started
  std::uint32_t under_way = 0;
  std::uint32_t most_under_way = 0;
};

}  // namespace kvd::disk
