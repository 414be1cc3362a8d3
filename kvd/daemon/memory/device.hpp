#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "kvd/admin/link/snapshot.hpp"
#include "kvd/daemon/base/page_lease.hpp"
#include "kvd/daemon/config/config.hpp"
#include "kvd/daemon/memory/backend.hpp"
#include "kvd/daemon/memory/kept_memory.hpp"
#include "kvd/mover/movers.hpp"
#include "kvd/mover/slab_store.hpp"

namespace kvd::daemon {

/// The devices and all memory that kvd lends: a backend for each, the slabs of both tiers, and the
/// movers of bytes between them. Slabs that a copy still touches stay with the backends until these
/// have ended their own threads.
/// Source: kvd/DESIGN.md "Words" (tier, slab), "Devices".
/// Owner:  control thread; gpu(), page_kinds() and kind() never change.
class Device {
 public:
  /// `backends`: as open_backends() has opened them for the configuration. Slabs have memory as far
  /// as there is room; the renewer makes the others.
  /// Errors: those of check_memory() and SlabStore::create; InvalidArgument for
  ///         guarantees that do not fit the slabs of the backend; WouldBlock where there is room
  ///         for no slab yet.
  static Result<std::unique_ptr<Device>> open(const Config& config, Backends backends,
                                              const Clock& clock, KeptMemory& kept);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] const Backends& backends() const { return backends_; }
  /// All of them may raise fences in any page.
  [[nodiscard]] PageLease::Writers writers() const { return {backends_.begin(), backends_.end()}; }
  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(backends_.size()); }
  /// Errors: the first that a backend has.
  [[nodiscard]] Status health() const;
  [[nodiscard]] mover::SlabStore& slabs() { return *slabs_; }
  /// Slabs that have no memory.
  [[nodiscard]] std::uint64_t missing() const;
  [[nodiscard]] mover::Movers& movers() { return *movers_; }

  [[nodiscard]] std::string kind() const { return backends_.front()->kind(); }
  /// None: the host backend.
  [[nodiscard]] const std::optional<admin::GpuInfo>& gpu(DeviceId device) const {
    return gpus_.at(device.value);
  }
  /// What backs most of each tier, as the pool was opened.
  [[nodiscard]] const std::array<std::string, kTiers>& page_kinds() const { return page_kinds_; }

 private:
  Device() = default;
  Status open_pool(const Config& config, const Clock& clock, KeptMemory& kept);
  /// `kept`: by device, of HBM that was there already.
  void tell_pool(const Config& config, const std::vector<Bytes>& kept);

  Backends backends_;                                ///< page leases refer to them
  std::vector<std::optional<admin::GpuInfo>> gpus_;  ///< by device
  std::unique_ptr<mover::SlabStore> slabs_;
  std::unique_ptr<mover::Movers> movers_;
  std::array<std::string, kTiers> page_kinds_;
};

}  // namespace kvd::daemon
