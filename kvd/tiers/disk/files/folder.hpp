#pragma once

#include <cstdint>
#include <string>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::disk {

/// The tier's folder, which one process has at a time: locked until this object and all forks of
/// the process are gone.
/// Owner: immutable, hence thread-safe.
/// Errors: PermissionDenied where others may write into it, WouldBlock where another process has
///         it, Unavailable with the errno's words else.
class Folder {
 public:
  /// Makes the folder (0700) where there is none; its parent must be there.
  static Result<Folder> open(const std::string& path);

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] const std::string& path() const { return path_; }
  /// How often the folder was opened, this time included; 1 also where the count was lost.
  [[nodiscard]] std::uint64_t opens() const { return opens_; }
  /// Marks the folder as used now, for whoever removes the longest unused one.
  void touch() const;
  /// What the file system has left for us.
  [[nodiscard]] Result<Bytes> room() const;

  /// An error with path and errno's words.
  [[nodiscard]] Error error(const std::string& name, int number) const;

 private:
  Status lock();
  Status count_open();

  std::string path_;
  UniqueFd fd_, lock_;
  std::uint64_t opens_ = 0;
};

}  // namespace kvd::disk
