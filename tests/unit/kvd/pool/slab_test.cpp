#include "kvd/pool/slab.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvd::pool {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr EngineId kEngine{7};

TEST(SlotTable, StartsFree) {
  const SlotTable sut(2);
  EXPECT_EQ(sut.size(), 2u);
  EXPECT_EQ(sut.free(), 2u);
  EXPECT_EQ(sut.used(), 0u);
  EXPECT_EQ(sut.state(1), SlotState::kFree);
  EXPECT_EQ(sut.validate(), "");
}

TEST(SlotTable, TakenSlotsFill) {
  SlotTable sut(3);
  EXPECT_THAT(sut.take(2), ElementsAre(0, 1));
  EXPECT_EQ(sut.count(SlotState::kFilling), 2u);
  EXPECT_EQ(sut.count(SlotState::kFree), 1u);
  EXPECT_EQ(sut.validate(), "");
}

TEST(SlotTable, AFreedSlotIsGivenAgain) {
  SlotTable sut(1);
  static_cast<void>(sut.take(1));
  sut.move(0, SlotState::kSealed);
  EXPECT_EQ(sut.count(SlotState::kSealed), 1u);
  sut.move(0, SlotState::kFree);
  EXPECT_EQ(sut.validate(), "");
  EXPECT_THAT(sut.take(1), ElementsAre(0));
}

TEST(SlotTableDeathTest, RefusesBrokenRules) {
  SlotTable sut(1);
  EXPECT_DEATH(sut.move(0, SlotState::kSealed), "by allocation only");
  EXPECT_DEATH(static_cast<void>(sut.state(1)), "no such slot");
  static_cast<void>(sut.take(1));
  EXPECT_DEATH(sut.move(0, SlotState::kFilling), "by allocation only");
}

TEST(Slab, IsHeldWhileInUseOrMapped) {
  Slab sut;
  EXPECT_FALSE(sut.held());
  sut.mapped_by.push_back(kEngine);
  EXPECT_TRUE(sut.held());
  sut.mapped_by.clear();
  sut.use = SlabUse::kQuarantined;
  EXPECT_TRUE(sut.held());
}

TEST(Slab, ValidateNamesTheContradiction) {
  Slab sut;
  EXPECT_EQ(sut.validate(), "");
  sut.domain = DomainId(1);
  EXPECT_THAT(sut.validate(), HasSubstr("clean slab that nobody knows"));
  sut.use = SlabUse::kDirty;
  EXPECT_EQ(sut.validate(), "");
  sut.domain = DomainId{};
  EXPECT_THAT(sut.validate(), HasSubstr("does not know whose"));
  sut.domain = DomainId(1);
  sut.slots = SlotTable(1);
  EXPECT_THAT(sut.validate(), HasSubstr("has slots"));
  sut.use = SlabUse::kClass;
  EXPECT_THAT(sut.validate(), HasSubstr("no class"));
  sut.use = SlabUse::kRegion;
  sut.slots = SlotTable{};
  EXPECT_THAT(sut.validate(), HasSubstr("no region"));
  sut.region = RegionId(1);
  sut.written_while_scrubbed = true;
  EXPECT_THAT(sut.validate(), HasSubstr("late write"));
}

TEST(Names, AreDistinctWords) {
  EXPECT_STREQ(name(SlotState::kFree), "free");
  EXPECT_STREQ(name(SlotState::kScrubbing), "scrubbing");
  EXPECT_STREQ(name(SlabUse::kClean), "clean");
  EXPECT_STREQ(name(SlabUse::kQuarantined), "quarantined");
}

}  // namespace
}  // namespace kvd::pool
