#include "kvd/pool/slab.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvd::pool {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr EngineId kEngine{7};
constexpr SlotStates kAnyTaken =
    any_of(SlotState::kFilling, SlotState::kOpen, SlotState::kSealed, SlotState::kDraining);

std::vector<std::uint32_t> take(SlotTable& slots, std::uint32_t wanted) {
  std::vector<std::uint32_t> taken;
  slots.take(wanted, [&](SlotRun run) {
    for (std::uint32_t i = 0; i < run.count; ++i) taken.push_back(run.first + i);
  });
  return taken;
}

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
  EXPECT_THAT(take(sut, 2), ElementsAre(0, 1));
  EXPECT_EQ(sut.count(SlotState::kFilling), 2u);
  EXPECT_EQ(sut.count(SlotState::kFree), 1u);
  EXPECT_EQ(sut.validate(), "");
}

TEST(SlotTable, AFreedSlotIsGivenAgain) {
  SlotTable sut(1);
  static_cast<void>(take(sut, 1));
  sut.move({0, 1}, kAnyTaken, SlotState::kSealed);
  EXPECT_EQ(sut.count(SlotState::kSealed), 1u);
  sut.move({0, 1}, kAnyTaken, SlotState::kFree);
  EXPECT_EQ(sut.validate(), "");
  EXPECT_THAT(take(sut, 1), ElementsAre(0));
}

TEST(SlotTable, NeighboursMoveTogetherWhateverTheirStates) {
  SlotTable sut(70);
  static_cast<void>(take(sut, 70));
  sut.move({10, 5}, kAnyTaken, SlotState::kOpen);
  sut.move({12, 2}, kAnyTaken, SlotState::kDraining);
  sut.move({8, 60}, kAnyTaken, SlotState::kSealed);
  EXPECT_EQ(sut.count(SlotState::kSealed), 60u);
  EXPECT_EQ(sut.count(SlotState::kFilling), 10u);
  EXPECT_EQ(sut.validate(), "");
  sut.move({0, 70}, kAnyTaken, SlotState::kFree);
  EXPECT_EQ(sut.free(), 70u);
  EXPECT_EQ(sut.validate(), "");
}

TEST(SlotTableDeathTest, RefusesBrokenRules) {
  SlotTable sut(1);
  EXPECT_DEATH(sut.move({0, 1}, kAnyTaken, SlotState::kSealed), "may not go from its state");
  EXPECT_DEATH(sut.move({0, 1}, any_of(SlotState::kFree), SlotState::kSealed), "allocation only");
  EXPECT_DEATH(sut.move({0, 2}, kAnyTaken, SlotState::kSealed), "no such slot");
  EXPECT_DEATH(static_cast<void>(sut.state(1)), "no such slot");
  static_cast<void>(take(sut, 1));
  EXPECT_DEATH(sut.move({0, 1}, kAnyTaken, SlotState::kFilling), "by allocation only");
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
  EXPECT_EQ(sut.validate(), "") << "bytes of an earlier daemon, before they are zeroed";
  sut.lent = true;
  EXPECT_THAT(sut.validate(), HasSubstr("does not know whose"));
  sut.lent = false;
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
