#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "kernels/device/device_backend.hpp"
#include "kernels/device/host/completion_box.hpp"
#include "kernels/device/host/copy_queue.hpp"
#include "kernels/device/host/host_memory.hpp"

namespace kvd::kernels {

struct HostTier {
  bool enabled = true;
  std::optional<unsigned> numa_node;  ///< its slabs are bound to this node
};

struct HostConfig {
  std::array<HostTier, kTiers> tiers;  ///< indexed by Tier
  PagePreference pages = PagePreference::kHugetlb;
  unsigned populate_threads = 0;  ///< zero: one for each CPU, eight at most
  BytesPerSecond link_bandwidth;  ///< for each direction; zero: no throttle
  MayTake may_take = machine_has;
};

/// The backend of machines without a GPU, and of every test: both tiers are sealed memfds, and one
/// thread for each direction stands for the copy engines. Memory, processes and copies are real;
/// only the speed is that of the machine.
/// Source:  kvd/DESIGN.md "Safety rules"; copy speeds measured, see host_copy.hpp.
/// Owner:   as DeviceBackend.
/// Errors:  create(): InvalidArgument for a bad rate, Unavailable without descriptors.
/// create_slab(): besides those of HostMemory, Unsupported for a disabled tier.
class HostBackend final : public DeviceBackend {
 public:
  /// `clock` times the link and must outlive the backend.
  [[nodiscard]] static Result<std::unique_ptr<HostBackend>> create(const HostConfig& config,
                                                                   const Clock& clock);

  /// 2 MiB in both tiers, so that every slab may have huge pages.
  [[nodiscard]] Bytes granularity(Tier tier) const override;
  [[nodiscard]] int completion_fd() const override { return finished_.fd(); }
  /// A rate that is not a positive finite number lifts the throttle.
  void set_link_bandwidth(BytesPerSecond rate) override;
  [[nodiscard]] bool reopens_slabs() const override { return true; }
  [[nodiscard]] std::string kind() const override { return "host"; }

 private:
  HostBackend(const HostConfig& config, const Clock& clock, UniqueFd event);
  Result<Slab> do_create_slab(Tier tier, Bytes size) override;
  Result<Slab> do_reopen_slab(Tier tier, Bytes size, UniqueFd memory, bool zeroed) override;
  Result<Slab> do_copy_slab(Bytes size, const UniqueFd& memory,
                            std::span<const SlabExtent> extents) override;
  Status do_destroy_slab(SlabHandle handle) override;
  Status do_discard_slab(SlabHandle handle) override;
  Result<UniqueFd> do_export_slab(SlabHandle handle) override;
  Status do_submit(CopyBatch batch) override;
  void do_poll(std::vector<Completion>& completed) override { finished_.drain(completed); }

  using Memory = std::unordered_map<SlabHandle, HostMemory>;
  [[nodiscard]] HostMemoryRequest request(Tier tier, Bytes size) const;
  [[nodiscard]] Result<HostMemory> make(Tier tier, Bytes size) const;
  Slab keep(Tier tier, HostMemory memory);
  [[nodiscard]] Memory::node_type take(SlabHandle handle);

  const HostConfig config_;
  std::mutex memory_mutex_;  // guards the next two; never held while memory is made or unmapped
  Memory memory_;
  std::uint64_t last_handle_ = 0;
  CompletionBox finished_;
  std::array<CopyQueue, kDirections> queues_;  // last: their threads end before the memory goes
};

}  // namespace kvd::kernels
