#include "ipc/shm/sealed_memfd.hpp"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "ipc/vocabulary/errno_words.hpp"

namespace kvd::shm {
namespace {

Error errno_error(ErrorCode code, const char* what) {
  return make_error(code, std::string(what) + ": " + errno_words(errno));
}

ErrorCode code_of_map_failure() {
  return errno == EPERM || errno == EACCES ? ErrorCode::kPermissionDenied : ErrorCode::kOutOfMemory;
}

/// Kernels before 6.3 refuse the flag that makes the file non-executable.
int open_memfd(const char* name) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  constexpr unsigned kNoExec = 0x0008;  // MFD_NOEXEC_SEAL; not in Debian 12's headers
  const int fd = ::memfd_create(name, kFlags | kNoExec);
  return fd >= 0 || errno != EINVAL ? fd : ::memfd_create(name, kFlags);
}

}  // namespace

Result<SharedMapping> SharedMapping::map(int fd, Bytes size, Access access) {
  const int protection = access == Access::kReadOnly ? PROT_READ : PROT_READ | PROT_WRITE;
  void* address = ::mmap(nullptr, size.size(), protection, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return errno_error(code_of_map_failure(), "mapping shared memory");
  SharedMapping mapping(std::span(static_cast<std::byte*>(address), size.size()));
  if (::madvise(address, size.size(), MADV_DONTFORK) != 0 ||
      ::madvise(address, size.size(), MADV_DONTDUMP) != 0) {
    return errno_error(ErrorCode::kInternal, "keeping shared memory out of forks and dumps");
  }
  return mapping;
}

SharedMapping::~SharedMapping() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

Result<UniqueFd> create_memfd(const char* name, Bytes size) {
  UniqueFd fd(open_memfd(name));
  if (!fd.valid()) return errno_error(ErrorCode::kUnavailable, "creating a memfd");
  if (::ftruncate(fd.get(), size.value) != 0) {
    return errno_error(ErrorCode::kOutOfMemory, "sizing a memfd");
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return errno_error(ErrorCode::kInternal, "sealing a memfd");
  }
  return fd;
}

Status close_seals(int fd, Writers writers) {
  const int no_new_writers = writers == Writers::kMappedSoFar ? F_SEAL_FUTURE_WRITE : 0;
  if (::fcntl(fd, F_ADD_SEALS, no_new_writers | F_SEAL_SEAL) == 0) return {};
  return errno_error(ErrorCode::kInternal, "sealing a memfd");
}

Status expect_fixed_size(int fd, Bytes size) {
  struct stat file {};
  if (::fstat(fd, &file) != 0 || file.st_size != size.value || size.value <= 0) {
    return make_error(ErrorCode::kInvalidArgument, "shared memory is not of the announced size");
  }
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals >= 0 && (seals & F_SEAL_SHRINK) != 0) return {};
  return make_error(ErrorCode::kInvalidArgument, "shared memory is not sealed against shrinking");
}

}  // namespace kvd::shm
