// Gather and scatter over slots: many small pieces of memory to one packed run and back. Either
// side may be device memory or registered host memory; a copy engine needs segments of some tens of
// KiB to reach the link's rate, these reach it with less and cost SMs instead.
//
// Work is cut into chunks of kChunk bytes of one slot; blocks take chunks in turn, so that a launch
// may use as few SMs as it is given. 256 threads x 4 x 16 bytes a chunk: four independent loads a
// thread are in flight at once, which is what hides the latency of host memory.

namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kUnroll = 4;
constexpr unsigned long long kUnit = sizeof(uint4);
constexpr unsigned long long kChunk = kThreads * kUnroll * kUnit;

// One chunk; `units` are left in the slot from here on.
__device__ void copy_chunk(uint4* __restrict__ to, const uint4* __restrict__ from,
                           unsigned long long units) {
  uint4 held[kUnroll];
#pragma unroll
  for (unsigned i = 0; i < kUnroll; ++i) {
    const unsigned unit = i * kThreads + threadIdx.x;
    if (unit < units) held[i] = __ldcs(from + unit);
  }
#pragma unroll
  for (unsigned i = 0; i < kUnroll; ++i) {
    const unsigned unit = i * kThreads + threadIdx.x;
    if (unit < units) __stcs(to + unit, held[i]);
  }
}

template <bool kGather>
__device__ void copy_slots(unsigned char* packed, const unsigned long long* slots,
                           unsigned long long slot_bytes, unsigned count) {
  const unsigned long long chunks_a_slot = (slot_bytes + kChunk - 1) / kChunk;
  const unsigned long long chunks = chunks_a_slot * count;
  for (unsigned long long chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const unsigned long long slot = chunk / chunks_a_slot;
    const unsigned long long offset = (chunk % chunks_a_slot) * kChunk;
    auto* const run = reinterpret_cast<uint4*>(packed + slot * slot_bytes + offset);
    auto* const piece = reinterpret_cast<uint4*>(slots[slot] + offset);
    const unsigned long long units = (slot_bytes - offset) / kUnit;
    if (kGather) {
      copy_chunk(run, piece, units);
    } else {
      copy_chunk(piece, run, units);
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    kvd_gather_slots(unsigned char* packed, const unsigned long long* slots,
                     unsigned long long slot_bytes, unsigned count) {
  copy_slots<true>(packed, slots, slot_bytes, count);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    kvd_scatter_slots(unsigned char* packed, const unsigned long long* slots,
                      unsigned long long slot_bytes, unsigned count) {
  copy_slots<false>(packed, slots, slot_bytes, count);
}
