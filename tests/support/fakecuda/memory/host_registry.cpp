#include "tests/support/fakecuda/memory/host_registry.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/fakecuda/driver.hpp"
#include "tests/support/fakecuda/report.hpp"

namespace fakecuda {
namespace {

constexpr CUdeviceptr kPage = 4096;

void* address(CUdeviceptr pointer) { return reinterpret_cast<void*>(pointer); }
CUdeviceptr page_of(CUdeviceptr pointer) { return pointer & ~(kPage - 1); }
std::size_t pages_around(CUdeviceptr pointer, std::size_t size) {
  return page_of(pointer + size + kPage - 1) - page_of(pointer);
}

bool is_mapped(CUdeviceptr pointer, std::size_t size) {
  std::vector<unsigned char> present(pages_around(pointer, size) / kPage);
  return ::mincore(address(page_of(pointer)), pages_around(pointer, size), present.data()) == 0;
}

// What the kernel does not let a device pin for long and for writing: pages that the process itself
// may not write, and those of a file on a disk, whose writing somebody has to note (FOLL_LONGTERM;
// os-mlock.c of NVIDIA's open kernel modules asks for it; cuda.h on READ_ONLY).
bool can_be_pinned(std::string_view permissions, std::string_view path) {
  if (permissions.substr(0, 2) != "rw") return false;
  const bool shared_file = permissions[3] == 's' && !path.empty() && path[0] == '/';
  constexpr std::array<std::string_view, 4> kInMemory = {"/memfd:", "/dev/zero", "/dev/shm/",
                                                         "/SYSV"};
  return !shared_file || std::any_of(kInMemory.begin(), kInMemory.end(), [&](auto start) {
    return path.substr(0, start.size()) == start;
  });
}

bool can_be_pinned(CUdeviceptr pointer, std::size_t size) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    CUdeviceptr start = 0, end = 0;
    char dash = 0;
    std::string permissions, offset, device, inode, path;
    fields >> std::hex >> start >> dash >> end >> permissions >> offset >> device >> inode >> path;
    if (end <= pointer || start >= pointer + size) continue;
    if (!can_be_pinned(permissions, path)) return false;
  }
  return true;
}

template <class Map>
typename Map::const_iterator last_at_or_before(const Map& map, CUdeviceptr pointer) {
  const auto next = map.upper_bound(pointer);
  return next == map.begin() ? map.end() : std::prev(next);
}

}  // namespace

HostRegistry::~HostRegistry() {
  while (!by_host_.empty()) drop(by_host_.begin());
}

CUresult HostRegistry::add(CUdeviceptr host, std::size_t size, unsigned flags, CUcontext context) {
  constexpr unsigned kKnown = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  if (host == 0 || size == 0 || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  const CUdeviceptr first = page_of(host);
  if (touches(first, pages_around(host, size))) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  if (!is_mapped(host, size) || !can_be_pinned(host, size)) return CUDA_ERROR_INVALID_VALUE;
  void* range = ::mmap(nullptr, pages_around(host, size), PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUdeviceptr device = reinterpret_cast<CUdeviceptr>(range) + (host - first);
  by_host_[host] = Registration{size, flags, device, context};
  host_of_device_[device] = host;
  return CUDA_SUCCESS;
}

void HostRegistry::expect_unused(CUdeviceptr host) const {
  const auto found = by_host_.find(host);
  if (found == by_host_.end()) return;
  const Registration& item = found->second;
  if (in_flight(host, item.size) || in_flight(item.device, item.size)) {
    violation("unregister_in_flight", hex(host));
  }
}

CUresult HostRegistry::remove(CUdeviceptr host) {
  const auto found = by_host_.find(host);
  if (found == by_host_.end()) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  drop(found);
  return CUDA_SUCCESS;
}

void HostRegistry::remove_all_of(CUcontext context) {
  for (auto item = by_host_.begin(); item != by_host_.end();) {
    const auto here = item++;
    if (here->second.context == context) drop(here);
  }
}

void HostRegistry::drop(Map::iterator item) {
  const CUdeviceptr device = item->second.device;
  ::munmap(address(page_of(device)), pages_around(device, item->second.size));
  host_of_device_.erase(device);
  by_host_.erase(item);
}

HostRegistry::Found HostRegistry::find(CUdeviceptr pointer) const {
  const auto inside = [&](Found item, CUdeviceptr start) {
    return item != none() && pointer - start < item->second.size;
  };
  const auto host = last_at_or_before(by_host_, pointer);
  if (host != none() && inside(host, host->first)) return host;
  const auto device = last_at_or_before(host_of_device_, pointer);
  if (device == host_of_device_.end()) return none();
  const auto item = by_host_.find(device->second);
  return inside(item, device->first) ? item : none();
}

bool HostRegistry::touches(CUdeviceptr pointer, std::size_t size) const {
  if (find(pointer) != none()) return true;
  const auto host = by_host_.lower_bound(pointer);
  const auto device = host_of_device_.lower_bound(pointer);
  return (host != by_host_.end() && host->first - pointer < size) ||
         (device != host_of_device_.end() && device->first - pointer < size);
}

CUdeviceptr HostRegistry::host_address(CUdeviceptr pointer, std::size_t size) const {
  const auto item = find(pointer);
  if (item == none()) return 0;
  const bool by_host = pointer - item->first < item->second.size;
  const CUdeviceptr offset = pointer - (by_host ? item->first : item->second.device);
  return size <= item->second.size - offset ? item->first + offset : 0;
}

}  // namespace fakecuda
