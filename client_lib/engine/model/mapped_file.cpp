#include "client_lib/engine/model/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "ipc/vocabulary/unique_fd.hpp"

namespace kvd::engine {

Result<MappedFile> MappedFile::open(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) {
    return make_error(ErrorCode::kNotFound, "cannot open " + path + ": " + std::strerror(errno));
  }
  struct stat facts {};
  if (::fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_size <= 0) {
    return make_error(ErrorCode::kInvalidArgument, path + " is empty or no regular file");
  }
  const auto size = static_cast<std::size_t>(facts.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) {
    return make_error(ErrorCode::kOutOfMemory, "cannot map " + path + ": " + std::strerror(errno));
  }
  return MappedFile(std::span(static_cast<const std::byte*>(address), size));
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace kvd::engine
