#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "kernels/device/cuda/copies/bursts/burst_size.hpp"
#include "kernels/device/cuda/copies/copy_trial.hpp"
#include "kernels/device/cuda/driver/device.hpp"
#include "kernels/device/device_backend.hpp"
#include "kernels/device/host/host_memory.hpp"

namespace kvd::kernels {

/// What DRAM slabs are. kHostNuma: memory that the driver allocates on a NUMA node of the host, and
/// pins as it makes it; kAuto: that memory where the driver can make it, else memfds.
enum class DramKind : std::uint8_t { kMemfd, kHostNuma, kAuto };

struct CudaConfig {
  cuda::DeviceChoice device;
  DramKind dram = DramKind::kMemfd;
  PagePreference pages = PagePreference::kHugetlb;  ///< of DRAM slabs that are memfds
  unsigned populate_threads = 0;                    ///< zero: one for each CPU, eight at most
  /// NUMA node of DRAM slabs; none: the node nearest to the device.
  std::optional<unsigned> numa_node;
  cuda::CopyChoice copies = cuda::CopyChoice::kAuto;
  /// The longest time of a burst, for which an engine's own copy may have to wait. Zero: bursts
  /// have `burst` bytes however long those take. Otherwise `burst` is the most bytes, by default
  /// what a Grace CPU's link moves in twice the time.
  Nanoseconds burst_time = std::chrono::microseconds(100);
  Bytes burst = kMiB * 96;
  /// What happens between two bursts. Where streams cannot wait on memory the CPU makes the gap.
  cuda::BurstOrder burst_order = cuda::BurstOrder::kGated;
  /// A burst that takes longer means that the device is lost.
  Nanoseconds stall_limit = std::chrono::seconds(30);
  MayTake may_take = machine_has;  ///< asked before host memory is taken
  /// How long destruction waits for the copies in flight; after that it leaks what they may touch.
  Nanoseconds stop_limit = std::chrono::seconds(5);
};

/// NVIDIA GPUs by the driver API. HBM slabs are VMM handles. DRAM slabs are memfds registered with
/// the driver, or VMM handles of the host's memory (DramKind; their pages then count as the
/// device's). Copies run on the copy engines alone, in bursts, with one thread for each direction.
/// The device's primary context is made with the first slab or page, not before.
/// Source:  kvd/DESIGN.md "Bytes on their way", "Safety rules"; the CUDA driver API.
/// Owner:   as DeviceBackend; adopt_page and release_page: control thread.
/// Errors:  create(): those of Driver::load, find_device, check_capabilities; Unsupported where
/// DramKind::kHostNuma is asked for but impossible. Once the device is lost (a sticky CUDA error,
/// or a copy that does not move), every call returns DeviceError "… restart kvd"; see health().
class CudaBackend final : public DeviceBackend {
 public:
  /// `clock` times copies and must outlive the backend.
  [[nodiscard]] static Result<std::unique_ptr<CudaBackend>> create(const CudaConfig& config,
                                                                   const Clock& clock);
  ~CudaBackend() override;

  [[nodiscard]] Bytes granularity(Tier tier) const override;
  [[nodiscard]] std::optional<Bytes> memory(Tier tier) const override;
  [[nodiscard]] int completion_fd() const override;
  [[nodiscard]] std::optional<DeviceIdentity> identity() const override;
  [[nodiscard]] Status adopt_page(void* address, Bytes size) override;
  void release_page(void* address, const std::shared_ptr<const void>& mapping) override;
  [[nodiscard]] Status health() const override;
  /// Whether host memory consists of registered memfds; memory that the driver made ends with the
  /// process.
  [[nodiscard]] bool reopens_slabs() const override;
  [[nodiscard]] std::string kind() const override { return "cuda"; }

  /// HBM that kvd's context takes besides its slabs (see PrimaryContext::used_at_start); zero while
  /// there is no context yet.
  [[nodiscard]] Bytes context_bytes() const;
  /// Why copies are made one by one although CopyChoice::kAuto prefers batches. Empty if they are
  /// not, and while there is no context yet.
  [[nodiscard]] std::string copies_fallback() const;
  /// Why DRAM slabs are memfds although DramKind::kAuto prefers other memory; otherwise empty.
  [[nodiscard]] const std::string& dram_fallback() const;

 private:
  struct Parts;
  explicit CudaBackend(std::unique_ptr<Parts> parts);
  Result<Slab> do_create_slab(Tier tier, Bytes size) override;
  Result<Slab> do_reopen_slab(Tier tier, Bytes size, UniqueFd memory, bool zeroed) override;
  Result<Slab> do_copy_slab(Bytes size, const UniqueFd& memory,
                            std::span<const SlabExtent> extents) override;
  Status do_read_slab(std::uintptr_t address, Bytes length, const Look& look) override;
  Status do_destroy_slab(SlabHandle handle) override;
  Result<UniqueFd> do_export_slab(SlabHandle handle) override;
  Status do_submit(CopyBatch batch) override;
  void do_poll(std::vector<Completion>& completed) override;

  std::unique_ptr<Parts> parts_;
};

}  // namespace kvd::kernels
