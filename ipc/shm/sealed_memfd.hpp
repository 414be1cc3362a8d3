#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::shm {

enum class Access { kReadOnly, kReadWrite };

/// A memfd's bytes in this process: shared, neither forked nor dumped (safety rule 9). Unmapped
/// when destroyed.
class SharedMapping {
 public:
  /// Errors: OutOfMemory, PermissionDenied for writing to what is sealed against it.
  static Result<SharedMapping> map(int fd, Bytes size, Access access);
  SharedMapping(SharedMapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  SharedMapping& operator=(SharedMapping&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~SharedMapping();

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  /// Lets go of the mapping without undoing it.
  void leak() { bytes_ = {}; }

 private:
  explicit SharedMapping(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

/// A zero-filled memfd of a size nobody can change any more, so that no peer can make reading it
/// raise SIGBUS. Further seals are still allowed; see close_seals.
/// Errors: OutOfMemory, Unavailable when out of fds.
[[nodiscard]] Result<UniqueFd> create_memfd(const char* name, Bytes size);

enum class Writers {
  kAnyone,       ///< whoever holds the fd may map it for writing
  kMappedSoFar,  ///< only mappings that exist already write
};

/// Fixes who may write and refuses all later seals.
Status close_seals(int fd, Writers writers);

/// What a receiver checks before it maps an fd: a memfd of exactly `size` bytes that cannot shrink.
/// Errors: InvalidArgument.
Status expect_fixed_size(int fd, Bytes size);

}  // namespace kvd::shm
