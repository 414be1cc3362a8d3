// Addresses of an engine behind which regions come and go.
#include "kvd/core/ledger/spaces.hpp"

#include <gmock/gmock.h>

#include "ipc/vocabulary/slo_class.hpp"
#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

using ::testing::HasSubstr;

class SpacesTest : public PartsTest {
 protected:
  Command command(const Session& session) {
    Command made;
    made.engine = session.id;
    made.reply_to = ReplyTo(++asked);
    made.deadline = ground.context.now + std::chrono::seconds(1);
    return made;
  }
  const Error* refused() {
    replies = emitted<Reply>();
    return replies.empty() ? nullptr : std::get_if<Error>(&replies.back().body);
  }
  std::uint64_t told() {
    replies = emitted<Reply>();
    const auto* value = std::get_if<ValueReply>(&replies.back().body);
    EXPECT_NE(value, nullptr) << (refused() != nullptr ? refused()->to_string() : "");
    return value != nullptr ? value->value : UINT64_MAX;
  }
  RegionId opened(Session& session, std::uint32_t slabs = 4) {
    sut.on_open(command(session), {slabs});
    return RegionId(told());
  }
  /// As the pool leases it.
  RegionId leased(Session& session, std::int64_t slabs) {
    const RegionId id = sut.next_id();
    auto got = ground.store.tiers.lease(id, session.taker(), kSlab * slabs);
    EXPECT_TRUE(got.ok());
    session.leases.regions.emplace(id, Region{id, std::move(*got)});
    return id;
  }
  std::uint64_t share(Session& session, RegionId space, const Demand& demand,
                      const std::map<DomainId, Bytes>& awaited = {}) {
    sut.on_share(command(session), {space, demand}, awaited);
    return told() / kSlab.size();
  }
  static Demand wanting(std::int64_t slabs) {
    return {Bytes(0), Bytes(0), kSlab * slabs, kSlab, Nanoseconds(0)};
  }

  Spaces& sut = ground.spaces;

 private:
  std::uint64_t asked = 0;
  std::vector<Reply> replies;
};

TEST_F(SpacesTest, KnowWhatStandsWhere) {
  Session& session = attach(kA, 2, false);
  const RegionId space = opened(session), region = leased(session, 2);
  sut.on_place(command(session), {space, region, {3, 1}});
  EXPECT_EQ(told(), 2u);
  const auto& slabs = session.leases.regions.at(region).slabs;
  EXPECT_EQ(session.leases.spaces.at(space).at[3].slab, slabs[0]);
  EXPECT_EQ(session.leases.spaces.at(space).at[1].slab, slabs[1]);
  EXPECT_FALSE(session.leases.spaces.at(space).at[0].region);
  EXPECT_EQ(Spaces::slabs_of(session, space), 4u);
  EXPECT_EQ(Spaces::slabs_of(session, region), 2u);
  EXPECT_EQ(Spaces::slabs_of(session, RegionId(99)), std::nullopt);
  sut.on_close(command(session), {space});
  EXPECT_EQ(refused()->code, ErrorCode::kWouldBlock);
  Spaces::forget(session, region);
  EXPECT_FALSE(session.leases.spaces.at(space).at[3].region);
  sut.on_close(command(session), {space});
  EXPECT_EQ(refused(), nullptr);
  EXPECT_TRUE(session.leases.spaces.empty());
}

TEST_F(SpacesTest, RefuseWhatDoesNotFit) {
  Session& session = attach(kA, 2, false);
  const RegionId space = opened(session), region = leased(session, 2), one = leased(session, 1);
  const auto code = [&](RegionId of, RegionId what, std::vector<std::uint32_t> positions) {
    sut.on_place(command(session), {of, what, std::move(positions)});
    return refused() != nullptr ? refused()->code : ErrorCode::kOk;
  };
  EXPECT_EQ(code(RegionId(99), region, {0, 1}), ErrorCode::kNotFound);
  EXPECT_EQ(code(space, RegionId(99), {0, 1}), ErrorCode::kNotFound);
  EXPECT_EQ(code(space, region, {0}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(space, region, {0, 4}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(space, region, {2, 2}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(space, region, {0, 1}), ErrorCode::kOk);
  EXPECT_EQ(code(space, region, {2, 3}), ErrorCode::kInvalidArgument) << "it stands already";
  EXPECT_EQ(code(space, one, {1}), ErrorCode::kInvalidArgument);
  sut.on_open(command(session), {5});
  EXPECT_THAT(refused()->message, HasSubstr("pool.hbm"));
  for (int i = 0; i < 15; ++i) opened(session);
  sut.on_open(command(session), {1});
  EXPECT_EQ(refused()->code, ErrorCode::kQuotaExceeded);
}

TEST_F(SpacesTest, AreAskedForWhatOthersNeed) {
  Session& a = attach(kA, 2, false);
  Session& b = attach(kB, 2, false);
  const RegionId of_a = opened(a), of_b = opened(b), region = leased(a, 4);
  sut.on_place(command(a), {of_a, region, {0, 1, 2, 3}});
  EXPECT_EQ(share(a, of_a, wanting(4)), 4u);
  EXPECT_EQ(share(b, of_b, wanting(4)), 2u);
  EXPECT_EQ(share(a, of_a, wanting(4)), 2u);
  const RegionId small = opened(b, 1);
  EXPECT_EQ(share(b, of_b, wanting(0)), 0u);
  EXPECT_EQ(share(b, small, wanting(100)), 1u);
  EXPECT_EQ(share(a, of_a, wanting(4)), 3u) << "nobody wants more than it has addresses for";
  pass(std::chrono::seconds(3));
  EXPECT_EQ(share(a, of_a, wanting(4)), 4u) << "who says nothing more wants nothing more";
  EXPECT_EQ(share(a, of_a, wanting(4), {{kB, kSlab}}), 3u) << "kvd's own line wants one";
  EXPECT_EQ(share(a, of_a, wanting(0)), 4u) << "nobody wants it";
}

// The engine says so of itself, and kvd cannot check it.
TEST_F(SpacesTest, ALieAboutItsRequestsGetsNobodyWhatAnotherDomainHas) {
  Session& honest = attach(kA, 2, false);
  Session& liar = attach(kB, 2, false);
  const RegionId held = opened(honest), empty = opened(liar), region = leased(honest, 3);
  sut.on_place(command(honest), {held, region, {0, 1, 2}});
  pass(std::chrono::seconds(1));
  liar.life.attached = ground.context.now;
  const Demand all{Bytes(0), kSlab * 4, kSlab * 4, kSlab, Nanoseconds(std::int64_t{1} << 62)};
  const Demand need{Bytes(0), kSlab, kSlab * 4, kSlab, Nanoseconds(3)};
  EXPECT_EQ(share(honest, held, need), 4u);
  EXPECT_EQ(share(liar, empty, all), 2u);
  EXPECT_EQ(share(honest, held, need), 2u);
}

TEST_F(SpacesTest, NobodyHasWaitedForLongerThanItsSessionIsThere) {
  Session& honest = attach(kA, 2, false);
  Session& liar = attach(kA, 2, false);
  const RegionId of_honest = opened(honest), of_liar = opened(liar);
  pass(std::chrono::seconds(1));
  liar.life.attached = ground.context.now;
  const Demand lie{Bytes(0), kSlab * 3, kSlab * 3, kSlab, Nanoseconds(std::int64_t{1} << 62)};
  const Demand truth{Bytes(0), kSlab * 3, kSlab * 3, kSlab, Nanoseconds(500)};
  EXPECT_EQ(share(liar, of_liar, lie), 3u) << "alone";
  EXPECT_EQ(share(honest, of_honest, truth), 3u);
  EXPECT_EQ(share(liar, of_liar, lie), 1u);
}

/// Requests that await their first token, with a goal or one of their class.
Demand due(std::int64_t slabs, Nanoseconds age, Nanoseconds ttft, std::uint32_t slo_class = 0) {
  const Bytes wanted = kSlab * slabs;
  return {Bytes(0), kSlab, wanted, kSlab, age, {{wanted, kSlab, age, ttft, slo_class, false}}};
}

TEST_F(SpacesTest, WhoIsDueFirstIsServedFirst) {
  Session& chat = attach(kA, 2, false);
  Session& batch = attach(kA, 2, false);
  const RegionId of_chat = opened(chat), of_batch = opened(batch);
  pass(std::chrono::seconds(2000));
  const std::chrono::seconds new_one{1};
  EXPECT_EQ(share(batch, of_batch, due(4, std::chrono::seconds(9), std::chrono::minutes(10))), 4u);
  EXPECT_EQ(share(chat, of_chat, due(4, new_one, std::chrono::seconds(5))), 3u);
  EXPECT_EQ(share(batch, of_batch, due(4, std::chrono::seconds(9), std::chrono::minutes(10))), 1u)
      << "it gets on";
  EXPECT_EQ(share(batch, of_batch, due(4, std::chrono::seconds(599), std::chrono::minutes(10))), 2u)
      << "its time has come";
  EXPECT_EQ(share(batch, of_batch, due(4, std::chrono::seconds(601), std::chrono::minutes(10))),
            2u);
  share(batch, of_batch, due(4, std::chrono::seconds(9), std::chrono::minutes(10)));
  EXPECT_EQ(share(chat, of_chat, due(4, new_one, Nanoseconds(0))), 3u) << "its domain's class";
  EXPECT_EQ(share(batch, of_batch, due(4, new_one, Nanoseconds(0))), 2u) << "the same class";
}

// Chat comes again, and would have to wait until the batch has given it back.
TEST_F(SpacesTest, WhatATightEngineUsedOfLateIsNotLentToAPatientOne) {
  Session& chat = attach(kA, 2, false);
  Session& batch = attach(kA, 2, false);
  const RegionId of_chat = opened(chat), of_batch = opened(batch);
  pass(std::chrono::seconds(2000));
  const std::chrono::seconds age{1}, goal{5};
  const auto lent = [&] { return share(batch, of_batch, due(4, age, std::chrono::minutes(10))); };
  EXPECT_EQ(lent(), 4u) << "chat has never come";
  EXPECT_EQ(share(chat, of_chat, due(1, age, goal)), 1u);
  EXPECT_EQ(share(chat, of_chat, wanting(0)), 1u);
  EXPECT_EQ(lent(), 3u);
  pass(std::chrono::seconds(9));
  EXPECT_EQ(lent(), 3u) << "it may say nothing meanwhile";
  EXPECT_EQ(share(chat, of_chat, due(1, age, goal)), 1u);
  pass(std::chrono::seconds(9));
  EXPECT_EQ(lent(), 3u);
  pass(std::chrono::seconds(2));
  EXPECT_EQ(lent(), 4u);
}

TEST_F(SpacesTest, OfOneEngineOnlyTheTightestRequestsAreExpectedAgain) {
  Session& mixed = attach(kA, 2, false);
  Session& batch = attach(kA, 2, false);
  const RegionId of_mixed = opened(mixed), of_batch = opened(batch);
  pass(std::chrono::seconds(2000));
  const std::chrono::seconds age{1};
  const Demand patient = due(4, age, std::chrono::minutes(10));
  Demand both = due(1, age, std::chrono::seconds(5));
  both.wanted = kSlab * 4;
  both.needs.push_back({kSlab * 3, kSlab, age, std::chrono::minutes(10), 0, false});
  share(mixed, of_mixed, patient);
  share(mixed, of_mixed, wanting(0));
  EXPECT_EQ(share(batch, of_batch, patient), 4u) << "it is as patient";
  share(mixed, of_mixed, both);
  share(mixed, of_mixed, patient);
  share(mixed, of_mixed, wanting(0));
  EXPECT_EQ(share(batch, of_batch, patient), 3u);
}

// Where the first of both do not fit.
TEST_F(SpacesTest, AGoalThatNobodyCouldMeetIsNoWayToTheHeadOfTheLine) {
  Session& honest = attach(kA, 2, false);
  Session& hasty = attach(kA, 2, false);
  const RegionId of_honest = opened(honest), of_hasty = opened(hasty);
  pass(std::chrono::seconds(100));
  const auto large = [](Nanoseconds age, Nanoseconds ttft) {
    Demand demand = due(3, age, ttft);
    demand.needs[0].least = kSlab * 3;
    return demand;
  };
  share(hasty, of_hasty, large(std::chrono::seconds(2), Nanoseconds(1)));
  EXPECT_EQ(share(honest, of_honest, large(std::chrono::seconds(1), std::chrono::seconds(5))), 3u);
  EXPECT_EQ(share(hasty, of_hasty, large(std::chrono::seconds(2), Nanoseconds(1))), 1u);
  EXPECT_EQ(share(hasty, of_hasty, large(std::chrono::seconds(31), Nanoseconds(1))), 3u)
      << "its turn comes";
}

TEST_F(SpacesTest, RequestsThatNameAClassHaveItsGoal) {
  ground.context.tuning.slo["batch"].ttft = std::chrono::minutes(10);
  Session& chat = attach(kA, 2, false);
  Session& batch = attach(kA, 2, false);
  const RegionId of_chat = opened(chat), of_batch = opened(batch);
  pass(std::chrono::seconds(10));
  const std::chrono::seconds age{1};
  share(chat, of_chat, due(4, age, Nanoseconds(0)));
  const std::uint32_t number = slo_class_number("batch");
  EXPECT_EQ(share(batch, of_batch, due(4, age, Nanoseconds(0), number)), 1u);
  EXPECT_EQ(share(batch, of_batch, due(4, age, Nanoseconds(0), number + 1)), 2u);
}

}  // namespace
}  // namespace kvd::core
