#include "tests/integration/daemon_cuda/cuda_world.hpp"

#include <cudaTypedefs.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>

#include "kernels/device/cuda/driver/driver.hpp"
#include "kernels/device/cuda/memory/vmm.hpp"
#include "tests/support/pattern_command.hpp"

namespace kvd::test {
namespace {

/// KVDTEST_REAL asks for the machine's own driver, for tests/gpu/run.sh. That script leaves out
/// tests of faults.
const bool real = std::getenv("KVDTEST_REAL") != nullptr;

/// Once this library is loaded, every later dlopen("libcuda.so.1") of this process finds it.
const bool loaded = [] {
  const char* library = real ? "libcuda.so.1" : KVD_FAKECUDA "/libcuda.so.1";
  if (::dlopen(library, RTLD_NOW | RTLD_GLOBAL) != nullptr) return true;
  std::fprintf(stderr, "no %s driver: %s\n", real ? "real" : "fake", ::dlerror());
  std::abort();
}();

/// An entry point that kvd has no use for.
template <class Function>
Function entry(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, name));
}

}  // namespace

bool on_real_driver() { return real; }

std::vector<std::string> fake_driver(std::vector<std::string> more) {
  if (!real) more.emplace_back("LD_LIBRARY_PATH=" KVD_FAKECUDA);
  return more;
}

KvdSettings cuda_settings(std::vector<std::string> fake) {
  KvdSettings settings;
  settings.backend = "cuda";
  settings.environment = fake_driver(std::move(fake));
  return settings;
}

ChildCommand pattern_on_gpu(const KvdProcess& kvd, const std::string& name,
                            const std::vector<std::string>& more, std::vector<std::string> fake) {
  ChildCommand command = pattern_command(kvd, name, more, 6);
  command.environment = fake_driver(std::move(fake));
  return command;
}

kvd_client::Result<kvd_client::Client> open_for_cuda(const KvdProcess& kvd, bool with_shape) {
  kvd_client::Options options;
  options.endpoint = kvd.endpoint();
  options.engine_name = "cuda-test";
  options.memory = kvd_client::kCudaMemory;
  if (with_shape) options.shape = {4, 0, 0, 1024};
  return kvd_client::Client::open(options);
}

TestGpu::TestGpu() {
  const auto driver = cuda::Driver::load();
  KVD_CHECK(driver.ok(), "the fake driver does not load");
  const auto device = cuda::find_device(**driver, {});
  KVD_CHECK(device.ok(), "the fake driver has no device");
  uuid_ = device->uuid;
  context_.emplace(std::move(cuda::PrimaryContext::retain(**driver, *device)).value());
  const cuda::ScopedCurrent current(*context_);
  KVD_CHECK(
      (*driver)->stream_create_with_priority(&stream_, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS,
      "no stream");
}

TestGpu::~TestGpu() {
  const cuda::ScopedCurrent current(*context_);
  (void)context_->driver().stream_destroy(stream_);
}

bool TestGpu::stream_is_idle() const {
  const cuda::ScopedCurrent current(*context_);
  return context_->driver().stream_query(stream_) == CUDA_SUCCESS;
}

void TestGpu::wait_for(const HostWord& word, std::uint64_t value) const {
  const cuda::ScopedCurrent current(*context_);
  EXPECT_EQ(context_->driver().stream_wait_value64(stream_, word.address(), value,
                                                   CU_STREAM_WAIT_VALUE_GEQ),
            CUDA_SUCCESS);
}

void TestGpu::begin_capture() const {
  const cuda::ScopedCurrent current(*context_);
  const auto begin = entry<PFN_cuStreamBeginCapture_v10010>("cuStreamBeginCapture_v2");
  EXPECT_EQ(begin(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
}

bool TestGpu::end_capture() const {
  const cuda::ScopedCurrent current(*context_);
  CUgraph graph = nullptr;
  return entry<PFN_cuStreamEndCapture_v10000>("cuStreamEndCapture")(stream_, &graph) ==
             CUDA_SUCCESS &&
         entry<PFN_cuGraphDestroy_v10000>("cuGraphDestroy")(graph) == CUDA_SUCCESS;
}

UniqueFd TestGpu::make_memory(Bytes size) const {
  const auto memory = cuda::PhysicalMemory::create(context_->driver(), context_->device(), size);
  EXPECT_TRUE(memory.ok());
  return std::move(memory->export_fd()).value();
}

HostWord::HostWord(const TestGpu& gpu)
    : gpu_(gpu),
      page_(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
  const cuda::ScopedCurrent current(gpu.context());
  registration_.emplace(
      std::move(cuda::HostRegistration::make(gpu.context().driver(),
                                             reinterpret_cast<std::uintptr_t>(page_), Bytes(4096)))
          .value());
}

HostWord::~HostWord() {
  const cuda::ScopedCurrent current(gpu_.context());
  set(INT64_MAX);
  EXPECT_TRUE(poll_until([&] { return gpu_.stream_is_idle(); }));
  registration_.reset();
  ::munmap(page_, 4096);
}

void HostWord::set(std::uint64_t value) {
  *static_cast<std::atomic<std::uint64_t>*>(page_) = value;
}

void TestGpu::write(const void* device, const std::vector<std::byte>& bytes) {
  const cuda::ScopedCurrent current(*context_);
  const cuda::Driver& driver = context_->driver();
  EXPECT_EQ(driver.memcpy_htod_async(reinterpret_cast<CUdeviceptr>(device), bytes.data(),
                                     bytes.size(), stream_),
            CUDA_SUCCESS);
  EXPECT_EQ(driver.stream_synchronize(stream_), CUDA_SUCCESS);
}

std::vector<std::byte> TestGpu::read(const void* device, std::size_t bytes) {
  const cuda::ScopedCurrent current(*context_);
  const cuda::Driver& driver = context_->driver();
  std::vector<std::byte> out(bytes);
  EXPECT_EQ(
      driver.memcpy_dtoh_async(out.data(), reinterpret_cast<CUdeviceptr>(device), bytes, stream_),
      CUDA_SUCCESS);
  EXPECT_EQ(driver.stream_synchronize(stream_), CUDA_SUCCESS);
  return out;
}

}  // namespace kvd::test
