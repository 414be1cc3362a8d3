// How much of a device each of several engines may have.
#include "kvd/core/ledger/fair_grants.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>

namespace kvd::core {
namespace {

using ::testing::ElementsAre;

constexpr DomainId kA{1}, kB{2};

Want wants(std::int64_t wanted, std::int64_t held = 0) {
  return {.domain = kA, .held = held, .wanted = wanted};
}
Want waits(std::int64_t least, Nanoseconds age, std::int64_t held = 0) {
  return {.domain = kA, .held = held, .least = least, .wanted = least, .slack = -age};
}
/// How many slabs the requests would use that are due this late.
Want uses(std::int64_t wanted, std::chrono::seconds slack, std::int64_t held = 0) {
  return {.domain = kA, .held = held, .wanted = wanted, .slack = slack, .used = {{slack, wanted}}};
}

TEST(FairGrants, GiveEverybodyWhatTheyWantWhereThatFits) {
  EXPECT_THAT(fair_grants(std::vector{wants(3), wants(5)}, 8, {}), ElementsAre(3, 5));
}

TEST(FairGrants, MakeTheLeastAsLargeAsItCanBe) {
  EXPECT_THAT(fair_grants(std::vector{wants(2), wants(20), wants(9)}, 16, {}),
              ElementsAre(2, 7, 7));
}

TEST(FairGrants, LeaveWithWhoeverHoldsItWhatNobodyWants) {
  EXPECT_THAT(fair_grants(std::vector{wants(0, 6), wants(3, 0)}, 10, {}), ElementsAre(6, 3));
  EXPECT_THAT(fair_grants(std::vector{wants(0, 6), wants(9, 0)}, 10, {}), ElementsAre(1, 9));
}

TEST(FairGrants, NeverTouchWhatIsKept) {
  std::vector all{wants(8), wants(8)};
  all[0].kept = all[0].held = 6;
  EXPECT_THAT(fair_grants(all, 8, {}), ElementsAre(6, 2));
  all[0].held = 0;
  EXPECT_THAT(fair_grants(all, 8, {}), ElementsAre(4, 4)) << "it has to be had first";
}

TEST(FairGrants, LetTheOldestRequestRunFirst) {
  const Nanoseconds old{20}, young{10};
  EXPECT_THAT(fair_grants(std::vector{waits(6, young), waits(7, old)}, 10, {}), ElementsAre(3, 7));
  EXPECT_THAT(fair_grants(std::vector{waits(6, old), waits(7, young)}, 10, {}), ElementsAre(6, 4));
  EXPECT_THAT(fair_grants(std::vector{waits(11, old), waits(7, young)}, 10, {}), ElementsAre(3, 7))
      << "what could never be is nobody's turn";
}

TEST(FairGrants, GiveTheUrgentAllBeforeThePatientHaveMore) {
  const std::chrono::seconds chat{5}, batch{600};
  EXPECT_THAT(fair_grants(std::vector{uses(12, chat), uses(40, batch, 16)}, 16, {}),
              ElementsAre(12, 4));
  EXPECT_THAT(fair_grants(std::vector{uses(12, chat), uses(40, chat, 16)}, 16, {}),
              ElementsAre(8, 8))
      << "of the same class each has its part";
  EXPECT_THAT(
      fair_grants(std::vector{uses(12, chat), uses(40, std::chrono::seconds(0), 16)}, 16, {}),
      ElementsAre(8, 8))
      << "its time has come";
}

TEST(FairGrants, LetThePatientGetOn) {
  std::vector all{uses(16, std::chrono::seconds(5)), uses(40, std::chrono::seconds(600), 16)};
  all[1].least = 3;
  EXPECT_THAT(fair_grants(all, 16, {}), ElementsAre(13, 3));
}

TEST(FairGrants, CountWhatIsUrgentWithinAnEngine) {
  std::vector all{uses(8, std::chrono::seconds(5)), uses(40, std::chrono::seconds(600), 16)};
  all[1].used = {{std::chrono::seconds(4), 6}, {std::chrono::seconds(600), 40}};
  EXPECT_THAT(fair_grants(all, 16, {}), ElementsAre(8, 8));
  EXPECT_THAT(fair_grants(all, 10, {}), ElementsAre(5, 5));
  all[0].used = {{std::chrono::seconds(5), 3}, {std::chrono::seconds(600), 8}};
  EXPECT_THAT(fair_grants(all, 10, {}), ElementsAre(4, 6)) << "the rest in equal parts";
  all[1].used.front().wanted = 7;
  EXPECT_THAT(fair_grants(all, 10, {}), ElementsAre(3, 7));
}

/// It has nothing, and its next requests would use this many slabs.
Want idle(std::int64_t soon, std::chrono::seconds goal) {
  return {.domain = kA, .soon = UsedBy{goal, soon}};
}

// A domain that has it would have to give it back when the request comes, and that takes a while.
TEST(FairGrants, LeaveForTheUrgentWhatTheyUseSoon) {
  const std::chrono::seconds chat{5}, batch{600};
  EXPECT_THAT(fair_grants(std::vector{idle(3, chat), uses(40, batch, 16)}, 16, {}),
              ElementsAre(3, 13));
  EXPECT_THAT(fair_grants(std::vector{idle(9, chat), uses(40, batch, 16)}, 16, {}),
              ElementsAre(4, 12))
      << "a quarter of all at most";
  EXPECT_THAT(fair_grants(std::vector{idle(3, chat), uses(40, chat, 16)}, 16, {}),
              ElementsAre(0, 16))
      << "before who wants it now, with the same class, it does not count";
  EXPECT_THAT(fair_grants(std::vector{idle(3, batch), uses(40, batch, 16)}, 16, {}),
              ElementsAre(0, 16));
  EXPECT_THAT(fair_grants(std::vector{idle(3, chat), wants(2, 2)}, 16, {}), ElementsAre(3, 2));
}

TEST(FairGrants, CountAsUsedSoonWhatIsUsedNow) {
  std::vector all{uses(5, std::chrono::seconds(5), 5), uses(40, std::chrono::seconds(600), 11)};
  all[0].soon = UsedBy{std::chrono::seconds(5), 5};
  EXPECT_THAT(fair_grants(all, 16, {}), ElementsAre(5, 11));
  all[0].soon->wanted = 7;
  EXPECT_THAT(fair_grants(all, 16, {}), ElementsAre(7, 9));
  all[0].grain = all[1].grain = 4;
  EXPECT_THAT(fair_grants(all, 16, {}), ElementsAre(8, 8));
}

TEST(FairGrants, NoDomainHasLessForWhatAnotherOneUsesSoon) {
  std::vector all{idle(4, std::chrono::seconds(5)), uses(40, std::chrono::seconds(600), 16)};
  all[1].domain = kB;
  EXPECT_THAT(fair_grants(all, 16, {}), ElementsAre(0, 16));
  all[1].used.front().wanted = all[1].wanted = 13;
  EXPECT_THAT(fair_grants(all, 16, {}), ElementsAre(3, 13));
}

TEST(FairGrants, NoGoalGetsAnybodyWhatAnotherDomainHas) {
  std::vector all{uses(12, std::chrono::seconds(0)), uses(12, std::chrono::seconds(600))};
  all[1].domain = kB;
  EXPECT_THAT(fair_grants(all, 12, {}), ElementsAre(6, 6));
}

// Whole grains are given, however little of the last one is wanted.
TEST(FairGrants, RoundUpWhatTheUrgentUse) {
  std::vector all{uses(9, std::chrono::seconds(5)), uses(40, std::chrono::seconds(600), 16)};
  for (Want& want : all) want.grain = 4;
  all[0].used = {{std::chrono::seconds(5), 5}, {std::chrono::seconds(600), 9}};
  EXPECT_THAT(fair_grants(all, 12, {}), ElementsAre(8, 4));
}

TEST(FairGrants, ComeInGrains) {
  std::vector all{wants(20), wants(20), wants(20)};
  for (Want& want : all) want.grain = 3;
  EXPECT_THAT(fair_grants(all, 11, {}), ElementsAre(3, 3, 3));
  EXPECT_THAT(fair_grants(all, 13, {}), ElementsAre(6, 3, 3)) << "of what rounding left";
}

TEST(FairGrants, StayWithinWhatADomainMayHave) {
  std::vector all{wants(9), wants(9), wants(9)};
  all[2].domain = kB;
  EXPECT_THAT(fair_grants(all, 16, {{kA, 6}}), ElementsAre(3, 3, 9));
}

// However old its request says it is, and however much it says it needs.
TEST(FairGrants, AreSharedBetweenDomainsBeforeAnybodysAgeCounts) {
  std::vector all{waits(10, Nanoseconds(1), 6), waits(12, Nanoseconds::max())};
  all[1].domain = kB;
  EXPECT_THAT(fair_grants(all, 12, {}), ElementsAre(10, 2)) << "who holds most gets on";
  all[0].least = 4;
  EXPECT_THAT(fair_grants(all, 12, {}), ElementsAre(6, 6));
}

TEST(FairGrants, ADomainWithManyEnginesHasNoMoreThanOneWithOne) {
  std::vector all{wants(12), wants(12), wants(12), wants(12)};
  all[3].domain = kB;
  EXPECT_THAT(fair_grants(all, 12, {}), ElementsAre(2, 2, 2, 6));
}

// Whatever they want: never more than there is, never below what is kept, nobody above what it
// wants or holds, and the oldest that can run at all does.
TEST(FairGrants, HoldTheirRulesForAnybody) {
  const char* given = std::getenv("KVD_TEST_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 20261126;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  for (int round = 0; round < 20'000; ++round) {
    std::vector<Want> all(static_cast<std::size_t>(1 + below(6)));
    std::int64_t held = 0;
    for (Want& want : all) {
      want = {
          .domain = below(2) == 0 ? kA : kB,
          .held = below(12),
          .kept = below(4),
          .least = below(20),
          .wanted = below(30),
          .grain = 1 + below(4),
          .slack = below(5) > 0 ? std::optional(std::chrono::seconds(below(100))) : std::nullopt};
      if (want.slack) {
        want.used = {{*want.slack, below(20)}, {std::chrono::seconds(600), 20 + below(20)}};
      }
      if (below(2) == 0) want.soon = UsedBy{std::chrono::seconds(below(100)), below(20)};
      held += want.held;
    }
    const std::int64_t budget = held + below(20);
    const auto grants = fair_grants(all, budget, {});
    EXPECT_LE(std::accumulate(grants.begin(), grants.end(), std::int64_t{0}), budget);
    for (std::size_t at = 0; at < all.size(); ++at) {
      const Want& want = all[at];
      const std::int64_t most =
          std::max({want.held, want.wanted, want.kept, want.slack ? want.least : 0,
                    want.soon ? std::max(want.soon->wanted, want.kept) : 0});
      EXPECT_GE(grants[at], std::min(want.kept, want.held));
      EXPECT_LT(grants[at], most + want.grain);
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace kvd::core
