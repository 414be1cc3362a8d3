#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::disk {

/// All folders of classes under one path, those of an earlier kvd too, and what they take together.
/// Among the folders that nobody has open the longest unused gives up its last segments first, then
/// itself. A folder that another process has open counts, and gives up nothing.
/// Source: FORMAT.md "Folders".
/// Owner:  thread-safe. take(), put(), clear() and scan() wait for the file system, list() and
/// has() do not. Errors: those of the file system, with the path.
class Folders {
 public:
  struct Entry {
    std::string model;  ///< as the file `model` says
    Bytes bytes;
    std::chrono::system_clock::time_point used;
    bool open = false;  ///< this process has it
  };
  using Entries = std::map<std::string, Entry>;  ///< by name

  /// The folders may have `size` bytes, and leave `floor` bytes free on the file system.
  Folders(std::string path, Bytes size, Bytes floor)
      : path_(std::move(path)), size_(size), floor_(floor) {}

  /// Finds the folders that exist, and shrinks them until they fit.
  Status scan();
  /// This process has the folder from now on, with this many bytes. False: open folders have all
  /// the room, and nothing has changed.
  [[nodiscard]] bool take(const std::string& name, Bytes bytes, const std::string& model);
  /// The folder is `bytes` large in the end; `open` is false where it is closed or could not be
  /// opened.
  void put(const std::string& name, Bytes bytes, bool open);
  /// Removes all folders that nobody has open, also those that came after scan().
  Status clear();
  [[nodiscard]] bool has(const std::string& name) const;
  [[nodiscard]] Bytes bytes_of(const std::string& name) const;
  [[nodiscard]] Entries list() const;

 private:
  [[nodiscard]] Bytes missing() const;
  [[nodiscard]] Bytes others(const std::string& name) const;
  void make_room(Bytes most, const std::string& except);
  /// Why some of the bytes stay: errno's number. 0: none do, or another process has the folder.
  int give_up(const std::string& name, Bytes bytes);
  void set(const std::string& name, const Entry& entry);

  const std::string path_;
  const Bytes size_, floor_;
  std::mutex files_mutex_;    // held while files are changed
  mutable std::mutex mutex_;  // guards what follows
  Entries entries_;
};

/// Writes down in the folder which model it is of: a line of 255 bytes at most.
[[nodiscard]] Status write_model(const std::string& folder, const std::string& model);

}  // namespace kvd::disk
