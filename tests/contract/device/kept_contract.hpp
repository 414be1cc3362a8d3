#pragma once

#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "tests/contract/device/backend_contract.hpp"

/// What every DeviceBackend promises to a daemon whose memory is to outlive it: bytes are looked
/// at, and those of an earlier slab are copied to a new one.
namespace kvd::kernels {

class KeptContract : public DeviceBackendContract {
 protected:
  static constexpr Bytes kSize = kMiB * 4;

  /// HBM with the pattern.
  Slab patterned(unsigned salt) {
    const Slab device = hbm(kSize), host = dram(kSize);
    fill_pattern(bytes_of(host), salt);
    copy(batch_of(++last_, kIn, {{device.address, host.address, kSize}}));
    return device;
  }
  /// What a slab of HBM has.
  std::vector<std::byte> bytes_in(const Slab& device) {
    const Slab host = dram(kSize);
    copy(batch_of(++last_, kOut, {{host.address, device.address, kSize}}));
    const auto bytes = bytes_of(host);
    return {bytes.begin(), bytes.end()};
  }
  /// The descriptor of a slab that is no more: it alone is left.
  UniqueFd left_by(const Slab& device) {
    Result<UniqueFd> memory = sut_->export_slab(device.handle);
    EXPECT_TRUE(memory.ok());
    EXPECT_TRUE(sut_->destroy_slab(device.handle).ok());
    return memory.ok() ? std::move(*memory) : UniqueFd();
  }
  /// Whether the memory shows these bytes, each according to its place in the pattern.
  bool shows(const Slab& slab, std::size_t from, std::size_t length, unsigned salt) {
    bool right = false;
    const Status read =
        sut_->read_slab(slab.address + from, Bytes(static_cast<std::int64_t>(length)),
                        [&](std::span<const std::byte> bytes) {
                          right = bytes.size() == length;
                          for (std::size_t k = 0; right && k < length; ++k) {
                            right = bytes[k] == pattern_at(from + k, salt);
                          }
                        });
    return read.ok() && right;
  }

 private:
  std::uint64_t last_ = 0;
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(KeptContract);

TEST_P(KeptContract, OfASlabOfBeforeWhatIsAskedForIsCopiedAndTheRestIsZeros) {
  const UniqueFd memory = left_by(patterned(7));
  const std::vector<SlabExtent> extents = {
      {Bytes(0), kKiB}, {kMiB + Bytes(1), Bytes(4099)}, {kMiB * 3, kMiB}};
  std::vector<std::byte> expected(kSize.size());
  for (const SlabExtent& extent : extents) {
    for (std::size_t i = 0; i < extent.length.size(); ++i) {
      expected[extent.from.size() + i] = pattern_at(extent.from.size() + i, 7);
    }
  }

  const Result<Slab> made = sut_->copy_slab(kSize, memory, extents);

  ASSERT_TRUE(made.ok()) << made.error().to_string();
  EXPECT_EQ(made->tier, Tier::kHbm);
  EXPECT_EQ(made->size, kSize);
  EXPECT_TRUE(bytes_in(*made) == expected);
  EXPECT_EQ(sut_->counters().live[0], kSize);
  const std::vector<SlabExtent> all = {{Bytes(0), kSize}};
  const Result<Slab> again = sut_->copy_slab(kSize, memory, all);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(has_pattern(bytes_in(*again), 7)) << "it stays as it is";
}

// A process that shares it may alter it until it is copied, and never after.
TEST_P(KeptContract, ACopyHasWhatWasThereAndIsNobodyElses) {
  const Slab old = patterned(1), other = patterned(2);
  const Result<UniqueFd> memory = sut_->export_slab(old.handle);
  ASSERT_TRUE(memory.ok());
  const Slab host = dram(kKiB * 2048);
  bytes_of(host)[0] = ~pattern_at(12345, 1);
  copy(batch_of(100, kIn, {{old.address + 12345, host.address, Bytes(1)}}));
  const std::vector<SlabExtent> all = {{Bytes(0), kSize}};
  const Result<Slab> made = sut_->copy_slab(kSize, *memory, all);
  ASSERT_TRUE(made.ok());
  copy(batch_of(101, kIn, {{old.address, other.address, kSize}}));

  std::vector<std::byte> bytes = bytes_in(*made);

  EXPECT_FALSE(has_pattern(bytes, 1));
  EXPECT_EQ(bytes[12345], ~pattern_at(12345, 1));
  bytes[12345] = pattern_at(12345, 1);
  EXPECT_TRUE(has_pattern(bytes, 1));
}

TEST_P(KeptContract, WhatIsNoSlabOfBeforeIsRefusedAndLeavesNothing) {
  const UniqueFd memory = left_by(patterned(3));
  const UniqueFd elsewhere(::dup(STDERR_FILENO));
  const Bytes grain = sut_->granularity(Tier::kHbm);
  const auto refused = [&](Bytes size, const UniqueFd& from, const SlabExtent& extent) {
    const std::vector<SlabExtent> one = {extent};
    const Result<Slab> made = sut_->copy_slab(size, from, one);
    const bool as_such = !made.ok() && made.error().code == ErrorCode::kInvalidArgument;
    return as_such ? ::testing::AssertionSuccess()
                   : ::testing::AssertionFailure()
                         << (made.ok() ? "it is taken" : made.error().to_string());
  };
  const SlabExtent good{Bytes(0), kKiB};
  EXPECT_TRUE(refused(kSize, elsewhere, good));
  EXPECT_TRUE(refused(kSize, UniqueFd(), good));
  EXPECT_TRUE(refused(kSize + grain, memory, good)) << "it is not as large";
  EXPECT_TRUE(refused(kSize + Bytes(1), memory, good));
  EXPECT_TRUE(refused(kSize, memory, {kSize, Bytes(1)}));
  EXPECT_TRUE(refused(kSize, memory, {kSize - kKiB, kKiB + Bytes(1)}));
  EXPECT_TRUE(refused(kSize, memory, {Bytes(-1), kKiB}));
  EXPECT_TRUE(refused(kSize, memory, {Bytes(0), Bytes(0)}));
  EXPECT_TRUE(refused(kSize, memory, {kKiB, Bytes(INT64_MAX)}));
  EXPECT_EQ(sut_->counters().live[0], Bytes(0));
}

TEST_P(KeptContract, BytesOfBothTiersAreShownAsTheyAre) {
  const Slab device = patterned(4), host = dram(kSize);
  fill_pattern(bytes_of(host), 5);
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 40; ++i) {
    const std::size_t from = random() % kSize.size();
    const std::size_t length = 1 + random() % (kSize.size() - from);
    const bool in_hbm = i % 2 == 0;
    EXPECT_TRUE(shows(in_hbm ? device : host, from, length, in_hbm ? 4 : 5))
        << from << " " << length;
  }
}

TEST_P(KeptContract, WhatIsInNoSlabIsNotShown) {
  const Slab device = patterned(6);
  const auto code = [&](std::uintptr_t address, Bytes length) {
    return sut_->read_slab(address, length, [](std::span<const std::byte>) { FAIL(); }).code();
  };
  EXPECT_EQ(code(device.address, kSize + Bytes(1)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(device.address - 1, Bytes(2)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(device.address + kSize.size(), Bytes(1)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(device.address, Bytes(0)), ErrorCode::kInvalidArgument);
  ASSERT_TRUE(sut_->destroy_slab(device.handle).ok());
  EXPECT_EQ(code(device.address, Bytes(1)), ErrorCode::kInvalidArgument);
}

TEST_P(KeptContract, ASlabStaysWhileItIsLookedAt) {
  for (const Slab& slab : {patterned(8), dram(kSize)}) {
    EXPECT_TRUE(sut_->read_slab(slab.address, kKiB,
                                [&](std::span<const std::byte>) {
                                  EXPECT_EQ(sut_->destroy_slab(slab.handle).code(),
                                            ErrorCode::kWouldBlock);
                                })
                    .ok());
    EXPECT_TRUE(sut_->destroy_slab(slab.handle).ok());
  }
}

TEST_P(KeptContract, ManyLookAtOnceWhileOthersCopy) {
  const Slab device = patterned(9), other = hbm(kSize), host = dram(kSize);
  for (std::uint64_t t = 200; t < 210; ++t) {
    ASSERT_TRUE(sut_->submit(batch_of(t, kOut, {{host.address, other.address, kSize}})).ok());
  }
  std::atomic<int> right{0};
  const auto look = [&](std::size_t from) {
    for (int i = 0; i < 10; ++i) right += shows(device, from, std::size_t{700} * 1024, 9) ? 1 : 0;
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i) threads.emplace_back(look, i * 100'003);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 40);
  wait_for(*sut_, 10);
}

}  // namespace kvd::kernels
