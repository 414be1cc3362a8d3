#include "kvd/daemon/sessions/session_bounds.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvd::daemon {
namespace {

using testing::HasSubstr;

constexpr std::size_t kSeats = 64;

std::string refusal(const SessionCounts& all, const SessionCounts& of_domain, std::size_t domains,
                    std::size_t wanted = 1) {
  const Status status = check_seats(all, of_domain, wanted, kSeats, domains);
  if (status.ok()) return "";
  EXPECT_EQ(status.code(), ErrorCode::kQuotaExceeded);
  return status.error().message;
}

TEST(SessionBounds, ASingleDomainHasAllSeats) {
  EXPECT_EQ(refusal({kSeats - 1, 0}, {kSeats - 1, 0}, 1), "");
  EXPECT_THAT(refusal({kSeats, 0}, {kSeats, 0}, 1), HasSubstr("engine.max_engines sessions"));
}

TEST(SessionBounds, AGreedyDomainKeepsNobodyOut) {
  const SessionCounts greedy{kSeats / 2, 0};
  EXPECT_THAT(refusal(greedy, greedy, 2), HasSubstr("share of engine.max_engines"));
  EXPECT_EQ(refusal(greedy, {0, 0}, 2), "");
  EXPECT_EQ(refusal({kSeats - 1, 0}, {kSeats / 2 - 1, 0}, 2), "");
}

TEST(SessionBounds, WhoeverHasNoSeatGetsOneAlthoughAllAreTaken) {
  EXPECT_EQ(refusal({kSeats, 0}, {0, 0}, 2), "");
  EXPECT_NE(refusal({kSeats + 1, 0}, {1, 0}, 2), "");
  EXPECT_EQ(refusal({0, kMaxEnded}, {0, 0}, 2), "");
}

TEST(SessionBounds, EndedSessionsAreRefusedInWordsOfTheirOwn) {
  const SessionCounts left{0, kMaxEnded / 2};
  EXPECT_THAT(refusal(left, left, 2), HasSubstr("end those processes"));
  EXPECT_EQ(refusal(left, {0, 0}, 2), "");
  EXPECT_THAT(refusal({0, kMaxEnded}, {0, kMaxEnded}, 1), HasSubstr("without goodbye"));
}

TEST(SessionBounds, AGroupNeedsSeatsForAllItsRanks) {
  EXPECT_EQ(refusal({kSeats - 4, 0}, {kSeats - 4, 0}, 1, 4), "");
  EXPECT_NE(refusal({kSeats - 4, 0}, {kSeats - 4, 0}, 1, 5), "");
  EXPECT_EQ(refusal({kSeats, 0}, {kSeats, 0}, 1, 0), "") << "who joins has had its seat";
}

TEST(SessionBounds, MoreDomainsThanSeatsLeaveOneToEach) {
  EXPECT_EQ(refusal({0, 0}, {0, 0}, 100), "");
  EXPECT_NE(refusal({1, 0}, {1, 0}, 100), "");
}

}  // namespace
}  // namespace kvd::daemon
