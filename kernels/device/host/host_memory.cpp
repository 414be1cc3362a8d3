#include "kernels/device/host/host_memory.hpp"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>

#include "ipc/vocabulary/errno_words.hpp"
#include "kernels/device/host/page_facts.hpp"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U  // since Linux 6.3; older headers lack it
#endif

namespace kvd::kernels {
namespace {

Error os_error(ErrorCode code, const std::string& what) {
  return make_error(code, what + ": " + std::strerror(errno));
}

Error no_memory(Bytes wanted, const std::string& why) {
  return make_error(ErrorCode::kOutOfMemory,
                    "no memory for a slab of " + std::to_string(wanted.value) + " bytes (" + why +
                        "): lower the pool size or free memory on this machine");
}

UniqueFd open_memfd(const std::string& name, PageKind pages) {
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | memfd_page_flags(pages);
  const int fd = ::memfd_create(name.c_str(), flags | MFD_NOEXEC_SEAL);
  if (fd >= 0 || errno != EINVAL) return UniqueFd(fd);
  return UniqueFd(::memfd_create(name.c_str(), flags));  // a kernel before 6.3
}

// The kinds that are worth trying now for this request on this machine, best first.
std::vector<PageKind> candidates(const HostMemoryRequest& request) {
  std::vector<PageKind> kinds;
  if (request.pages == PagePreference::kHugetlb && free_hugetlb() >= request.size) {
    kinds.push_back(PageKind::kHugetlb);
  }
  const bool huge = request.pages != PagePreference::kSmall && shmem_huge_allowed();
  kinds.push_back(huge ? PageKind::kTransparentHuge : PageKind::kSmall);
  return kinds;
}

// Binds strictly: on machines whose GPU memory is a NUMA node, a pool must not spill onto it.
Status bind_to_node(std::uintptr_t address, Bytes size, unsigned node) {
  const std::string nodes = "/sys/devices/system/node/";
  std::string online;
  std::getline(std::ifstream(nodes + "online") >> std::ws, online);
  if (online == std::to_string(node)) return {};  // the only node, so there is nothing to choose
  // Where /sys is hidden, as in some containers, the kernel is asked directly.
  const bool known = !online.empty();
  if (known && ::access((nodes + "node" + std::to_string(node)).c_str(), F_OK) != 0) {
    return make_error(ErrorCode::kInvalidArgument, "no NUMA node " + std::to_string(node) +
                                                       " on this machine; online: " + online);
  }
  constexpr std::size_t kBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, 1024 / kBits> mask{};
  if (node >= mask.size() * kBits) {
    return make_error(ErrorCode::kInvalidArgument, "NUMA node numbers end at 1023");
  }
  mask[node / kBits] = 1ul << (node % kBits);
  // The kernel reads one bit less than this number says.
  if (::syscall(SYS_mbind, address, size.size(), MPOL_BIND, mask.data(), mask.size() * kBits + 1,
                0) == 0) {
    return {};
  }
  return os_error(ErrorCode::kPermissionDenied, "cannot bind memory to NUMA node " +
                                                    std::to_string(node) +
                                                    " (in a container: add CAP_SYS_NICE)");
}

Status populate_range(std::uintptr_t address, std::size_t size) {
  int result = 0;
  do {
    result = ::madvise(reinterpret_cast<void*>(address), size, MADV_POPULATE_WRITE);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  if (result == 0) return {};
  const Bytes wanted(static_cast<std::int64_t>(size));
  if (errno == EINVAL) return os_error(ErrorCode::kUnsupported, "kvd needs Linux 5.14 or newer");
  if (errno == EHWPOISON) return os_error(ErrorCode::kDeviceError, "broken memory page");
  return no_memory(wanted, std::strerror(errno));
}

}  // namespace

unsigned populate_threads(unsigned configured) {
  if (configured != 0) return configured;
  return std::clamp(std::thread::hardware_concurrency(), 1u, 8u);
}

Status populate(std::uintptr_t address, Bytes size, unsigned threads) {
  const auto huge_pages = static_cast<std::size_t>(pieces(size, kHugePage));
  const std::size_t workers =
      std::clamp<std::size_t>(threads, 1, std::max<std::size_t>(huge_pages, 1));
  const std::size_t step = (huge_pages + workers - 1) / workers * kHugePage.size();
  std::vector<Status> results(workers);
  const auto work = [&](std::size_t i) {
    const std::size_t from = std::min(i * step, size.size());
    const std::size_t to = std::min(from + step, size.size());
    if (from < to) results[i] = populate_range(address + from, to - from);
  };
  std::vector<std::thread> helpers;
  for (std::size_t i = 1; i < workers; ++i) helpers.emplace_back(work, i);
  work(0);
  for (std::thread& helper : helpers) helper.join();
  for (const Status& result : results) KVD_TRY(result);
  return {};
}

Result<HostMemory> HostMemory::create(const HostMemoryRequest& request) {
  const std::vector<PageKind> kinds = candidates(request);
  for (const PageKind pages : kinds) {
    Result<HostMemory> memory = create(request, pages);
    const bool others_may_help =
        pages != kinds.back() && !memory.ok() && memory.error().code == ErrorCode::kOutOfMemory;
    if (!others_may_help) return memory;
  }
  return make_error(ErrorCode::kInternal, "no kind of pages to try");
}

Status machine_has(Bytes wanted) {
  const Bytes available = available_memory();
  if (wanted <= available) return {};
  return no_memory(wanted, std::to_string(available.value) + " bytes available");
}

Result<HostMemory> HostMemory::create(const HostMemoryRequest& request, PageKind pages) {
  HostMemory memory;
  KVD_TRY(memory.make_file(request, pages));
  KVD_TRY(memory.map(pages));
  if (request.numa_node) {
    KVD_TRY(bind_to_node(memory.address_, memory.size_, *request.numa_node));
  }
  KVD_TRY(memory.populate(request, pages));
  // The result may differ from what was asked for: the kernel may lack a free huge page, and says
  // so only in smaps. That file is slow to read, and small pages need no proof.
  if (pages != PageKind::kSmall) memory.pages_ = mapped_page_kind(memory.address_, memory.size_);
  return memory;
}

Status HostMemory::check(const UniqueFd& memory, Bytes size) {
  struct stat facts {};
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  const bool fixed = seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && (seals & F_SEAL_GROW) != 0;
  if (fixed && ::fstat(memory.get(), &facts) == 0 && facts.st_size == size.value) return {};
  return make_error(ErrorCode::kInvalidArgument, "not a slab of the size that is asked for");
}

Result<HostMemory> HostMemory::reopen(const HostMemoryRequest& request, UniqueFd file,
                                      bool zeroed) {
  KVD_TRY(check(file, request.size));
  struct stat facts {};
  if (::fstat(file.get(), &facts) != 0) {
    return os_error(ErrorCode::kInvalidArgument, "cannot ask about a slab");
  }
  HostMemory memory;
  memory.fd_ = std::move(file);
  memory.size_ = request.size;
  if (zeroed) memory.empty();
  KVD_TRY(memory.map(PageKind::kTransparentHuge));
  if (request.numa_node) {
    KVD_TRY(bind_to_node(memory.address_, memory.size_, *request.numa_node));
  }
  KVD_TRY(kernels::populate(memory.address_, memory.size_, request.populate_threads));
  const bool huge = facts.st_blksize >= kHugePage.value || shmem_huge_allowed();
  if (huge) memory.pages_ = mapped_page_kind(memory.address_, memory.size_);
  return memory;
}

Status HostMemory::make_file(const HostMemoryRequest& request, PageKind pages) {
  fd_ = open_memfd(request.name, pages);
  if (!fd_.valid() && (errno == EMFILE || errno == ENFILE)) {
    return os_error(ErrorCode::kUnavailable,
                    "no file descriptor left for a slab: raise LimitNOFILE (ulimit -n), or take "
                    "larger slabs (pool.slab)");
  }
  if (!fd_.valid()) return os_error(ErrorCode::kOutOfMemory, "cannot create a memfd");
  size_ = request.size;
  if (::ftruncate(fd_.get(), request.size.value) != 0) {
    if (errno == EFBIG) {
      return make_error(ErrorCode::kUnsupported, "no slab of " +
                                                     std::to_string(request.size.value) +
                                                     " bytes can be made: " + errno_words(EFBIG));
    }
    return no_memory(request.size, std::strerror(errno));
  }
  // Without these seals a peer could shrink the file and kill kvd by SIGBUS. It can still punch a
  // hole. The pages of a hole come back as zeros, but hugetlb pages only while the kernel has some
  // left.
  if (::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return os_error(ErrorCode::kUnsupported, "cannot seal a memfd");
  }
  return {};
}

Status HostMemory::map(PageKind pages) {
  const std::size_t grain = kHugePage.size();
  reserved_size_ = size_.size() + 2 * grain;
  void* reserved = ::mmap(nullptr, reserved_size_, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return no_memory(size_, std::strerror(errno));
  reserved_ = reserved;
  address_ = (reinterpret_cast<std::uintptr_t>(reserved) + grain - 1) / grain * grain;
  auto* start = reinterpret_cast<void*>(address_);
  if (::mmap(start, size_.size(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_.get(), 0) ==
      MAP_FAILED) {
    return no_memory(size_, std::strerror(errno));
  }
  if (::madvise(start, size_.size(), MADV_DONTFORK) != 0 ||
      ::madvise(start, size_.size(), MADV_DONTDUMP) != 0) {
    return os_error(ErrorCode::kUnsupported, "cannot keep a slab out of forks and core dumps");
  }
  // A refusal is no error: smaps tells afterwards what the result is.
  if (pages == PageKind::kTransparentHuge) ::madvise(start, size_.size(), MADV_HUGEPAGE);
  return {};
}

Result<UniqueFd> HostMemory::share() const {
  UniqueFd copy(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  if (copy.valid()) return copy;
  return make_error(ErrorCode::kUnavailable, std::string("cannot duplicate a slab's descriptor: ") +
                                                 std::strerror(errno) + "; raise LimitNOFILE");
}

// Goes in parts, because others take memory meanwhile. Hugetlb pages are set aside for nobody else.
Status HostMemory::populate(const HostMemoryRequest& request, PageKind pages) const {
  constexpr Bytes kPart = kMiB * 64;
  for (Bytes done; done < size_; done += kPart) {
    if (pages != PageKind::kHugetlb) KVD_TRY(request.may_take(size_ - done));
    const Bytes part = std::min(kPart, size_ - done);
    KVD_TRY(kernels::populate(address_ + done.size(), part, request.populate_threads));
  }
  return {};
}

void HostMemory::empty() const {
  // Where the kernel refuses, the pages go with the last mapping.
  (void)::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, size_.value);
}

HostMemory::~HostMemory() {
  if (reserved_ == nullptr) return;
  KVD_CHECK(::munmap(reserved_, reserved_size_) == 0, "unmapping a slab");
}

void HostMemory::swap(HostMemory& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(reserved_, other.reserved_);
  std::swap(reserved_size_, other.reserved_size_);
  std::swap(address_, other.address_);
  std::swap(size_, other.size_);
  std::swap(pages_, other.pages_);
}

}  // namespace kvd::kernels
