// The disk space of all classes' folders together.
#include "kvd/tiers/disk/files/folders.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "ipc/vocabulary/unique_fd.hpp"
#include "tests/support/runtime_folder.hpp"

namespace kvd::disk {
namespace {

namespace fs = std::filesystem;

class FoldersTest : public testing::Test {
 protected:
  FoldersTest() { fs::create_directory(path_); }

  static std::string name(char letter) { return std::string().append(32, letter); }
  [[nodiscard]] std::string of(char letter, const std::string& file = "") const {
    return path_ + "/" + name(letter) + "/" + file;
  }
  /// A folder of an earlier run, this many seconds old.
  void leave(char letter, int segments, int age) const {
    fs::create_directory(of(letter));
    std::ofstream(of(letter, "lock")) << 1;
    for (int i = 0; i < segments; ++i) {
      const std::string file = of(letter, "segment-000" + std::to_string(i));
      std::ofstream(file).put('x');
      fs::resize_file(file, kMiB.size());
    }
    fs::last_write_time(of(letter, "lock"),
                        fs::file_time_type::clock::now() - std::chrono::seconds(age));
  }
  [[nodiscard]] bool has(char letter, int segment) const {
    return fs::exists(of(letter, "segment-000" + std::to_string(segment)));
  }

  const test::RuntimeFolder folder_;
  const std::string path_ = folder_.file("disk");
};

TEST_F(FoldersTest, ThoseOfEarlierLivesAreFoundWithTheirModels) {
  leave('a', 2, 100);
  ASSERT_TRUE(write_model(of('a'), "llama").ok());
  fs::create_directory(path_ + "/lost+found");
  Folders sut(path_, 8 * kMiB, Bytes(0));
  ASSERT_TRUE(sut.scan().ok());
  const auto all = sut.list();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all.at(name('a')).model, "llama");
  EXPECT_EQ(all.at(name('a')).bytes, 2 * kMiB);
  EXPECT_TRUE(sut.has(name('a')));
  EXPECT_FALSE(sut.has(name('b')));
}

TEST_F(FoldersTest, WhoClearsRemovesThoseThatNobodyHasOpen) {
  leave('a', 2, 100);
  leave('b', 1, 10);
  Folders sut(path_, 8 * kMiB, Bytes(0));
  ASSERT_TRUE(sut.scan().ok());
  ASSERT_TRUE(sut.take(name('b'), kMiB, "llama"));
  leave('c', 3, 10);  // another process has closed it since
  EXPECT_TRUE(sut.clear().ok());
  EXPECT_FALSE(fs::exists(of('a')) || fs::exists(of('c')));
  EXPECT_FALSE(sut.has(name('a')));
  EXPECT_TRUE(has('b', 0));
}

TEST_F(FoldersTest, WhatCannotBeRemovedIsToldToWhoClears) {
  leave('a', 1, 100);
  leave('b', 1, 100);
  fs::create_directories(of('a', "segment-0001/something"));
  Folders sut(path_, 8 * kMiB, Bytes(0));
  const Status status = sut.clear();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find(name('a')), std::string::npos) << status.error().message;
  EXPECT_FALSE(fs::exists(of('b')));
  fs::remove_all(path_);
  EXPECT_FALSE(sut.clear().ok());
}

TEST_F(FoldersTest, TheOldestGoFirstWhereTheyAreTooLarge) {
  leave('a', 3, 10);
  leave('b', 3, 300);
  leave('c', 3, 200);
  Folders sut(path_, 5 * kMiB, Bytes(0));
  ASSERT_TRUE(sut.scan().ok());
  EXPECT_FALSE(fs::exists(of('b')));
  EXPECT_TRUE(has('c', 1));
  EXPECT_FALSE(has('c', 2)) << "no more than it must";
  EXPECT_TRUE(has('a', 2));
}

TEST_F(FoldersTest, WhoOpensOneHasRoomFromThoseThatAreClosed) {
  leave('a', 2, 10);
  leave('b', 2, 300);
  Folders sut(path_, 4 * kMiB, Bytes(0));
  ASSERT_TRUE(sut.scan().ok());
  EXPECT_TRUE(sut.take(name('a'), 2 * kMiB, "a"));
  EXPECT_TRUE(sut.take(name('c'), kMiB, "c"));
  EXPECT_TRUE(has('b', 0));
  EXPECT_FALSE(has('b', 1));
  EXPECT_TRUE(sut.take(name('c'), 2 * kMiB, "c"));
  EXPECT_FALSE(fs::exists(of('b')));
  EXPECT_FALSE(sut.take(name('d'), kMiB, "d")) << "what is open stays";
  EXPECT_TRUE(has('a', 1));
  sut.put(name('a'), 2 * kMiB, false);
  EXPECT_TRUE(sut.take(name('d'), kMiB, "d"));
  EXPECT_FALSE(has('a', 1));
}

TEST_F(FoldersTest, TheFloorOfTheFileSystemCountsToo) {
  leave('a', 2, 10);
  Folders sut(path_, 8 * kMiB, kGiB * (std::int64_t{1} << 30));
  ASSERT_TRUE(sut.scan().ok());
  EXPECT_TRUE(has('a', 1)) << "nobody needs the room yet";
  EXPECT_TRUE(sut.take(name('b'), kMiB, "b"));
  EXPECT_FALSE(fs::exists(of('a')));
}

TEST_F(FoldersTest, WhatAnotherProcessHasOpenStays) {
  leave('a', 4, 300);
  const UniqueFd lock(::open(of('a', "lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  Folders sut(path_, 4 * kMiB, Bytes(0));
  ASSERT_TRUE(sut.scan().ok());
  EXPECT_FALSE(sut.take(name('b'), kMiB, "b"));
  EXPECT_TRUE(has('a', 3));
}

TEST_F(FoldersTest, WhatIsNoFileHoldsNobodyUp) {
  leave('a', 1, 10);
  ASSERT_EQ(::mkfifo(of('a', "model").c_str(), 0600), 0);
  ASSERT_EQ(::mkfifo(of('a', "segment-0001").c_str(), 0600), 0);
  fs::remove(of('a', "lock"));
  ASSERT_EQ(::mkfifo(of('a', "lock").c_str(), 0600), 0);
  fs::create_symlink("/", path_ + "/" + name('b'));
  Folders sut(path_, Bytes(1), Bytes(0));
  ASSERT_TRUE(sut.scan().ok());
  EXPECT_TRUE(fs::exists("/etc"));
}

}  // namespace
}  // namespace kvd::disk
