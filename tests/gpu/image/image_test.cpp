#include "tests/gpu/image/image.hpp"

#include <gtest/gtest.h>

#include "tests/gpu/lab.hpp"
#include "tests/unit/kernels/device/cuda/fake_driver.hpp"

namespace kvd::gpu {
namespace {

/// Drivers and GPUs that the fatbin was not made for take the PTX, and those before sm_80 nothing.
TEST(GpuImage, IsTakenByOldDriversAndByGpusThatNobodyKnewYet) {
  if (!driver_is_fake()) GTEST_SKIP() << "a real driver has one version";
  const auto open_on = [](const char* driver_version, const char* capability) {
    const kernels::cuda::FakeDriver world(std::string("FAKECUDA_DRIVER_VERSION=") + driver_version +
                                          " FAKECUDA_COMPUTE_CAPABILITY=" + capability);
    const auto opened = Gpu::open();
    return opened.ok() ? std::string() : opened.error().to_string();
  };
  EXPECT_EQ(open_on("13000", "90"), "");
  EXPECT_EQ(open_on("12080", "120"), "");
  EXPECT_EQ(open_on("12000", "80"), "");
  EXPECT_NE(open_on("12000", "75").find("update the NVIDIA driver"), std::string::npos);
}

}  // namespace
}  // namespace kvd::gpu
