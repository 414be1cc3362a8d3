#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>

#include "ipc/vocabulary/clock.hpp"
#include "kernels/device/device_backend.hpp"
#include "kvd/admin/link/snapshot.hpp"
#include "kvd/daemon/config.hpp"
#include "kvd/daemon/copy_table.hpp"
#include "kvd/mover/mover.hpp"
#include "kvd/mover/slab_store.hpp"

namespace kvd::daemon {

/// The device and all memory that kvd lends: the backend, the slabs of both tiers, and the mover of
/// bytes between them. Slabs that a copy still touches stay with the backend until it has ended its
/// own threads.
/// Source: kvd/DESIGN.md "Words" (tier, slab).
/// Owner:  control thread; gpu(), copy_sizes(), page_kinds() and kind() never change.
class Device {
 public:
  /// config.backend becomes what was taken.
  /// Errors: those of open_backend(), read_copy_table(), check_memory() and SlabStore::create;
  ///         InvalidArgument for guarantees that do not fit the slabs of the backend.
  static Result<std::unique_ptr<Device>> open(Config& config, const Clock& clock);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] const std::shared_ptr<kernels::DeviceBackend>& backend() const { return backend_; }
  [[nodiscard]] mover::SlabStore& slabs() { return *slabs_; }
  [[nodiscard]] mover::Mover& mover() { return *mover_; }

  [[nodiscard]] std::string kind() const { return backend_->kind(); }
  /// None: the host backend.
  [[nodiscard]] const std::optional<admin::GpuInfo>& gpu() const { return gpu_; }
  [[nodiscard]] const CopySizes& copy_sizes() const { return copy_; }
  /// What backs most of each tier, as the pool was opened.
  [[nodiscard]] const std::array<std::string, kTiers>& page_kinds() const { return page_kinds_; }

 private:
  Device() = default;
  Status take_copy_table(const std::string& file);
  Status open_pool(const Config& config, const Clock& clock);
  void tell_pool(const Config& config);

  std::shared_ptr<kernels::DeviceBackend> backend_;  ///< page leases refer to it
  std::optional<admin::GpuInfo> gpu_;
  CopySizes copy_;
  std::unique_ptr<mover::SlabStore> slabs_;
  std::unique_ptr<mover::Mover> mover_;
  std::array<std::string, kTiers> page_kinds_;
};

}  // namespace kvd::daemon
