// The body of vector_math.cpp, included by it once for each instruction set with KVD_ISA, a name,
// KVD_TARGET, the attribute that selects the instructions, and KVD_WIDTH, the bytes of a register.
// No include guard for that reason.

namespace KVD_ISA {

using Part = float __attribute__((vector_size(KVD_WIDTH)));
// The attributes after the name: clang ignores `aligned` where it stands in the type.
using PartAt __attribute__((aligned(4), may_alias)) = Part;
constexpr std::size_t kWidth = KVD_WIDTH / sizeof(float);
constexpr std::size_t kParts = kLanes / kWidth;

KVD_TARGET inline float sum_of(const Part* parts) {
  float lane[kLanes];
  std::memcpy(lane, parts, sizeof lane);
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lane[i] += lane[i + half];
  }
  return lane[0];
}

template <std::size_t kCount>
KVD_TARGET inline void dot_all(const float* a, const float* const* b, std::size_t n, float* out) {
  Part sum[kCount][kParts] = {};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t p = 0; p < kParts; ++p) {
      const Part x = *reinterpret_cast<const PartAt*>(a + i + p * kWidth);
      for (std::size_t k = 0; k < kCount; ++k) {
        sum[k][p] += x * *reinterpret_cast<const PartAt*>(b[k] + i + p * kWidth);
      }
    }
  }
  for (std::size_t k = 0; k < kCount; ++k) {
    if (i < n) {
      Part x[kParts] = {}, y[kParts] = {};
      std::memcpy(x, a + i, (n - i) * sizeof(float));
      std::memcpy(y, b[k] + i, (n - i) * sizeof(float));
      for (std::size_t p = 0; p < kParts; ++p) sum[k][p] += x[p] * y[p];
    }
    out[k] = sum_of(sum[k]);
  }
}

KVD_TARGET float dot(const float* a, const float* b, std::size_t n) {
  float out = 0;
  dot_all<1>(a, &b, n, &out);
  return out;
}

KVD_TARGET void dots(const float* a, const float* const* b, std::size_t n, float* out) {
  dot_all<VectorMath::kSide>(a, b, n, out);
}

KVD_TARGET void add_scaled(float* sum, const float* x, float factor, std::size_t n) {
  std::size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    *reinterpret_cast<PartAt*>(sum + i) += *reinterpret_cast<const PartAt*>(x + i) * factor;
  }
  for (; i < n; ++i) sum[i] += x[i] * factor;
}

constexpr VectorMath kMath{dot, dots, add_scaled};

}  // namespace KVD_ISA
