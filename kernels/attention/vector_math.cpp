#include "kernels/attention/vector_math.hpp"

#include <cstring>
#include <initializer_list>

namespace kvd::kernels {
namespace {

constexpr std::size_t kLanes = 16;

#define KVD_ISA baseline
#define KVD_WIDTH 16
#define KVD_TARGET
#include "kernels/attention/vector_math_lanes.hpp"
#undef KVD_ISA
#undef KVD_TARGET
#undef KVD_WIDTH

#if defined(__x86_64__)
#define KVD_ISA avx2
#define KVD_WIDTH 32
#define KVD_TARGET __attribute__((target("avx2")))
#include "kernels/attention/vector_math_lanes.hpp"
#undef KVD_ISA
#undef KVD_TARGET
#undef KVD_WIDTH

#define KVD_ISA avx512
#define KVD_WIDTH 64
#define KVD_TARGET __attribute__((target("avx512f")))
#include "kernels/attention/vector_math_lanes.hpp"
#undef KVD_ISA
#undef KVD_TARGET
#undef KVD_WIDTH
#endif

}  // namespace

const VectorMath* vector_math(VectorIsa isa) {
#if defined(__x86_64__)
  if (isa == VectorIsa::kAvx512) {
    return __builtin_cpu_supports("avx512f") ? &avx512::kMath : nullptr;
  }
  if (isa == VectorIsa::kAvx2) return __builtin_cpu_supports("avx2") ? &avx2::kMath : nullptr;
#endif
  return isa == VectorIsa::kBaseline ? &baseline::kMath : nullptr;
}

const VectorMath& vector_math() {
  for (const VectorIsa isa : {VectorIsa::kAvx512, VectorIsa::kAvx2}) {
    if (const VectorMath* math = vector_math(isa)) return *math;
  }
  return baseline::kMath;
}

}  // namespace kvd::kernels
