#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "client_lib/src/gpu.hpp"
#include "kernels/device/cuda/context.hpp"
#include "kernels/device/cuda/device.hpp"
#include "kernels/device/cuda/driver.hpp"
#include "kernels/device/cuda/error.hpp"
#include "kernels/device/cuda/host_registration.hpp"
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

/// An event without timing, which is the cheapest kind.
class Event {
 public:
  static Result<Event> make(const cuda::Driver& driver) {
    Event event(driver);
    KVD_TRY(cuda::check(driver, driver.event_create(&event.event_, CU_EVENT_DISABLE_TIMING),
                        "cuEventCreate"));
    return event;
  }
  Event(Event&& other) noexcept
      : driver_(other.driver_), event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  ~Event() {
    if (event_ != nullptr) (void)driver_.event_destroy(event_);
  }

  Status record(CUstream stream) {
    return cuda::check(driver_, driver_.event_record(event_, stream), "cuEventRecord");
  }
  [[nodiscard]] bool passed() const { return driver_.event_query(event_) != CUDA_ERROR_NOT_READY; }

 private:
  explicit Event(const cuda::Driver& driver) : driver_(driver) {}
  const cuda::Driver& driver_;
  CUevent event_ = nullptr;
};

class GpuFences final : public StreamFences {
 public:
  GpuFences(std::shared_ptr<const void> gpu, const cuda::PrimaryContext& context,
            cuda::HostRegistration page)
      : gpu_(std::move(gpu)),
        context_(context),
        page_(std::make_unique<cuda::HostRegistration>(std::move(page))) {}

  ~GpuFences() override {
    const cuda::ScopedCurrent current(context_);
    // A stream that has work of hours before its wait keeps the page: the driver has it pinned.
    if (!wait_for_streams()) (void)page_.release();
    last_waits_.clear();
    page_.reset();
  }

  Status wait(void* stream, const std::atomic<std::uint64_t>& word, std::uint64_t value) override {
    const cuda::Driver& driver = context_.driver();
    if (driver.stream_wait_value64 == nullptr) {
      return make_error(ErrorCode::kUnsupported,
                        "this driver's streams cannot wait on memory: wait on the CPU (kvd_wait)");
    }
    const std::lock_guard lock(mutex_);
    const cuda::ScopedCurrent current(context_);
    KVD_TRY(current.status());
    const auto queue = static_cast<CUstream>(stream);
    KVD_ASSIGN_OR_RETURN(Event * after, event_of(queue));
    const std::uintptr_t offset = reinterpret_cast<std::uintptr_t>(&word) - page_->address();
    KVD_TRY(cuda::check(driver,
                        driver.stream_wait_value64(queue, page_->device_address() + offset, value,
                                                   CU_STREAM_WAIT_VALUE_GEQ),
                        "cuStreamWaitValue64"));
    return after->record(queue);
  }

 private:
  static constexpr std::chrono::seconds kLongestWait{1};
  static constexpr std::chrono::microseconds kLookAgain{200};

  /// The event behind the last wait in the stream.
  Result<Event*> event_of(CUstream stream) {
    const auto known = last_waits_.find(stream);
    if (known != last_waits_.end()) return &known->second;
    KVD_ASSIGN_OR_RETURN(auto event, Event::make(context_.driver()));
    return &last_waits_.emplace(stream, std::move(event)).first->second;
  }

  bool wait_for_streams() const {
    const auto until = std::chrono::steady_clock::now() + kLongestWait;
    for (const auto& [stream, event] : last_waits_) {
      while (!event.passed()) {
        if (std::chrono::steady_clock::now() > until) return false;
        std::this_thread::sleep_for(kLookAgain);
      }
    }
    return true;
  }

  const std::shared_ptr<const void> gpu_;  ///< keeps the context
  const cuda::PrimaryContext& context_;
  std::mutex mutex_;
  std::unique_ptr<cuda::HostRegistration> page_;
  std::unordered_map<CUstream, Event> last_waits_;
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

  Result<std::unique_ptr<StreamFences>> fences_in(void* page, Bytes size) override {
    const cuda::ScopedCurrent current(context_);
    KVD_TRY(current.status());
    KVD_ASSIGN_OR_RETURN(auto registration,
                         cuda::HostRegistration::make(
                             context_.driver(), reinterpret_cast<std::uintptr_t>(page), size));
    return std::unique_ptr<StreamFences>(
        std::make_unique<GpuFences>(shared_from_this(), context_, std::move(registration)));
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
