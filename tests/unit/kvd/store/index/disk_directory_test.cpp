// Which cached block is in which slot on disk.
#include "kvd/store/index/disk_directory.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace kvd::store {
namespace {

constexpr Digest kAda{{1}}, kBob{{2}};

Digest block(std::uint8_t number) { return Digest{{9, number}}; }

class DiskDirectoryTest : public ::testing::Test {
 protected:
  /// Writes it; the slot, or nothing where there was none.
  std::optional<std::uint32_t> write(std::uint8_t number, const Digest& domain = kAda) {
    const auto slot = sut.begin_write(domain, block(number));
    if (slot) sut.end_write(*slot, true, ++generation);
    return slot;
  }
  bool has(std::uint8_t number, const Digest& domain = kAda) {
    return sut.find(domain, block(number)).has_value();
  }

  DiskDirectory sut{4};
  std::uint64_t generation = 0;
};

TEST_F(DiskDirectoryTest, ABlockIsFoundOnceItIsWritten) {
  const auto slot = sut.begin_write(kAda, block(1));
  ASSERT_TRUE(slot);
  EXPECT_FALSE(has(1)) << "half of it may be there";
  EXPECT_TRUE(sut.knows(kAda, block(1)));
  sut.end_write(*slot, true, 7);
  const auto place = sut.find(kAda, block(1));
  ASSERT_TRUE(place);
  EXPECT_EQ(place->slot, *slot);
  EXPECT_EQ(place->generation, 7u);
  EXPECT_EQ(sut.used(), 1u);
}

TEST_F(DiskDirectoryTest, AWriteThatFailsLeavesNothing) {
  const auto slot = sut.begin_write(kAda, block(1));
  sut.end_write(*slot, false, 0);
  EXPECT_FALSE(sut.knows(kAda, block(1)));
  EXPECT_EQ(sut.used(), 0u);
}

TEST_F(DiskDirectoryTest, NothingIsFoundAcrossDomains) {
  (void)write(1);
  EXPECT_FALSE(has(1, kBob));
  EXPECT_FALSE(sut.knows(kBob, block(1)));
  (void)write(1, kBob);
  EXPECT_NE(sut.find(kAda, block(1))->slot, sut.find(kBob, block(1))->slot);
}

TEST_F(DiskDirectoryTest, TheLongestNotAskedForMakesWay) {
  for (std::uint8_t number = 0; number < 4; ++number) (void)write(number);
  sut.touch(kAda, block(0));
  (void)write(4);
  EXPECT_TRUE(has(0));
  EXPECT_FALSE(has(1));
  EXPECT_EQ(sut.used(), 4u);
}

TEST_F(DiskDirectoryTest, WhatIsReadOrWrittenMakesNoWay) {
  const auto first = write(0);
  sut.begin_read(*first);
  for (std::uint8_t number = 1; number < 4; ++number) {
    ASSERT_TRUE(sut.begin_write(kAda, block(number)));
  }
  EXPECT_FALSE(sut.begin_write(kAda, block(9)));
  sut.end_read(*first, false);
  EXPECT_TRUE(sut.begin_write(kAda, block(9)));
  EXPECT_FALSE(has(0));
}

TEST_F(DiskDirectoryTest, WhatIsNotThereIsForgottenWhenItsLastReaderHasEnded) {
  const auto slot = write(0);
  sut.begin_read(*slot);
  sut.begin_read(*slot);
  sut.end_read(*slot, true);
  EXPECT_FALSE(has(0));
  EXPECT_EQ(sut.used(), 1u) << "somebody still reads the slot";
  sut.end_read(*slot, false);
  EXPECT_EQ(sut.used(), 0u);
}

TEST_F(DiskDirectoryTest, ADomainBeyondItsShareMakesWayForOthers) {
  for (std::uint8_t number = 0; number < 4; ++number) (void)write(number);
  (void)write(0, kBob);
  (void)write(1, kBob);
  EXPECT_TRUE(has(0, kBob) && has(1, kBob));
  (void)write(2, kBob);
  EXPECT_FALSE(has(0, kBob)) << "its share is half of the slots: the third is its own loss";
  EXPECT_TRUE(has(2) && has(3));
}

TEST_F(DiskDirectoryTest, WhatAnEarlierDaemonWroteIsFoundAndGoesFirst) {
  EXPECT_TRUE(sut.restore(kAda, block(1), {3, 5}));
  EXPECT_EQ(sut.find(kAda, block(1))->slot, 3u);
  EXPECT_EQ(sut.find(kAda, block(1))->generation, 5u);
  for (std::uint8_t number = 2; number < 6; ++number) (void)write(number);
  EXPECT_FALSE(has(1));
  EXPECT_TRUE(has(2));
}

TEST_F(DiskDirectoryTest, OfABlockFoundTwiceTheLaterWriteCounts) {
  EXPECT_TRUE(sut.restore(kAda, block(1), {0, 5}));
  EXPECT_FALSE(sut.restore(kAda, block(1), {1, 4}));
  EXPECT_TRUE(sut.restore(kAda, block(1), {2, 6}));
  EXPECT_EQ(sut.find(kAda, block(1))->slot, 2u);
  EXPECT_EQ(sut.used(), 1u);
  EXPECT_FALSE(sut.restore(kAda, block(2), {2, 9})) << "the slot is in use";
  EXPECT_FALSE(sut.restore(kAda, block(2), {4, 9})) << "there is no such slot";
}

TEST_F(DiskDirectoryTest, ClearingForgetsAllAndWaitsForWhatIsUnderWay) {
  const auto read = write(0);
  sut.begin_read(*read);
  const auto written = sut.begin_write(kAda, block(1));
  (void)write(2);
  sut.clear();
  EXPECT_EQ(sut.used(), 0u);
  EXPECT_FALSE(has(0) || has(1) || has(2));
  EXPECT_FALSE(sut.sweep(4));
  for (std::uint8_t number = 3; number < 5; ++number) {
    const auto slot = write(number);
    EXPECT_TRUE(slot && slot != read && slot != written) << "somebody may still touch those";
  }
  sut.end_read(*read, false);
  sut.end_write(*written, true, 8);
  EXPECT_FALSE(has(1));
  EXPECT_EQ(sut.used(), 2u);
  EXPECT_TRUE(write(5) && write(6));
  EXPECT_TRUE(has(3) && has(4));
}

TEST_F(DiskDirectoryTest, WhatWasForgottenIsEmptiedPieceByPieceAndNeverFound) {
  for (std::uint8_t number = 0; number < 4; ++number) (void)write(number);
  sut.clear();
  EXPECT_EQ(sut.used(), 0u);
  EXPECT_EQ(sut.free(), 4u);
  EXPECT_FALSE(sut.knows(kAda, block(0))) << "it may be written again";
  sut.touch(kAda, block(0));
  sut.each([](const auto&...) { ADD_FAILURE() << "the checkpoint has it"; });
  EXPECT_TRUE(sut.sweep(1));
  EXPECT_TRUE(write(0));
  EXPECT_TRUE(has(0));
  EXPECT_EQ(sut.used(), 1u);
  EXPECT_FALSE(sut.sweep(9));
  EXPECT_TRUE(has(0)) << "it came later";
  EXPECT_EQ(sut.free(), 3u);
}

TEST_F(DiskDirectoryTest, WhatWasForgottenMakesWayBeforeItIsEmptied) {
  for (std::uint8_t number = 0; number < 4; ++number) (void)write(number);
  sut.clear();
  for (std::uint8_t number = 4; number < 8; ++number) EXPECT_TRUE(write(number, kBob));
  for (std::uint8_t number = 4; number < 8; ++number) EXPECT_TRUE(has(number, kBob));
  EXPECT_EQ(sut.used(), 4u);
}

TEST_F(DiskDirectoryTest, ForgottenSlotsAreTakenAwayWithoutBeingEmptied) {
  const auto read = write(0);
  for (std::uint8_t number = 1; number < 4; ++number) (void)write(number);
  sut.begin_read(*read);
  sut.clear();
  sut.bound(0);
  EXPECT_FALSE(sut.cut());
  sut.end_read(*read, false);
  EXPECT_TRUE(sut.cut());
  EXPECT_EQ(sut.free(), 0u);
  sut.grow(2);
  EXPECT_EQ(sut.free(), 2u);
  EXPECT_FALSE(sut.sweep(9));
}

// The changes that are told agree with a plain map, whatever happens.
TEST(DiskDirectoryModel, RandomUseLosesAndInventsNothing) {
  for (std::uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    DiskDirectory sut(6);
    std::map<std::uint32_t, std::pair<Digest, Digest>> slots;  // that a write has filled
    std::multiset<std::uint32_t> read;
    std::uint64_t generation = 0;
    for (int i = 0; i < 300; ++i) {
      if (random() % 40 == 0) {
        sut.clear();
        ASSERT_EQ(sut.used(), 0u);
      }
      (void)sut.sweep(random() % 2);
      const Digest domain = random() % 3 == 0 ? kBob : kAda;
      const Digest name = block(static_cast<std::uint8_t>(random() % 12));
      const auto place = sut.find(domain, name);
      if (place) {
        ASSERT_EQ(slots.at(place->slot), std::pair(domain, name));
      }
      const std::uint64_t what = random() % 5;
      if (what == 0 && place) {
        sut.begin_read(place->slot);
        read.insert(place->slot);
      } else if (what == 1 && !read.empty()) {
        const std::uint32_t slot = *read.begin();
        read.erase(read.begin());
        sut.end_read(slot, random() % 4 == 0);
      } else if (!sut.knows(domain, name)) {
        const auto slot = sut.begin_write(domain, name);
        if (!slot) continue;
        ASSERT_FALSE(read.contains(*slot)) << "it is read";
        slots[*slot] = {domain, name};
        sut.end_write(*slot, random() % 5 != 0, ++generation);
      } else {
        sut.touch(domain, name);
      }
      std::size_t there = 0;
      sut.each([&](const Digest&, const Digest&, const auto&) { ++there; });
      ASSERT_LE(there, sut.used());
      ASSERT_LE(sut.used(), sut.slots());
    }
  }
}

TEST_F(DiskDirectoryTest, ThereMayBeMoreSlotsLater) {
  for (std::uint8_t i = 0; i < 4; ++i) ASSERT_TRUE(write(i));
  sut.grow(6);
  EXPECT_EQ(sut.used(), 4u);
  ASSERT_TRUE(write(4));
  ASSERT_TRUE(write(5));
  for (std::uint8_t i = 0; i < 6; ++i) EXPECT_TRUE(has(i)) << int{i};
  ASSERT_TRUE(write(6));
  EXPECT_FALSE(has(0)) << "the longest not asked for makes way again";
}

TEST_F(DiskDirectoryTest, SlotsAreTakenAwayOnceNobodyReadsOrWritesThem) {
  std::map<std::uint8_t, std::uint32_t> slots;
  for (std::uint8_t i = 0; i < 3; ++i) slots[i] = *write(i);
  const auto writing = sut.begin_write(kAda, block(3));
  ASSERT_EQ(writing, 3u);
  sut.begin_read(slots[2]);
  sut.bound(2);
  EXPECT_TRUE(has(0) && has(1));
  EXPECT_FALSE(has(2));
  EXPECT_EQ(sut.used(), 2u);
  EXPECT_FALSE(sut.cut());
  sut.end_write(*writing, true, 9);
  EXPECT_FALSE(sut.cut());
  sut.end_read(slots[2], false);
  EXPECT_TRUE(sut.cut());
  EXPECT_EQ(sut.slots(), 2u);
  EXPECT_FALSE(has(3)) << "it was written where nothing stays";
  const auto slot = write(4);
  ASSERT_TRUE(slot);
  EXPECT_LT(*slot, 2u);
  EXPECT_FALSE(sut.restore(kAda, block(7), {3, 1}));
}

}  // namespace
}  // namespace kvd::store
