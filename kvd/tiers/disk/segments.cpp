#include "kvd/tiers/disk/segments.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "kvd/tiers/disk/sectors.hpp"

namespace kvd::disk {
namespace {

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

  /// OutOfMemory: there is no room for it, and no new file stays behind.
  Result<UniqueFd> open(std::uint32_t segment) {
    const std::string name = name_of(segment);
    UniqueFd file(::openat(folder_.fd(), name.c_str(), kFlags | direct_ | O_CREAT, 0600));
    if (!file.valid()) return folder_.error(name, errno);
    KVD_ASSIGN_OR_RETURN(const Bytes size, size_of(file, name));
    if (size != Bytes(0)) KVD_TRY(check(file, segment));
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
  static constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;

  Result<Bytes> size_of(const UniqueFd& file, const std::string& name) {
    struct stat facts {};
    if (::fstat(file.get(), &facts) != 0) return folder_.error(name, errno);
    if (!S_ISREG(facts.st_mode)) return foreign(name);
    return Bytes(facts.st_size);
  }

  // A superblock that was never written, or is torn, is written anew: each slot says its class.
  Status check(const UniqueFd& file, std::uint32_t segment) {
    const std::string name = name_of(segment);
    const auto bytes = buffer_[0];
    std::memset(bytes.data(), 0, bytes.size());
    if (::pread(file.get(), bytes.data(), bytes.size(), 0) < 0) return folder_.error(name, errno);
    switch (decode_superblock(layout_, segment, bytes)) {
      case Fault::kNone:
      case Fault::kEmpty:
        return {};
      case Fault::kCorruptHeader:
        return std::memcmp(bytes.data(), encode_superblock(layout_, segment).data(), 8) == 0
                   ? Status()
                   : foreign(name);
      default:
        return make_error(ErrorCode::kUnsupported,
                          folder_.path() + "/" + name +
                              " is of another version, class, size or place: remove the folder, or "
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

Result<Segments> Segments::open(const Folder& folder, const Layout& layout, std::uint32_t wanted,
                                Bytes floor, bool direct) {
  Segments segments;
  Opener opener(folder, layout, floor, direct);
  for (std::uint32_t i = 0; i < wanted; ++i) {
    Result<UniqueFd> file = opener.open(i);
    if (!file.ok()) {
      if (file.error().code != ErrorCode::kOutOfMemory || i == 0) return file.error();
      segments.reason_ = file.error().message;
      break;
    }
    segments.files_.push_back(std::move(*file));
  }
  opener.remove_from(wanted);
  return segments;
}

}  // namespace kvd::disk
