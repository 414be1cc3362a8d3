#include "kernels/device/host/page_facts.hpp"

#include <gtest/gtest.h>
#include <linux/memfd.h>

#include <sstream>

namespace kvd::kernels {
namespace {

PageKind kind_of(const std::string& smaps, std::uintptr_t address, Bytes size) {
  std::istringstream text(smaps);
  return page_kind(text, address, size);
}

constexpr const char* kSmaps =
    "200000-600000 rw-s 00000000 00:01 7  /memfd:kvd-hbm (deleted)\n"
    "Size:               4096 kB\n"
    "ShmemPmdMapped:     2048 kB\n"
    "Shared_Hugetlb:        0 kB\n"
    "VmFlags: rd wr sh mr mw me ms dc sd\n"
    "a00000-e00000 rw-s 00000000 00:01 8  /memfd:kvd-dram (deleted)\n"
    "ShmemPmdMapped:        0 kB\n"
    "Private_Hugetlb:    4096 kB\n"
    "1000000-1400000 rw-s 00000000 00:01 9  /memfd:kvd-dram (deleted)\n"
    "ShmemPmdMapped:        0 kB\n"
    "Shared_Hugetlb:        0 kB\n";

TEST(PageFactsTest, ReadsTheKindOfTheAskedMappingOnly) {
  EXPECT_EQ(kind_of(kSmaps, 0x200000, kMiB * 4), PageKind::kTransparentHuge);
  EXPECT_EQ(kind_of(kSmaps, 0xa00000, kMiB * 4), PageKind::kHugetlb);
  EXPECT_EQ(kind_of(kSmaps, 0x1000000, kMiB * 4), PageKind::kSmall);
  EXPECT_EQ(kind_of(kSmaps, 0x2000000, kMiB * 4), PageKind::kSmall);
}

TEST(PageFactsTest, AFewHugePagesAreNotCalledHuge) {
  EXPECT_EQ(kind_of(kSmaps, 0x200000, kMiB * 8), PageKind::kSmall);
}

TEST(PageFactsTest, KnowsWhichSettingsAllowHugeSharedPages) {
  EXPECT_FALSE(shmem_huge_allowed("always within_size advise [never] deny force"));
  EXPECT_FALSE(shmem_huge_allowed("always within_size advise never [deny] force"));
  EXPECT_FALSE(shmem_huge_allowed(""));
  EXPECT_TRUE(shmem_huge_allowed("always within_size [advise] never deny force"));
  EXPECT_TRUE(shmem_huge_allowed("[always] within_size advise never deny force"));
}

// If the default is 1 GiB, a smaller slab cannot be made without naming the size.
TEST(PageFactsTest, AsksForHugePagesByTheirSize) {
  EXPECT_EQ(memfd_page_flags(PageKind::kHugetlb), MFD_HUGETLB | MFD_HUGE_2MB);
  EXPECT_EQ(memfd_page_flags(PageKind::kTransparentHuge), 0u);
  EXPECT_EQ(memfd_page_flags(PageKind::kSmall), 0u);
}

TEST(PageFactsTest, ReadsMeminfo) {
  std::istringstream meminfo("MemFree:  7 kB\nMemAvailable:   1024 kB\n");
  EXPECT_EQ(meminfo_field(meminfo, "MemAvailable"), kMiB);
  std::istringstream none("MemFree:  7 kB\n");
  EXPECT_EQ(meminfo_field(none, "Mem"), Bytes(0));
}

TEST(PageFactsTest, ThisMachineHasMemory) { EXPECT_GT(available_memory(), kMiB); }

}  // namespace
}  // namespace kvd::kernels
