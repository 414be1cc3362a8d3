#include "tests/gpu/lab.hpp"

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>

#include "kernels/device/cuda/driver/error.hpp"
#include "tests/gpu/fake_kernels.hpp"
#include "tests/gpu/image/image.hpp"

KVD_EMBED_DEVICE_IMAGE(kvd_lab_kernels, KVD_LAB_KERNELS_IMAGE, KVD_LAB_KERNELS_IMAGE_PTX);

namespace kvd::gpu {
namespace {

constexpr const char* kKernelNames[] = {"kvd_gpu_fill", "kvd_gpu_check", "kvd_gpu_count",
                                        "kvd_gpu_rewrite", "kvd_gpu_read"};
constexpr unsigned kThreads = 256;
constexpr double kPatience = 30;

}  // namespace

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double percentile(std::vector<double> samples, double share) {
  const auto last = static_cast<double>(samples.size() - 1);
  const auto at = samples.begin() + std::lround(last * share);
  std::nth_element(samples.begin(), at, samples.end());
  return *at;
}

const char* self_program() {
  const char* launcher = std::getenv("KVDTEST_SELF");
  return launcher != nullptr ? launcher : "/proc/self/exe";
}

bool driver_is_fake() {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW);
  return library != nullptr && ::dlsym(library, "fakecuda_register_kernel") != nullptr;
}

/// A result word in device memory, and where the CPU reads it.
struct Gpu::Found {
  GpuSlab device;
  PinnedMemory host;
};

Result<std::unique_ptr<Gpu>> Gpu::open() {
  std::unique_ptr<Gpu> gpu(new Gpu());
  KVD_ASSIGN_OR_RETURN(gpu->driver_, cuda::Driver::load());
  KVD_ASSIGN_OR_RETURN(gpu->device_, cuda::find_device(*gpu->driver_, {}));
  KVD_ASSIGN_OR_RETURN(gpu->grain_, cuda::granularity(*gpu->driver_, gpu->device_.handle));
  auto context = cuda::PrimaryContext::retain(*gpu->driver_, gpu->device_);
  if (!context.ok()) return context.error();
  gpu->context_.emplace(std::move(context).value());
  KVD_TRY(gpu->check(gpu->driver_->ctx_set_current(gpu->context_->get()), "entering the context"));
  auto stream = cuda::Stream::create(*gpu->driver_);
  if (!stream.ok()) return stream.error();
  gpu->stream_.emplace(std::move(stream).value());
  KVD_TRY(gpu->load_kernels());
  return gpu;
}

Status Gpu::load_kernels() {
  register_fake_kernels();
  int processors = 1;
  driver_->device_get_attribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                device_.handle);
  blocks_ = static_cast<unsigned>(std::max(processors, 1)) * 4;
  KVD_ASSIGN_OR_RETURN(const CUmodule module, load_module());
  for (std::size_t i = 0; i < std::size(kKernelNames); ++i) {
    KVD_TRY(check(driver_->module_get_function(&kernels_[i], module, kKernelNames[i]),
                  kKernelNames[i]));
  }
  KVD_ASSIGN_OR_RETURN(GpuSlab device, GpuSlab::make(*this, grain_));
  KVD_ASSIGN_OR_RETURN(PinnedMemory host, PinnedMemory::make(*this, Bytes(4096)));
  found_ = std::make_shared<Found>(Found{std::move(device), std::move(host)});
  return {};
}

Result<CUmodule> Gpu::load_module() const {
  return load_image(*driver_, {kvd_lab_kernels_image, kvd_lab_kernels_ptx}, "loading the kernels");
}

Status Gpu::check(CUresult result, const char* what) const {
  return cuda::check(*driver_, result, what);
}

Result<Bytes> Gpu::free_memory() const {
  KVD_ASSIGN_OR_RETURN(const auto memory, context_->memory());
  return memory.free;
}

Status Gpu::launch(Kernel kernel, CUstream stream, CUdeviceptr at, Bytes bytes,
                   std::uint64_t argument, unsigned blocks) const {
  auto count = static_cast<unsigned long long>(bytes.value / 8);
  unsigned long long number = argument;
  CUdeviceptr found = found_->device.address();
  void* parameters[] = {&at, &count, &number, &found};
  return check(driver_->launch_kernel(kernels_[static_cast<std::size_t>(kernel)],
                                      blocks == 0 ? blocks_ : blocks, 1, 1, kThreads, 1, 1, 0,
                                      stream, parameters, nullptr),
               "launching a kernel");
}

Result<std::uint64_t> Gpu::count(Kernel kernel, CUdeviceptr at, Bytes bytes,
                                 std::uint64_t argument) const {
  const CUdeviceptr found = found_->device.address();
  KVD_TRY(check(driver_->memset_d32_async(found, 0, 2, stream_->get()), "clearing a counter"));
  KVD_TRY(launch(kernel, stream_->get(), at, bytes, argument));
  KVD_TRY(check(driver_->memcpy_dtoh_async(found_->host.data(), found, 8, stream_->get()),
                "reading a counter"));
  KVD_TRY(finish());
  return load(found_->host.words());
}

Status Gpu::finish(CUstream stream) const {
  const double end = now_s() + kPatience;
  for (;;) {
    const CUresult result = driver_->stream_query(stream);
    if (result == CUDA_SUCCESS) return {};
    if (result != CUDA_ERROR_NOT_READY) return check(result, "work of a stream");
    if (now_s() > end) {
      return make_error(ErrorCode::kDeadlineExceeded, "the work of a stream did not end in 30 s");
    }
  }
}

Result<GpuSlab> GpuSlab::map(const Gpu& gpu, cuda::PhysicalMemory memory, cuda::Access access) {
  const Bytes size = memory.size();
  KVD_ASSIGN_OR_RETURN(cuda::AddressRange range, cuda::AddressRange::reserve(gpu.driver(), size));
  KVD_ASSIGN_OR_RETURN(cuda::Mapping mapping, cuda::Mapping::map(range.address(), memory));
  KVD_TRY(cuda::grant_access(gpu.driver(), range.address(), size, gpu.device().handle, access));
  return GpuSlab(std::move(memory), std::move(range), std::move(mapping));
}

Result<GpuSlab> GpuSlab::make(const Gpu& gpu, Bytes size) {
  KVD_ASSIGN_OR_RETURN(cuda::PhysicalMemory memory,
                       cuda::PhysicalMemory::create(gpu.driver(), gpu.device().handle, size));
  return map(gpu, std::move(memory), cuda::Access::kReadWrite);
}

Result<GpuSlab> GpuSlab::import(const Gpu& gpu, int fd, Bytes size, cuda::Access access) {
  KVD_ASSIGN_OR_RETURN(cuda::PhysicalMemory memory,
                       cuda::PhysicalMemory::import_fd(gpu.driver(), fd, size));
  return map(gpu, std::move(memory), access);
}

void PinnedMemory::Unmap::operator()(void* at) const { ::munmap(at, bytes); }

Result<PinnedMemory> PinnedMemory::make(const Gpu& gpu, Bytes size) {
  const UniqueFd fd(::memfd_create("kvd-gpu-report", MFD_CLOEXEC));
  if (!fd.valid() || ::ftruncate(fd.get(), size.value) != 0) {
    return make_error(ErrorCode::kOutOfMemory, "no shared memory for the experiment");
  }
  return adopt(gpu, fd.get(), size);
}

Result<PinnedMemory> PinnedMemory::adopt(const Gpu& gpu, int fd, Bytes size) {
  PinnedMemory memory;
  memory.fd_ = UniqueFd(::dup(fd));
  void* at = ::mmap(nullptr, size.size(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return make_error(ErrorCode::kOutOfMemory, "cannot map shared memory");
  memory.data_ = {at, Unmap(size.size())};
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  KVD_TRY(kernels::populate(address, size, kernels::populate_threads(0)));
  auto registration = cuda::HostRegistration::make(gpu.driver(), address, size);
  if (!registration.ok()) return registration.error();
  memory.registration_.emplace(std::move(registration).value());
  return memory;
}

}  // namespace kvd::gpu
