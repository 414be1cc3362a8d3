#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>

#include "ipc/vocabulary/check.hpp"
#include "kvd/tiers/disk/files/layout.hpp"

namespace kvd::disk {

/// Memory of whole sectors that direct I/O takes. Not zeroed.
class Sectors {
 public:
  explicit Sectors(std::size_t count)
      : memory_(
            static_cast<std::byte*>(std::aligned_alloc(kSector.size(), count * kSector.size()))) {
    KVD_CHECK(memory_ != nullptr, "out of memory");
  }
  [[nodiscard]] std::span<std::byte, 4096> operator[](std::size_t i) const {
    return std::span<std::byte, 4096>(memory_.get() + i * kSector.size(), kSector.size());
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace kvd::disk
