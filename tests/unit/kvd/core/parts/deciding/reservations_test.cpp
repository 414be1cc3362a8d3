// Tests who may come in, in which order. Random domains show that whoever is let grow, those inside
// can still end one after the other.
#include "kvd/core/deciding/reservations.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <random>

#include "kvd/core/deciding/admission.hpp"
#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

using ::testing::ElementsAre;

constexpr std::int64_t kSlabBlocks = kSlab / kSlot;  // for an engine with one layer group
constexpr std::int64_t kHbm = 4 * kSlabBlocks, kBoth = 8 * kSlabBlocks;

/// All in blocks. What is said of a request holds once it has the blocks that it may grow to.
struct Stake {
  std::int64_t held = 0, lacks = 0, in_hbm = 0;
  bool rests = false;  ///< ends after all others
};

/// Whether there is an order in which all can end. Tries every order, by the sets of requests that
/// are left: `left` is one set, a bit for each request.
bool can_all_end(const std::vector<Stake>& all, std::uint32_t left,
                 std::vector<std::optional<bool>>& known) {
  if (left == 0) return true;
  if (known[left]) return *known[left];
  std::int64_t held = 0, in_hbm = 0;
  bool all_rest = true;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if ((left >> i & 1) == 0) continue;
    held += all[i].held;
    in_hbm += all[i].in_hbm;
    all_rest = all_rest && all[i].rests;
  }
  bool found = false;
  for (std::size_t i = 0; i < all.size() && !found; ++i) {
    if ((left >> i & 1) == 0 || (all[i].rests && !all_rest)) continue;
    std::int64_t largest = 0;
    for (std::size_t j = 0; j < all.size(); ++j) {
      if (j != i && (left >> j & 1) != 0) largest = std::max(largest, all[j].held);
    }
    const std::int64_t comes = largest > 0 ? std::max(all[i].lacks, all[i].held) : all[i].lacks;
    const bool stays = all[i].in_hbm > 0 && in_hbm + all[i].lacks <= kHbm;
    const bool moves = held + all[i].lacks <= kHbm || held + comes + largest <= kBoth;
    found = (stays || moves) && can_all_end(all, left & ~(1U << i), known);
  }
  known[left] = found;
  return found;
}
bool can_all_end(const std::vector<Stake>& all) {
  std::vector<std::optional<bool>> known(std::size_t{1} << all.size());
  return can_all_end(all, static_cast<std::uint32_t>(known.size() - 1), known);
}

/// The sum of all announcements, and room for the largest request to leave.
bool all_fits(const std::vector<Stake>& all) {
  std::int64_t sum = 0, largest = 0;
  for (const Stake& stake : all) {
    sum += stake.held + stake.lacks;
    largest = std::max(largest, stake.held + stake.lacks);
  }
  return sum <= kHbm || sum + largest <= kBoth;
}

class RandomDomain : public PartsTest {
 protected:
  RandomDomain() : PartsTest(small_config(4, 4)) {}

  /// A few that run or are parked, and announce more than there is.
  void fill(std::mt19937_64& random) {
    const auto upto = [&](std::int64_t most) {
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most)) + 1;
    };
    std::int64_t room = kHbm, dram = kBoth - kHbm;
    const std::int64_t count = 1 + upto(6);
    for (std::int64_t i = 0; i < count; ++i) {
      pass(std::chrono::milliseconds(upto(3)));
      const std::int64_t blocks = upto(8), more = upto(kHbm - blocks);
      const bool out = random() % 3 == 0 && blocks <= dram;
      if (blocks > room) break;
      (out ? dram : room) -= blocks;
      Request& request = running(session, blocks * kBlockTokens, more * kBlockTokens);
      request.goal.predicted = PredictedLength{Tokens(1), Tokens(upto(more) * kBlockTokens)};
      if (out) park(request);
      if (out && random() % 3 == 0) request.verdict = Verdict::kForcedOut;
    }
  }

  void park(Request& request) {
    request.leaving = true;
    swaps.start_leaving(ground.requests.session_of(request));
    ASSERT_TRUE(swaps.on_copy({request.moves.rotation, true, kSlot, Nanoseconds(1000)}));
  }

  /// What each request has, or what it grows to where it is not curbed.
  std::vector<Stake> stakes(bool grown) {
    std::vector<Stake> out;
    ground.requests.each_inside_in(kA, [&](Request& r) {
      const std::int64_t most = pieces(r.goal.prompt + r.goal.max_new, Tokens(kBlockTokens));
      std::int64_t held = r.table.blocks();
      if (grown && !r.order.curbed) {
        const Tokens wanted = r.place == Location::kParked
                                  ? r.goal.prompt + ground.knowledge.reserved_length(r)
                                  : r.progress.planned + Tokens(1);
        held = std::max(held, std::min(most, pieces(wanted, Tokens(kBlockTokens))));
      }
      const std::int64_t in_hbm = r.place == Location::kParked ? 0 : held;
      out.push_back({held, std::max<std::int64_t>(0, most - held), in_hbm, r.forced_out()});
    });
    return out;
  }

  Session& session = attach(kA, 1);
  DramCopies copies{ground};
  Streams streams{ground};
  Compactor compactor{ground};
  Swaps swaps{ground, copies, streams, compactor};
};

std::uint64_t first_seed() {
  const char* seed = std::getenv("KVD_SEED");
  return seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1;
}

TEST_F(RandomDomain, WhoeverIsLetGrowLeavesAWayOut) {
  const bool one = std::getenv("KVD_SEED") != nullptr;
  std::int64_t tight = 0, curbed = 0, grew = 0, came_back = 0;
  for (std::uint64_t seed = first_seed(), last = one ? seed : 10'000; seed <= last; ++seed) {
    SCOPED_TRACE("KVD_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    fill(random);
    const std::vector<Stake> before = stakes(false);
    const bool way_out = can_all_end(before) && !all_fits(before);
    Reservations sut(ground);
    EXPECT_THAT(sut.admissible(kShareA), ::testing::IsEmpty()) << "nobody waits";
    std::int64_t sheltered = 0;
    ground.requests.each_inside_in(kA, [&](Request& r) {
      sheltered += r.order.sheltered ? 1 : 0;
      EXPECT_FALSE(r.order.sheltered && r.order.curbed) << "all wait for it";
    });
    EXPECT_LE(sheltered, 1);
    if (way_out && sheltered == 0) {
      EXPECT_TRUE(can_all_end(stakes(true)));
    }
    tight += way_out && sheltered == 0 ? 1 : 0;
    std::int64_t all = 0, held_back = 0;
    ground.requests.each_inside_in(kA, [&](Request& r) {
      const bool runs = r.runs();
      ++all;
      held_back += r.order.curbed ? 1 : 0;
      curbed += r.order.curbed ? 1 : 0;
      grew += runs && !r.order.curbed ? 1 : 0;
      came_back += !runs && !r.order.curbed ? 1 : 0;
    });
    EXPECT_LT(held_back, all) << "the one that lacks the least goes on";
    while (!session.active.empty()) ground.memory.end(*session.active.front());
    if (HasFailure()) return;
  }
  if (!one) {
    EXPECT_GT(tight, 1000);
    EXPECT_GT(curbed, 1000);
    EXPECT_GT(grew, 1000);
    EXPECT_GT(came_back, 1000);
  }
}

/// HBM and DRAM have 40 blocks together. A prompt of 20 blocks lets no second one in.
class WhoComesIn : public PartsTest {
 protected:
  WhoComesIn() : PartsTest(small_config(4, 1)) {}

  void use(const char* rotation, const char* overload, const char* admission = "none") {
    Tuning wanted = ground.context.tuning;
    wanted.admission.policy = admission;
    wanted.rotation.policy = rotation;
    wanted.rotation.overload = overload;
    ground.context.retune(wanted);
  }

  Session& session = attach(kA, 1);
  Reservations sut{ground};
};

TEST_F(WhoComesIn, ThoseInTimeBeforeTheLateWhereThePolicyServesThemLast) {
  Request& late = submit(session, 80, 4);
  pass(late.goal.slo.ttft + std::chrono::milliseconds(1));
  Request& early = submit(session, 80, 4);
  use("unified", "goodput");
  EXPECT_THAT(sut.admissible(kShareA), ElementsAre(&early));
  use("unified", "ttft");
  EXPECT_THAT(sut.admissible(kShareA), ElementsAre(&late));
  use("fcfs", "goodput");
  EXPECT_THAT(sut.admissible(kShareA), ElementsAre(&late)) << "it serves by arrival";
}

TEST_F(WhoComesIn, NobodyIsLateForEver) {
  use("unified", "goodput");
  Request& late = submit(session, 80, 4);
  pass(late.goal.slo.ttft * 32 - std::chrono::milliseconds(1));
  Request& early = submit(session, 80, 4);
  EXPECT_THAT(sut.admissible(kShareA), ElementsAre(&early));
  ground.memory.end(early);
  pass(std::chrono::milliseconds(1));
  submit(session, 80, 4);
  EXPECT_THAT(sut.admissible(kShareA), ElementsAre(&late)) << "it was the first that came";
}

// Were the orders two, a queue would stand before a half-empty HBM until nobody is left inside.
TEST_F(WhoComesIn, WhomAdmissionLetsInHasRoom) {
  running(session, 40).times.has_token = true;
  Request& late = submit(session, 60, 4);
  pass(late.goal.slo.ttft + std::chrono::milliseconds(1));
  Request& early = submit(session, 60, 4);
  Needs needs{ground};
  Supply supply{ground, needs};
  for (const char* overload : {"goodput", "ttft"}) {
    use("unified", overload, "past_future");
    Admission(ground, needs, supply).admit(session);
    const std::vector<Request*> may = sut.admissible(kShareA);
    ASSERT_EQ(may.size(), 1U) << overload;
    EXPECT_NE(may.front()->verdict, Verdict::kHeldBack) << overload;
    EXPECT_EQ((may.front() == &early ? late : early).verdict, Verdict::kHeldBack) << overload;
  }
}

/// HBM has 8 blocks, DRAM 6 more.
class LargerThanHbm : public PartsTest {
 protected:
  LargerThanHbm() : PartsTest(small_config(4, 3)) {}

  /// One request inside and one that waits, of a block each. They announce this many tokens of
  /// answer and are expected to make few.
  std::vector<Request*> let_in(std::int64_t announced) {
    Request& inside = running(session, 4, announced);
    Request& waits = submit(session, 4, announced);
    for (Request* r : {&inside, &waits}) {
      r->goal.predicted = PredictedLength{Tokens(1), Tokens(4)};
    }
    return sut.admissible(kShareA);
  }

  Session& session = attach(kA, 4);
  Reservations sut{ground};
};

TEST_F(LargerThanHbm, OneThatHbmHoldsIsExpectedToMakeLessThanItAnnounces) {
  EXPECT_EQ(let_in(28).size(), 1u) << "8 blocks";
}

// Both could get stuck, each with a part of what the other one needs to stream.
TEST_F(LargerThanHbm, OneThatStreamsToItsEndNeedsStagingForIt) {
  EXPECT_THAT(let_in(32), ::testing::IsEmpty()) << "9 blocks";
}

/// A rank on the first device, two on the second.
class UnevenGroup : public PartsTest {
 protected:
  UnevenGroup() : PartsTest(small_config(4, 8, 2)) {}
  Session& group = attach(kA, 1, true, Devices({kFirst, kSecond, kSecond}), 3);
  Reservations sut{ground};
};

// The second device lacks room for both, so one may have to leave; and it leaves the first one,
// too.
TEST_F(UnevenGroup, LeavesAllItsDevicesWhereOneLacksRoom) {
  running(group, 32, 32);
  Request& waits = submit(group, 16, 16);
  EXPECT_THAT(sut.admissible({kA, kSecond}), ::testing::IsEmpty());
  waits.goal.prompt = waits.goal.max_new = Tokens(4);
  EXPECT_THAT(sut.admissible({kA, kSecond}), ElementsAre(&waits)) << "for that DRAM has room";
}

}  // namespace
}  // namespace kvd::core
