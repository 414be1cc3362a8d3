#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>

#include "kernels/device/cuda/context.hpp"
#include "kernels/device/cuda/copy_queue.hpp"
#include "kernels/device/cuda/copy_trial.hpp"
#include "kernels/device/cuda/fence_pages.hpp"
#include "kernels/device/cuda/health.hpp"
#include "kernels/device/cuda/readback.hpp"
#include "kernels/device/cuda/slabs.hpp"
#include "kernels/device/cuda/stream.hpp"
#include "kernels/device/device_backend.hpp"

namespace kvd::kernels::cuda {

/// What the engine needs and does not own; all outlive it.
struct EngineWorld {
  const Driver& driver;
  const Device& device;
  const Capabilities& capabilities;
  const Clock& clock;
  Health& health;
  CompletionBox& finished;
  Bytes granularity;
  CopyChoice copies;
  BurstRule burst;
  Nanoseconds stall_limit;
};

/// The part of CudaBackend that needs a context: the context, the copy queues, the fence pages, the
/// zeros to scrub with, and who reads device memory on the CPU.
/// Owner: as CudaBackend. Precondition of destruction: stop() came true.
class Engine {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Engine>> start(const EngineWorld& world);
  ~Engine();

  [[nodiscard]] const PrimaryContext& context() const { return context_; }
  /// Why copies are made one by one although batches would be better; else empty.
  [[nodiscard]] const std::string& copies_fallback() const { return copies_.fallback; }
  [[nodiscard]] FencePages& pages() { return *pages_; }
  /// Writes zeros over device memory and waits for them. After an error that lost the device they
  /// may still be on their way. The SMs do it, at their rate, as long as nobody has a fence page:
  /// engines' kernels of 50 us took up to 722 us beside it (H200: deploy/gpu-reports, E6).
  [[nodiscard]] Status zero(const HbmSlab& slab);
  /// Copies those bytes from the same places of another slab, and waits for them. After an error
  /// that lost the device they may still be on their way.
  [[nodiscard]] Status copy(const HbmSlab& to, const HbmSlab& from,
                            std::span<const SlabExtent> extents);
  /// As Readback::read().
  [[nodiscard]] Status read(CUdeviceptr from, Bytes length, const Look& look) {
    return readback_->read(from, length, look);
  }
  /// The tier of an extent's destination, and a number that it shares with those before and after
  /// it that have their ends in the same slabs.
  struct Place {
    Tier to = Tier::kHbm;
    std::uint32_t slabs = 0;
  };
  /// Queues the batch. Scrubbing is copying from zeros that stand in the other tier: the memset of
  /// the driver may run on the SMs, in the time of the engines' kernels.
  void submit(CopyBatch batch, const std::vector<Place>& places);
  /// False when copies could not be seen to end: then this object and all slabs must stay for ever.
  [[nodiscard]] bool stop(Nanoseconds limit);

 private:
  Engine(const EngineWorld& world, PrimaryContext context);
  Status open();
  Status try_copies();
  Status zero_by_copies(const HbmSlab& slab);
  /// Waits for what was queued in setup_. Whatever the reason of a failure, it may still be on its
  /// way.
  Status settle(const char* what);

  const EngineWorld world_;
  PrimaryContext context_;
  std::optional<Stream> setup_;
  std::optional<HbmSlab> zero_hbm_;
  std::optional<DramSlab> zero_dram_;
  CopyDecision copies_;
  std::optional<FencePages> pages_;
  std::optional<Readback> readback_;
  std::array<std::unique_ptr<CopyQueue>, kDirections> queues_;
};

}  // namespace kvd::kernels::cuda
