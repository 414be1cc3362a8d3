/// A slab of the GPU's memory that changes domain: the new one is not what an engine of the old
/// domain goes on mapping. On the fake driver.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "kernels/device/cuda/copies/stream.hpp"
#include "kernels/device/cuda/cuda_backend.hpp"
#include "kernels/device/cuda/driver/context.hpp"
#include "kernels/device/cuda/memory/vmm.hpp"
#include "kvd/daemon/memory/slab_renewer.hpp"
#include "tests/contract/device/device_fixture.hpp"
#include "tests/support/patience.hpp"
#include "tests/unit/kernels/device/cuda/fake_driver.hpp"

namespace kvd::daemon {
namespace {

namespace cuda = kernels::cuda;

constexpr Bytes kGrain = 2 * kMiB;  // the fake driver's

/// An engine that was given a slab's descriptor, and keeps what it maps.
class GpuPeer {
 public:
  explicit GpuPeer(int fd)
      : driver_(*cuda::Driver::load().value()),
        context_(
            cuda::PrimaryContext::retain(driver_, cuda::find_device(driver_, {}).value()).value()),
        current_(context_),
        stream_(cuda::Stream::create(driver_).value()),
        memory_(cuda::PhysicalMemory::import_fd(driver_, fd, kGrain).value()),
        range_(cuda::AddressRange::reserve(driver_, kGrain).value()),
        mapping_(cuda::Mapping::map(range_.address(), memory_).value()) {
    EXPECT_TRUE(cuda::grant_access(driver_, mapping_.address(), kGrain, context_.device(),
                                   cuda::Access::kReadWrite)
                    .ok());
  }

  void fill(unsigned char value) {
    EXPECT_EQ(driver_.memset_d8_async(mapping_.address(), value, kGrain.size(), stream_.get()),
              CUDA_SUCCESS);
    EXPECT_EQ(stream_.drain(test::kPatience), CUDA_SUCCESS);
  }
  unsigned char first_byte() {
    std::array<unsigned char, 1> byte{};
    EXPECT_EQ(driver_.memcpy_dtoh_async(byte.data(), mapping_.address(), 1, stream_.get()),
              CUDA_SUCCESS);
    EXPECT_EQ(stream_.drain(test::kPatience), CUDA_SUCCESS);
    return byte[0];
  }

 private:
  const cuda::Driver& driver_;
  const cuda::PrimaryContext context_;
  const cuda::ScopedCurrent current_;
  const cuda::Stream stream_;
  const cuda::PhysicalMemory memory_;
  const cuda::AddressRange range_;
  const cuda::Mapping mapping_;
};

/// One slab in HBM that a peer maps, and one in DRAM through which the test looks into it.
class CudaSlabRenewerTest : public testing::Test {
 protected:
  explicit CudaSlabRenewerTest(const std::string& environment = "") : fake_(environment) {
    kernels::CudaConfig config;
    backend_ = kernels::CudaBackend::create(config, clock_).value();
    window_ = backend_->create_slab(Tier::kDram, kGrain).value();
    old_ = backend_->create_slab(Tier::kHbm, kGrain).value();
    peer_.emplace(backend_->export_slab(old_.handle).value().get());
    peer_->fill(1);
  }

  /// Starts the renewal; the slab comes by made_.
  void renew() {
    SlabRenewer::Answers answers;
    answers.renewed = [this](const SlabRenewer::Job&, const kernels::Slab& slab) {
      made_.set_value(slab);
    };
    answers.failed = [this](const SlabRenewer::Job&, const Error&) {
      if (++failures_ == 1) failed_.set_value();
    };
    sut_.emplace(std::move(answers), std::chrono::milliseconds(1));
    sut_->renew({backend_.get(), SlabIndex(3), old_.handle, Tier::kHbm, kGrain});
  }
  kernels::Slab renewed() {
    auto slab = made_.get_future();
    EXPECT_EQ(slab.wait_for(test::kPatience), std::future_status::ready);
    return slab.get();
  }
  [[nodiscard]] bool is_zero(const kernels::Slab& slab) {
    EXPECT_TRUE(backend_
                    ->submit(kernels::batch_of(++ticket_, kernels::Direction::kDeviceToHost,
                                               {{slab.address, window_.address, kGrain}}))
                    .ok());
    (void)kernels::wait_for(*backend_, 1);
    return kernels::all_zero(kernels::bytes_of(window_));
  }

  const cuda::FakeDriver fake_;
  SteadyClock clock_;
  std::unique_ptr<kernels::CudaBackend> backend_;
  kernels::Slab window_, old_;
  std::optional<GpuPeer> peer_;
  std::promise<kernels::Slab> made_;
  std::promise<void> failed_;
  std::atomic<int> failures_ = 0;
  std::uint64_t ticket_ = 0;
  std::optional<SlabRenewer> sut_;
};

TEST_F(CudaSlabRenewerTest, TheNewMemoryIsNotWhatThePeerMaps) {
  renew();
  const kernels::Slab slab = renewed();
  EXPECT_EQ(slab.size, kGrain);
  EXPECT_TRUE(is_zero(slab));
  peer_->fill(7);
  EXPECT_TRUE(is_zero(slab)) << "the peer wrote into it";
  EXPECT_EQ(backend_->counters().live[0], kGrain);
  EXPECT_EQ(failures_, 0);
}

/// The device holds the backend's own zeros and one slab.
class CudaWithoutMemory : public CudaSlabRenewerTest {
 protected:
  CudaWithoutMemory()
      : CudaSlabRenewerTest("FAKECUDA_HBM_BYTES=" + std::to_string(2 * kGrain.value)) {}
};

// Memory that the driver made returns to the device with its last mapping, in whatever process.
TEST_F(CudaWithoutMemory, ItWaitsForWhatThePeerKeepsAndTellsOnce) {
  renew();
  ASSERT_EQ(failed_.get_future().wait_for(test::kPatience), std::future_status::ready);
  EXPECT_EQ(peer_->first_byte(), 1) << "the peer has the old memory, and nobody else has it";
  peer_.reset();
  EXPECT_TRUE(is_zero(renewed()));
  EXPECT_EQ(failures_, 1);
}

}  // namespace
}  // namespace kvd::daemon
