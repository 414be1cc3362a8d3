#pragma once

#include <cuda.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "kernels/device/cuda/copies/stream.hpp"
#include "kernels/device/cuda/driver/context.hpp"
#include "kernels/device/cuda/driver/device.hpp"
#include "kernels/device/cuda/memory/host_registration.hpp"
#include "kernels/device/cuda/memory/vmm.hpp"
#include "kernels/device/host/host_memory.hpp"

namespace kvd::gpu {

namespace cuda = kernels::cuda;

/// Seconds since an arbitrary origin.
[[nodiscard]] double now_s();
/// The value below which `share` of the samples lie. Precondition: not empty.
[[nodiscard]] double percentile(std::vector<double> samples, double share);
/// What to execute to start this program once more: KVDTEST_SELF, which the launchers of a bundle
/// set (there /proc/self/exe is the loader), or /proc/self/exe.
[[nodiscard]] const char* self_program();
/// Whether the libcuda.so.1 that this process finds is the tests' own. Starts nothing.
[[nodiscard]] bool driver_is_fake();

/// The first device, its primary context (current on the thread that opened it), one stream and the
/// experiments' kernels.
/// Owner: one thread; outlives what is made with it.
class Gpu {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Gpu>> open();

  [[nodiscard]] const cuda::Driver& driver() const { return *driver_; }
  [[nodiscard]] const cuda::Device& device() const { return device_; }
  [[nodiscard]] const cuda::PrimaryContext& context() const { return *context_; }
  [[nodiscard]] const cuda::Stream& stream() const { return *stream_; }
  [[nodiscard]] Bytes grain() const { return grain_; }
  [[nodiscard]] Result<Bytes> free_memory() const;

  enum class Kernel : std::uint8_t { kFill, kCheck, kCount, kRewrite, kRead };
  /// Queues a kernel over `bytes` from `at`; with `blocks` zero as many as the device takes.
  /// `found`: where kCheck and kCount add, zero: a word of this object's.
  Status launch(Kernel kernel, CUstream stream, CUdeviceptr at, Bytes bytes, std::uint64_t argument,
                unsigned blocks = 0) const;
  /// Runs kCheck or kCount on stream() and returns what it found.
  [[nodiscard]] Result<std::uint64_t> count(Kernel kernel, CUdeviceptr at, Bytes bytes,
                                            std::uint64_t argument) const;
  /// The kernels, as often as this is called; they stay loaded.
  [[nodiscard]] Result<CUmodule> load_module() const;
  /// Waits by looking all the time, 30 s at most.
  [[nodiscard]] Status finish(CUstream stream) const;
  [[nodiscard]] Status finish() const { return finish(stream_->get()); }
  [[nodiscard]] Status check(CUresult result, const char* what) const;

 private:
  Gpu() = default;
  Status load_kernels();

  const cuda::Driver* driver_ = nullptr;
  cuda::Device device_;
  Bytes grain_;
  std::optional<cuda::PrimaryContext> context_;
  std::optional<cuda::Stream> stream_;
  CUfunction kernels_[5] = {};
  unsigned blocks_ = 1;
  struct Found;
  std::shared_ptr<Found> found_;  // device memory that kernels count in
};

/// A VMM allocation, mapped here: made, or imported from a descriptor.
class GpuSlab {
 public:
  [[nodiscard]] static Result<GpuSlab> make(const Gpu& gpu, Bytes size);
  [[nodiscard]] static Result<GpuSlab> import(const Gpu& gpu, int fd, Bytes size,
                                              cuda::Access access);

  [[nodiscard]] CUdeviceptr address() const { return mapping_.address(); }
  [[nodiscard]] Bytes size() const { return memory_.size(); }
  [[nodiscard]] const cuda::PhysicalMemory& memory() const { return memory_; }

 private:
  GpuSlab(cuda::PhysicalMemory memory, cuda::AddressRange range, cuda::Mapping mapping)
      : memory_(std::move(memory)), range_(std::move(range)), mapping_(std::move(mapping)) {}
  static Result<GpuSlab> map(const Gpu& gpu, cuda::PhysicalMemory memory, cuda::Access access);

  cuda::PhysicalMemory memory_;
  cuda::AddressRange range_;
  cuda::Mapping mapping_;
};

/// Shared host memory, present and registered with the driver. A multiple of 4096 bytes.
class PinnedMemory {
 public:
  [[nodiscard]] static Result<PinnedMemory> make(const Gpu& gpu, Bytes size);
  [[nodiscard]] static Result<PinnedMemory> adopt(const Gpu& gpu, int fd, Bytes size);
  PinnedMemory(PinnedMemory&&) noexcept = default;

  [[nodiscard]] void* data() const { return data_.get(); }
  [[nodiscard]] std::uint64_t* words() const { return static_cast<std::uint64_t*>(data_.get()); }
  [[nodiscard]] CUdeviceptr device_address() const { return registration_->device_address(); }
  /// For copies, which take either address.
  [[nodiscard]] CUdeviceptr address() const { return registration_->address(); }
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] Bytes size() const { return registration_->size(); }

 private:
  PinnedMemory() = default;
  UniqueFd fd_;
  struct Unmap {
    Unmap() : bytes(0) {}
    explicit Unmap(std::size_t size) : bytes(size) {}
    void operator()(void* at) const;
    std::size_t bytes;
  };
  std::unique_ptr<void, Unmap> data_;
  std::optional<cuda::HostRegistration> registration_;
};

/// A word that CPU and GPU both touch.
inline void store(std::uint64_t* word, std::uint64_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}
inline std::uint64_t load(const std::uint64_t* word) {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

}  // namespace kvd::gpu
