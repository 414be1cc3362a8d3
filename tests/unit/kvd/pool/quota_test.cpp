#include "kvd/pool/quota.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvd::pool {
namespace {

using ::testing::HasSubstr;

constexpr SlabCapacity kTen{Bytes(100), 10};
constexpr DomainId kA{1}, kB{2}, kC{3};

Quota guarantee(std::int64_t bytes) { return {.guarantee = Bytes(bytes)}; }
Quota at_most(std::int64_t bytes) { return {.maximum = Bytes(bytes)}; }

TEST(CheckQuotas, AcceptsNoneAndGuaranteesUpToTheCapacity) {
  EXPECT_TRUE(check_quotas({}, kTen).ok());
  EXPECT_TRUE(check_quotas({{kA, guarantee(600)}, {kB, guarantee(400)}}, kTen).ok());
}

TEST(CheckQuotas, RefusesGuaranteesBeyondTheCapacityInWholeSlabs) {
  const Status one_byte_more = check_quotas({{kA, guarantee(600)}, {kB, guarantee(401)}}, kTen);
  EXPECT_EQ(one_byte_more.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(one_byte_more.error().message, HasSubstr("10 slabs"));
  EXPECT_EQ(check_quotas({{kA, guarantee(INT64_MAX)}}, kTen).code(), ErrorCode::kInvalidArgument);
}

TEST(CheckQuotas, RefusesNegativeAndCrossedBounds) {
  EXPECT_EQ(check_quotas({{kA, guarantee(-1)}}, kTen).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(check_quotas({{kA, at_most(-1)}}, kTen).code(), ErrorCode::kInvalidArgument);
  const Status crossed = check_quotas({{kA, {Bytes(200), Bytes(199)}}}, kTen);
  ASSERT_EQ(crossed.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(crossed.error().message, HasSubstr("domain 1"));
}

TEST(Quota, CountsWholeSlabs) {
  EXPECT_EQ(guaranteed_slabs(guarantee(0), kTen), 0u);
  EXPECT_EQ(guaranteed_slabs(guarantee(1), kTen), 1u);
  EXPECT_EQ(guaranteed_slabs(guarantee(100), kTen), 1u);
  EXPECT_EQ(guaranteed_slabs(guarantee(101), kTen), 2u);
  EXPECT_EQ(maximum_slabs(at_most(99), kTen), 0u);
  EXPECT_EQ(maximum_slabs(at_most(100), kTen), 1u);
  EXPECT_EQ(maximum_slabs(at_most(199), kTen), 1u);
  EXPECT_EQ(maximum_slabs(Quota{}, kTen), 10u);
}

TEST(Quota, TheMaximumWinsWhereBothLieInOneSlab) {
  EXPECT_EQ(guaranteed_slabs({Bytes(150), Bytes(180)}, kTen), 1u);
}

TEST(MostSlabs, IsTheMaximumAndWhatOthersAreNotGuaranteed) {
  EXPECT_EQ(most_slabs({}, kA, kTen), 10u);
  EXPECT_EQ(most_slabs({{kA, at_most(450)}}, kA, kTen), 4u);
  EXPECT_EQ(most_slabs({{kB, guarantee(250)}, {kC, guarantee(300)}}, kA, kTen), 4u);
  EXPECT_EQ(most_slabs({{kA, guarantee(200)}, {kB, guarantee(800)}}, kA, kTen), 2u);
  EXPECT_EQ(most_slabs({{kA, at_most(100)}, {kB, guarantee(800)}}, kA, kTen), 1u);
}

TEST(RoomSlabs, IsEverythingForALoneDomain) { EXPECT_EQ(room_slabs({}, {}, kA, kTen), 10u); }

TEST(RoomSlabs, LeavesWhatOthersHoldOrAreGuaranteedWhicheverIsMore) {
  const Quotas quotas = {{kB, guarantee(300)}};
  EXPECT_EQ(room_slabs(quotas, {}, kA, kTen), 7u);
  EXPECT_EQ(room_slabs(quotas, {{kB, 2}}, kA, kTen), 7u);
  EXPECT_EQ(room_slabs(quotas, {{kB, 4}}, kA, kTen), 6u);
  EXPECT_EQ(room_slabs(quotas, {{kB, 4}, {kC, 5}}, kA, kTen), 1u);
}

TEST(RoomSlabs, KeepsTheOwnGuarantee) {
  const Quotas quotas = {{kA, guarantee(300)}, {kB, guarantee(700)}};
  EXPECT_EQ(room_slabs(quotas, {}, kA, kTen), 3u);
  EXPECT_EQ(room_slabs(quotas, {{kA, 2}}, kA, kTen), 1u);
  EXPECT_EQ(room_slabs(quotas, {{kA, 3}}, kA, kTen), 0u);
}

TEST(RoomSlabs, StopsAtTheMaximumEvenWhenQuotasShrankBelowUse) {
  EXPECT_EQ(room_slabs({{kA, at_most(450)}}, {}, kA, kTen), 4u);
  EXPECT_EQ(room_slabs({{kA, at_most(450)}}, {{kA, 4}}, kA, kTen), 0u);
  EXPECT_EQ(room_slabs({{kA, at_most(450)}}, {{kA, 6}}, kA, kTen), 0u);
  EXPECT_EQ(room_slabs({{kB, guarantee(600)}}, {{kA, 6}}, kA, kTen), 0u);
}

TEST(ExcessSlabs, IsWhatADomainHoldsAboveItsMaximum) {
  const Quotas quotas{{kA, at_most(300)}};
  EXPECT_EQ(excess_slabs(quotas, {{kA, 5}, {kB, 5}}, kTen), (HeldSlabs{{kA, 2}}));
  EXPECT_EQ(excess_slabs(quotas, {{kA, 3}, {kB, 7}}, kTen), HeldSlabs());
}

TEST(ExcessSlabs, IsWhatOthersAreGuaranteedAndLackAPartByWhatIsBorrowed) {
  const Quotas quotas{{kA, guarantee(400)}, {kB, guarantee(200)}};
  EXPECT_EQ(excess_slabs(quotas, {{kB, 10}}, kTen), (HeldSlabs{{kB, 4}}));
  EXPECT_EQ(excess_slabs(quotas, {{kB, 5}, {kC, 5}}, kTen), (HeldSlabs{{kB, 2}, {kC, 3}}));
  EXPECT_EQ(excess_slabs(quotas, {{kB, 2}, {kC, 4}}, kTen), HeldSlabs()) << "it is free";
}

Bytes guaranteed(const Parts& parts, DomainId domain) { return parts.quotas.at(domain).guarantee; }

TEST(EqualParts, AreWhatEachWantsWhereThereIsEnough) {
  const Parts parts = equal_parts({}, {{kA, {6, 0}}, {kB, {4, 0}}}, kTen);
  EXPECT_TRUE(parts.quotas.empty());
  EXPECT_EQ(parts.slabs, UINT32_MAX);
}

TEST(EqualParts, LeaveNothingToWhoWantsLess) {
  const Parts parts = equal_parts({}, {{kA, {10, 0}}, {kB, {9, 0}}, {kC, {2, 0}}}, kTen);
  EXPECT_EQ(parts.slabs, 4u);
  EXPECT_EQ(guaranteed(parts, kA), Bytes(400));
  EXPECT_EQ(guaranteed(parts, kB), Bytes(400));
  EXPECT_EQ(guaranteed(parts, kC), Bytes(200));
}

TEST(EqualParts, StandOnGuaranteesAndUnderMaxima) {
  const Quotas quotas = {{kA, guarantee(600)}, {kB, at_most(100)}};
  const Parts parts = equal_parts(quotas, {{kB, {9, 0}}, {kC, {9, 0}}}, kTen);
  EXPECT_EQ(guaranteed(parts, kA), Bytes(600));
  EXPECT_EQ(guaranteed(parts, kB), Bytes(100));
  EXPECT_EQ(guaranteed(parts, kC), Bytes(300));
  EXPECT_TRUE(check_quotas(parts.quotas, kTen).ok());
}

TEST(EqualParts, LeaveADomainWhatItCannotGiveBack) {
  const Parts parts = equal_parts({}, {{kA, {10, 8}}, {kB, {9, 0}}}, kTen);
  EXPECT_EQ(parts.slabs, 5u);
  EXPECT_EQ(guaranteed(parts, kA), Bytes(800));
  EXPECT_EQ(guaranteed(parts, kB), Bytes(200));
}

TEST(EqualParts, AreKnownWhereNothingCanBeGivenBack) {
  const Parts parts = equal_parts({}, {{kA, {8, 8}}, {kB, {3, 3}}}, kTen);
  EXPECT_EQ(parts.slabs, 7u);
  EXPECT_TRUE(parts.quotas.empty());
}

TEST(Judge, TakesHeldSlabsWithoutRoomAndLooseOnesWithin) {
  const SlabSupply supply{.held = 1, .loose = 3, .room = 2, .room_later = 2};
  EXPECT_EQ(judge(0, {}), ErrorCode::kOk);
  EXPECT_EQ(judge(1, {.held = 1}), ErrorCode::kOk);
  EXPECT_EQ(judge(3, supply), ErrorCode::kOk);
  EXPECT_EQ(judge(4, supply), ErrorCode::kQuotaExceeded);
  EXPECT_EQ(judge(5, supply), ErrorCode::kOutOfMemory);
}

TEST(Judge, WaitsOnlyWhereWaitingHelps) {
  const SlabSupply supply{.loose = 1, .loose_later = 2, .room = 2, .room_later = 2};
  EXPECT_EQ(judge(1, supply), ErrorCode::kOk);
  EXPECT_EQ(judge(2, supply), ErrorCode::kWouldBlock);
  EXPECT_EQ(judge(3, supply), ErrorCode::kQuotaExceeded);
  EXPECT_EQ(judge(4, supply), ErrorCode::kOutOfMemory);
  EXPECT_EQ(judge(1, {.held_later = 1}), ErrorCode::kWouldBlock);
}

}  // namespace
}  // namespace kvd::pool
