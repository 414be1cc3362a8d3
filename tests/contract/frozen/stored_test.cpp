// What kvds store for later kvds: today's code writes the golden bytes, and reads them.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <span>

#include "kvd/tiers/kept/state.hpp"
#include "kvd/tiers/remote/value.hpp"
#include "tests/contract/frozen/frozen_files.hpp"
#include "tests/integration/disk/disk_world.hpp"

namespace kvd {
namespace {

namespace fs = std::filesystem;
using test::expect_frozen;
using test::FrozenFiles;
using test::read_frozen;

// ---- The disk: a block that was cleared, two that were stored later, and a clean stop.

constexpr disk::Way kSmall{"Small", false, Bytes(48)};

class FrozenDisk : public ::testing::Test {
 protected:
  FrozenDisk() {
    world_.options().segment = world_.options().capacity = 64 * kKiB;
    world_.options().direct = false;
  }
  FrozenFiles files() {
    FrozenFiles found;
    for (const auto& entry : fs::directory_iterator(world_.options().folder)) {
      std::ifstream file(entry.path(), std::ios::binary);
      auto& bytes = found[entry.path().filename()];
      std::for_each(std::istreambuf_iterator<char>(file), {},
                    [&](char byte) { bytes.push_back(static_cast<std::byte>(byte)); });
    }
    return found;
  }
  /// As an earlier kvd left them.
  void put(const FrozenFiles& files) {
    fs::create_directory(world_.options().folder);
    fs::permissions(world_.options().folder, fs::perms::owner_all);
    for (const auto& [name, bytes] : files) {
      std::ofstream file(world_.options().folder + "/" + name, std::ios::binary);
      for (const std::byte byte : bytes) file.put(std::to_integer<char>(byte));
    }
  }
  void expect_blocks(const std::vector<disk::FoundBlock>& found) {
    ASSERT_THAT(found, ::testing::SizeIs(2));
    for (std::uint32_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].slot, disk::DiskSlot(i + 1));
      EXPECT_EQ(found[i].key, disk::key_of(i + 1));
      EXPECT_EQ(world_.load(found[i].slot, found[i].generation, i + 1), disk::Fault::kNone);
    }
  }

  disk::DiskWorld world_{kSmall, 2};
};

TEST_F(FrozenDisk, IsWrittenAsItWas) {
  world_.open();
  (void)world_.store(disk::DiskSlot(0), 0);
  world_.tier().clear();
  ASSERT_TRUE(world_.tier().keep_cleared().ok());
  std::vector<disk::FoundBlock> index;
  for (const std::uint32_t i : {1u, 2u}) {
    index.push_back({disk::DiskSlot(i), world_.store(disk::DiskSlot(i), i), disk::key_of(i)});
  }
  ASSERT_TRUE(world_.tier().close(std::chrono::seconds(60), index).checkpoint.ok());
  world_.close();
  expect_frozen("disk-v1", files());
}

TEST_F(FrozenDisk, IsReadByItsCheckpoint) {
  put(read_frozen("disk-v1"));
  world_.open();
  const auto index = world_.tier().take_index();
  ASSERT_TRUE(index.has_value());
  expect_blocks(*index);
}

TEST_F(FrozenDisk, IsReadByItsHeaders) {
  FrozenFiles files = read_frozen("disk-v1");
  ASSERT_EQ(files.erase("checkpoint"), 1u);
  put(files);
  world_.open();
  expect_blocks(world_.scan());
}

// ---- A server between nodes.

class FrozenValue : public ::testing::Test {
 protected:
  FrozenValue() { memory_.fill(1); }

  disk::ClassShape shape_{disk::digest_of(7), 2, Bytes(48)};
  disk::BlockKey key_ = disk::key_of(1);
  disk::BlockMemory memory_{shape_};
};

TEST_F(FrozenValue, IsWrittenAsItWas) {
  const auto header = remote::make_header(shape_, key_, memory_.all());
  ASSERT_TRUE(header.ok());
  FrozenFiles files;
  files["value"].assign(header->begin(), header->end());
  for (const auto& group : memory_.all()) {
    files["value"].insert(files["value"].end(), group.begin(), group.end());
  }
  for (const char letter : remote::key_name(shape_, key_.digest)) {
    files["name"].push_back(static_cast<std::byte>(letter));
  }
  expect_frozen("remote-v1", files);
}

TEST_F(FrozenValue, IsRead) {
  std::vector<std::byte> value = read_frozen("remote-v1")["value"];
  ASSERT_EQ(Bytes(std::ssize(value)), remote::value_bytes(shape_));
  disk::Sector header{};
  std::copy_n(value.begin(), header.size(), header.begin());
  disk::SlotHeader said;
  ASSERT_EQ(remote::read_header(shape_, key_, header, said), disk::Fault::kNone);
  const std::span all(value);
  const remote::Groups groups{all.subspan(4096, 48), all.subspan(4096 + 48)};
  for (std::size_t group = 0; group < groups.size(); ++group) {
    EXPECT_EQ(remote::compare(said, group, groups), disk::Fault::kNone);
    EXPECT_TRUE(std::equal(groups[group].begin(), groups[group].end(),
                           memory_.group(static_cast<std::uint32_t>(group)).begin()));
  }
}

// ---- Memory that a kvd leaves to the next one: a block in DRAM, one that ended, a slab of a
// region.

constexpr Bytes kSlab = 2 * kMiB;

kept::Record block_record(std::uint32_t tier) {
  kept::Record record;
  record.place = {tier, 3, 5, 0, 65536};
  record.shape = {32, 4, 16, 1, 256};
  record.group = 7;
  record.groups = 8;
  record.number = 2;
  record.has_parent = 1;
  record.devices = 1;
  record.saved = 1e-6;
  record.uid = 1000;
  record.gid = 1001;
  record.fingerprint = disk::digest_of(1);
  record.domain = disk::digest_of(2);
  record.digest = disk::digest_of(3);
  record.parent = disk::digest_of(4);
  record.sums = {5, 6, 7};
  return record;
}

kept::Record region_record() {
  kept::Record record;
  record.place = {0, 4, 0, 0, kSlab.size()};
  record.group = 1;
  record.groups = 2;
  record.fingerprint = kept::region_name({9, 8, 7, 6, 5, 4, 3, 2, 1}, 10);
  record.digest = disk::digest_of(11);
  return record;
}

TEST(FrozenKept, IsWrittenAsItWas) {
  auto state = kept::State::create(kSlab);
  ASSERT_TRUE(state.ok());
  ASSERT_TRUE(state->write(block_record(1)).ok());
  const auto ended = state->write(block_record(0));
  ASSERT_TRUE(state->write(region_record()).ok());
  state->erase(*ended);
  FrozenFiles files;
  auto& bytes = files["kvd-state"];
  bytes.resize(kept::kHeaderBytes + 4 * sizeof(kept::Record));
  ASSERT_EQ(::pread(state->file().get(), bytes.data(), bytes.size(), 0), std::ssize(bytes));
  expect_frozen("kept-v3", files);
}

TEST(FrozenKept, IsRead) {
  const auto bytes = read_frozen("kept-v3")["kvd-state"];
  const auto made = kept::State::create(kSlab);
  ASSERT_TRUE(made.ok() && !bytes.empty());
  UniqueFd file(::fcntl(made->file().get(), F_DUPFD_CLOEXEC, 0));
  ASSERT_EQ(::pwrite(file.get(), bytes.data(), bytes.size(), 0), std::ssize(bytes));
  auto state = kept::State::open(std::move(file), kSlab);
  ASSERT_TRUE(state.ok()) << state.error().message;
  std::map<std::uint32_t, kept::Record> found;
  EXPECT_EQ(state->each([&](std::uint32_t at, const kept::Record& one) { found[at] = one; }), 0u);
  ASSERT_THAT(found, ::testing::SizeIs(2));
  const auto expect_same = [](kept::Record is, const kept::Record& expected) {
    is.state = is.generation = is.sum = 0;
    EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(&is, 1)),
                                   std::as_bytes(std::span(&expected, 1))));
  };
  expect_same(found[0], block_record(1));
  expect_same(found[2], region_record());
}

}  // namespace
}  // namespace kvd
