#include "kvd/tiers/disk/files/folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "ipc/vocabulary/errno_words.hpp"
#include "kvd/tiers/disk/files/fault.hpp"

namespace kvd::disk {
namespace {

// Maps an errno; Unavailable stands for those without a better code.
ErrorCode code_of(int number) {
  const Fault fault = fault_of_errno(number);
  if (fault == Fault::kFull) return ErrorCode::kOutOfMemory;
  return number == EACCES || number == EPERM ? ErrorCode::kPermissionDenied
                                             : ErrorCode::kUnavailable;
}

}  // namespace

Error Folder::error(const std::string& name, int number) const {
  const std::string file = name.empty() ? path_ : path_ + "/" + name;
  return make_error(code_of(number), file + ": " + errno_words(number));
}

Result<Folder> Folder::open(const std::string& path) {
  Folder folder;
  folder.path_ = path;
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return folder.error("", errno);
  folder.fd_ = UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.fd_.valid()) return folder.error("", errno);
  struct stat facts {};
  if (::fstat(folder.fd_.get(), &facts) != 0) return folder.error("", errno);
  if (facts.st_uid != ::geteuid() || (facts.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return make_error(
        ErrorCode::kPermissionDenied,
        path + " may be written by others: chown it to the user of kvd and chmod 700");
  }
  KVD_TRY(folder.lock());
  KVD_TRY(folder.count_open());
  return folder;
}

Status Folder::lock() {
  lock_ = UniqueFd(
      ::openat(fd_.get(), "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (!lock_.valid()) return error("lock", errno);
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0) return {};
  if (errno != EWOULDBLOCK) return error("lock", errno);
  return make_error(ErrorCode::kWouldBlock,
                    path_ + " is in use by another process: end it, or give each its own folder");
}

Status Folder::count_open() {
  std::array<char, 24> text{};
  const auto length = ::pread(lock_.get(), text.data(), text.size(), 0);
  if (length < 0) return error("lock", errno);
  std::from_chars(text.data(), text.data() + length,
                  opens_);  // a name that is no number counts as 0
  const std::string line = std::to_string(++opens_) + "\n";
  if (::ftruncate(lock_.get(), 0) != 0 ||
      ::pwrite(lock_.get(), line.data(), line.size(), 0) != static_cast<ssize_t>(line.size())) {
    return error("lock", errno);
  }
  return {};
}

void Folder::touch() const { (void)::futimens(lock_.get(), nullptr); }

Result<Bytes> Folder::room() const {
  struct statvfs facts {};
  if (::fstatvfs(fd_.get(), &facts) != 0) return error("", errno);
  return Bytes(static_cast<std::int64_t>(facts.f_bavail)) *
         static_cast<std::int64_t>(facts.f_frsize);
}

}  // namespace kvd::disk
