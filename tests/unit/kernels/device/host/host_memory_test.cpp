#include "kernels/device/host/host_memory.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "kernels/device/host/page_facts.hpp"

namespace kvd::kernels {
namespace {

using ::testing::HasSubstr;

HostMemoryRequest request(Bytes size) {
  HostMemoryRequest wanted;
  wanted.name = "kvd-test";
  wanted.size = size;
  wanted.populate_threads = 3;
  return wanted;
}

// The VmFlags of the mapping that starts at `address`.
std::string flags_of(std::uintptr_t address) {
  std::ostringstream start;
  start << std::hex << address << '-';
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.starts_with(start.str())) inside = true;
    if (inside && line.starts_with("VmFlags:")) return line + ' ';
  }
  return {};
}

std::size_t resident_pages(std::uintptr_t address, Bytes size) {
  std::vector<unsigned char> pages(size.size() / 4096);
  EXPECT_EQ(::mincore(reinterpret_cast<void*>(address), size.size(), pages.data()), 0);
  return static_cast<std::size_t>(
      std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return (p & 1) != 0; }));
}

TEST(HostMemoryTest, IsPopulatedAlignedAndSealed) {
  auto sut = HostMemory::create(request(kMiB * 6));
  ASSERT_TRUE(sut.ok()) << sut.error().to_string();
  EXPECT_EQ(sut->address() % kHugePage.size(), 0u);
  EXPECT_EQ(resident_pages(sut->address(), sut->size()), 6u * 256);
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  const auto fd = sut->share();
  ASSERT_TRUE(fd.ok()) << fd.error().to_string();
  EXPECT_EQ(::fcntl(fd->get(), F_GET_SEALS) & kSeals, kSeals);
}

TEST(HostMemoryTest, StaysOutOfForksAndCoreDumps) {
  auto sut = HostMemory::create(request(kMiB * 2));
  ASSERT_TRUE(sut.ok());
  EXPECT_THAT(flags_of(sut->address()), HasSubstr(" dc "));
  EXPECT_THAT(flags_of(sut->address()), HasSubstr(" dd "));
}

TEST(HostMemoryTest, ReportsThePagesTheKernelGave) {
  auto sut = HostMemory::create(request(kMiB * 4));
  ASSERT_TRUE(sut.ok());
  EXPECT_EQ(sut->pages(), mapped_page_kind(sut->address(), sut->size()));
}

TEST(HostMemoryTest, SmallPagesWhenAskedFor) {
  HostMemoryRequest wanted = request(kMiB * 4);
  wanted.pages = PagePreference::kSmall;
  auto sut = HostMemory::create(wanted);
  ASSERT_TRUE(sut.ok());
  EXPECT_EQ(sut->pages(), PageKind::kSmall);
}

TEST(HostMemoryTest, NeighboursNeverTouch) {
  std::vector<HostMemory> all;
  for (int i = 0; i < 8; ++i) {
    auto memory = HostMemory::create(request(kMiB * 2));
    ASSERT_TRUE(memory.ok());
    all.push_back(std::move(memory).value());
  }
  for (const HostMemory& a : all) {
    for (const HostMemory& b : all) EXPECT_NE(a.address() + a.size().size(), b.address());
  }
}

TEST(HostMemoryTest, MoreThanTheMachineHasIsRefusedWithTheNumberAndTheRemedy) {
  const auto sut = HostMemory::create(request(kGiB * 1024 * 1024));
  ASSERT_FALSE(sut.ok());
  EXPECT_EQ(sut.error().code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(sut.error().message, HasSubstr(std::to_string((kGiB * 1024 * 1024).value)));
  EXPECT_THAT(sut.error().message, HasSubstr("lower the pool size"));
}

TEST(HostMemoryTest, AnUnknownNumaNodeIsRefused) {
  HostMemoryRequest wanted = request(kMiB * 2);
  wanted.numa_node = 987;
  const auto sut = HostMemory::create(wanted);
  ASSERT_FALSE(sut.ok());
  EXPECT_EQ(sut.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(sut.error().message, HasSubstr("987"));
}

TEST(HostMemoryTest, NodeZeroIsAlwaysThere) {
  HostMemoryRequest wanted = request(kMiB * 2);
  wanted.numa_node = 0;
  const auto sut = HostMemory::create(wanted);
  EXPECT_TRUE(sut.ok() || sut.error().code == ErrorCode::kPermissionDenied);
}

// Pages behind the end of a file cannot be had; a plain touch would raise SIGBUS.
TEST(PopulateTest, MissingMemoryIsAnErrorNotASignal) {
  const UniqueFd file(::memfd_create("kvd-test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(file.get(), kMiB.value), 0);
  const Bytes size = kMiB * 8;
  void* mapped = ::mmap(nullptr, size.size(), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);

  const Status status = populate(reinterpret_cast<std::uintptr_t>(mapped), size, 4);

  EXPECT_EQ(status.code(), ErrorCode::kOutOfMemory);
  ::munmap(mapped, size.size());
}

}  // namespace
}  // namespace kvd::kernels
