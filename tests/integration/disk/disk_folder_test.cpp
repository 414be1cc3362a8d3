#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/integration/disk/disk_world.hpp"

namespace kvd::disk {
namespace {

using ::testing::HasSubstr;

namespace fs = std::filesystem;

class DiskFolder : public ::testing::Test {
 protected:
  DiskWorld world_{kPoolDirect};
};

TEST_F(DiskFolder, IsForOneAtATime) {
  world_.open();
  EXPECT_EQ(world_.try_open(), ErrorCode::kWouldBlock);
  EXPECT_THAT(world_.message(), HasSubstr("in use by another process"));
  world_.reopen();
}

TEST_F(DiskFolder, IsOnlyForTheUserOfTheDaemon) {
  world_.open();
  struct stat facts {};
  ASSERT_EQ(::stat(world_.options().folder.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0700u);
  ASSERT_EQ(::stat(world_.segment(0).c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  world_.close();
  fs::permissions(world_.options().folder, fs::perms::all);
  EXPECT_EQ(world_.try_open(), ErrorCode::kPermissionDenied);
}

TEST_F(DiskFolder, TakesItsRoomAtOnce) {
  world_.open();
  for (const std::uint32_t number : {0u, 1u}) {
    struct stat facts {};
    ASSERT_EQ(::stat(world_.segment(number).c_str(), &facts), 0);
    EXPECT_EQ(Bytes(facts.st_size), world_.options().segment);
    EXPECT_GE(Bytes(facts.st_blocks * 512), world_.options().segment);
  }
}

TEST_F(DiskFolder, GrowsAndShrinksWithTheCapacity) {
  world_.open();
  const SlotGeneration generation = world_.store(DiskSlot(0), 1);
  world_.options().capacity = kMiB;
  world_.reopen();
  EXPECT_EQ(world_.tier().status().segments, 4u);
  world_.options().capacity = 256 * kKiB;
  world_.reopen();
  EXPECT_EQ(world_.tier().status().segments, 1u);
  EXPECT_FALSE(fs::exists(world_.segment(1)));
  EXPECT_FALSE(fs::exists(world_.segment(3)));
  EXPECT_EQ(world_.load(DiskSlot(0), generation, 1), Fault::kNone);
}

// The floor stands for what others have written: how much room a real file system has changes
// while a test looks at it.
TEST_F(DiskFolder, WithoutRoomForASegmentIsRefused) {
  world_.options().floor = kMiB * 1024 * 1024 * 1024;
  EXPECT_EQ(world_.try_open(), ErrorCode::kOutOfMemory);
  EXPECT_THAT(world_.message(), HasSubstr("too little room"));
  EXPECT_FALSE(fs::exists(world_.segment(0)));
}

TEST_F(DiskFolder, TakesFewerSegmentsWhereThereIsLittleRoom) {
  world_.open();
  const SlotGeneration generation = world_.store(DiskSlot(0), 1);
  world_.options().capacity = kMiB;
  world_.options().floor = kMiB * 1024 * 1024 * 1024;
  world_.reopen();
  EXPECT_EQ(world_.tier().status().segments, 2u);
  EXPECT_THAT(world_.tier().status().segments_reason, HasSubstr("too little room"));
  EXPECT_FALSE(fs::exists(world_.segment(2)));
  EXPECT_EQ(world_.load(DiskSlot(0), generation, 1), Fault::kNone);
}

TEST_F(DiskFolder, WithAForeignFileIsRefusedAndTheFileLeftAlone) {
  world_.open();
  world_.close();
  const std::string text = "somebody's only copy";
  std::ofstream(world_.segment(0)) << text;
  EXPECT_EQ(world_.try_open(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(world_.message(), HasSubstr("move it elsewhere"));
  std::string kept;
  std::getline(std::ifstream(world_.segment(0)), kept);
  EXPECT_EQ(kept, text);
}

TEST_F(DiskFolder, DoesNotFollowALink) {
  world_.open();
  world_.close();
  fs::remove(world_.segment(0));
  fs::create_symlink(world_.segment(1), world_.segment(0));
  EXPECT_NE(world_.try_open(), ErrorCode::kOk);
}

TEST_F(DiskFolder, OfAnotherVersionIsRefused) {
  world_.open();
  world_.close();
  world_.flip(0, Bytes(8));
  EXPECT_EQ(world_.try_open(), ErrorCode::kUnsupported);
  EXPECT_THAT(world_.message(), HasSubstr("remove the folder"));
}

TEST_F(DiskFolder, OfAnotherClassIsRefused) {
  world_.open();
  const ClassShape shape = world_.options().shape;
  world_.close();
  world_.options().shape.fingerprint[31] ^= 1;
  EXPECT_EQ(world_.try_open(), ErrorCode::kUnsupported);
  world_.options().shape = shape;
  world_.options().shape.groups = 2;
  EXPECT_EQ(world_.try_open(), ErrorCode::kUnsupported);
  world_.options().shape = shape;
  world_.open();
}

// disk.size has changed, and with it the size of files that are made now.
TEST_F(DiskFolder, KeepsTheSizeOfItsFilesWhereTheyFit) {
  world_.open();
  const SlotGeneration generation = world_.store(DiskSlot(0), 1);
  world_.options().segment = 512 * kKiB;
  world_.options().capacity = kMiB;
  world_.reopen();
  EXPECT_EQ(world_.tier().status().segments, 4u);
  EXPECT_EQ(world_.load(DiskSlot(0), generation, 1), Fault::kNone);
}

TEST_F(DiskFolder, IsMadeAnewWhereOneFileIsLargerThanAll) {
  world_.open();
  const SlotGeneration generation = world_.store(DiskSlot(0), 1);
  world_.options().segment = world_.options().capacity = 128 * kKiB;
  world_.reopen();
  EXPECT_EQ(world_.tier().status().segments, 1u);
  EXPECT_EQ(fs::file_size(world_.segment(0)), 128u << 10);
  EXPECT_FALSE(fs::exists(world_.segment(1)));
  EXPECT_EQ(world_.load(DiskSlot(0), generation, 1), Fault::kEmpty);
  EXPECT_EQ(world_.load(DiskSlot(0), world_.store(DiskSlot(0), 2), 2), Fault::kNone);
}

TEST_F(DiskFolder, GrowsAndShrinksOnDemand) {
  world_.options().on_demand = true;
  world_.options().capacity = kMiB;
  world_.open();
  const std::uint32_t slots = world_.tier().slots();
  EXPECT_EQ(world_.tier().status().segments, 1u);
  const SlotGeneration first = world_.store(DiskSlot(0), 1);
  EXPECT_EQ(world_.tier().resize(3 * world_.tier().grain()), 3 * slots);
  const SlotGeneration last = world_.store(DiskSlot(3 * slots - 1), 2);
  EXPECT_EQ(world_.load(DiskSlot(3 * slots - 1), last, 2), Fault::kNone);
  EXPECT_EQ(world_.tier().resize(world_.tier().grain()), slots);
  EXPECT_EQ(fs::file_size(world_.segment(2)), 0u) << "its room is others'";
  EXPECT_EQ(world_.load(DiskSlot(0), first, 1), Fault::kNone);
  EXPECT_EQ(world_.tier().resize(9 * world_.tier().grain()), 4 * slots) << "its capacity";
  EXPECT_EQ(world_.load(DiskSlot(3 * slots - 1), last, 2), Fault::kEmpty);
  const SlotGeneration again = world_.store(DiskSlot(3 * slots - 1), 3);
  world_.tier().resize(2 * world_.tier().grain());
  world_.reopen();
  EXPECT_EQ(world_.tier().status().segments, 2u) << "as many as it had";
  EXPECT_EQ(world_.load(DiskSlot(0), first, 1), Fault::kNone);
  EXPECT_NE(again, last);
}

TEST_F(DiskFolder, WithATornSuperblockKeepsItsBlocks) {
  world_.open();
  const SlotGeneration generation = world_.store(DiskSlot(0), 1);
  world_.close();
  world_.flip(0, Bytes(100));
  world_.open();
  EXPECT_EQ(world_.load(DiskSlot(0), generation, 1), Fault::kNone);
}

TEST_F(DiskFolder, SwapsOfSegmentsAreSeen) {
  world_.open();
  world_.close();
  fs::rename(world_.segment(0), world_.file("a"));
  fs::rename(world_.segment(1), world_.segment(0));
  fs::rename(world_.file("a"), world_.segment(1));
  EXPECT_EQ(world_.try_open(), ErrorCode::kUnsupported);
}

/// A checkpoint that is spoilt in any way counts as none, and is removed.
TEST_F(DiskFolder, ASpoiledCheckpointCountsAsNone) {
  const std::string path = world_.options().folder + "/checkpoint";
  const std::vector<FoundBlock> index = {{DiskSlot(4), SlotGeneration(9), key_of(4)},
                                         {DiskSlot(5), SlotGeneration(8), key_of(5)}};
  const auto spoiled = [&](auto spoil) {
    world_.open();
    EXPECT_TRUE(world_.tier().close(test::kPatience, index).checkpoint.ok());
    world_.close();
    spoil();
    world_.open();
    const auto found = world_.tier().take_index();
    world_.close();
    EXPECT_FALSE(fs::exists(path));
    return !found.has_value();
  };
  EXPECT_FALSE(spoiled([] {}));
  const std::size_t size = 48 + 2 * 80 + 4;
  for (std::size_t at = 0; at < size; at += 4) {
    EXPECT_TRUE(spoiled([&] {
      ASSERT_EQ(fs::file_size(path), size);
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(std::streamoff(at));
      const char byte = static_cast<char>(file.get() ^ 1);
      file.seekp(std::streamoff(at));
      file.put(byte);
    })) << "byte "
        << at;
  }
  for (const std::size_t cut : {0u, 10u, 48u, 52u, 128u, 211u}) {
    EXPECT_TRUE(spoiled([&] { fs::resize_file(path, cut); })) << cut << " bytes left";
  }
  EXPECT_TRUE(spoiled([&] { fs::remove(path); }));
}

}  // namespace
}  // namespace kvd::disk
