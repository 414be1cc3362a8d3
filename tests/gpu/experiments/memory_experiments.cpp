// E1, E2, E15: what the device is, and what its memory costs.
#include <algorithm>
#include <fstream>

#include "tests/gpu/experiments/experiments.hpp"
#include "tests/gpu/lab.hpp"
#include "tests/gpu/machine_facts.hpp"
#include "tests/gpu/peers/peer.hpp"

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
                                     {92, "stream memory operations, first form"},
                                     {93, "64-bit ones, first form"},
                                     {94, "waits for NOR, first form"},
                                     {98, "remote writes can be flushed"},
                                     {100, "host page tables used (Grace)"},
                                     {102, "virtual memory management"},
                                     {103, "POSIX descriptors"},
                                     {110, "GPUDirect RDMA with VMM"},
                                     {113, "registered memory may be read-only"},
                                     {122, "64-bit stream memory operations"},
                                     {130, "device memory is a NUMA node"},
                                     {131, "NUMA node of device memory"},
                                     {134, "nearest host NUMA node"},
                                     {141, "host NUMA memory by VMM"},
                                     {143, "host NUMA memory shared between machines"},
                                     {144, "pools of host memory"},
                                     {145, "host memory by VMM"},
                                     {146, "host memory as DMA buffers"},
                                     {147, "only some atomics over the link"}};

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
    KVD_ASSIGN_OR_RETURN(cuda::PhysicalMemory memory,
                         cuda::PhysicalMemory::create(gpu.driver(), gpu.device().handle, size));
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
  return machine_facts(lab, *gpu);
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
