#pragma once

#include <cuda.h>

#include <optional>
#include <string>
#include <vector>

#include "kernels/device/cuda/driver/context.hpp"
#include "kernels/device/cuda/driver/device.hpp"
#include "kernels/device/cuda/memory/host_registration.hpp"
#include "kvd_client/client.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/patience.hpp"

namespace kvd::test {

namespace cuda = kernels::cuda;

/// Whether KVDTEST_REAL asks for the machine's own driver.
bool on_real_driver();
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
  /// Puts a wait for something of the test's own into the stream.
  void wait_for(const class HostWord& word, std::uint64_t value) const;
  /// Captures the stream, as PyTorch does; end_capture() is false where the capture has failed.
  void begin_capture() const;
  [[nodiscard]] bool end_capture() const;
  /// An allocation's descriptor, as a daemon would send it.
  [[nodiscard]] UniqueFd make_memory(Bytes size) const;
  [[nodiscard]] const cuda::PrimaryContext& context() const { return *context_; }
  void write(const void* device, const std::vector<std::byte>& bytes);
  [[nodiscard]] std::vector<std::byte> read(const void* device, std::size_t bytes);

 private:
  std::optional<cuda::PrimaryContext> context_;
  cuda::Uuid uuid_{};
  CUstream stream_ = nullptr;
};

/// A word of the test's own that streams can wait for.
class HostWord {
 public:
  explicit HostWord(const TestGpu& gpu);
  ~HostWord();
  HostWord(const HostWord&) = delete;
  HostWord& operator=(const HostWord&) = delete;
  void set(std::uint64_t value);
  [[nodiscard]] CUdeviceptr address() const { return registration_->device_address(); }

 private:
  const TestGpu& gpu_;
  void* page_;
  std::optional<cuda::HostRegistration> registration_;
};

}  // namespace kvd::test
