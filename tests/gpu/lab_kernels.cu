// What the GPU experiments run on SMs: known contents, their check, a store loop and a read loop
// that stands for the memory-bound kernels of a decode step. All take the same parameters.

namespace {

using Word = unsigned long long;

__device__ Word pattern(Word i, Word salt) {
  return (i + 1) * 0x9E3779B97F4A7C15ull ^ salt * 0xBF58476D1CE4E5B9ull;
}
__device__ Word first() { return Word{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ Word stride() { return Word{gridDim.x} * blockDim.x; }

}  // namespace

extern "C" __global__ void kvd_gpu_fill(Word* words, Word count, Word salt, Word*) {
  for (Word i = first(); i < count; i += stride()) words[i] = pattern(i, salt);
}

// Adds to *found the words that differ from the pattern.
extern "C" __global__ void kvd_gpu_check(const Word* words, Word count, Word salt, Word* found) {
  Word wrong = 0;
  for (Word i = first(); i < count; i += stride()) wrong += words[i] != pattern(i, salt);
  if (wrong != 0) atomicAdd(found, wrong);
}

// Adds to *found the words that equal `value`.
extern "C" __global__ void kvd_gpu_count(const Word* words, Word count, Word value, Word* found) {
  Word equal = 0;
  for (Word i = first(); i < count; i += stride()) equal += words[i] == value;
  if (equal != 0) atomicAdd(found, equal);
}

// Writes all words `rounds` times, each time others.
extern "C" __global__ void kvd_gpu_rewrite(volatile Word* words, Word count, Word rounds, Word*) {
  for (Word round = 0; round < rounds; ++round) {
    for (Word i = first(); i < count; i += stride()) words[i] = round;
  }
}

// Reads all words `rounds` times.
extern "C" __global__ void kvd_gpu_read(const volatile Word* words, Word count, Word rounds,
                                        Word* sink) {
  Word sum = 0;
  for (Word round = 0; round < rounds; ++round) {
    for (Word i = first(); i < count; i += stride()) sum += words[i];
  }
  if (sum == 0x5EED5EED5EED5EEDull) *sink = sum;  // never: keeps the reads
}
