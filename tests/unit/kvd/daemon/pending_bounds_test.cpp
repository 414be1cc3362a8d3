#include "kvd/daemon/pending_bounds.hpp"

#include <gtest/gtest.h>

namespace kvd::daemon {
namespace {

TEST(PendingBounds, ThereIsRoomUntilABoundIsReached) {
  EXPECT_EQ(who_gives_way({}, 1), std::nullopt);
  PendingUids pending;
  for (std::uint32_t id = 0; id < kMaxPendingPerUid - 1; ++id) pending[id] = 1;
  EXPECT_EQ(who_gives_way(pending, 1), std::nullopt);
}

TEST(PendingBounds, AUidAtItsBoundGivesUpItsOwnOldest) {
  PendingUids pending{{1, 7}};
  for (std::uint32_t id = 2; id < 2 + kMaxPendingPerUid; ++id) pending[id] = 5;
  EXPECT_EQ(who_gives_way(pending, 5), 2u);
  EXPECT_EQ(who_gives_way(pending, 7), std::nullopt) << "the other has room";
}

TEST(PendingBounds, AFullTableTakesFromWhoHasMost) {
  PendingUids pending;
  for (std::uint32_t id = 0; id < kMaxPending; ++id)
    pending[id] = id % 6;  // 0 and 1 have 6, else 5
  pending[0] = 4;
  pending[6] = 4;
  EXPECT_EQ(who_gives_way(pending, 9), 0u) << "the oldest of uid 4, which has 7";
}

TEST(PendingBounds, WhoHasMoreThanEverybodyElseCannotKeepANewUidOut) {
  PendingUids pending;
  for (std::uint32_t id = 0; id < kMaxPending; ++id) pending[id] = id;
  const auto leaver = who_gives_way(pending, 1000);
  ASSERT_TRUE(leaver.has_value());
  EXPECT_LT(*leaver, kMaxPending);
}

}  // namespace
}  // namespace kvd::daemon
