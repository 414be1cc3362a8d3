#include "kvd/daemon/base/line_limit.hpp"

#include <gtest/gtest.h>

namespace kvd::daemon {
namespace {

constexpr TimePoint kStart{1'000};

std::uint32_t written_of(LineLimit& sut, std::uint32_t lines, TimePoint now) {
  std::uint32_t written = 0;
  for (std::uint32_t i = 0; i < lines; ++i) {
    written += sut.take("engine " + std::to_string(i) + " is dropped", now).write ? 1u : 0u;
  }
  return written;
}

TEST(LineLimit, LetsSoManyLikeLinesThrough) {
  LineLimit sut;
  EXPECT_EQ(written_of(sut, 500, kStart), LineLimit::kMost);
  EXPECT_TRUE(sut.take("the device is lost", kStart).write) << "another line has room of its own";
}

TEST(LineLimit, TellsAfterTheSpanWhatItLeftOut) {
  LineLimit sut;
  written_of(sut, LineLimit::kMost + 7, kStart);
  EXPECT_FALSE(sut.take("engine 9 is dropped", kStart + LineLimit::kSpan - Nanoseconds(1)).write);
  const auto first = sut.take("engine 9 is dropped", kStart + LineLimit::kSpan);
  EXPECT_TRUE(first.write);
  EXPECT_EQ(first.left_out, 8u);
  EXPECT_EQ(sut.take("engine 9 is dropped", kStart + LineLimit::kSpan).left_out, 0u);
}

TEST(LineLimit, RemembersABoundedNumberOfKinds) {
  LineLimit sut;
  for (std::size_t i = 0; i < 10 * LineLimit::kMostKinds; ++i) {
    EXPECT_TRUE(sut.take(std::string(i, 'a'), kStart).write);
  }
}

}  // namespace
}  // namespace kvd::daemon
