// E1, E2, E12, E13, E15: what memory the device and the host give, and what it costs.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "kernels/device/cuda/error.hpp"
#include "tests/gpu/experiments.hpp"
#include "tests/gpu/lab.hpp"
#include "tests/gpu/peer.hpp"

namespace kvd::gpu {
namespace {

using Kernel = Gpu::Kernel;

struct Attribute {
  int number;
  const char* name;
};
constexpr Attribute kAttributes[] = {{16, "multiprocessors"},
                                     {40, "async engines"},
                                     {75, "compute capability major"},
                                     {76, "compute capability minor"},
                                     {88, "pageable memory access"},
                                     {91, "host pointers usable as registered"},
                                     {100, "host page tables used (Grace)"},
                                     {102, "virtual memory management"},
                                     {103, "POSIX descriptors"},
                                     {110, "GPUDirect RDMA with VMM"},
                                     {122, "64-bit stream memory operations"},
                                     {130, "device memory is a NUMA node"},
                                     {131, "NUMA node of device memory"},
                                     {134, "nearest host NUMA node"},
                                     {141, "host NUMA memory by VMM"},
                                     {143, "attribute 143"},
                                     {144, "attribute 144"},
                                     {145, "attribute 145"},
                                     {146, "attribute 146"}};

double mib(Bytes size) { return static_cast<double>(size.value) / (1024.0 * 1024.0); }

Result<std::size_t> host_numa_grain(const Gpu& gpu, int node) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, node};
  std::size_t grain = 0;
  KVD_TRY(gpu.check(
      gpu.driver().mem_get_allocation_granularity(&grain, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
      "the granularity of host memory"));
  return grain;
}

int nearest_node(const Gpu& gpu) {
  int node = -1;
  gpu.driver().device_get_attribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, gpu.device().handle);
  return std::max(node, 0);
}

/// Seconds that each call took, over all handles of one size.
struct VmmTimes {
  double create = 0, share = 0, import = 0, map = 0, grant = 0, unmap = 0;
};

/// Makes, shares, imports again, maps, grants and takes apart `total` bytes in handles of `size`.
Result<VmmTimes> walk(const Gpu& gpu, Bytes size, Bytes total) {
  VmmTimes times;
  double mark = now_s();
  const auto lap = [&](double& into) {
    const double now = now_s();
    into += now - mark;
    mark = now;
  };
  KVD_ASSIGN_OR_RETURN(cuda::AddressRange range, cuda::AddressRange::reserve(gpu.driver(), total));
  std::vector<cuda::PhysicalMemory> made;
  for (Bytes at; at < total; at += size) {
    mark = now_s();
    KVD_ASSIGN_OR_RETURN(
        cuda::PhysicalMemory memory,
        cuda::PhysicalMemory::create(gpu.driver(), gpu.device().handle, size, false));
    lap(times.create);
    KVD_ASSIGN_OR_RETURN(const UniqueFd fd, memory.export_fd());
    lap(times.share);
    KVD_ASSIGN_OR_RETURN(cuda::PhysicalMemory again,
                         cuda::PhysicalMemory::import_fd(gpu.driver(), fd.get(), size));
    lap(times.import);
    made.push_back(std::move(memory));
  }
  std::vector<cuda::Mapping> mappings;
  mark = now_s();
  for (std::size_t i = 0; i < made.size(); ++i) {
    KVD_ASSIGN_OR_RETURN(cuda::Mapping mapping,
                         cuda::Mapping::map(range.address() + i * size.size(), made[i]));
    mappings.push_back(std::move(mapping));
  }
  lap(times.map);
  KVD_TRY(cuda::grant_access(gpu.driver(), range.address(), total, gpu.device().handle,
                             cuda::Access::kReadWrite));
  lap(times.grant);
  mappings.clear();
  lap(times.unmap);
  return times;
}

/// Whole slabs within `wanted` and nine tenths of what is free.
Result<std::int64_t> slabs_for(const Gpu& gpu, Bytes slab, Bytes wanted) {
  KVD_ASSIGN_OR_RETURN(const Bytes free, gpu.free_memory());
  return std::max<std::int64_t>(std::min(wanted, Bytes(free.value / 10 * 9)) / slab, 1);
}

Status attach(const Lab& lab, const Gpu& gpu) {
  const Bytes slab = lab.quick ? gpu.grain() : kMiB * 256;
  const Bytes wanted = lab.quick ? gpu.grain() * 20 : kGiB * 64;
  KVD_ASSIGN_OR_RETURN(const std::int64_t count, slabs_for(gpu, slab, wanted));
  std::vector<GpuSlab> slabs;
  std::vector<UniqueFd> fds;
  for (std::int64_t i = 0; i < count; ++i) {
    KVD_ASSIGN_OR_RETURN(GpuSlab one, GpuSlab::make(gpu, slab));
    KVD_TRY(gpu.launch(Kernel::kFill, gpu.stream().get(), one.address(), Bytes(4096),
                       static_cast<std::uint64_t>(i) + 1));
    KVD_ASSIGN_OR_RETURN(UniqueFd fd, one.memory().export_fd());
    slabs.push_back(std::move(one));
    fds.push_back(std::move(fd));
  }
  KVD_TRY(gpu.finish());
  KVD_ASSIGN_OR_RETURN(const Peer peer, Peer::start());
  KVD_TRY(peer.ask("attach " + std::to_string(count) + " " + std::to_string(slab.value)));
  for (std::size_t i = 0; i < fds.size();) {
    std::vector<int> some;
    for (; i < fds.size() && some.size() < 8; ++i) some.push_back(fds[i].get());
    KVD_TRY(peer.tell("slabs", some));
  }
  KVD_ASSIGN_OR_RETURN(const Reply reply, peer.reply());
  KVD_ASSIGN_OR_RETURN(const double seconds, reply.number(0));
  KVD_ASSIGN_OR_RETURN(const double wrong, reply.number(1));
  const Bytes attached = slab * count;
  lab.out.require("attached slabs hold their pattern", wrong == 0);
  lab.out.figure("attached", mib(attached), "MiB");
  lab.out.figure("slabs attached", static_cast<double>(count), "");
  lab.out.figure("attach", seconds * 1e3, "ms");
  if (attached < wanted) lab.out.note("less memory than 64 GiB is free; the time is scaled to it");
  lab.out.at_most(
      "attach of 64 GiB",
      seconds * 1e3 * static_cast<double>(wanted.value) / static_cast<double>(attached.value), "ms",
      500);
  return {};
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

Status capabilities(const Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto gpu, Gpu::open());
  const cuda::Device& device = gpu->device();
  lab.out.fact("device", device.name);
  lab.out.fact("uuid", device.uuid_text());
  lab.out.fact("bus", device.pci_bus_id);
  lab.out.fact("memory_mib", std::to_string(device.memory.value / kMiB.value));
  lab.out.fact("driver_cuda", std::to_string(gpu->driver().version()));
  std::ifstream module("/sys/module/nvidia/version");
  std::string version;
  if (module >> version) lab.out.fact("driver_module", version);
  int values[200] = {};
  for (const Attribute& attribute : kAttributes) {
    const CUresult known = gpu->driver().device_get_attribute(
        &values[attribute.number], static_cast<CUdevice_attribute>(attribute.number),
        device.handle);
    const std::string text =
        known == CUDA_SUCCESS ? std::to_string(values[attribute.number]) : "unknown to the driver";
    lab.out.fact("attribute " + std::to_string(attribute.number) + ", " + attribute.name, text);
  }
  lab.out.require("attribute 102, virtual memory management", values[102] == 1);
  lab.out.require("attribute 103, POSIX descriptors", values[103] == 1);
  lab.out.figure("granularity of device memory", mib(gpu->grain()), "MiB");
  lab.out.require("granularity at most 2 MiB", gpu->grain() <= kMiB * 2);
  const Result<std::size_t> host = host_numa_grain(*gpu, nearest_node(*gpu));
  if (host.ok()) lab.out.figure("granularity of HOST_NUMA", static_cast<double>(*host), "B");
  if (!host.ok()) lab.out.note("HOST_NUMA has no granularity here: " + host.error().message);
  const bool batch = gpu->driver().memcpy_batch_async != nullptr;
  lab.out.fact("batched copies", batch                                               ? "13.0"
                                 : gpu->driver().memcpy_batch_async_12080 != nullptr ? "12.8"
                                                                                     : "none");
  return {};
}

Status vmm_cost(const Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto gpu, Gpu::open());
  for (const Bytes size : {kMiB * 2, kMiB * 64, kMiB * 256, kGiB}) {
    // Small handles cost by their number: a part of the memory says what each costs.
    const Bytes wanted = lab.quick ? size : (size == kMiB * 2 ? kGiB * 2 : kGiB * 32);
    if (lab.quick && size > kMiB * 64) continue;
    KVD_ASSIGN_OR_RETURN(const std::int64_t count, slabs_for(*gpu, size, wanted));
    KVD_ASSIGN_OR_RETURN(const VmmTimes t, walk(*gpu, size, size * count));
    const auto each = [&](const char* what, double seconds) {
      lab.out.figure(std::string(what) + ", " + std::to_string(size.value / kMiB.value) + " MiB",
                     seconds * 1e6 / static_cast<double>(count), "us each");
    };
    each("create", t.create);
    each("export", t.share);
    each("import", t.import);
    each("map", t.map);
    each("grant", t.grant);
    each("unmap", t.unmap);
  }
  return attach(lab, *gpu);
}

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

Status footprint(const Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto gpu, Gpu::open());
  KVD_ASSIGN_OR_RETURN(const Bytes before, gpu->free_memory());
  KVD_ASSIGN_OR_RETURN(const Peer peer, Peer::start());
  KVD_TRY(peer.ask("context"));
  KVD_ASSIGN_OR_RETURN(const Bytes after, gpu->free_memory());
  lab.out.at_most("context and first copy of another process", mib(before - after), "MiB", 600);
  return {};
}

}  // namespace kvd::gpu
