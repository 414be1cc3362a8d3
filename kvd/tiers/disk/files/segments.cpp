#include "kvd/tiers/disk/files/segments.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "kvd/tiers/disk/files/sectors.hpp"

namespace kvd::disk {
namespace {

constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;

std::string name_of(std::uint32_t segment) {
  char name[32];
  std::snprintf(name, sizeof name, "segment-%04u", segment);
  return name;
}

/// Opens one file after another.
class Opener {
 public:
  Opener(const Folder& folder, const Layout& layout, Bytes floor, bool direct)
      : folder_(folder), layout_(layout), floor_(floor), direct_(direct ? O_DIRECT : 0) {}

  /// OutOfMemory: there is no room for it, and no new file is left behind.
  Result<UniqueFd> open(std::uint32_t segment) {
    const std::string name = name_of(segment);
    UniqueFd file(::openat(folder_.fd(), name.c_str(), kFlags | direct_ | O_CREAT, 0600));
    if (!file.valid()) return folder_.error(name, errno);
    KVD_ASSIGN_OR_RETURN(Bytes size, size_of(file, name));
    if (size != Bytes(0)) {
      KVD_ASSIGN_OR_RETURN(const bool fits, check(file, segment));
      if (!fits && ::ftruncate(file.get(), 0) != 0) return folder_.error(name, errno);
      if (!fits) size = Bytes(0);
    }
    Status made = extend(file, size, name);
    if (made.ok()) made = write_superblock(file, segment);
    if (made.ok()) return file;
    if (size == Bytes(0)) ::unlinkat(folder_.fd(), name.c_str(), 0);
    return made.error();
  }

  /// Removes the files of ours from this segment on.
  void remove_from(std::uint32_t segment) {
    for (;; ++segment) {
      const std::string name = name_of(segment);
      const UniqueFd file(::openat(folder_.fd(), name.c_str(), kFlags | direct_));
      if (!file.valid() || !check(file, segment).ok()) return;
      if (::unlinkat(folder_.fd(), name.c_str(), 0) != 0) return;
    }
  }

 private:
  Result<Bytes> size_of(const UniqueFd& file, const std::string& name) {
    struct stat facts {};
    if (::fstat(file.get(), &facts) != 0) return folder_.error(name, errno);
    if (!S_ISREG(facts.st_mode)) return foreign(name);
    return Bytes(facts.st_size);
  }

  // A superblock that was never written, or is torn, is written anew, as each slot says its class.
  // False: the file is ours, but of another size.
  Result<bool> check(const UniqueFd& file, std::uint32_t segment) {
    const std::string name = name_of(segment);
    const auto bytes = buffer_[0];
    std::memset(bytes.data(), 0, bytes.size());
    if (::pread(file.get(), bytes.data(), bytes.size(), 0) < 0) return folder_.error(name, errno);
    Bytes size;
    switch (decode_superblock(layout_.shape(), segment, bytes, size)) {
      case Fault::kNone:
        return size == layout_.segment_bytes();
      case Fault::kEmpty:
        return true;
      case Fault::kCorruptHeader:
        if (std::memcmp(bytes.data(), encode_superblock(layout_, segment).data(), 8) == 0) {
          return true;
        }
        return foreign(name);
      default:
        return make_error(ErrorCode::kUnsupported,
                          folder_.path() + "/" + name +
                              " is of another version, class or place: remove the folder, or "
                              "give this class one of its own");
    }
  }

  Error foreign(const std::string& name) const {
    return make_error(ErrorCode::kInvalidArgument,
                      folder_.path() + "/" + name + " is not kvd's: move it elsewhere");
  }

  Status extend(const UniqueFd& file, Bytes size, const std::string& name) {
    if (size >= layout_.segment_bytes()) return {};
    KVD_ASSIGN_OR_RETURN(const Bytes room, folder_.room());
    if (room - (layout_.segment_bytes() - size) < floor_) {
      return make_error(ErrorCode::kOutOfMemory,
                        folder_.path() +
                            " has too little room for another segment: free some, or "
                            "lower the capacity or the floor");
    }
    if (::fallocate(file.get(), 0, 0, layout_.segment_bytes().value) == 0) return {};
    // File systems without it: the file is sparse, and a store may find no room later.
    if (errno == EOPNOTSUPP && ::ftruncate(file.get(), layout_.segment_bytes().value) == 0)
      return {};
    return folder_.error(name, errno);
  }

  Status write_superblock(const UniqueFd& file, std::uint32_t segment) {
    const Sector sector = encode_superblock(layout_, segment);
    std::memcpy(buffer_[0].data(), sector.data(), sector.size());
    const auto written = ::pwrite(file.get(), buffer_[0].data(), sector.size(), 0);
    if (written == static_cast<ssize_t>(sector.size())) return {};
    return folder_.error(name_of(segment), written < 0 ? errno : ENOSPC);
  }

  const Folder& folder_;
  const Layout& layout_;
  const Bytes floor_;
  const int direct_;
  const Sectors buffer_{1};
};

}  // namespace

std::optional<Segments::Found> Segments::find(const Folder& folder, const ClassShape& shape) {
  Found found;
  for (;; ++found.count) {
    const UniqueFd file(::openat(folder.fd(), name_of(found.count).c_str(), kFlags));
    Sector bytes{};
    Bytes size;
    const bool ours = file.valid() && ::pread(file.get(), bytes.data(), bytes.size(), 0) > 0 &&
                      decode_superblock(shape, found.count, bytes, size) == Fault::kNone;
    if (!ours || (found.count > 0 && size != found.segment)) break;
    found.segment = size;
  }
  return found.count > 0 ? std::optional(found) : std::nullopt;
}

Result<Segments> Segments::open(const Folder& folder, const Layout& layout, SegmentCount count,
                                bool direct) {
  Segments segments;
  segments.table_ = std::make_unique<Table>();
  segments.table_->files.resize(std::max(count.most, count.wanted));
  Opener opener(folder, layout, count.floor, direct);
  KVD_ASSIGN_OR_RETURN(segments.table_->files[0], opener.open(0));
  segments.table_->count = 1;
  for (std::uint32_t i = 1; i < count.wanted; ++i) {
    Result<UniqueFd> file = opener.open(i);
    if (!file.ok() && file.error().code != ErrorCode::kOutOfMemory) return file.error();
    if (!file.ok()) {
      segments.table_->reason = file.error().message;
      break;
    }
    segments.table_->files[i] = std::move(*file);
    segments.table_->count = i + 1;
  }
  opener.remove_from(count.wanted);
  return segments;
}

// A late write may hit a file that was cut, or another slot. That is harmless: every load is
// compared.
std::uint32_t Segments::resize(const Folder& folder, const Layout& layout, SegmentCount count,
                               bool direct) const {
  Table& table = *table_;
  const auto wanted = std::clamp(count.wanted, 1u, static_cast<std::uint32_t>(table.files.size()));
  Opener opener(folder, layout, count.floor, direct);
  while (table.count > wanted) {
    const std::uint32_t last = --table.count;
    if (::ftruncate(table.files[last].get(), 0) == 0) continue;
    opener.remove_from(last);
  }
  while (table.count < wanted) {
    Result<UniqueFd> file = opener.open(table.count);
    if (!file.ok()) break;
    UniqueFd& place = table.files[table.count];
    // A caller that still uses the old file's number then uses the new file, and no other.
    if (!place.valid()) {
      place = std::move(*file);
    } else if (::dup3(file->get(), place.get(), O_CLOEXEC) < 0) {
      break;
    }
    ++table.count;
  }
  return table.count;
}

}  // namespace kvd::disk
