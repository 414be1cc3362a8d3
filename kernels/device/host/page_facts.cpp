#include "kernels/device/host/page_facts.hpp"

#include <linux/memfd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace kvd::kernels {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::int64_t number_in(const std::string& path) {
  const std::string line = first_line(path);
  std::int64_t value = 0;
  std::from_chars(line.data(), line.data() + line.size(), value);
  return value;
}

// The start address of a line that opens a mapping ("7f01-7f02 rw-s ..."), none for other lines.
std::optional<std::uintptr_t> mapping_start(std::string_view line) {
  std::uintptr_t start = 0;
  const char* end = line.data() + line.size();
  const auto [stop, error] = std::from_chars(line.data(), end, start, 16);
  if (error != std::errc() || stop == end || *stop != '-') return std::nullopt;
  return start;
}

// The bytes of a line "Key:   123 kB" when its key is `key`.
std::optional<Bytes> field(std::string_view line, std::string_view key) {
  if (!line.starts_with(key) || line.size() <= key.size() || line[key.size()] != ':') return {};
  const auto digits = line.find_first_of("0123456789", key.size());
  if (digits == std::string_view::npos) return {};
  std::int64_t kib = 0;
  std::from_chars(line.data() + digits, line.data() + line.size(), kib);
  return kKiB * kib;
}

}  // namespace

unsigned memfd_page_flags(PageKind pages) {
  return pages == PageKind::kHugetlb ? MFD_HUGETLB | MFD_HUGE_2MB : 0u;
}

Bytes free_hugetlb() {
  const std::string folder = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  const std::int64_t pages =
      number_in(folder + "free_hugepages") - number_in(folder + "resv_hugepages");
  return kHugePage * std::max<std::int64_t>(pages, 0);
}

bool shmem_huge_allowed() {
  return shmem_huge_allowed(first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled"));
}

Bytes available_memory() {
  std::ifstream meminfo("/proc/meminfo");
  return meminfo_field(meminfo, "MemAvailable");
}

PageKind mapped_page_kind(std::uintptr_t address, Bytes size) {
  std::ifstream smaps("/proc/self/smaps");
  return page_kind(smaps, address, size);
}

bool shmem_huge_allowed(std::string_view setting) {
  for (const std::string_view on : {"[always]", "[within_size]", "[advise]", "[force]"}) {
    if (setting.find(on) != std::string_view::npos) return true;
  }
  return false;
}

Bytes meminfo_field(std::istream& meminfo, std::string_view key) {
  for (std::string line; std::getline(meminfo, line);) {
    if (const auto bytes = field(line, key)) return *bytes;
  }
  return Bytes(0);
}

PageKind page_kind(std::istream& smaps, std::uintptr_t address, Bytes size) {
  Bytes huge, hugetlb;
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    if (const auto start = mapping_start(line)) {
      inside = *start >= address && *start < address + size.size();
    } else if (inside) {
      huge += field(line, "ShmemPmdMapped").value_or(Bytes(0));
      hugetlb += field(line, "Shared_Hugetlb").value_or(Bytes(0));
      hugetlb += field(line, "Private_Hugetlb").value_or(Bytes(0));
    }
  }
  if (hugetlb > Bytes(0)) return PageKind::kHugetlb;
  return huge * 2 >= size ? PageKind::kTransparentHuge : PageKind::kSmall;
}

}  // namespace kvd::kernels
