// E12, E13: host memory that the device reaches, registered or by VMM.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "kernels/device/cuda/driver/error.hpp"
#include "tests/gpu/experiments/experiments.hpp"
#include "tests/gpu/lab.hpp"
#include "tests/gpu/peers/peer.hpp"

namespace kvd::gpu {
namespace {

using Kernel = Gpu::Kernel;

double mib(Bytes size) { return static_cast<double>(size.value) / (1024.0 * 1024.0); }

int nearest_node(const Gpu& gpu) {
  int node = -1;
  gpu.driver().device_get_attribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, gpu.device().handle);
  return std::max(node, 0);
}

/// Shared memory of this machine, not yet present.
struct HostRange {
  explicit HostRange(Bytes bytes, unsigned flags = 0)
      : size(bytes), fd(::memfd_create("kvd-gpu-report", MFD_CLOEXEC | flags)) {
    if (fd.valid() && ::ftruncate(fd.get(), bytes.value) == 0) {
      at = ::mmap(nullptr, bytes.size(), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    }
  }
  ~HostRange() {
    if (at != MAP_FAILED) ::munmap(at, size.size());
  }
  HostRange(const HostRange&) = delete;
  HostRange& operator=(const HostRange&) = delete;
  Bytes size;
  UniqueFd fd;
  void* at = MAP_FAILED;
};

/// What may be pinned without hurting the machine: a quarter of what it, or its group, has left.
Bytes pinnable(Bytes wanted) {
  const auto read = [](const char* path) {
    std::ifstream in(path);
    std::int64_t value = 0;
    return in >> value ? value : INT64_MAX;
  };
  const std::int64_t limit = read("/sys/fs/cgroup/memory.max");
  const std::int64_t used = limit == INT64_MAX ? 0 : read("/sys/fs/cgroup/memory.current");
  const std::int64_t machine = std::int64_t{::sysconf(_SC_AVPHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  const std::int64_t left = std::min(limit - used, machine);
  return std::min(wanted, Bytes(left / 4 / kMiB.value * kMiB.value));
}

/// Registers and releases the range in chunks of `span`; seconds and the neighbour's longest wait.
Status pin_once(const Lab& lab, const Gpu& gpu, const HostRange& range, Bytes span, bool chosen) {
  KVD_ASSIGN_OR_RETURN(const Peer neighbour, Peer::start());
  KVD_TRY(neighbour.ask("watch 50"));  // CUDA is up there before the clock starts
  const double gb = static_cast<double>(range.size.value) / 1e9;
  KVD_TRY(neighbour.tell("watch " + std::to_string(static_cast<int>(200 + gb * 200))));
  const double start = now_s();
  double seconds = 0;
  {
    KVD_ASSIGN_OR_RETURN(
        const auto pinned,
        cuda::ChunkedRegistration::make(gpu.driver(), reinterpret_cast<std::uintptr_t>(range.at),
                                        range.size, span));
    seconds = now_s() - start;
  }
  KVD_ASSIGN_OR_RETURN(const Reply reply, neighbour.reply());
  KVD_ASSIGN_OR_RETURN(const double longest_us, reply.number(2));
  const std::string chunk = " with chunks of " + std::to_string(span.value / kMiB.value) + " MiB";
  if (!chosen) {
    lab.out.figure("pinning" + chunk, seconds / gb, "s/GB");
    lab.out.figure("neighbour's longest wait" + chunk, longest_us / 1e3, "ms");
    return {};
  }
  lab.out.at_most("pinning" + chunk, seconds / gb, "s/GB", 0.15);
  lab.out.at_most("neighbour's longest wait" + chunk, longest_us / 1e3, "ms", 300);
  return {};
}

/// Host memory by VMM at the node, shared through a descriptor, for the CPU and the device.
Status numa_memory(const Lab& lab, const Gpu& gpu, Bytes size, double reference) {
  const int node = nearest_node(gpu);
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, node};
  CUmemGenericAllocationHandle handle = 0;
  const CUresult made = gpu.driver().mem_create(&handle, size.size(), &prop, 0);
  if (made != CUDA_SUCCESS) {
    lab.out.require("refused with an error, so that kvd falls back to registered memory", true);
    lab.out.note("cuMemCreate: " + cuda::error_of(gpu.driver(), made, "HOST_NUMA").message);
    return {};
  }
  int raw = -1;
  KVD_TRY(
      gpu.check(gpu.driver().mem_export(&raw, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                "sharing host memory"));
  const UniqueFd fd(raw);
  KVD_TRY(gpu.check(gpu.driver().mem_release(handle), "dropping the handle"));
  KVD_ASSIGN_OR_RETURN(const cuda::PhysicalMemory memory,
                       cuda::PhysicalMemory::import_fd(gpu.driver(), fd.get(), size));
  KVD_ASSIGN_OR_RETURN(const cuda::AddressRange range,
                       cuda::AddressRange::reserve(gpu.driver(), size));
  KVD_ASSIGN_OR_RETURN(const cuda::Mapping mapping, cuda::Mapping::map(range.address(), memory));
  CUmemAccessDesc both[2] = {};
  both[0].location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu.device().handle};
  both[1].location = prop.location;
  both[0].flags = both[1].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  KVD_TRY(gpu.check(gpu.driver().mem_set_access(range.address(), size.size(), both, 2),
                    "access for the device and the CPU"));
  auto* words = reinterpret_cast<std::uint64_t*>(range.address());
  std::fill_n(words, size.size() / 8, std::uint64_t{0x4B5644});
  KVD_ASSIGN_OR_RETURN(const GpuSlab device, GpuSlab::make(gpu, size));
  const auto copy = [&]() -> Result<double> {
    const double start = now_s();
    KVD_TRY(gpu.check(gpu.driver().memcpy_async(device.address(), range.address(), size.size(),
                                                gpu.stream().get()),
                      "copying from host memory"));
    KVD_TRY(gpu.finish());
    return static_cast<double>(size.value) / (now_s() - start);
  };
  KVD_TRY(copy());
  KVD_ASSIGN_OR_RETURN(const double rate, copy());
  KVD_ASSIGN_OR_RETURN(const std::uint64_t right,
                       gpu.count(Kernel::kCount, device.address(), size, 0x4B5644));
  lab.out.require("the device reads what the CPU wrote", right == size.size() / 8);
  lab.out.figure("H2D from host memory by VMM", rate / 1e9, "GB/s");
  lab.out.at_least("rate of it over registered memory's", rate / reference, "", 0.97);
  return {};
}

}  // namespace

Status pinning(const Lab& lab) {
  const Bytes size = lab.quick ? kMiB * 16 : pinnable(kGiB * 32);
  if (size < kMiB * 16) {
    lab.out.skip("too little memory is free on this machine");
    return {};
  }
  KVD_ASSIGN_OR_RETURN(const auto gpu, Gpu::open());
  const HostRange range(size);
  if (range.at == MAP_FAILED) return make_error(ErrorCode::kOutOfMemory, "no memory to pin");
  const double start = now_s();
  KVD_TRY(kernels::populate(reinterpret_cast<std::uintptr_t>(range.at), size,
                            kernels::populate_threads(0)));
  lab.out.figure("memory", mib(size), "MiB");
  lab.out.figure("populating 4 KiB pages",
                 (now_s() - start) / (static_cast<double>(size.value) / 1e9), "s/GB");
  KVD_TRY(pin_once(lab, *gpu, range, lab.quick ? kMiB * 4 : kGiB, false));
  KVD_TRY(pin_once(lab, *gpu, range, cuda::kRegistrationSpan, true));
  KVD_TRY(pin_once(lab, *gpu, range, kGiB * 64, false));
  const HostRange huge(std::min(size, kGiB * 4), MFD_HUGETLB);
  if (huge.at == MAP_FAILED ||
      !kernels::populate(reinterpret_cast<std::uintptr_t>(huge.at), huge.size, 1).ok()) {
    lab.out.note("no huge pages are reserved here: not measured with them");
    return {};
  }
  lab.out.note("with huge pages:");
  return pin_once(lab, *gpu, huge, cuda::kRegistrationSpan, false);
}

Status host_numa(const Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto gpu, Gpu::open());
  const Bytes size = lab.quick ? kMiB * 4 : kGiB;
  double reference = 0;
  {
    KVD_ASSIGN_OR_RETURN(const PinnedMemory host, PinnedMemory::make(*gpu, size));
    KVD_ASSIGN_OR_RETURN(const GpuSlab device, GpuSlab::make(*gpu, size));
    for (int round = 0; round < 2; ++round) {
      const double start = now_s();
      KVD_TRY(gpu->check(gpu->driver().memcpy_async(device.address(), host.address(), size.size(),
                                                    gpu->stream().get()),
                         "copying from registered memory"));
      KVD_TRY(gpu->finish());
      reference = static_cast<double>(size.value) / (now_s() - start);
    }
  }
  lab.out.figure("H2D from registered memory", reference / 1e9, "GB/s");
  lab.out.note("not tried inside a container with Docker's default seccomp profile");
  return numa_memory(lab, *gpu, size, reference);
}

}  // namespace kvd::gpu
