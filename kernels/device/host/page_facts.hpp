#pragma once

#include <cstdint>
#include <istream>
#include <string_view>

#include "ipc/vocabulary/units.hpp"
#include "kernels/device/device_backend.hpp"

/// What the kernel says about pages, read from its text files. Parsers take the text, so that tests
/// can show them other machines than the one they run on.
namespace kvd::kernels {

constexpr Bytes kHugePage = kMiB * 2;

/// The flags with which memfd_create() gets pages of this kind, besides the file's own flags. They
/// name the size: the machine's default huge page may be one of 1 GiB, or of 512 MiB on Arm.
[[nodiscard]] unsigned memfd_page_flags(PageKind pages);
/// Bytes that a new hugetlb mapping of 2 MiB pages can still get: free and not yet promised.
[[nodiscard]] Bytes free_hugetlb();
/// Whether shared memory may get transparent huge pages when madvise() asks for them.
[[nodiscard]] bool shmem_huge_allowed();
/// MemAvailable: what can be allocated without swapping.
[[nodiscard]] Bytes available_memory();
/// The pages that really back the populated mapping [address, address + size) of this process.
[[nodiscard]] PageKind mapped_page_kind(std::uintptr_t address, Bytes size);

/// `setting` as in /sys/kernel/mm/transparent_hugepage/shmem_enabled: the word in brackets is on.
[[nodiscard]] bool shmem_huge_allowed(std::string_view setting);
/// The kB of `key` in a text of the form of /proc/meminfo; zero where it is absent.
[[nodiscard]] Bytes meminfo_field(std::istream& meminfo, std::string_view key);
/// Like mapped_page_kind(), from a text in the form of /proc/self/smaps. The answer is transparent
/// huge pages only where at least half of the mapping has them.
[[nodiscard]] PageKind page_kind(std::istream& smaps, std::uintptr_t address, Bytes size);

}  // namespace kvd::kernels
