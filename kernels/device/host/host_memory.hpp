#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kernels/device/device_backend.hpp"

namespace kvd::kernels {

/// Which pages to try, best first; each kind falls back to the next where the machine has none.
enum class PagePreference : std::uint8_t { kHugetlb, kTransparentHuge, kSmall };

/// Whether this many more bytes may be touched. Touching more than there is would not fail, but
/// would wake the kernel's OOM killer. Errors: OutOfMemory with what there is.
using MayTake = std::function<Status(Bytes)>;
/// Decides by what the machine has available.
[[nodiscard]] Status machine_has(Bytes wanted);

/// Describes a piece of host memory.
struct HostMemoryRequest {
  std::string name;  ///< shown in /proc/PID/maps as memfd:NAME
  Bytes size;
  PagePreference pages = PagePreference::kHugetlb;
  std::optional<unsigned> numa_node;
  unsigned populate_threads = 1;
  MayTake may_take = machine_has;  ///< asked before each part that is populated
};

/// The number of threads that populate memory: as configured, or for zero one for each CPU, eight
/// at most.
[[nodiscard]] unsigned populate_threads(unsigned configured);

/// One memfd, sealed against any change of size, with every page present and mapped here. It is
/// shared with peers by its descriptor, and absent from forked children and core dumps (safety rule
/// 9).
/// Source:  kvd/DESIGN.md "Safety rules".
/// Owner:   move-only; unmaps and closes on destruction. Peers that still map it keep it alive.
/// Errors:  OutOfMemory with the bytes and the remedy; InvalidArgument for an unknown NUMA node;
/// PermissionDenied where binding to one is forbidden; Unavailable when there is no descriptor
/// left. Leaves nothing behind on failure.
class HostMemory {
 public:
  [[nodiscard]] static Result<HostMemory> create(const HostMemoryRequest& request);
  /// Reopens memory that an earlier process made by create(), with its bytes; `zeroed`: without
  /// them. Errors: as create(); InvalidArgument where it is no such memory, or of another size.
  [[nodiscard]] static Result<HostMemory> reopen(const HostMemoryRequest& request, UniqueFd memory,
                                                 bool zeroed);
  /// Whether an earlier process made it by create(), with this size. Errors: InvalidArgument.
  [[nodiscard]] static Status check(const UniqueFd& memory, Bytes size);
  HostMemory(HostMemory&& other) noexcept { swap(other); }
  HostMemory& operator=(HostMemory&& other) noexcept { return swap(other), *this; }
  ~HostMemory();

  [[nodiscard]] std::uintptr_t address() const { return address_; }
  [[nodiscard]] Bytes size() const { return size_; }
  [[nodiscard]] PageKind pages() const { return pages_; }
  /// A new close-on-exec descriptor of the same memory.
  /// Errors: Unavailable when there is none left.
  [[nodiscard]] Result<UniqueFd> share() const;
  /// Gives its pages back to the machine. Processes that still map them read zeros, and pay for
  /// what they write themselves.
  void empty() const;

 private:
  HostMemory() = default;
  static Result<HostMemory> create(const HostMemoryRequest& request, PageKind pages);
  Status make_file(const HostMemoryRequest& request, PageKind pages);
  Status map(PageKind pages);
  Status populate(const HostMemoryRequest& request, PageKind pages) const;
  void swap(HostMemory& other) noexcept;

  UniqueFd fd_;
  void* reserved_ = nullptr;  // address range around the mapping: aligned start, guard at the end
  std::size_t reserved_size_ = 0;
  std::uintptr_t address_ = 0;
  Bytes size_;
  PageKind pages_ = PageKind::kSmall;
};

/// Makes every page of a writable shared mapping present, with up to `threads` threads at once.
/// Errors: OutOfMemory when the kernel has no page left, instead of the SIGBUS that a touch would
/// raise.
[[nodiscard]] Status populate(std::uintptr_t address, Bytes size, unsigned threads);

}  // namespace kvd::kernels
