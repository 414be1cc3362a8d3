#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "ipc/vocabulary/result.hpp"

namespace kvd::engine {

/// A file mapped for reading.
/// Owns:   the mapping. A file that somebody truncates meanwhile raises SIGBUS: copy what outlives
///         the start.
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
