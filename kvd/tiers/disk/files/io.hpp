#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::disk {

/// One run of bytes of a file, to or from pieces of memory in order.
struct Operation {
  std::uint64_t id = 0;
  int fd = -1;
  bool write = false;
  Bytes offset;
  std::vector<iovec> parts;
};

/// `result`: the bytes moved, fewer where the file ends or is full; or -errno.
struct Outcome {
  std::uint64_t id = 0;
  std::int64_t result = 0;
};

/// Moves bytes between files and memory without making anybody wait.
/// Owner:  the thread that submits also reaps; the slab functions are thread-safe.
/// Until the outcome of an operation was reaped, the operation, its memory and this object must
/// live: the kernel may write to the memory up to then, whatever became of the requester. Destroy
/// it with nothing under way, or keep it for ever.
class Io {
 public:
  virtual ~Io() = default;
  Io() = default;
  Io(const Io&) = delete;
  Io& operator=(const Io&) = delete;

  /// Takes it; may start it.
  virtual void submit(const Operation& operation) = 0;
  /// Starts what was submitted and could not start before. Called again while outcomes are due.
  virtual void flush() = 0;
  /// Appends the outcomes there are.
  virtual void reap(std::vector<Outcome>& outcomes) = 0;
  /// Readable when there may be outcomes; reap() makes it unreadable.
  [[nodiscard]] virtual int event_fd() const = 0;
  /// "io_uring" or "threads".
  [[nodiscard]] virtual std::string_view name() const = 0;

  /// Memory that operations will name again and again: it is pinned once instead of each time. An
  /// operation may always name other memory. Errors: Unsupported, OutOfMemory; everything works
  /// without it.
  virtual Status add_slab(std::span<std::byte> slab) = 0;
  /// Takes the slab as it was added. Call it when no operation in it is under way, and before its
  /// memory goes. False: it was not added.
  virtual bool remove_slab(std::span<std::byte> slab) = 0;
};

}  // namespace kvd::disk
