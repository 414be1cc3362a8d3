// What cached blocks are called in files.
#include "kvd/daemon/machine/disk_names.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/support/runtime_folder.hpp"

namespace kvd::daemon {
namespace {

constexpr Fingerprint kModel{Digest{{1}}};
constexpr Digest kBlock{{7, 7}};

class DiskNamesTest : public testing::Test {
 protected:
  DiskNames names() {
    auto made = disk_names(path_);
    EXPECT_TRUE(made.ok()) << made.error().message;
    return *made;
  }
  [[nodiscard]] std::string secret() const { return path_ + "/secret"; }

  const test::RuntimeFolder folder_;
  const std::string path_ = folder_.file("disk");
};

TEST_F(DiskNamesTest, ANameStaysTheSameOverARestart) {
  const Digest name = names()("ada", kModel, kBlock);
  EXPECT_EQ(names()("ada", kModel, kBlock), name);
  EXPECT_NE(name, kBlock);
}

TEST_F(DiskNamesTest, DomainsModelsAndBlocksHaveNamesOfTheirOwn) {
  const DiskNames name = names();
  EXPECT_NE(name("ada", kModel, kBlock), name("bob", kModel, kBlock));
  EXPECT_NE(name("ada", kModel, kBlock), name("ada", Fingerprint{Digest{{2}}}, kBlock));
  EXPECT_NE(name("ada", kModel, kBlock), name("ada", kModel, Digest{{7, 8}}));
}

TEST_F(DiskNamesTest, FoldersHaveSecretsOfTheirOwn) {
  const auto other = disk_names(folder_.file("other"));
  ASSERT_TRUE(other.ok());
  EXPECT_NE(names()("ada", kModel, kBlock), (*other)("ada", kModel, kBlock));
}

TEST_F(DiskNamesTest, SeveralThatStartAtOnceHaveOneSecret) {
  for (int round = 0; round < 100; ++round) {
    const std::string path = folder_.file("disk" + std::to_string(round));
    std::array<pid_t, 4> children{};
    for (pid_t& child : children) {
      child = ::fork();
      if (child == 0) ::_exit(disk_names(path).ok() ? 0 : 1);
    }
    for (const pid_t child : children) {
      int status = -1;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      ASSERT_EQ(status, 0) << "in round " << round;
    }
    const std::filesystem::directory_iterator files(path);
    EXPECT_EQ(std::distance(begin(files), end(files)), 1);
  }
}

TEST_F(DiskNamesTest, TheSecretIsNobodyElsesToRead) {
  (void)names();
  struct stat facts {};
  ASSERT_EQ(::stat(secret().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  ASSERT_EQ(::stat(path_.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0700u);
  ASSERT_EQ(::chmod(secret().c_str(), 0644), 0);
  const auto refused = disk_names(path_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kPermissionDenied);
}

TEST_F(DiskNamesTest, WhatIsNoSecretIsRefused) {
  (void)names();
  std::filesystem::resize_file(secret(), 5);
  const auto refused = disk_names(path_);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, testing::HasSubstr("is not kvd's"));
}

TEST_F(DiskNamesTest, AFolderThatOthersMayWriteIsRefused) {
  (void)names();
  ASSERT_EQ(::chmod(path_.c_str(), 0777), 0);
  const auto refused = disk_names(path_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kPermissionDenied);
  EXPECT_THAT(refused.error().message, testing::HasSubstr("chmod 700"));
}

TEST_F(DiskNamesTest, WhatIsNoPlainFileHoldsNobodyUp) {
  (void)names();
  const auto refuses = [&] {
    const auto refused = disk_names(path_);
    return !refused.ok() && refused.error().code == ErrorCode::kInvalidArgument;
  };
  std::filesystem::remove(secret());
  ASSERT_EQ(::mkfifo(secret().c_str(), 0600), 0);
  EXPECT_TRUE(refuses());
  std::filesystem::remove(secret());
  std::filesystem::create_symlink("/dev/zero", secret());
  EXPECT_TRUE(refuses());
}

TEST_F(DiskNamesTest, AFolderThatCannotBeMadeIsNamed) {
  const auto refused = disk_names(folder_.file("none/disk"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(refused.error().message, testing::HasSubstr("set disk.path"));
}

}  // namespace
}  // namespace kvd::daemon
