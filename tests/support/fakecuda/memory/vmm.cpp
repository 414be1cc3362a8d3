#include "tests/support/fakecuda/memory/vmm.hpp"

#include <sys/mman.h>

#include <algorithm>

#include "tests/support/fakecuda/driver.hpp"
#include "tests/support/fakecuda/report.hpp"

namespace fakecuda {
namespace {

void* address(CUdeviceptr pointer) { return reinterpret_cast<void*>(pointer); }

int protection(unsigned flags) {
  return flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE
         : flags == CU_MEM_ACCESS_FLAGS_PROT_READ    ? PROT_READ
                                                     : PROT_NONE;
}

}  // namespace

Vmm::~Vmm() {
  for (const auto& [start, reservation] : reservations_) {
    ::munmap(reservation.raw, reservation.raw_size);
  }
}

Vmm::Handle Vmm::add(std::shared_ptr<Physical> memory) {
  last_ += 0x10;
  handles_[last_] = Entry{std::move(memory), 1, 0};
  return last_;
}

std::shared_ptr<Physical> Vmm::find(Handle handle) const {
  const auto found = handles_.find(handle);
  const bool held = found != handles_.end() && found->second.references > 0;
  return held ? found->second.memory : nullptr;
}

CUresult Vmm::release(Handle handle) {
  const auto found = handles_.find(handle);
  if (found == handles_.end() || found->second.references == 0) {
    violation("release_unknown_handle", hex(handle));
    return CUDA_ERROR_INVALID_VALUE;
  }
  --found->second.references;
  forget_if_unused(handle);
  return CUDA_SUCCESS;
}

void Vmm::forget_if_unused(Handle handle) {
  const Entry& entry = handles_.at(handle);
  if (entry.references == 0 && entry.mappings == 0) handles_.erase(handle);
}

CUresult Vmm::retain(CUdeviceptr pointer, Handle& handle) {
  const Mapping* mapping = at(pointer);
  if (mapping == nullptr) return CUDA_ERROR_INVALID_VALUE;
  handle = mapping->handle;
  ++handles_.at(handle).references;
  return CUDA_SUCCESS;
}

CUresult Vmm::reserve(std::size_t size, std::size_t alignment, CUdeviceptr& pointer) {
  const std::size_t align = std::max(alignment, driver().config.granularity);
  const std::size_t raw_size = size + align;
  void* raw =
      ::mmap(nullptr, raw_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  pointer = (reinterpret_cast<CUdeviceptr>(raw) + align - 1) & ~(CUdeviceptr{align} - 1);
  reservations_[pointer] = Reservation{size, static_cast<std::byte*>(raw), raw_size};
  return CUDA_SUCCESS;
}

CUresult Vmm::unreserve(CUdeviceptr pointer, std::size_t size) {
  const auto found = reservations_.find(pointer);
  if (found == reservations_.end() || found->second.size != size) return CUDA_ERROR_INVALID_VALUE;
  const auto next = mappings_.lower_bound(pointer);
  if (next != mappings_.end() && next->first < pointer + size) {
    violation("address_free_while_mapped", hex(pointer));
    return CUDA_ERROR_INVALID_VALUE;
  }
  ::munmap(found->second.raw, found->second.raw_size);
  reservations_.erase(found);
  return CUDA_SUCCESS;
}

CUresult Vmm::map(CUdeviceptr pointer, std::size_t size, Handle handle) {
  const auto memory = find(handle);
  if (memory && size > memory->size()) return CUDA_ERROR_NOT_SUPPORTED;
  if (!memory || size != memory->size() || pointer % driver().config.granularity != 0 ||
      !reserved(pointer, size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto next = mappings_.lower_bound(pointer);
  const bool runs_into_next = next != mappings_.end() && next->first < pointer + size;
  if (runs_into_next || at(pointer) != nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!memory->on_device() && ::mmap(address(pointer), size, PROT_NONE, MAP_FIXED | MAP_SHARED,
                                     memory->fd(), 0) == MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  ++handles_.at(handle).mappings;
  mappings_[pointer] = Mapping{size, handle, memory, {}, 0};
  return CUDA_SUCCESS;
}

Vmm::Run Vmm::whole_run(CUdeviceptr pointer, std::size_t size) {
  Run run;
  const CUdeviceptr end = pointer + size;
  for (auto next = mappings_.find(pointer); pointer < end && next != mappings_.end(); ++next) {
    if (next->first != pointer) return {};
    pointer += next->second.size;
    run.push_back(next);
  }
  return pointer == end ? run : Run{};
}

CUresult Vmm::unmap(CUdeviceptr pointer, std::size_t size) {
  const Run run = whole_run(pointer, size);
  if (run.empty()) return CUDA_ERROR_INVALID_VALUE;
  if (in_flight(pointer, size)) violation("unmap_in_flight", hex(pointer));
  for (const auto& mapping : run) {
    if (!mapping->second.memory->on_device()) {
      (void)::mmap(address(mapping->first), mapping->second.size, PROT_NONE,
                   MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    const Handle handle = mapping->second.handle;
    --handles_.at(handle).mappings;
    mappings_.erase(mapping);
    forget_if_unused(handle);
  }
  return CUDA_SUCCESS;
}

CUresult Vmm::set_access(CUdeviceptr pointer, std::size_t size, const CUmemAccessDesc& desc) {
  const Run run = whole_run(pointer, size);
  if (run.empty()) return CUDA_ERROR_INVALID_VALUE;
  if (desc.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    if (desc.location.id < 0 || desc.location.id >= driver().config.devices) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    for (const auto& mapping : run) mapping->second.device_access[desc.location.id] = desc.flags;
    return CUDA_SUCCESS;
  }
  const bool same_kind = std::all_of(run.begin(), run.end(), [&](const auto& mapping) {
    return mapping->second.memory->prop().location.type == desc.location.type;
  });
  if (!same_kind) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& mapping : run) {
    mapping->second.host_access = desc.flags;
    ::mprotect(address(mapping->first), mapping->second.size, protection(desc.flags));
  }
  return CUDA_SUCCESS;
}

const Vmm::Mapping* Vmm::at(CUdeviceptr pointer, CUdeviceptr* start) const {
  auto next = mappings_.upper_bound(pointer);
  if (next == mappings_.begin()) return nullptr;
  --next;
  if (pointer - next->first >= next->second.size) return nullptr;
  if (start != nullptr) *start = next->first;
  return &next->second;
}

bool Vmm::reserved(CUdeviceptr pointer, std::size_t size) const {
  auto next = reservations_.upper_bound(pointer);
  if (next == reservations_.begin()) return false;
  --next;
  const CUdeviceptr offset = pointer - next->first;
  return offset < next->second.size && size <= next->second.size - offset;
}

bool Vmm::touches_reservation(CUdeviceptr pointer, std::size_t size) const {
  if (reserved(pointer, 1)) return true;
  const auto next = reservations_.upper_bound(pointer);
  return next != reservations_.end() && next->first - pointer < size;
}

std::vector<Segment> Vmm::access(int device, CUdeviceptr pointer, std::size_t size,
                                 bool write) const {
  const unsigned needed =
      write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
  std::vector<Segment> segments;
  while (size > 0) {
    CUdeviceptr start = 0;
    const Mapping* mapping = at(pointer, &start);
    if (mapping == nullptr) return {};
    const auto granted = mapping->device_access.find(device);
    if (granted == mapping->device_access.end() || granted->second < needed) return {};
    const std::size_t offset = pointer - start;
    const std::size_t piece = std::min(size, mapping->size - offset);
    segments.push_back({mapping->memory->data() + offset, piece, mapping->memory});
    pointer += piece;
    size -= piece;
  }
  return segments;
}

std::size_t Vmm::live_handles() const {
  return static_cast<std::size_t>(std::count_if(
      handles_.begin(), handles_.end(), [](auto& item) { return item.second.references > 0; }));
}

}  // namespace fakecuda
