#include <utility>
#include <variant>
#include <vector>

#include "client_lib/examples/block_access.hpp"
#include "kernels/device/cuda/driver/context.hpp"
#include "kernels/device/cuda/driver/device.hpp"
#include "kernels/device/cuda/driver/driver.hpp"
#include "kernels/device/cuda/driver/error.hpp"

namespace kvd_pattern {
namespace {

namespace cuda = kvd::kernels::cuda;
using kvd_client::Result;
using kvd_client::Status;

kvd_client::Error public_error(const kvd::Error& error) {
  return {static_cast<kvd_client::ErrorCode>(error.code), error.message};
}

/// Copies between blocks and a buffer, in a stream of its own.
class GpuAccess final : public BlockAccess {
 public:
  GpuAccess(cuda::PrimaryContext context, CUstream stream)
      : context_(std::move(context)), stream_(stream) {}
  ~GpuAccess() override {
    const cuda::ScopedCurrent current(context_);
    (void)driver().stream_destroy(stream_);
  }

  Result<std::byte*> open(std::byte* address, std::size_t bytes, Purpose purpose) override {
    buffer_.resize(bytes);
    if (purpose == Purpose::kWrite) return buffer_.data();
    const Status copied = run(
        [&] { return driver().memcpy_dtoh_async(buffer_.data(), at(address), bytes, stream_); });
    if (!copied.ok()) return copied.error();
    return buffer_.data();
  }

  Status close(std::byte* address, std::size_t bytes) override {
    return run(
        [&] { return driver().memcpy_htod_async(at(address), buffer_.data(), bytes, stream_); });
  }

  [[nodiscard]] void* stream() const override { return stream_; }

 private:
  [[nodiscard]] const cuda::Driver& driver() const { return context_.driver(); }
  static CUdeviceptr at(std::byte* address) { return reinterpret_cast<CUdeviceptr>(address); }

  template <class Copy>
  Status run(Copy copy) {
    const cuda::ScopedCurrent current(context_);
    if (!current.status().ok()) return public_error(current.status().error());
    for (const CUresult result : {copy(), driver().stream_synchronize(stream_)}) {
      const kvd::Status status = cuda::check(driver(), result, "copying a block");
      if (!status.ok()) return public_error(status.error());
    }
    return std::monostate();
  }

  const cuda::PrimaryContext context_;
  const CUstream stream_;
  std::vector<std::byte> buffer_;
};

kvd::Result<std::unique_ptr<BlockAccess>> make_access(const kvd_client::SessionInfo& session) {
  KVD_ASSIGN_OR_RETURN(const cuda::Driver* driver, cuda::Driver::load());
  KVD_ASSIGN_OR_RETURN(const cuda::Device device,
                       cuda::find_device(*driver, {session.device_uuid, 0}));
  KVD_ASSIGN_OR_RETURN(auto context, cuda::PrimaryContext::retain(*driver, device));
  const cuda::ScopedCurrent current(context);
  CUstream stream = nullptr;
  KVD_TRY(cuda::check(*driver,
                      driver->stream_create_with_priority(&stream, CU_STREAM_NON_BLOCKING, 0),
                      "cuStreamCreateWithPriority"));
  return std::unique_ptr<BlockAccess>(std::make_unique<GpuAccess>(std::move(context), stream));
}

}  // namespace

std::uint32_t usable_memory() { return kvd_client::kHostMemory | kvd_client::kCudaMemory; }

Result<std::unique_ptr<BlockAccess>> gpu_access(const kvd_client::SessionInfo& session) {
  auto access = make_access(session);
  if (!access.ok()) return public_error(access.error());
  return std::move(access).value();
}

}  // namespace kvd_pattern
