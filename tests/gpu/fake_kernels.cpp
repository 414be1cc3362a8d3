#include "tests/gpu/fake_kernels.hpp"

#include <dlfcn.h>

#include <cstdint>

#include "tests/integration/cuda/pattern.hpp"
#include "tests/support/fakecuda/fakecuda.h"

namespace kvd::gpu {
namespace {

template <class Function>
Function* fake(const char* name) {
  static void* const kLibrary = ::dlopen("libcuda.so.1", RTLD_NOW);
  return kLibrary == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(kLibrary, name));
}

void* reach(CUdeviceptr at, std::size_t bytes, bool write) {
  static auto* const kAccess = fake<decltype(fakecuda_access)>("fakecuda_access");
  return kAccess(at, bytes, write ? 1 : 0);
}

/// The parameters that all kernels of lab_kernels.cu take.
struct Parameters {
  explicit Parameters(void** raw)
      : at(*static_cast<CUdeviceptr*>(raw[0])),
        count(*static_cast<unsigned long long*>(raw[1])),
        argument(*static_cast<unsigned long long*>(raw[2])),
        found(*static_cast<CUdeviceptr*>(raw[3])) {}
  std::uint64_t* words(bool write) const {
    return static_cast<std::uint64_t*>(reach(at, count * 8, write));
  }
  void add(std::uint64_t number) const {
    if (auto* word = static_cast<std::uint64_t*>(reach(found, 8, true))) *word += number;
  }
  CUdeviceptr at;
  unsigned long long count, argument;
  CUdeviceptr found;
};

void fill(const FakecudaLaunch*, void** raw) {
  const Parameters p(raw);
  auto* words = p.words(true);
  for (std::size_t i = 0; words != nullptr && i < p.count; ++i) {
    words[i] = tests::pattern_at(i, p.argument);
  }
}

void check(const FakecudaLaunch*, void** raw) {
  const Parameters p(raw);
  const auto* words = p.words(false);
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; words != nullptr && i < p.count; ++i) {
    wrong += words[i] != tests::pattern_at(i, p.argument);
  }
  p.add(wrong);
}

void count(const FakecudaLaunch*, void** raw) {
  const Parameters p(raw);
  const auto* words = p.words(false);
  std::uint64_t equal = 0;
  for (std::size_t i = 0; words != nullptr && i < p.count; ++i) equal += words[i] == p.argument;
  p.add(equal);
}

void rewrite(const FakecudaLaunch*, void** raw) {
  const Parameters p(raw);
  auto* words = p.words(true);
  for (std::uint64_t round = 0; words != nullptr && round < p.argument; ++round) {
    for (std::size_t i = 0; i < p.count; ++i) words[i] = round;
  }
}

void read(const FakecudaLaunch*, void** raw) { (void)Parameters(raw).words(false); }

}  // namespace

void register_fake_kernels() {
  auto* const add = fake<decltype(fakecuda_register_kernel)>("fakecuda_register_kernel");
  if (add == nullptr) return;
  const std::size_t words[] = {8, 8, 8, 8};
  add("kvd_gpu_fill", fill, words, 4);
  add("kvd_gpu_check", check, words, 4);
  add("kvd_gpu_count", count, words, 4);
  add("kvd_gpu_rewrite", rewrite, words, 4);
  add("kvd_gpu_read", read, words, 4);
}

}  // namespace kvd::gpu
