// Level 1: whole slabs, for which requests make way.
#include "kvd/core/moves/regions.hpp"

#include <gmock/gmock.h>

#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RegionsTest : public PartsTest {
 protected:
  Command command(const Session& session, Nanoseconds timeout = std::chrono::seconds(10)) {
    Command made;
    made.engine = session.id;
    made.reply_to = ReplyTo(++asked);
    made.deadline = ground.context.now + timeout;
    return made;
  }
  void ask(const Session& session, Bytes bytes) {
    sut.on_allocate(command(session), AllocateRegion{bytes});
  }
  /// The engine unmaps what it is asked to, and the shell zeroes what is to be zeroed.
  void clear_slabs() {
    const auto asked_back = emitted<AskUnmap>();
    for (; unmapped < asked_back.size(); ++unmapped) {
      const AskUnmap& one = asked_back[unmapped];
      EXPECT_TRUE(ground.store.tiers.mappings().unmapped(one.engine, one.slab));
    }
    const auto scrubs = emitted<Scrub>();
    for (; zeroed < scrubs.size(); ++zeroed) {
      EXPECT_TRUE(ground.store.tiers.scrub_ended(scrubs[zeroed].ticket, true));
    }
  }
  /// The newest answer; null: there is none that says so.
  const RegionReply* granted() {
    replies = emitted<Reply>();
    return replies.empty() ? nullptr : std::get_if<RegionReply>(&replies.back().body);
  }
  const Error* refused() {
    replies = emitted<Reply>();
    return replies.empty() ? nullptr : std::get_if<Error>(&replies.back().body);
  }

  DramCopies copies{ground};
  Needs needs{ground};
  Supply supply{ground, needs};
  Promises promises{ground, supply};
  Regions sut{ground, copies, needs, supply, promises};

 private:
  std::uint64_t asked = 0;
  std::size_t unmapped = 0, zeroed = 0;
  std::vector<Reply> replies;
};

TEST_F(RegionsTest, LeasesWholeSlabs) {
  Session& session = attach(kA, 2, false);
  ask(session, kSlab + Bytes(1));
  ASSERT_NE(granted(), nullptr);
  EXPECT_EQ(granted()->slabs, 2u);
  EXPECT_EQ(sut.region_bytes(session), kSlab * 2);
  EXPECT_EQ(free_hbm(), kSlab * 2);
}

TEST_F(RegionsTest, GivesThemBack) {
  Session& session = attach(kA, 2, false);
  ask(session, kSlab);
  const RegionId region = granted()->region;
  EXPECT_FALSE(sut.on_release(command(session), ReleaseRegion{RegionId(99)}));
  EXPECT_EQ(refused()->code, ErrorCode::kNotFound);
  EXPECT_TRUE(sut.on_release(command(session), ReleaseRegion{region}));
  EXPECT_EQ(sut.region_bytes(session), Bytes(0));
}

TEST_F(RegionsTest, RefusesWhatCouldNeverBe) {
  Session& session = attach();
  ask(session, Bytes(0));
  EXPECT_EQ(refused()->code, ErrorCode::kInvalidArgument);
  ask(session, kSlab * 5);
  EXPECT_EQ(refused()->code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused()->message, HasSubstr("pool.hbm"));
  session.ranks.emplace();
  ask(session, kSlab);
  EXPECT_EQ(refused()->code, ErrorCode::kUnsupported);
  session.ranks.reset();
}

TEST_F(RegionsTest, WhatAnEarlierKvdLentCounts) {
  Session& session = attach(kA, 2, false);
  session.info.orphaned = kSlab * 3;
  ask(session, kSlab * 2);
  EXPECT_EQ(refused()->code, ErrorCode::kQuotaExceeded);
  ask(session, kSlab);
  EXPECT_NE(granted(), nullptr);
}

TEST_F(RegionsTest, RequestsMakeWayAndTheCommandWaits) {
  Session& session = attach();
  Request& request = running(session, 64);
  ask(session, kSlab);
  EXPECT_THAT(emitted<Reply>(), IsEmpty());
  EXPECT_THAT(sut.pending(), SizeIs(1));
  EXPECT_TRUE(supply.retires(kShareA));
  EXPECT_TRUE(request.promised) << "its own engine has yet to step";
  ground.memory.end(request);
  for (int round = 0; round < 3; ++round) {
    sut.serve();
    clear_slabs();
  }
  EXPECT_NE(granted(), nullptr);
  EXPECT_FALSE(supply.retires(kShareA));
}

TEST_F(RegionsTest, APromiseMadeForARegionEndsWithIt) {
  Session& session = attach();
  Request& request = running(session, 64);
  ask(session, kSlab);
  ASSERT_TRUE(request.promised);
  sut.drop(session.id);
  sut.serve();
  EXPECT_FALSE(request.promised);
  EXPECT_FALSE(supply.retires(kShareA));
  EXPECT_EQ(supply.of(kShareA), Bytes(0));
}

TEST_F(RegionsTest, ACommandIsAnsweredByItsDeadline) {
  Session& session = attach();
  running(session, 64);
  ask(session, kSlab);
  pass(std::chrono::seconds(9));
  sut.expire();
  EXPECT_THAT(emitted<Reply>(), IsEmpty());
  pass(std::chrono::seconds(1));
  sut.expire();
  ASSERT_NE(refused(), nullptr);
  EXPECT_EQ(refused()->code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(refused()->message, HasSubstr("engine-1"));
  EXPECT_TRUE(session.leases.refused);
  EXPECT_THAT(sut.pending(), IsEmpty());
}

TEST_F(RegionsTest, ASessionWaitsForEightAtMost) {
  Session& session = attach();
  running(session, 64);
  for (int i = 0; i < 8; ++i) ask(session, kSlab);
  EXPECT_THAT(emitted<Reply>(), IsEmpty());
  ask(session, kSlab);
  EXPECT_EQ(refused()->code, ErrorCode::kQuotaExceeded);
  sut.drop(session.id);
  sut.serve();
}

}  // namespace
}  // namespace kvd::core
