#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>

#include "kernels/device/cuda/copies/copy_queue.hpp"
#include "kernels/device/cuda/copies/copy_trial.hpp"
#include "kernels/device/cuda/copies/fence_pages.hpp"
#include "kernels/device/cuda/copies/readback.hpp"
#include "kernels/device/cuda/copies/stream.hpp"
#include "kernels/device/cuda/driver/context.hpp"
#include "kernels/device/cuda/driver/health.hpp"
#include "kernels/device/cuda/memory/slabs.hpp"
#include "kernels/device/device_backend.hpp"

namespace kvd::kernels::cuda {

/// What the engine needs and does not own; all of it outlives the engine.
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

/// The part of CudaBackend that needs a context: the context itself, the copy queues, the fence
/// pages, the zeros to scrub with, and the readers of device memory on the CPU.
/// Owner: as CudaBackend. Precondition of destruction: stop() returned true.
class Engine {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Engine>> start(const EngineWorld& world);
  ~Engine();

  [[nodiscard]] const PrimaryContext& context() const { return context_; }
  /// Why copies are made one by one although batches would be better; otherwise empty.
  [[nodiscard]] const std::string& copies_fallback() const { return copies_.fallback; }
  [[nodiscard]] FencePages& pages() { return *pages_; }
  /// Writes zeros over device memory and waits for them. After an error that lost the device they
  /// may still be on their way. While no fence page is adopted the SMs write them, at their own
  /// rate. Otherwise the copy engine does, because engines' kernels of 50 us took up to 722 us
  /// beside writes by the SMs (H200: deploy/gpu-reports, E6).
  [[nodiscard]] Status zero(const HbmSlab& slab);
  /// Copies these bytes from the same places of another slab, and waits for them. After an error
  /// that lost the device they may still be on their way.
  [[nodiscard]] Status copy(const HbmSlab& to, const HbmSlab& from,
                            std::span<const SlabExtent> extents);
  /// As Readback::read().
  [[nodiscard]] Status read(CUdeviceptr from, Bytes length, const Look& look) {
    return readback_->read(from, length, look);
  }
  /// The tier of an extent's destination, and a number. Neighbouring extents with one number have
  /// their ends in the same slabs.
  struct Place {
    Tier to = Tier::kHbm;
    std::uint32_t slabs = 0;
  };
  /// Queues the batch. Scrubbing copies zeros that stand in the other tier, because the driver's
  /// memset may run on the SMs, in the time of the engines' kernels.
  void submit(CopyBatch batch, const std::vector<Place>& places);
  /// False when copies did not visibly end: then this object and all slabs must stay for ever.
  [[nodiscard]] bool stop(Nanoseconds limit);

 private:
  Engine(const EngineWorld& world, PrimaryContext context);
  Status open();
  Status try_copies();
  Status zero_by_copies(const HbmSlab& slab);
  /// Waits for what was queued in setup_. If this fails, whatever the reason, that work may still
  /// be on its way.
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
