#include "kvd/tiers/kept/state.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <map>
#include <span>

#include "kvd/tiers/disk/files/checksum.hpp"

namespace kvd::kept {
namespace {

constexpr Bytes kSlab = 2 * kMiB;
constexpr std::size_t kLooked = kHeaderBytes + 8 * sizeof(Record);

Record record(std::uint32_t slot) {
  Record made;
  made.place.slot = slot;
  made.place.bytes = 4096;
  made.digest.fill(static_cast<std::uint8_t>(slot));
  return made;
}

UniqueFd copy_of(const UniqueFd& file) { return UniqueFd(::fcntl(file.get(), F_DUPFD_CLOEXEC, 0)); }

/// The slots that the next daemon finds when it takes the file over now. All their other fields are
/// checked.
std::vector<std::uint32_t> found(State& state) {
  std::vector<std::uint32_t> slots;
  EXPECT_EQ(state.each([&](std::uint32_t, const Record& one) {
    EXPECT_EQ(one.digest, record(one.place.slot).digest);
    slots.push_back(one.place.slot);
  }),
            0u);
  return slots;
}

/// The file as a daemon leaves it that is killed at this instant.
std::vector<std::uint32_t> found_after_kill(const State& state) {
  auto other = State::create(kSlab);
  EXPECT_TRUE(other.ok());
  std::vector<char> bytes(kLooked);
  EXPECT_EQ(::pread(state.file().get(), bytes.data(), kLooked, 0), static_cast<ssize_t>(kLooked));
  EXPECT_EQ(::pwrite(other->file().get(), bytes.data(), kLooked, 0), static_cast<ssize_t>(kLooked));
  auto next = State::open(copy_of(other->file()), kSlab);
  EXPECT_TRUE(next.ok());
  return found(*next);
}

TEST(KeptState, WhatWasWrittenIsFoundAndWhatEndedIsNot) {
  auto state = State::create(kSlab);
  ASSERT_TRUE(state.ok());
  const auto first = state->write(record(1));
  const auto second = state->write(record(2));
  ASSERT_TRUE(first.ok() && second.ok());
  state->erase(*first);
  EXPECT_EQ(state->size(), 1u);
  auto next = State::open(copy_of(state->file()), kSlab);
  ASSERT_TRUE(next.ok()) << next.error().message;
  EXPECT_EQ(found(*next), std::vector<std::uint32_t>{2});
  ASSERT_TRUE(next->write(record(3)).ok());
  EXPECT_EQ(found(*next), (std::vector<std::uint32_t>{3, 2})) << "the place is used again";
}

// `used` is under no sum. Looking at a hole of the file fills it.
TEST(KeptState, WhatWasNeverWrittenIsNotLookedAt) {
  auto state = State::create(kSlab);
  ASSERT_TRUE(state.ok());
  ASSERT_TRUE(state->write(record(1)).ok());
  const std::uint64_t lie = kRecords;
  ASSERT_EQ(::pwrite(state->file().get(), &lie, sizeof lie, offsetof(Header, used)),
            static_cast<ssize_t>(sizeof lie));
  auto next = State::open(copy_of(state->file()), kSlab);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(found(*next), std::vector<std::uint32_t>{1});
  struct stat facts {};
  ASSERT_EQ(::fstat(state->file().get(), &facts), 0);
  EXPECT_LT(facts.st_blocks * 512, 1 << 26) << "of 4 GiB";
  ASSERT_TRUE(next->write(record(2)).ok());
  EXPECT_EQ(found(*next), (std::vector<std::uint32_t>{1, 2}));
}

TEST(KeptState, ARecordSaysInWhichTierItsSlotIs) {
  auto state = State::create(kSlab);
  ASSERT_TRUE(state.ok());
  for (const std::uint32_t tier : {0u, 1u}) {
    Record made = record(7);
    made.place.tier = tier;
    ASSERT_TRUE(state->write(made).ok());
  }
  auto next = State::open(copy_of(state->file()), kSlab);
  ASSERT_TRUE(next.ok());
  std::vector<std::uint32_t> tiers;
  EXPECT_EQ(next->each([&](std::uint32_t, const Record& one) {
    EXPECT_EQ(one.place.slot, 7u);
    tiers.push_back(one.place.tier);
  }),
            0u);
  EXPECT_EQ(tiers, (std::vector<std::uint32_t>{0, 1}));
}

TEST(KeptState, AKillBetweenAnyTwoStoresLeavesTheOldTheNewOrNone) {
  auto state = State::create(kSlab);
  ASSERT_TRUE(state.ok());
  ASSERT_TRUE(state->write(record(1)).ok());
  std::vector<std::vector<std::uint32_t>> left;
  state->between_stores = [&] { left.push_back(found_after_kill(*state)); };
  const auto at = state->write(record(2));
  ASSERT_TRUE(at.ok());
  const std::size_t stores = left.size();
  EXPECT_EQ(left.back(), (std::vector<std::uint32_t>{1, 2}));
  left.pop_back();
  for (const auto& slots : left) EXPECT_EQ(slots, std::vector<std::uint32_t>{1});
  left.clear();
  state->erase(*at);
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0], std::vector<std::uint32_t>{1});
  left.clear();
  ASSERT_TRUE(state->write(record(3)).ok()) << "over what ended";
  EXPECT_EQ(left.size(), stores);
  EXPECT_EQ(left.back(), (std::vector<std::uint32_t>{1, 3}));
}

// A copy of memory that another process makes may stop at any byte of a record.
TEST(KeptState, ARecordOfWhichAnyByteIsAnothersIsNone) {
  auto state = State::create(kSlab);
  ASSERT_TRUE(state.ok());
  ASSERT_TRUE(state->write(record(1)).ok());
  for (std::size_t i = 0; i < sizeof(Record); ++i) {
    const auto at = static_cast<off_t>(kHeaderBytes + i);
    char byte = 0;
    ASSERT_EQ(::pread(state->file().get(), &byte, 1, at), 1);
    char other = static_cast<char>(byte ^ 0x10);
    ASSERT_EQ(::pwrite(state->file().get(), &other, 1, at), 1);
    auto next = State::open(copy_of(state->file()), kSlab);
    ASSERT_TRUE(next.ok());
    std::size_t whole = 0;
    std::vector<char> before(sizeof(Record));
    ASSERT_EQ(::pread(state->file().get(), before.data(), before.size(), kHeaderBytes), 256);
    EXPECT_EQ(next->each([&](std::uint32_t, const Record&) { ++whole; }), 1u) << "byte " << i;
    EXPECT_EQ(whole, 0u) << "byte " << i;
    ASSERT_EQ(::pwrite(state->file().get(), before.data(), before.size(), kHeaderBytes), 256);
    ASSERT_EQ(::pwrite(state->file().get(), &byte, 1, at), 1);
  }
}

TEST(KeptState, OtherSlabsOtherVersionsAndOtherFilesAreRefused) {
  auto state = State::create(kSlab);
  ASSERT_TRUE(state.ok());
  EXPECT_FALSE(State::open(copy_of(state->file()), 4 * kMiB).ok());
  EXPECT_FALSE(State::open(UniqueFd(::memfd_create("other", MFD_CLOEXEC)), kSlab).ok());
  for (const off_t at : {0, 8, 12, 16, 20, 24}) {
    char byte = 0;
    ASSERT_EQ(::pread(state->file().get(), &byte, 1, at), 1);
    char other = static_cast<char>(byte + 1);
    ASSERT_EQ(::pwrite(state->file().get(), &other, 1, at), 1);
    EXPECT_FALSE(State::open(copy_of(state->file()), kSlab).ok()) << at;
    ASSERT_EQ(::pwrite(state->file().get(), &byte, 1, at), 1);
  }
  EXPECT_TRUE(State::open(copy_of(state->file()), kSlab).ok());
}

// The number after it would be 0, which stands for none.
TEST(KeptState, AfterARecordWithTheLastOfAllNumbersOthersAreWritten) {
  auto state = State::create(kSlab);
  ASSERT_TRUE(state.ok());
  Record last = record(1);
  last.generation = UINT64_MAX;
  last.sum = disk::crc32c(std::as_bytes(std::span(&last, 1)));
  last.state = last.generation;
  ASSERT_EQ(::pwrite(state->file().get(), &last, sizeof last, kHeaderBytes),
            static_cast<ssize_t>(sizeof last));
  const std::uint64_t used = 1;
  ASSERT_EQ(::pwrite(state->file().get(), &used, sizeof used, offsetof(Header, used)),
            static_cast<ssize_t>(sizeof used));
  auto next = State::open(copy_of(state->file()), kSlab);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(next->each([](std::uint32_t, const Record&) {}), 1u);
  const auto at = next->write(record(2));
  ASSERT_TRUE(at.ok());
  next->erase(*at);
  EXPECT_EQ(next->size(), 0u);
}

}  // namespace
}  // namespace kvd::kept
