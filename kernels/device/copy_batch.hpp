#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kernels/copy/copy_extent.hpp"

namespace kvd::kernels {

/// The two copy queues of a device, which run at once.
enum class Direction : std::uint8_t { kHostToDevice = 0, kDeviceToHost = 1 };
constexpr std::size_t kDirections = 2;
constexpr const char* name(Direction d) { return d == Direction::kHostToDevice ? "h2d" : "d2h"; }

/// A fence word in host memory shared with one client. The backend stores `value` with release
/// order after every byte of the batch is complete and never before (safety rule 1).
/// A waiter reads the word with acquire order until it is >= its ticket. In between it may sleep in
/// FUTEX_WAIT (shared, not private) on the word's low 32 bits, always with a timeout: a copy
/// queue's thread wakes that futex after each store. A word in an adopted page (adopt_page()) is
/// written by the copy engine itself and the wake follows later; any other word is written by that
/// thread.
struct Fence {
  std::atomic<std::uint64_t>* word = nullptr;  ///< null: nobody waits for this batch
  std::uint64_t value = 0;
};

/// Copies that complete together. Extents of one batch have no order among themselves and must not
/// overlap. Batches of one direction complete in order, but their bytes need not move in it. A
/// batch without extents is allowed: its fence is written when the batches before it are done.
struct CopyBatch {
  Ticket ticket;  ///< not none, and not the ticket of another batch of this backend in flight
  Direction direction = Direction::kHostToDevice;
  std::vector<CopyExtent> extents;
  Fence fence;
  bool in_place = false;  ///< within one tier: it crosses no link, however slow that is
};

/// A batch that has ended. After a failure none of its destination bytes may be trusted, and its
/// fence was not written.
struct Completion {
  Ticket ticket;
  Status status;
  Bytes bytes;
  Nanoseconds busy{0};  ///< time the queue worked on this batch, for the measured link rate
};

}  // namespace kvd::kernels
