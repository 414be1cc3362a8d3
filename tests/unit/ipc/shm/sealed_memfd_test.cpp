#include "ipc/shm/sealed_memfd.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <string>

namespace kvd::shm {
namespace {

constexpr Bytes kSize{8192};

UniqueFd sut() {
  auto fd = create_memfd("kvd-test", kSize);
  EXPECT_TRUE(fd.ok());
  return std::move(fd).value();
}

TEST(SealedMemfd, SizeCannotChange) {
  const UniqueFd fd = sut();
  EXPECT_EQ(ftruncate(fd.get(), 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(fd.get(), 2 * kSize.value), -1);
}

TEST(SealedMemfd, IsClosedOnExec) {
  const UniqueFd fd = sut();
  EXPECT_NE(fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(SealedMemfd, OldMappingWritesWhileNewOnesMayNot) {
  const UniqueFd fd = sut();
  const auto writer = SharedMapping::map(fd.get(), kSize, Access::kReadWrite);
  ASSERT_TRUE(close_seals(fd.get(), Writers::kMappedSoFar).ok());
  const auto reader = SharedMapping::map(fd.get(), kSize, Access::kReadOnly);
  ASSERT_TRUE(writer.ok() && reader.ok());
  writer->bytes()[100] = std::byte{7};
  EXPECT_EQ(reader->bytes()[100], std::byte{7});
  const auto intruder = SharedMapping::map(fd.get(), kSize, Access::kReadWrite);
  ASSERT_FALSE(intruder.ok());
  EXPECT_EQ(intruder.error().code, ErrorCode::kPermissionDenied);
  EXPECT_EQ(mprotect(reader->bytes().data(), kSize.size(), PROT_READ | PROT_WRITE), -1);
  EXPECT_EQ(pwrite(fd.get(), "x", 1, 0), -1);
}

TEST(SealedMemfd, ClosedSealsStayAsTheyAre) {
  const UniqueFd fd = sut();
  ASSERT_TRUE(close_seals(fd.get(), Writers::kAnyone).ok());
  EXPECT_FALSE(close_seals(fd.get(), Writers::kMappedSoFar).ok());
  EXPECT_TRUE(SharedMapping::map(fd.get(), kSize, Access::kReadWrite).ok());
}

TEST(SealedMemfd, ReceiverRefusesWhatCouldShrink) {
  const UniqueFd loose(memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(loose.get(), kSize.value), 0);
  EXPECT_EQ(expect_fixed_size(loose.get(), kSize).code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(expect_fixed_size(sut().get(), kSize).ok());
}

TEST(SealedMemfd, ReceiverRefusesAnotherSizeAndOtherFiles) {
  EXPECT_FALSE(expect_fixed_size(sut().get(), kSize + Bytes(1)).ok());
  EXPECT_FALSE(expect_fixed_size(sut().get(), Bytes(0)).ok());
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_FALSE(expect_fixed_size(null.get(), kSize).ok());
  EXPECT_FALSE(expect_fixed_size(-1, kSize).ok());
}

/// The VmFlags line of the mapping that holds `address`.
std::string flags_of(const void* address) {
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    unsigned long from = 0, to = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2) {
      const auto at = reinterpret_cast<unsigned long>(address);
      inside = from <= at && at < to;
    }
    if (inside && line.starts_with("VmFlags:")) return line + " ";
  }
  return "";
}

TEST(SharedMapping, IsNeitherForkedNorDumped) {
  const UniqueFd fd = sut();
  const auto mapping = SharedMapping::map(fd.get(), kSize, Access::kReadWrite);
  ASSERT_TRUE(mapping.ok());
  const std::string flags = flags_of(mapping->bytes().data());
  EXPECT_NE(flags.find(" dc "), std::string::npos) << flags;
  EXPECT_NE(flags.find(" dd "), std::string::npos) << flags;
}

TEST(SharedMapping, MovedFromOwnsNothing) {
  const UniqueFd fd = sut();
  auto first = SharedMapping::map(fd.get(), kSize, Access::kReadWrite);
  ASSERT_TRUE(first.ok());
  SharedMapping second = std::move(*first);
  EXPECT_TRUE(first->bytes().empty());
  second.bytes()[0] = std::byte{1};
}

}  // namespace
}  // namespace kvd::shm
