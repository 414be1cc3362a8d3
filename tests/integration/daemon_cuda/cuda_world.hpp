#pragma once

#include <cuda.h>

#include <optional>
#include <string>
#include <vector>

#include "kernels/device/cuda/context.hpp"
#include "kernels/device/cuda/device.hpp"
#include "kvd_client/client.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/patience.hpp"

namespace kvd::test {

namespace cuda = kernels::cuda;

/// What a process needs to find the fake driver, and FAKECUDA_… variables besides.
std::vector<std::string> fake_driver(std::vector<std::string> more = {});

/// A kvd on the fake driver: 16 MiB of HBM in slabs of 2 MiB.
KvdSettings cuda_settings(std::vector<std::string> fake = {});

/// A kvd-pattern on the fake driver.
ChildCommand pattern_on_gpu(const KvdProcess& kvd, const std::string& name,
                            const std::vector<std::string>& more = {},
                            std::vector<std::string> fake = {});

/// Attaches from this process for CUDA memory; a shape of 4 layers when asked for.
kvd_client::Result<kvd_client::Client> open_for_cuda(const KvdProcess& kvd,
                                                     bool with_shape = false);

/// The fake GPU as this process uses it, as an engine would.
/// Owner: one thread.
class TestGpu {
 public:
  TestGpu();
  ~TestGpu();
  TestGpu(const TestGpu&) = delete;
  TestGpu& operator=(const TestGpu&) = delete;

  [[nodiscard]] const cuda::Uuid& uuid() const { return uuid_; }
  [[nodiscard]] void* stream() const { return stream_; }
  [[nodiscard]] bool stream_is_idle() const;
  void write(const void* device, const std::vector<std::byte>& bytes);
  [[nodiscard]] std::vector<std::byte> read(const void* device, std::size_t bytes);

 private:
  std::optional<cuda::PrimaryContext> context_;
  cuda::Uuid uuid_{};
  CUstream stream_ = nullptr;
};

}  // namespace kvd::test
