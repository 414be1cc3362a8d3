#pragma once

#include <cstddef>
#include <memory>

#include "kvd_client/client.hpp"

namespace kvd_pattern {

/// How the CPU gets at the bytes of blocks: host memory in place, a GPU's by copies.
/// Owner:   one thread
class BlockAccess {
 public:
  enum class Purpose { kRead, kWrite };

  virtual ~BlockAccess() = default;
  /// The CPU's view of the bytes at `address`, valid until the next open(). Read the bytes, or
  /// write all of them: close() puts them into the block.
  virtual kvd_client::Result<std::byte*> open(std::byte* address, std::size_t bytes,
                                              Purpose purpose) = 0;
  /// Puts what the view of the last open() holds at `address`.
  virtual kvd_client::Status close(std::byte* address, std::size_t bytes) = 0;
  /// The stream that must wait for a ticket before blocks are opened; null: the CPU does.
  [[nodiscard]] virtual void* stream() const { return nullptr; }

 protected:
  BlockAccess() = default;
  BlockAccess(const BlockAccess&) = default;
  BlockAccess& operator=(const BlockAccess&) = default;
};

/// Access to the memory that the session lends. Errors: Unsupported, DeviceError.
kvd_client::Result<std::unique_ptr<BlockAccess>> access_to(const kvd_client::SessionInfo& session);

/// What access_to() does for CUDA memory; a program built without CUDA is never given any.
kvd_client::Result<std::unique_ptr<BlockAccess>> gpu_access(const kvd_client::SessionInfo& session);
/// The kinds of memory this program can use, for Options::memory.
std::uint32_t usable_memory();

}  // namespace kvd_pattern
