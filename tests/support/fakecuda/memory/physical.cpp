#include "tests/support/fakecuda/memory/physical.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

namespace fakecuda {
namespace {

constexpr std::size_t kTrailer = 4096;
constexpr char kMagic[16] = "fakecuda memory";

/// The last page of the file.
struct Trailer {
  char magic[16];
  std::uint64_t size;
  CUmemAllocationProp prop;
};

std::atomic<std::size_t> own_descriptors{0};

int counted(int fd) {
  if (fd >= 0) ++own_descriptors;
  return fd;
}

void close_counted(int fd) {
  if (fd < 0) return;
  --own_descriptors;
  ::close(fd);
}

bool is_export(int fd, Trailer& trailer) {
  struct stat facts {};
  if (::fstat(fd, &facts) != 0 || facts.st_size < static_cast<off_t>(kTrailer)) return false;
  const off_t end = facts.st_size - static_cast<off_t>(kTrailer);
  return ::pread(fd, &trailer, sizeof trailer, end) == sizeof trailer &&
         std::memcmp(trailer.magic, kMagic, sizeof kMagic) == 0 &&
         trailer.size == static_cast<std::uint64_t>(end);
}

bool lock_whole(int fd) {
  struct flock lock {};
  lock.l_type = F_RDLCK;
  return ::fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

/// All allocations that this process has open.
std::vector<int> descriptors() {
  std::vector<int> all;
  DIR* folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return all;
  while (const dirent* item = ::readdir(folder)) {
    if (item->d_name[0] != '.') all.push_back(std::atoi(item->d_name));
  }
  ::closedir(folder);
  return all;
}

bool locked_elsewhere(int fd) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  return ::fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace

std::shared_ptr<Physical> Physical::create(std::size_t size, const CUmemAllocationProp& prop) {
  std::shared_ptr<Physical> memory(new Physical);
  memory->size_ = size;
  memory->prop_ = prop;
  memory->fd_ = counted(::memfd_create("fakecuda", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memory->fd_ < 0) return nullptr;
  Trailer trailer{{}, size, prop};
  std::memcpy(trailer.magic, kMagic, sizeof kMagic);
  const auto end = static_cast<off_t>(size);
  if (::ftruncate(memory->fd_, end + static_cast<off_t>(kTrailer)) != 0 ||
      ::pwrite(memory->fd_, &trailer, sizeof trailer, end) != sizeof trailer ||
      ::fcntl(memory->fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0 ||
      !lock_whole(memory->fd_) || !memory->map()) {
    return nullptr;
  }
  std::memset(memory->data_, kPoison, size);
  return memory;
}

std::shared_ptr<Physical> Physical::import(int fd) {
  Trailer trailer{};
  if (!is_export(fd, trailer)) return nullptr;
  const std::shared_ptr<Physical> memory(new Physical);
  memory->size_ = trailer.size;
  memory->prop_ = trailer.prop;
  memory->fd_ = counted(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  return memory->fd_ >= 0 && memory->map() ? memory : nullptr;
}

bool Physical::map() {
  struct stat facts {};
  if (::fstat(fd_, &facts) != 0) return false;
  inode_ = facts.st_ino;
  void* at = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (at == MAP_FAILED) return false;
  data_ = static_cast<std::byte*>(at);
  return true;
}

Physical::~Physical() {
  if (data_ != nullptr) ::munmap(data_, size_);
  close_counted(fd_);
}

int Physical::export_fd() const { return ::dup(fd_); }

Occupancy::~Occupancy() {
  for (const Watched& item : watched_) close_counted(item.fd);
}

bool Occupancy::add(const Physical& memory) {
  if (!memory.on_device()) return true;
  return watch(memory.fd(), memory.inode(), memory.prop().location.id, memory.size());
}

bool Occupancy::watch(int fd, ino_t inode, int device, std::size_t size) {
  for (const Watched& item : watched_) {
    if (item.inode == inode) return true;
  }
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const int own = counted(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (own < 0) return false;
  watched_.push_back({own, inode, device, size});
  return true;
}

// A descriptor that is closed meanwhile is skipped.
void Occupancy::find_descriptors() {
  for (const int fd : descriptors()) {
    Trailer trailer{};
    struct stat facts {};
    if (!is_export(fd, trailer) || ::fstat(fd, &facts) != 0) continue;
    if (trailer.prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE) continue;
    watch(fd, facts.st_ino, trailer.prop.location.id, trailer.size);
  }
}

std::size_t Occupancy::used(int device) {
  find_descriptors();
  std::size_t total = 0;
  std::erase_if(watched_, [&](const Watched& item) {
    if (!locked_elsewhere(item.fd)) return close_counted(item.fd), true;
    if (item.device == device) total += item.size;
    return false;
  });
  return total;
}

std::size_t open_exports() {
  std::size_t found = 0;
  Trailer trailer{};
  for (const int fd : descriptors()) found += is_export(fd, trailer) ? std::size_t{1} : 0;
  return found - own_descriptors;
}

}  // namespace fakecuda
