#include "kernels/copy/host_copy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace kvd::kernels {
namespace {

constexpr std::byte kCanary{0xC5};
constexpr std::size_t kMargin = 128;

std::vector<std::byte> pattern(std::size_t n) {
  std::vector<std::byte> bytes(n);
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i * 131 + i / 251);
  return bytes;
}

// Copies `n` bytes between the given offsets and expects exactly those bytes to have changed.
template <class Copy>
void expect_exact(Copy copy, std::size_t n, std::size_t to_offset, std::size_t from_offset) {
  SCOPED_TRACE(::testing::Message() << n << " bytes, +" << from_offset << " to +" << to_offset);
  const auto source = pattern(n + from_offset);
  std::vector<std::byte> expected(n + to_offset + kMargin, kCanary);
  std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from_offset), n,
              expected.begin() + static_cast<std::ptrdiff_t>(to_offset));
  std::vector<std::byte> actual(expected.size(), kCanary);

  copy(actual.data() + to_offset, source.data() + from_offset, n);

  EXPECT_TRUE(actual == expected);
}

class CopyStreamingTest : public ::testing::TestWithParam<StreamingIsa> {};

TEST_P(CopyStreamingTest, CopiesEveryLengthAndAlignmentExactly) {
  if (!supported(GetParam())) GTEST_SKIP() << "this CPU has no " << name(GetParam());
  const auto copy = [](void* to, const void* from, std::size_t n) {
    copy_streaming(to, from, n, GetParam());
  };
  for (const std::size_t n : {0u, 1u, 63u, 64u, 65u, 127u, 128u, 129u, 4095u, 4096u, 70001u}) {
    for (const std::size_t to : {0u, 1u, 16u, 31u, 63u}) {
      for (const std::size_t from : {0u, 1u, 32u, 63u}) expect_exact(copy, n, to, from);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllIsas, CopyStreamingTest,
                         ::testing::Values(StreamingIsa::kPlain, StreamingIsa::kSse2,
                                           StreamingIsa::kAvx2, StreamingIsa::kAvx512),
                         [](const auto& param) { return std::string(name(param.param)); });

TEST(HostCopyTest, TheBestIsaIsSupported) { EXPECT_TRUE(supported(best_streaming_isa())); }

TEST(HostCopyTest, CopyRunIsExactOnBothSidesOfTheThreshold) {
  for (const std::size_t n :
       {std::size_t{0}, kStreamingThreshold - 1, kStreamingThreshold, kStreamingThreshold + 1}) {
    expect_exact(copy_run, n, 3, 5);
  }
}

TEST(HostCopyTest, FillZeroTouchesOnlyItsRange) {
  std::vector<std::byte> bytes(300, kCanary);

  fill_zero(bytes.data() + 7, 200);
  fill_zero(bytes.data(), 0);

  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{0}), 200);
  EXPECT_EQ(bytes[6], kCanary);
  EXPECT_EQ(bytes[7], std::byte{0});
  EXPECT_EQ(bytes[206], std::byte{0});
  EXPECT_EQ(bytes[207], kCanary);
}

}  // namespace
}  // namespace kvd::kernels
