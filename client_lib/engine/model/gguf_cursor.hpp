#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "ipc/vocabulary/result.hpp"

namespace kvd::engine {

/// Reads little-endian values one after the other and never past the end.
class GgufCursor {
 public:
  explicit GgufCursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  [[nodiscard]] std::size_t at() const { return at_; }
  [[nodiscard]] std::size_t left() const { return bytes_.size() - at_; }

  template <class T>
  Result<T> read() {
    if (left() < sizeof(T)) return torn();
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

  Result<std::string> read_text() {
    KVD_ASSIGN_OR_RETURN(const auto length, read<std::uint64_t>());
    if (length > left()) return torn();
    std::string text(reinterpret_cast<const char*>(bytes_.data() + at_), length);
    at_ += length;
    return text;
  }

  Status skip(std::uint64_t bytes) {
    if (bytes > left()) return torn();
    at_ += bytes;
    return {};
  }

 private:
  [[nodiscard]] Error torn() const {
    return make_error(ErrorCode::kInvalidArgument,
                      "the GGUF file ends at byte " + std::to_string(bytes_.size()) +
                          ", in the middle of its header: get a whole copy");
  }

  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

}  // namespace kvd::engine
