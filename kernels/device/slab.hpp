#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::kernels {

/// What backs a slab's pages, in the order the host backend tries them.
enum class PageKind : std::uint8_t { kHugetlb, kTransparentHuge, kSmall, kDevice };
constexpr const char* name(PageKind kind) {
  constexpr const char* kNames[] = {"hugetlb", "thp", "4k", "device"};
  return kNames[static_cast<std::size_t>(kind)];
}

/// Names one live slab of a backend; never reused while the backend lives.
using SlabHandle = Id<struct SlabHandleTag, std::uint64_t>;

/// One physical allocation of a tier, mapped where the backend's copy queues can reach it. Slabs of
/// one backend are never adjacent in address space, so a merged run stays within one slab.
struct Slab {
  SlabHandle handle;
  Tier tier = Tier::kHbm;
  Bytes size;
  /// Address in the copy queues' address space: a host pointer, or a CUdeviceptr for HBM on CUDA.
  std::uintptr_t address = 0;
  PageKind pages = PageKind::kSmall;
};

/// A stretch of a slab, which begins at zero.
struct SlabExtent {
  Bytes from;
  Bytes length;
  friend bool operator==(const SlabExtent&, const SlabExtent&) = default;
};

/// Looks at bytes, which are there only during the call.
using Look = std::function<void(std::span<const std::byte>)>;

}  // namespace kvd::kernels
