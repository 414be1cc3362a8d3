#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client_lib/src/gpu.hpp"
#include "client_lib/src/gpu_fences.hpp"
#include "kernels/device/cuda/context.hpp"
#include "kernels/device/cuda/device.hpp"
#include "kernels/device/cuda/driver.hpp"
#include "kernels/device/cuda/vmm.hpp"

namespace kvd::client {
namespace {

namespace cuda = kernels::cuda;

CUdeviceptr device_pointer(Bytes offset, CUdeviceptr base) { return base + offset.size(); }

/// Slabs that are allocations of the GPU, side by side. Maps whole handles, as the driver allows
/// nothing else. Destruction waits for what this process has given the GPU to do.
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
    // As cudaFree does: a kernel that still runs here would take the whole context down.
    (void)context_.driver().ctx_synchronize();
    mappings_.clear();
  }

  Status map(Bytes offset, Bytes size, const UniqueFd& slab) override {
    const cuda::ScopedCurrent current(context_);
    KVD_TRY(current.status());
    KVD_ASSIGN_OR_RETURN(const auto memory,
                         cuda::PhysicalMemory::import_fd(context_.driver(), slab.get(), size));
    KVD_ASSIGN_OR_RETURN(auto mapping,
                         cuda::Mapping::map(device_pointer(offset, addresses_.address()), memory));
    mappings_.push_back(std::move(mapping));
    return {};
  }

  Status open() override {
    const cuda::ScopedCurrent current(context_);
    KVD_TRY(current.status());
    return cuda::grant_access(context_.driver(), addresses_.address(), addresses_.size(),
                              context_.device(), cuda::Access::kReadWrite);
  }

  [[nodiscard]] std::byte* data() const override {
    return reinterpret_cast<std::byte*>(addresses_.address());
  }
  [[nodiscard]] Bytes size() const override { return addresses_.size(); }
  [[nodiscard]] int device() const override { return ordinal_; }

 private:
  const std::shared_ptr<const void> gpu_;  ///< keeps the context
  const cuda::PrimaryContext& context_;
  const int ordinal_;
  cuda::AddressRange addresses_;
  std::vector<cuda::Mapping> mappings_;  ///< last: nothing may be mapped when the addresses go
};

class CudaGpu final : public Gpu, public std::enable_shared_from_this<CudaGpu> {
 public:
  CudaGpu(cuda::PrimaryContext context, int ordinal)
      : context_(std::move(context)), ordinal_(ordinal) {}

  Result<std::unique_ptr<SlabRange>> reserve(Bytes size, Bytes alignment) override {
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

  [[nodiscard]] int ordinal() const override { return ordinal_; }

  Result<std::unique_ptr<StreamFences>> fences_in(void* page, Bytes size, Told told) override {
    return GpuFences::make(shared_from_this(), context_, page, size, std::move(told));
  }

 private:
  const cuda::PrimaryContext context_;
  const int ordinal_;
};

}  // namespace

bool Gpu::is_built() { return true; }

Result<std::shared_ptr<Gpu>> Gpu::find(const std::array<std::uint8_t, 16>& uuid) {
  KVD_ASSIGN_OR_RETURN(const cuda::Driver* driver, cuda::Driver::load());
  KVD_ASSIGN_OR_RETURN(const cuda::Device device, cuda::find_device(*driver, {uuid, 0}));
  KVD_ASSIGN_OR_RETURN(auto context, cuda::PrimaryContext::retain(*driver, device));
  return std::shared_ptr<Gpu>(std::make_shared<CudaGpu>(std::move(context), device.ordinal));
}

}  // namespace kvd::client
