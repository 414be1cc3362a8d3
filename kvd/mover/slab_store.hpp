#pragma once

#include <functional>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kernels/device/device_backend.hpp"

namespace kvd::mover {

/// The memory behind slab indices: every slab of both tiers, obtained and populated at start, and
/// replaced where a slab changes domain.
/// Owner: control thread. The backend must outlive it.
class SlabStore {
 public:
  struct Size {
    Bytes slab_bytes;
    std::uint32_t slabs = 0;
  };
  /// Told after each slab: how many bytes stand, of how many.
  using Progress = std::function<void(Bytes done, Bytes total)>;

  /// Errors: those of DeviceBackend::create_slab; nothing stays allocated then.
  static Result<SlabStore> create(kernels::DeviceBackend& backend, Size hbm, Size dram,
                                  const Progress& progress);
  SlabStore(SlabStore&&) = default;
  SlabStore& operator=(SlabStore&&) = delete;
  ~SlabStore();

  [[nodiscard]] std::uintptr_t address(Tier tier, SlabIndex slab) const;
  [[nodiscard]] std::uintptr_t address(Tier tier, SlotId slot, Bytes slot_bytes) const;
  [[nodiscard]] Bytes slab_bytes(Tier tier) const;
  /// A descriptor for a peer that may map the slab.
  [[nodiscard]] Result<UniqueFd> export_slab(Tier tier, SlabIndex slab) const;
  /// Takes a slab's memory away, to be discarded: nothing may touch the slab until it has new one.
  [[nodiscard]] kernels::SlabHandle take(Tier tier, SlabIndex slab);
  void put(Tier tier, SlabIndex slab, const kernels::Slab& memory);
  /// Bytes by what backs them; both tiers.
  [[nodiscard]] Bytes bytes_backed_by(Tier tier, kernels::PageKind kind) const;

 private:
  explicit SlabStore(kernels::DeviceBackend& backend) : backend_(&backend) {}
  [[nodiscard]] const std::vector<kernels::Slab>& slabs(Tier tier) const {
    return slabs_[static_cast<std::size_t>(tier)];
  }
  [[nodiscard]] const kernels::Slab& at(Tier tier, SlabIndex slab) const;
  Status add(Tier tier, Size size, const Progress& progress, Bytes& done, Bytes total);

  kernels::DeviceBackend* backend_;
  std::vector<kernels::Slab> slabs_[kTiers];
};

}  // namespace kvd::mover
