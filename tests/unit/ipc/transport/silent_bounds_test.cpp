#include "ipc/transport/silent_bounds.hpp"

#include <gtest/gtest.h>

namespace kvd::transport {
namespace {

constexpr SilentBounds kBounds{8, 32};

TEST(WhoGivesWay, ThereIsRoomUntilABoundIsReached) {
  EXPECT_EQ(who_gives_way({}, 1, kBounds), std::nullopt);
  SilentUids silent;
  for (std::uint64_t id = 0; id < kBounds.per_uid - 1; ++id) silent[id] = 1;
  EXPECT_EQ(who_gives_way(silent, 1, kBounds), std::nullopt);
}

TEST(WhoGivesWay, AUidAtItsBoundIsInItsOwnWay) {
  SilentUids silent{{1, 7}};
  for (std::uint64_t id = 2; id < 2 + kBounds.per_uid; ++id) silent[id] = 5;
  EXPECT_EQ(who_gives_way(silent, 5, kBounds), 5u);
  EXPECT_EQ(who_gives_way(silent, 7, kBounds), std::nullopt) << "the other has room";
}

TEST(WhoGivesWay, AFullTableTakesFromWhoHasMost) {
  SilentUids silent;
  for (std::uint64_t id = 0; id < kBounds.total; ++id)
    silent[id] = static_cast<uid_t>(id % 6);  // 0 and 1 have 6, else 5
  silent[0] = 4;
  silent[6] = 4;
  EXPECT_EQ(who_gives_way(silent, 9, kBounds), 4u) << "it has 7";
}

TEST(WhoGivesWay, TheOldestIsTheOneThatCameFirst) {
  const SilentUids silent{{2, 7}, {3, 5}, {4, 7}, {9, 5}};
  EXPECT_EQ(oldest_of(silent, 7), 2u);
  EXPECT_EQ(oldest_of(silent, 5), 3u);
}

TEST(WhoGivesWay, WhoHasMoreThanEverybodyElseCannotKeepANewUidOut) {
  SilentUids silent;
  for (std::uint64_t id = 0; id < kBounds.total; ++id) silent[id] = static_cast<uid_t>(id);
  const auto crowded = who_gives_way(silent, 1000, kBounds);
  ASSERT_TRUE(crowded.has_value());
  EXPECT_LT(*crowded, kBounds.total);
}

}  // namespace
}  // namespace kvd::transport
