#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "client_lib/src/memory/driver_wait.hpp"
#include "client_lib/src/memory/gpu.hpp"
#include "client_lib/src/memory/gpu_fences.hpp"
#include "ipc/vocabulary/keep.hpp"
#include "kernels/device/cuda/copies/stream.hpp"
#include "kernels/device/cuda/driver/context.hpp"
#include "kernels/device/cuda/driver/device.hpp"
#include "kernels/device/cuda/driver/driver.hpp"
#include "kernels/device/cuda/driver/error.hpp"
#include "kernels/device/cuda/memory/vmm.hpp"

namespace kvd::client {
namespace {

namespace cuda = kernels::cuda;

constexpr Nanoseconds kZeroing = std::chrono::seconds(10);

CUdeviceptr device_pointer(Bytes offset, CUdeviceptr base) { return base + offset.size(); }

/// What the driver answers to a wait for the device: all work has ended, unless somebody captures a
/// graph.
Status idle_after(const cuda::Driver& driver, CUresult result) {
  if (!cuda::is_about_capture(result)) return {};  // nothing runs in a dead context
  return make_error(ErrorCode::kWouldBlock,
                    cuda::error_of(driver, result, "waiting for the GPU").message +
                        ": a graph was being captured, and its capture has failed by this: keep "
                        "kvd_hold_mappings around captures");
}

/// Memory of this process, of zeros: what an attention kernel reads by mistake is no NaN.
Result<cuda::PhysicalMemory> make_own(const cuda::PrimaryContext& context, Bytes size) {
  const cuda::Driver& driver = context.driver();
  struct Mapped {
    cuda::PhysicalMemory memory;
    cuda::AddressRange range;
    cuda::Mapping mapping;
    cuda::Stream stream;
  };
  KVD_ASSIGN_OR_RETURN(auto memory, cuda::PhysicalMemory::create(driver, context.device(), size));
  KVD_ASSIGN_OR_RETURN(auto range, cuda::AddressRange::reserve(driver, size));
  KVD_ASSIGN_OR_RETURN(auto mapping, cuda::Mapping::map(range.address(), memory));
  KVD_TRY(cuda::grant_access(driver, range.address(), size, context.device(),
                             cuda::Access::kReadWrite));
  KVD_ASSIGN_OR_RETURN(auto stream, cuda::Stream::create(driver));
  auto mapped = std::make_unique<Mapped>(
      Mapped{std::move(memory), std::move(range), std::move(mapping), std::move(stream)});
  CUresult done =
      driver.memset_d8_async(mapped->range.address(), 0, size.size(), mapped->stream.get());
  if (done == CUDA_SUCCESS) done = mapped->stream.drain(kZeroing);
  if (done == CUDA_SUCCESS) return std::move(mapped->memory);
  keep_for_ever(std::move(mapped));  // it may still be written
  return cuda::error_of(driver, done, "zeroing a slab");
}

/// Slabs that are allocations of the GPU, side by side. Maps whole handles, as the driver allows
/// nothing else.
class GpuRange final : public SlabRange {
 public:
  GpuRange(std::shared_ptr<const void> gpu, const cuda::PrimaryContext& context, int ordinal,
           cuda::AddressRange addresses)
      : gpu_(std::move(gpu)),
        context_(context),
        ordinal_(ordinal),
        addresses_(std::move(addresses)) {}

  ~GpuRange() override {
    const cuda::ScopedCurrent current(context_);
    slabs_.clear();
    addresses_.reset();
  }

  Status map(Bytes offset, Bytes size, const UniqueFd& slab) override {
    const cuda::ScopedCurrent current(context_);
    KVD_TRY(current.status());
    KVD_ASSIGN_OR_RETURN(auto memory,
                         cuda::PhysicalMemory::import_fd(context_.driver(), slab.get(), size));
    return map_memory(offset, std::make_shared<const cuda::PhysicalMemory>(std::move(memory)));
  }

  Status open() override {
    const cuda::ScopedCurrent current(context_);
    KVD_TRY(current.status());
    return cuda::grant_access(context_.driver(), addresses_->address(), addresses_->size(),
                              context_.device(), cuda::Access::kReadWrite);
  }

  // vLLM warms up on blocks that it has not been granted, and leaves their numbers in its tables.
  Status back_gaps(Bytes slab) override {
    const cuda::ScopedCurrent current(context_);
    KVD_TRY(current.status());
    auto made = make_own(context_, slab);
    if (!made.ok()) {
      return make_error(made.error().code,
                        "a slab to stand where a region has no memory: " + made.error().message +
                            "; leave the engine one more (pool.slab)");
    }
    scratch_ = std::make_shared<const cuda::PhysicalMemory>(std::move(*made));
    for (Bytes offset; offset < size(); offset += slab) KVD_TRY(map_memory(offset, scratch_));
    return open();
  }

  Status map_from(Bytes offset, Bytes size, const SlabRange& from, Bytes from_offset) override {
    const auto* other = dynamic_cast<const GpuRange*>(&from);
    const auto slab = other != nullptr ? other->slabs_.find(from_offset) : slabs_.end();
    if (other == nullptr || slab == other->slabs_.end() || slab->second.memory->size() != size) {
      return make_error(ErrorCode::kInvalidArgument, "no slab of this GPU stands there");
    }
    const cuda::ScopedCurrent current(context_);
    KVD_TRY(current.status());
    return replace(offset, slab->second.memory);
  }

  Status map_own(Bytes offset, Bytes size) override {
    const cuda::ScopedCurrent current(context_);
    KVD_TRY(current.status());
    KVD_ASSIGN_OR_RETURN(auto made, make_own(context_, size));
    return replace(offset, std::make_shared<const cuda::PhysicalMemory>(std::move(made)));
  }

  Status unmap(Bytes offset, Bytes) override {
    const cuda::ScopedCurrent current(context_);
    KVD_TRY(current.status());
    if (scratch_) return replace(offset, scratch_);
    slabs_.erase(offset);
    return {};
  }

  [[nodiscard]] std::byte* data() const override {
    return reinterpret_cast<std::byte*>(addresses_->address());
  }
  [[nodiscard]] Bytes size() const override { return addresses_->size(); }
  [[nodiscard]] int device() const override { return ordinal_; }

 private:
  // The driver maps nothing over an existing mapping, so for some 30 us nothing is mapped there.
  Status replace(Bytes offset, std::shared_ptr<const cuda::PhysicalMemory> memory) {
    slabs_.erase(offset);
    const Bytes size = memory->size();
    KVD_TRY(map_memory(offset, std::move(memory)));
    Status granted =
        cuda::grant_access(context_.driver(), device_pointer(offset, addresses_->address()), size,
                           context_.device(), cuda::Access::kReadWrite);
    if (!granted.ok()) slabs_.erase(offset);
    return granted;
  }

  Status map_memory(Bytes offset, std::shared_ptr<const cuda::PhysicalMemory> memory) {
    KVD_ASSIGN_OR_RETURN(
        auto mapping, cuda::Mapping::map(device_pointer(offset, addresses_->address()), *memory));
    slabs_.emplace(offset, MappedSlab{std::move(memory), std::move(mapping)});
    return {};
  }

  const std::shared_ptr<const void> gpu_;  ///< keeps the context
  const cuda::PrimaryContext& context_;
  const int ordinal_;
  std::optional<cuda::AddressRange> addresses_;
  /// The handle is kept for map_from(), as a mapping does not say what memory it maps.
  struct MappedSlab {
    std::shared_ptr<const cuda::PhysicalMemory> memory;
    cuda::Mapping mapping;
  };
  std::shared_ptr<const cuda::PhysicalMemory> scratch_;  ///< see back_gaps()
  std::map<Bytes, MappedSlab> slabs_;  ///< last: nothing may be mapped when the addresses go
};

class CudaGpu final : public Gpu, public std::enable_shared_from_this<CudaGpu> {
 public:
  CudaGpu(cuda::PrimaryContext context, int ordinal, bool streams_can_wait)
      : context_(std::move(context)), ordinal_(ordinal), streams_can_wait_(streams_can_wait) {}

  Result<std::unique_ptr<SlabRange>> reserve(Bytes size, Bytes alignment) override {
    const cuda::ScopedCurrent current(context_);
    KVD_ASSIGN_OR_RETURN(const Bytes grain,
                         cuda::granularity(context_.driver(), context_.device()));
    if (size.value % grain.value != 0) {
      return make_error(ErrorCode::kInvalidArgument,
                        "the daemon's slabs of " + std::to_string(size.value) +
                            " bytes are no multiple of this GPU's " + std::to_string(grain.value));
    }
    // The driver takes powers of two; region addresses need no more than the granularity.
    const bool is_power_of_two = (alignment.value & (alignment.value - 1)) == 0;
    KVD_ASSIGN_OR_RETURN(
        auto addresses,
        cuda::AddressRange::reserve(context_.driver(), size, is_power_of_two ? alignment : grain));
    return std::unique_ptr<SlabRange>(
        std::make_unique<GpuRange>(shared_from_this(), context_, ordinal_, std::move(addresses)));
  }

  Status quiesce(Nanoseconds limit) override {
    const auto result = std::make_shared<CUresult>(CUDA_SUCCESS);
    const bool ended = ended_within(limit, [result, gpu = shared_from_this()] {
      const cuda::ScopedCurrent current(gpu->context_);
      *result = gpu->context_.driver().ctx_synchronize();
    });
    if (ended) return idle_after(context_.driver(), *result);
    return make_error(ErrorCode::kDeadlineExceeded,
                      "the GPU still works on what this process has given it: allow more time");
  }

  [[nodiscard]] int ordinal() const override { return ordinal_; }

  Result<std::unique_ptr<StreamFences>> fences_in(void* page, Bytes size, Told told) override {
    if (!streams_can_wait_) {
      return make_error(ErrorCode::kUnsupported,
                        "this GPU's streams do not wait on memory (attribute 122 is 0)");
    }
    return GpuFences::make(shared_from_this(), context_, page, size, std::move(told));
  }

 private:
  const cuda::PrimaryContext context_;
  const int ordinal_;
  const bool streams_can_wait_;
};

}  // namespace

bool Gpu::is_built() { return true; }

bool Gpu::is_captured(void* stream) {
  const auto driver = cuda::Driver::load();
  if (!driver.ok()) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = (*driver)->stream_is_capturing(static_cast<CUstream>(stream), &status);
  return cuda::is_about_capture(result) || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

Result<std::shared_ptr<Gpu>> Gpu::find(const std::array<std::uint8_t, 16>& uuid) {
  KVD_ASSIGN_OR_RETURN(const cuda::Driver* driver, cuda::Driver::load());
  KVD_ASSIGN_OR_RETURN(const cuda::Device device, cuda::find_device(*driver, {uuid, 0}));
  KVD_ASSIGN_OR_RETURN(const auto able, cuda::check_capabilities(*driver, device));
  KVD_ASSIGN_OR_RETURN(auto context, cuda::PrimaryContext::retain(*driver, device));
  return std::shared_ptr<Gpu>(
      std::make_shared<CudaGpu>(std::move(context), device.ordinal, able.stream_memory_operations));
}

}  // namespace kvd::client
