#include "tests/unit/fakecuda/fake_world.hpp"

namespace kvd::tests {
namespace {

using CopyTest = FakeCuda;

TEST_F(CopyTest, BytesGoInAndComeBack) {
  const auto device = device_memory();
  const HostMemory in(kGranule, std::byte{7}), out(kGranule);
  pin(in), pin(out);
  ASSERT_OK(::cuMemcpyHtoDAsync(device.at, in.data(), kGranule, stream_));
  read(device.at, out);
  EXPECT_TRUE(out.all(std::byte{7}));
  EXPECT_EQ(::fakecuda_violations(nullptr), 0u) << report();
}

}  // namespace
}  // namespace kvd::tests
