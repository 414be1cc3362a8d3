#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "ipc/vocabulary/result.hpp"

namespace kvd::engine {

/// A file mapped for reading. Owns: the mapping. A file that is truncated meanwhile raises SIGBUS,
/// so copy what is needed after the start.
/// Errors: NotFound or InvalidArgument naming the file.
class MappedFile {
 public:
  [[nodiscard]] static Result<MappedFile> open(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

}  // namespace kvd::engine
