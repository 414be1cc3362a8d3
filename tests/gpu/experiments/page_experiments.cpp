// E23, E24, E25: what host pages cost and give, by their kind and place; several devices.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "tests/gpu/experiments/experiments.hpp"
#include "tests/gpu/lab.hpp"

namespace kvd::gpu {
namespace {

using kernels::HostMemory;
using kernels::HostMemoryRequest;
using kernels::PageKind;
using kernels::PagePreference;

double mib(Bytes size) { return static_cast<double>(size.value) / (1024.0 * 1024.0); }

Result<HostMemory> host_memory(Bytes size, PagePreference pages, std::optional<unsigned> node) {
  HostMemoryRequest request;
  request.name = "kvd-gpu-report";
  request.size = size;
  request.pages = pages;
  request.numa_node = node;
  request.populate_threads = kernels::populate_threads(0);
  return HostMemory::create(request);
}

/// What `make` takes of the device's memory, in MiB for each GiB of `size`, besides `size` itself.
template <class Make>
Result<double> cost(const Gpu& gpu, Bytes size, Bytes itself, Make make) {
  KVD_ASSIGN_OR_RETURN(const Bytes before, gpu.free_memory());
  auto made = make();
  if (!made.ok()) return made.error();
  KVD_ASSIGN_OR_RETURN(const Bytes after, gpu.free_memory());
  return mib(before - after - itself) * static_cast<double>(kGiB.value) /
         static_cast<double>(size.value);
}

Status registered_cost(const Lab& lab, const Gpu& gpu, Bytes size, PagePreference pages) {
  KVD_ASSIGN_OR_RETURN(const HostMemory memory, host_memory(size, pages, std::nullopt));
  KVD_ASSIGN_OR_RETURN(const double taken, cost(gpu, size, Bytes(0), [&] {
                         return cuda::ChunkedRegistration::make(gpu.driver(), memory.address(),
                                                                size);
                       }));
  lab.out.figure(
      std::string("registering, pages: ") + (memory.pages() == PageKind::kSmall ? "4 KiB" : "huge"),
      taken, "MiB a GiB");
  return {};
}

/// From and to the device, GB/s.
Status rates(const Lab& lab, const Gpu& gpu, const HostMemory& memory, const std::string& what) {
  const Bytes size = memory.size();
  KVD_ASSIGN_OR_RETURN(const auto pinned,
                       cuda::ChunkedRegistration::make(gpu.driver(), memory.address(), size));
  KVD_ASSIGN_OR_RETURN(const GpuSlab device, GpuSlab::make(gpu, size));
  for (const bool in : {true, false}) {
    double best = 0;
    for (int round = 0; round < 3; ++round) {
      const double start = now_s();
      KVD_TRY(gpu.check(gpu.driver().memcpy_async(in ? device.address() : memory.address(),
                                                  in ? memory.address() : device.address(),
                                                  size.size(), gpu.stream().get()),
                        "a large copy"));
      KVD_TRY(gpu.finish());
      best = std::max(best, static_cast<double>(size.value) / (now_s() - start));
    }
    lab.out.figure((in ? "H2D, " : "D2H, ") + what, best / 1e9, "GB/s");
  }
  return {};
}

unsigned nodes() {
  unsigned count = 0;
  while (std::filesystem::exists("/sys/devices/system/node/node" + std::to_string(count))) ++count;
  return count;
}

}  // namespace

Status mapping_cost(const Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto gpu, Gpu::open());
  const Bytes size = lab.quick ? kMiB * 8 : kGiB * 4;
  KVD_TRY(registered_cost(lab, *gpu, size, PagePreference::kSmall));
  KVD_TRY(registered_cost(lab, *gpu, size, PagePreference::kHugetlb));
  KVD_ASSIGN_OR_RETURN(const double made,
                       cost(*gpu, size, size, [&] { return GpuSlab::make(*gpu, size); }));
  lab.out.figure("device memory, mapped where it was made", made, "MiB a GiB");
  KVD_ASSIGN_OR_RETURN(const GpuSlab slab, GpuSlab::make(*gpu, size));
  KVD_ASSIGN_OR_RETURN(const UniqueFd fd, slab.memory().export_fd());
  KVD_ASSIGN_OR_RETURN(const double again, cost(*gpu, size, Bytes(0), [&] {
                         return GpuSlab::import(*gpu, fd.get(), size, cuda::Access::kReadWrite);
                       }));
  lab.out.figure("device memory, mapped once more", again, "MiB a GiB");
  return {};
}

Status page_kinds(const Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto gpu, Gpu::open());
  const Bytes size = lab.quick ? kMiB * 4 : kGiB;
  for (const PagePreference pages : {PagePreference::kHugetlb, PagePreference::kSmall}) {
    KVD_ASSIGN_OR_RETURN(const HostMemory memory, host_memory(size, pages, std::nullopt));
    const bool small = memory.pages() == PageKind::kSmall;
    if (pages == PagePreference::kHugetlb && small) {
      lab.out.note("no huge pages are reserved here: not measured with them");
      continue;
    }
    KVD_TRY(rates(lab, *gpu, memory, small ? "pages of 4 KiB" : "huge pages"));
  }
  if (nodes() < 2) lab.out.note("one NUMA node here: no other to measure");
  for (unsigned node = 0; nodes() > 1 && node < nodes(); ++node) {
    const auto memory = host_memory(size, PagePreference::kSmall, node);
    const std::string what = "node " + std::to_string(node);
    if (memory.ok()) KVD_TRY(rates(lab, *gpu, *memory, what));
    if (!memory.ok()) lab.out.note(what + ": " + memory.error().message);
  }
  return {};
}

Status several_devices(const Lab& lab) {
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  KVD_ASSIGN_OR_RETURN(const cuda::Driver* driver, cuda::Driver::load());
  KVD_ASSIGN_OR_RETURN(const auto devices, cuda::list_devices(*driver));
  lab.out.figure("devices", static_cast<double>(devices.size()), "");
  if (devices.size() < 2) {
    lab.out.skip("one device here");
    return {};
  }
  std::set<cuda::Uuid> uuids;
  for (const cuda::Device& device : devices) {
    uuids.insert(device.uuid);
    cuda::DeviceChoice choice;
    choice.uuid = device.uuid;
    KVD_ASSIGN_OR_RETURN(const cuda::Device found, cuda::find_device(*driver, choice));
    lab.out.require("found by its UUID: " + device.uuid_text(), found.ordinal == device.ordinal);
  }
  lab.out.require("no two have the same UUID", uuids.size() == devices.size());
  return {};
}

}  // namespace kvd::gpu
