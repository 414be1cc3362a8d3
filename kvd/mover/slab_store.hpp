#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kernels/device/slab_source.hpp"

namespace kvd::mover {

/// The memory behind slab indices: the slabs of both tiers, obtained and populated at start as far
/// as there is memory, later as it comes free, and replaced where a slab changes domain. Those of
/// HBM are numbered one device after the other; DRAM is made by the first device's backend, and
/// adopted by the others.
/// Owner: control thread. The backends must outlive it.
class SlabStore {
 public:
  struct Size {
    Bytes slab_bytes;
    std::uint32_t slabs = 0;
  };
  struct Device {
    kernels::SlabSource* backend = nullptr;
    Size hbm;
  };
  /// The slab with this number that an earlier process has left; none: it is made anew.
  using Reopen = std::function<std::optional<kernels::Slab>(kernels::SlabSource&, Tier, SlabIndex)>;
  /// Called after each slab with the bytes that are there and the bytes wanted.
  using Progress = std::function<void(Bytes done, Bytes total)>;

  /// Where memory runs out, each pool has its share of what there is, and the other slabs are
  /// missing().
  /// Errors: those of SlabSource::create_slab and adopt_slab but OutOfMemory; nothing stays
  ///         allocated then.
  static Result<SlabStore> create(const std::vector<Device>& devices, Size dram,
                                  const Progress& progress, const Reopen& reopen = {});
  /// Creates the store of one device.
  static Result<SlabStore> create(kernels::SlabSource& backend, Size hbm, Size dram,
                                  const Progress& progress);
  SlabStore(SlabStore&&) = default;
  SlabStore& operator=(SlabStore&&) = delete;
  ~SlabStore();

  /// The device of a slab of HBM.
  [[nodiscard]] DeviceId device_of(SlabIndex slab) const;
  [[nodiscard]] kernels::SlabSource& backend_of(Tier tier, SlabIndex slab) const {
    return *backends_[tier == Tier::kHbm ? device_of(slab).value : 0];
  }
  [[nodiscard]] std::uintptr_t address(Tier tier, SlabIndex slab) const;
  [[nodiscard]] std::uintptr_t address(Tier tier, SlotId slot, Bytes slot_bytes) const;
  /// Like SlabSource::read_slab(), for one slot. Any thread may call, as long as the slab keeps its
  /// memory.
  [[nodiscard]] Status read(Tier tier, SlotId slot, Bytes slot_bytes,
                            const kernels::Look& look) const;
  [[nodiscard]] Bytes slab_bytes(Tier tier) const;
  [[nodiscard]] std::uint32_t count(Tier tier) const {
    return static_cast<std::uint32_t>(slabs(tier).size());
  }
  /// A descriptor for a peer that may map the slab.
  [[nodiscard]] Result<UniqueFd> export_slab(Tier tier, SlabIndex slab) const;
  /// Whether the slab has memory.
  [[nodiscard]] bool has(Tier tier, SlabIndex slab) const {
    return static_cast<bool>(slabs(tier).at(slab.value).handle);
  }
  /// Slabs that have none.
  [[nodiscard]] std::vector<SlabIndex> missing(Tier tier) const;
  /// Why the first missing slab has no memory; ok: none is missing.
  [[nodiscard]] const Status& shortage() const { return shortage_; }
  /// Takes a slab's memory away, to be discarded: nothing may touch the slab until it has new
  /// memory.
  [[nodiscard]] kernels::SlabHandle take(Tier tier, SlabIndex slab);
  /// Errors: those of SlabSource::adopt_slab; the memory is not the slab's then.
  [[nodiscard]] Status put(Tier tier, SlabIndex slab, const kernels::Slab& memory);
  /// Bytes by what backs them; both tiers.
  [[nodiscard]] Bytes bytes_backed_by(Tier tier, kernels::PageKind kind) const;

 private:
  SlabStore() = default;
  [[nodiscard]] const std::vector<kernels::Slab>& slabs(Tier tier) const {
    return slabs_[static_cast<std::size_t>(tier)];
  }
  [[nodiscard]] const kernels::Slab& at(Tier tier, SlabIndex slab) const;
  struct Pool {
    Tier tier;
    kernels::SlabSource* backend;
    std::uint32_t first;
    std::uint32_t slabs;
    std::uint32_t done = 0;
    bool is_short = false;
  };
  Status fill(std::vector<Pool> pools, const std::function<void(Bytes)>& added,
              const Reopen& reopen);
  /// The slab's memory; none: there is not enough.
  Result<std::optional<kernels::Slab>> make(Pool& pool, SlabIndex number, const Reopen& reopen);
  Status adopt_dram(const kernels::Slab& slab);

  std::vector<kernels::SlabSource*> backends_;  ///< by device
  std::vector<std::uint32_t> ends_;             ///< by device: the number after its last slab
  std::vector<kernels::Slab> slabs_[kTiers];    ///< without a handle: it has no memory
  Status shortage_;
  /// DRAM slabs by their handles in backends that adopted them.
  std::vector<std::pair<kernels::SlabSource*, kernels::SlabHandle>> adopted_;
};

}  // namespace kvd::mover
