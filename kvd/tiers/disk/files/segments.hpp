#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "kvd/tiers/disk/files/folder.hpp"
#include "kvd/tiers/disk/files/layout.hpp"

namespace kvd::disk {

/// How many segments a folder is to have.
struct SegmentCount {
  std::uint32_t wanted = 1;  ///< at the opening
  std::uint32_t most = 1;    ///< ever
  Bytes floor;               ///< room that the file system must have left
};

/// The segment files of a folder, open and preallocated.
/// Owner: one thread at a time opens and resizes; all else is thread-safe.
/// Errors: Unsupported for a file of another version or class, InvalidArgument for one that is not
///         kvd's (neither is written to); OutOfMemory where there is room for no segment.
class Segments {
 public:
  /// The segments in the folder for blocks of this shape.
  struct Found {
    Bytes segment;            ///< the size of each
    std::uint32_t count = 0;  ///< that follow each other from the first on
  };
  /// None: there is none, or none of this shape.
  static std::optional<Found> find(const Folder& folder, const ClassShape& shape);

  /// Opens as many segments as wanted, or as leave the floor. Further segments of ours are removed,
  /// and those of another size are made anew. `direct`: O_DIRECT.
  static Result<Segments> open(const Folder& folder, const Layout& layout, SegmentCount count,
                               bool direct);
  /// The same while the folder is in use and nobody uses the slots beyond, whose files are then
  /// empty. Returns how many segments there are.
  std::uint32_t resize(const Folder& folder, const Layout& layout, SegmentCount count,
                       bool direct) const;

  [[nodiscard]] std::uint32_t count() const { return table_->count; }
  [[nodiscard]] int fd(std::uint32_t segment) const { return table_->files[segment].get(); }
  /// Why there are fewer than wanted; empty: none is missing.
  [[nodiscard]] const std::string& reason() const { return table_->reason; }

 private:
  struct Table {
    std::vector<UniqueFd> files;  ///< as long as `most`, so that it never moves
    std::atomic<std::uint32_t> count{0};
    std::string reason;
  };
  std::unique_ptr<Table> table_;
};

}  // namespace kvd::disk
