#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "kvd/tiers/disk/folder.hpp"
#include "kvd/tiers/disk/layout.hpp"

namespace kvd::disk {

/// The segment files of a folder, open and preallocated.
/// Owner: immutable after open().
/// Errors: Unsupported for a file of another version or class, InvalidArgument for one that is not
///         kvd's (neither is written to); OutOfMemory where there is room for no segment.
class Segments {
 public:
  /// `wanted` segments, or as many as leave `floor` bytes free on the file system. Those of ours
  /// beyond `wanted` are removed. `direct`: O_DIRECT.
  static Result<Segments> open(const Folder& folder, const Layout& layout, std::uint32_t wanted,
                               Bytes floor, bool direct);

  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(files_.size()); }
  [[nodiscard]] int fd(std::uint32_t segment) const { return files_[segment].get(); }
  /// Why there are fewer than wanted; empty: there are as many.
  [[nodiscard]] const std::string& reason() const { return reason_; }

 private:
  std::vector<UniqueFd> files_;
  std::string reason_;
};

}  // namespace kvd::disk
