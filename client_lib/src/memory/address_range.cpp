#include "client_lib/src/memory/address_range.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

namespace kvd::client {
namespace {

Bytes page_bytes() {
  static const Bytes bytes(sysconf(_SC_PAGESIZE));
  return bytes;
}

Error mapping_error(const char* what, Bytes size) {
  return make_error(ErrorCode::kOutOfMemory,
                    std::string(what) + " of " + std::to_string(size.value) +
                        " bytes: " + std::strerror(errno) +
                        "; look at ulimit -v, ulimit -l and vm.max_map_count");
}

class HostMemory final : public SlabMemory {
 public:
  Result<std::unique_ptr<SlabRange>> reserve(Bytes size, Bytes alignment) override {
    KVD_ASSIGN_OR_RETURN(auto range, AddressRange::reserve(size, alignment));
    return std::unique_ptr<SlabRange>(std::make_unique<AddressRange>(std::move(range)));
  }
  Status quiesce(Nanoseconds) override { return {}; }
};

class NoMemory final : public SlabMemory {
 public:
  Result<std::unique_ptr<SlabRange>> reserve(Bytes, Bytes) override {
    return make_error(ErrorCode::kInvalidArgument,
                      "this session was opened to map no memory: open another one with the kind of "
                      "memory that kvd lends");
  }
  Status quiesce(Nanoseconds) override { return {}; }
};

bool is_aligned(Bytes value, Bytes alignment) { return value.value % alignment.value == 0; }

/// Touching a mapping beyond the end of its file is a SIGBUS, so a short file is refused here.
Status check_length(const UniqueFd& file, Bytes size) {
  struct stat info {};
  if (::fstat(file.get(), &info) != 0 || info.st_size < size.value) {
    return make_error(ErrorCode::kInvalidArgument, "the daemon sent memory shorter than the " +
                                                       std::to_string(size.value) +
                                                       " bytes it announced");
  }
  return {};
}

Status keep_private(void* memory, Bytes size) {
  if (::madvise(memory, size.size(), MADV_DONTFORK) != 0 ||
      ::madvise(memory, size.size(), MADV_DONTDUMP) != 0) {
    return mapping_error("keeping memory out of forked children and core dumps", size);
  }
  return {};
}

}  // namespace

Result<AddressRange> AddressRange::reserve(Bytes size, Bytes alignment) {
  const Bytes page = page_bytes();
  if (size <= Bytes(0) || alignment < page || !is_aligned(alignment, page) ||
      !is_aligned(size, page) || size > Bytes(INT64_MAX) - alignment) {
    return make_error(ErrorCode::kInvalidArgument, "address range is not whole pages");
  }
  const Bytes padded = size + alignment - page;
  void* raw =
      ::mmap(nullptr, padded.size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return mapping_error("reserving address space", padded);
  auto* const start = static_cast<std::byte*>(raw);
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(start) % alignment.size();
  const std::size_t head = misaligned == 0 ? 0 : alignment.size() - misaligned;
  const std::size_t tail = padded.size() - head - size.size();
  if (head > 0) ::munmap(start, head);
  if (tail > 0) ::munmap(start + head + size.size(), tail);
  return AddressRange(start + head, size);
}

Status AddressRange::check_inside(Bytes offset, Bytes size) const {
  if (offset < Bytes(0) || size <= Bytes(0) || offset > size_ - size ||
      !is_aligned(offset, page_bytes())) {
    return make_error(ErrorCode::kInvalidArgument, "mapping lies outside its address range");
  }
  return {};
}

Status AddressRange::map(Bytes offset, Bytes size, const UniqueFd& file) {
  KVD_TRY(check_inside(offset, size));
  KVD_TRY(check_length(file, size));
  void* raw = ::mmap(data_ + offset.value, size.size(), PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_FIXED, file.get(), 0);
  if (raw == MAP_FAILED) return mapping_error("mapping memory", size);
  return keep_private(raw, size);
}

// An old size of 0 makes a second mapping of shared memory and leaves the first one alone.
Status AddressRange::map_from(Bytes offset, Bytes size, const SlabRange& from, Bytes from_offset) {
  KVD_TRY(check_inside(offset, size));
  void* raw = ::mremap(from.data() + from_offset.value, 0, size.size(),
                       MREMAP_MAYMOVE | MREMAP_FIXED, data_ + offset.value);
  if (raw == MAP_FAILED) return mapping_error("mapping memory", size);
  return keep_private(raw, size);
}

Status AddressRange::map_own(Bytes offset, Bytes size) {
  KVD_TRY(check_inside(offset, size));
  void* raw = ::mmap(data_ + offset.value, size.size(), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if (raw == MAP_FAILED) return mapping_error("mapping memory", size);
  return keep_private(raw, size);
}

Status AddressRange::unmap(Bytes offset, Bytes size) {
  KVD_TRY(check_inside(offset, size));
  void* raw = ::mmap(data_ + offset.value, size.size(), PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return raw == MAP_FAILED ? Status(mapping_error("unmapping memory", size)) : Status();
}

bool AddressRange::forsake() {
  return ::mmap(data_, size_.size(), PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

AddressRange::AddressRange(AddressRange&& other) noexcept
    : SlabRange(other),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, Bytes(0))) {}

AddressRange& AddressRange::operator=(AddressRange&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, Bytes(0));
  }
  return *this;
}

AddressRange::~AddressRange() { release(); }

void AddressRange::release() noexcept {
  if (data_ != nullptr && ::munmap(data_, size_.size()) != 0) std::perror("kvd: munmap");
}

std::shared_ptr<SlabMemory> host_memory() { return std::make_shared<HostMemory>(); }

std::shared_ptr<SlabMemory> no_memory() { return std::make_shared<NoMemory>(); }

}  // namespace kvd::client
