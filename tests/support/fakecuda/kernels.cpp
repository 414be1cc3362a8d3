// Host functions, and kernels by the name under which a test registered their host reference.
#include <cstring>
#include <string_view>

#include "tests/support/fakecuda/driver.hpp"
#include "tests/support/fakecuda/report.hpp"

using fakecuda::driver;
using fakecuda::enter;
using fakecuda::Needs;
using fakecuda::Operation;

namespace {

/// One launch: the parameters as they were then.
struct Launch {
  CUfunc_st function;
  FakecudaLaunch shape;
  std::vector<std::vector<std::byte>> parameters;
};

CUresult run(CUstream_st& stream, Launch& launch) {
  stream.pause();
  std::vector<void*> pointers;
  for (auto& parameter : launch.parameters) pointers.push_back(parameter.data());
  fakecuda::running_stream() = &stream;
  launch.function.kernel(&launch.shape, pointers.data());
  fakecuda::running_stream() = nullptr;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult CUDAAPI cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  if (const CUresult r = enter("cuLaunchHostFunc", Needs::kContext)) return r;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<CUstream_st> stream;
  if (const CUresult r = fakecuda::find_stream(handle, stream)) return r;
  Operation operation;
  operation.run = [function, data](CUstream_st& self) {
    self.pause();
    const std::lock_guard one_at_a_time(driver().host_functions);
    fakecuda::in_host_function() = true;
    function(data);
    fakecuda::in_host_function() = false;
    return CUDA_SUCCESS;
  };
  fakecuda::enqueue(stream, std::move(operation));
  return CUDA_SUCCESS;
}

namespace {

// Marks the container that nvcc makes (fatbinary_section.h of the toolkit).
constexpr std::uint32_t kFatbinMagic = 0xBA55ED50;

/// The number behind `name` on a line of PTX, without its dot; 0: there is none.
int number_after(std::string_view ptx, std::string_view name) {
  const auto at = ptx.find(name);
  if (at == std::string_view::npos) return 0;
  const std::string_view rest = ptx.substr(at + name.size());
  int number = 0;
  for (const char c : rest.substr(0, rest.find('\n'))) {
    if (c >= '0' && c <= '9') number = number * 10 + (c - '0');
  }
  return number;
}

// PTX ISA 7.0 came with CUDA 11.0, 8.0 with 12.0, 9.0 with 13.0, and a minor one with each of
// theirs, but for 12.6 (the table of releases in NVIDIA's PTX manual).
int newest_ptx(int driver_version) {
  const int late = driver_version >= 12060 && driver_version < 13000 ? 1 : 0;
  return (driver_version / 1000 - 4) * 10 + driver_version % 1000 / 10 - late;
}

// 222 and 209: cuda.h. That 13.x code needs a driver of 13.0: NVIDIA's table of compatibility; that
// an older one says 222 to PTX 9.0: Forest-Neurotech/mach#62.
CUresult check_image(const void* image) {
  const fakecuda::Config& config = driver().config;
  std::uint32_t magic = 0;
  std::memcpy(&magic, image, sizeof magic);
  if (magic == kFatbinMagic) {
    return config.driver_version < CUDA_VERSION ? CUDA_ERROR_UNSUPPORTED_PTX_VERSION : CUDA_SUCCESS;
  }
  const std::string_view ptx(static_cast<const char*>(image));
  const int version = number_after(ptx, "\n.version"), target = number_after(ptx, "\n.target sm_");
  if (version == 0 || target == 0) return CUDA_ERROR_INVALID_IMAGE;
  if (version > newest_ptx(config.driver_version)) return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  return target > config.compute_capability ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_SUCCESS;
}

}  // namespace

CUresult CUDAAPI cuModuleLoadData(CUmodule* module, const void* image) {
  if (const CUresult r = enter("cuModuleLoadData", Needs::kContext)) return r;
  if (module == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult r = check_image(image)) return r;
  auto made = std::make_unique<CUmod_st>();
  const std::lock_guard lock(driver().mutex);
  *module = made.get();
  driver().modules[*module] = std::move(made);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleUnload(CUmodule module) {
  if (const CUresult r = enter("cuModuleUnload", Needs::kContext)) return r;
  const std::lock_guard lock(driver().mutex);
  return driver().modules.erase(module) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  if (const CUresult r = enter("cuModuleGetFunction", Needs::kContext)) return r;
  if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(driver().mutex);
  if (driver().modules.count(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
  const auto found = driver().kernels.find(name);
  if (found == driver().kernels.end()) return CUDA_ERROR_NOT_FOUND;
  *function = found->second.get();
  return CUDA_SUCCESS;
}

// NOLINTNEXTLINE(readability-function-size): the parameters are CUDA's
CUresult CUDAAPI cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                unsigned int block_z, unsigned int shared_bytes, CUstream handle,
                                void** parameters, void** extra) {
  if (const CUresult r = enter("cuLaunchKernel", Needs::kContext)) return r;
  const unsigned long long threads = 1ull * block_x * block_y * block_z;
  const unsigned long long blocks = 1ull * grid_x * grid_y * grid_z;
  if (extra != nullptr || threads == 0 || threads > 1024 || blocks == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto launch = std::make_shared<Launch>();
  launch->shape = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes};
  {
    const std::lock_guard lock(driver().mutex);
    for (const auto& [name, known] : driver().kernels) {
      if (known.get() == function) launch->function = *known;
    }
  }
  if (launch->function.kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const auto& sizes = launch->function.sizes;
  if (!sizes.empty() && parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto* bytes = static_cast<const std::byte*>(parameters[i]);
    launch->parameters.emplace_back(bytes, bytes + sizes[i]);
  }
  std::shared_ptr<CUstream_st> stream;
  if (const CUresult r = fakecuda::find_stream(handle, stream)) return r;
  Operation operation;
  operation.run = [launch](CUstream_st& self) { return run(self, *launch); };
  fakecuda::enqueue(stream, std::move(operation));
  return CUDA_SUCCESS;
}

void fakecuda_register_kernel(const char* name, FakecudaKernel kernel, const size_t* sizes,
                              size_t parameters) {
  auto made = std::make_unique<CUfunc_st>();
  made->kernel = kernel;
  if (parameters > 0) made->sizes.assign(sizes, sizes + parameters);
  const std::lock_guard lock(driver().mutex);
  driver().kernels[name] = std::move(made);
}

void* fakecuda_access(CUdeviceptr pointer, size_t bytes, int write) {
  CUstream_st* stream = fakecuda::running_stream();
  const int device = stream != nullptr ? stream->context->device : 0;
  const auto found = fakecuda::touch(device, pointer, bytes, write != 0);
  if (found.size() == 1) return found.front().data;
  if (stream != nullptr) fakecuda::latch(stream->context, CUDA_ERROR_ILLEGAL_ADDRESS);
  return nullptr;
}
