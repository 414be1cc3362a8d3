#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace kvd::wire {

/// The bytes of one frame, in memory that is reused from frame to frame: nothing is allocated once
/// it has held a frame of that size.
class FrameBuffer {
 public:
  /// Room for `size` bytes of unspecified content, which become the frame.
  std::span<std::byte> prepare(std::size_t size) {
    if (size > capacity_) {
      storage_ = std::make_unique_for_overwrite<std::byte[]>(size);
      capacity_ = size;
    }
    size_ = size;
    return {storage_.get(), size};
  }

  [[nodiscard]] std::span<const std::byte> bytes() const { return {storage_.get(), size_}; }

 private:
  std::unique_ptr<std::byte[]> storage_;
  std::size_t capacity_ = 0;
  std::size_t size_ = 0;
};

}  // namespace kvd::wire
