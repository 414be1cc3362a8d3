#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace kvd::llama {

/// Which parts of a region are taken: several small buffers share the slabs that one of them made
/// kvd lend. First fit, lowest offset first; a part that is given back merges with its neighbours
/// by itself, as only taken parts are kept. Units:   bytes from the region's beginning Owner:   not
/// shared between threads
class RegionSpace {
 public:
  /// Parts begin at multiples of `alignment` of a region of `bytes`.
  RegionSpace(std::uint64_t bytes, std::uint64_t alignment)
      : bytes_(bytes), alignment_(alignment) {}

  /// The offset of a part of `bytes`; nothing where no gap is large enough.
  std::optional<std::uint64_t> take(std::uint64_t bytes) {
    std::uint64_t begin = 0;
    for (const auto& [offset, size] : taken_) {
      if (offset - begin >= bytes) break;
      begin = aligned(offset + size);
    }
    if (begin > bytes_ || bytes_ - begin < bytes) return std::nullopt;
    taken_.emplace(begin, bytes);
    return begin;
  }

  /// `offset` is one that take() returned.
  void give_back(std::uint64_t offset) { taken_.erase(offset); }

  [[nodiscard]] bool empty() const { return taken_.empty(); }

 private:
  [[nodiscard]] std::uint64_t aligned(std::uint64_t offset) const {
    return (offset + alignment_ - 1) / alignment_ * alignment_;
  }

  std::uint64_t bytes_;
  std::uint64_t alignment_;
  std::map<std::uint64_t, std::uint64_t> taken_;  // offset to size
};

}  // namespace kvd::llama
