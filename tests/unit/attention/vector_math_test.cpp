#include "kernels/attention/vector_math.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <random>
#include <vector>

namespace kvd::kernels {
namespace {

std::vector<float> random_floats(std::mt19937& random, std::size_t n) {
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> out(n);
  for (float& x : out) x = uniform(random);
  return out;
}

std::vector<const VectorMath*> of_this_cpu() {
  std::vector<const VectorMath*> out;
  for (const auto isa : {VectorIsa::kBaseline, VectorIsa::kAvx2, VectorIsa::kAvx512}) {
    if (const VectorMath* math = vector_math(isa)) out.push_back(math);
  }
  return out;
}

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

TEST(VectorMath, EveryInstructionSetGivesTheSameBitsAndTheRightNumber) {
  std::mt19937 random(1);
  const VectorMath& baseline = *vector_math(VectorIsa::kBaseline);
  for (std::size_t n = 0; n < 150; ++n) {
    const auto a = random_floats(random, n), b = random_floats(random, n);
    double exact = 0;
    for (std::size_t i = 0; i < n; ++i) exact += double{a[i]} * double{b[i]};
    const float dot = baseline.dot(a.data(), b.data(), n);
    EXPECT_NEAR(dot, exact, 1e-5);
    std::vector<float> sum = a;
    baseline.add_scaled(sum.data(), b.data(), 0.3F, n);
    for (const VectorMath* math : of_this_cpu()) {
      EXPECT_EQ(bits(math->dot(a.data(), b.data(), n)), bits(dot)) << n;
      std::vector<float> other = a;
      math->add_scaled(other.data(), b.data(), 0.3F, n);
      EXPECT_EQ(other, sum) << n;
    }
  }
}

TEST(VectorMath, ProductsSideBySideAreTheProductsAlone) {
  std::mt19937 random(2);
  for (std::size_t n = 1; n < 100; ++n) {
    const auto a = random_floats(random, n);
    std::vector<std::vector<float>> sides;
    std::vector<const float*> pointers;
    sides.reserve(VectorMath::kSide);
    pointers.reserve(VectorMath::kSide);
    for (std::size_t k = 0; k < VectorMath::kSide; ++k) sides.push_back(random_floats(random, n));
    for (const auto& side : sides) pointers.push_back(side.data());
    for (const VectorMath* math : of_this_cpu()) {
      float out[VectorMath::kSide];
      math->dots(a.data(), pointers.data(), n, out);
      for (std::size_t k = 0; k < VectorMath::kSide; ++k) {
        EXPECT_EQ(bits(out[k]), bits(math->dot(a.data(), pointers[k], n))) << n;
      }
    }
  }
}

}  // namespace
}  // namespace kvd::kernels
